/*
 * Threads of one process that make, use and destroy queue pairs of their own, and check every byte.
 *
 *   verbs_threads [-d DEVICE] [-g GID INDEX] [-n THREADS] [-r ROUNDS]
 *
 *     -l          packets are lost, also those that refuse a request, and nobody repeats these
 *     -b SECONDS  instead: how fast THREADS threads write 64 KiB messages into another process,
 *                 each by a queue pair of its own
 */
#define _GNU_SOURCE /* CPU_COUNT */
#include "crew.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum {
	THREADS_MAX = 32,
	BLOCK = 20000,
	DEPTH = 16,
	TIMEOUT = 14, /* 67 ms */
	POSTED = 200, /* by each thread that shares a CQ */
	VICTIMS = 40, /* regions that are taken away while written */
	VICTIM = 1 << 20,
	STAMP = 0x5a,
	MESSAGE = 65536, /* of the measurement */
	AREA = 8 * MESSAGE,
};

static struct device device;
static int threads = 4, rounds = 300;
static bool is_lossy;

/* Runs BODY in so many threads, each with its number, and waits for their ends. */
static void run_threads(int count, void *(*body)(void *))
{
	pthread_t ids[THREADS_MAX];

	for (long i = 0; i < count; i++)
		if (pthread_create(&ids[i], NULL, body, (void *)i))
			quit("pthread_create");
	for (int i = 0; i < count; i++)
		pthread_join(ids[i], NULL);
}

static void await_success(struct ibv_cq *cq, const char *what, uint64_t id)
{
	struct ibv_wc wc = await(cq, what);

	if (wc.status != IBV_WC_SUCCESS || wc.wr_id != id)
		quit("%s: request %llu: %s", what, (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
}

static struct ibv_mr *registered(void *memory, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr(device.pd, memory, length, ALL_ACCESS);

	if (!mr)
		quit("ibv_reg_mr: %s", strerror(errno));
	return mr;
}

static void connect_ends(struct end *one, struct end *other)
{
	connect_end(&device, one, &other->card, TIMEOUT);
	connect_end(&device, other, &one->card, TIMEOUT);
}

static unsigned int slot_of(const struct end *end)
{
	return end->card.qpn >> 16;
}

/* --- each thread by itself ------------------------------------------------------------------- */

enum { WRITTEN = 0, RECEIVED = BLOCK, SENT = 2 * BLOCK, READ = 3 * BLOCK, REGION = 4 * BLOCK };

/* Two threads with successive numbers are connected with each other. */
static struct {
	struct end end;
	struct ibv_mr *mr;
	uint8_t memory[REGION];
} own[THREADS_MAX];
static pthread_barrier_t all;

/* Each round: writes to the other, sends, reads back what was written. Both see it in that order. */
static void *exchange(void *argument)
{
	long self = (long)argument, other = self ^ 1;
	uint8_t *memory = own[self].memory;
	struct end *end = &own[self].end;
	struct card *peer = &own[other].end.card;

	own[self].mr = registered(memory, REGION);
	*end = make_end(&device, NULL, DEPTH, own[self].mr);
	pthread_barrier_wait(&all);
	connect_end(&device, end, peer, TIMEOUT);
	post_receive(end, 1, memory + RECEIVED, BLOCK, own[self].mr);
	pthread_barrier_wait(&all);
	for (int round = 0; round < rounds; round++) {
		uint32_t mine = self << 16 | round, theirs = other << 16 | round;
		uint32_t length = 1 + (uint32_t)(round * 7919) % BLOCK;
		int pending = 4;

		fill(memory + SENT, length, mine);
		if (post_request(end, IBV_WR_RDMA_WRITE, 2, memory + SENT, length, own[self].mr,
				 peer->address + WRITTEN, peer->rkey) ||
		    post_request(end, IBV_WR_RDMA_READ, 3, memory + READ, length, own[self].mr,
				 peer->address + WRITTEN, peer->rkey) ||
		    post_request(end, IBV_WR_SEND, 4, memory + SENT, length, own[self].mr, 0, 0))
			quit("ibv_post_send in round %d", round);
		for (; pending; pending--) {
			struct ibv_wc wc = await(end->cq, "exchange");

			if (wc.status != IBV_WC_SUCCESS || wc.qp_num != end->card.qpn)
				quit("round %d: request %d: %s", round, (int)wc.wr_id,
				     ibv_wc_status_str(wc.status));
		}
		if (!check("written", memory + WRITTEN, length, theirs) ||
		    !check("received", memory + RECEIVED, length, theirs) ||
		    !check("read back", memory + READ, length, mine))
			quit("thread %ld, round %d", self, round);
		/* the other one sends again only after both have looked */
		post_receive(end, 1, memory + RECEIVED, BLOCK, own[self].mr);
		pthread_barrier_wait(&all);
	}
	return NULL;
}

/* Whether threads have as many slots as there are processors for them. */
static void count_slots(void)
{
	bool seen[256] = { false };
	int slots = 0, wanted;
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set))
		quit("sched_getaffinity");
	wanted = CPU_COUNT(&set) < threads ? CPU_COUNT(&set) : threads;
	if (wanted > 16)
		wanted = 16;
	for (int i = 0; i < threads; i++) {
		slots += !seen[slot_of(&own[i].end)];
		seen[slot_of(&own[i].end)] = true;
	}
	printf("%d threads in %d slots: %d rounds checked\n", threads, slots, rounds);
	if (slots != wanted)
		quit("wrong: not %d slots", wanted);
}

/* --- a CQ that several threads fill ---------------------------------------------------------- */

static struct end sharing[2];
static struct ibv_cq *shared_cq;
static struct ibv_mr *shared_mr;
static uint8_t shared_memory_of_two[2 * BLOCK];
static pthread_barrier_t two, three;

static void *post_many(void *argument)
{
	long self = (long)argument;

	sharing[self] = make_end(&device, shared_cq, POSTED + 1, shared_mr);
	pthread_barrier_wait(&two);
	connect_end(&device, &sharing[self], &sharing[!self].card, TIMEOUT);
	pthread_barrier_wait(&three);
	for (int i = 0; i < POSTED; i++)
		if (post_request(&sharing[self], IBV_WR_RDMA_WRITE, i, shared_memory_of_two + self * BLOCK, 3000,
				 shared_mr, (uintptr_t)shared_memory_of_two + !self * BLOCK + 4000,
				 shared_mr->rkey))
			quit("ibv_post_send of a thread that shares its CQ");
	return NULL;
}

/* Two threads post, a third takes the completions of both; then somebody else destroys. */
static void share_a_queue(void)
{
	pthread_t ids[2];
	int next[2] = { 0, 0 };

	shared_cq = ibv_create_cq(device.context, 2 * POSTED, NULL, NULL, 0);
	shared_mr = registered(shared_memory_of_two, sizeof(shared_memory_of_two));
	if (!shared_cq || pthread_barrier_init(&two, NULL, 2) || pthread_barrier_init(&three, NULL, 3))
		quit("sharing: %s", strerror(errno));
	for (int i = 0; i < 2; i++) {
		fill(shared_memory_of_two + i * BLOCK, 3000, i);
		if (pthread_create(&ids[i], NULL, post_many, (void *)(long)i))
			quit("pthread_create");
	}
	pthread_barrier_wait(&three);
	for (int i = 0; i < 2 * POSTED; i++) {
		struct ibv_wc wc = await(shared_cq, "shared CQ");
		int of = wc.qp_num == sharing[1].card.qpn;

		if (wc.status != IBV_WC_SUCCESS || wc.wr_id != (uint64_t)next[of]++)
			quit("shared CQ: thread %d, request %d: %s", of, (int)wc.wr_id,
			     ibv_wc_status_str(wc.status));
	}
	for (int i = 0; i < 2; i++) {
		pthread_join(ids[i], NULL);
		if (!check("shared", shared_memory_of_two + i * BLOCK + 4000, 3000, !i))
			quit("sharing");
	}
	if (slot_of(&sharing[0]) != slot_of(&sharing[1]))
		quit("whoever polls one CQ serves two slots");
	for (int i = 0; i < 2; i++)
		drop_end(&sharing[i], false);
	if (ibv_destroy_cq(shared_cq) || ibv_dereg_mr(shared_mr))
		quit("sharing: taking down");
	printf("a CQ of two threads: %d completions in order\n", 2 * POSTED);
}

/* --- a CQ that two slots fill ---------------------------------------------------------------- */

/* Waits for the event of a CQ, and for its completion. */
static void sleep_on(struct ibv_comp_channel *channel, struct ibv_cq *cq, struct end *sender, uint64_t id)
{
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
	struct ibv_cq *which;
	void *context;

	/* the first time it was armed before anything could complete to it */
	if (id && ibv_req_notify_cq(cq, 0))
		quit("ibv_req_notify_cq");
	if (post_request(sender, IBV_WR_SEND, id, own[0].memory, 100, own[0].mr, 0, 0))
		quit("ibv_post_send to a sleeper");
	if (poll(&readable, 1, 60000) != 1 || ibv_get_cq_event(channel, &which, &context) || which != cq)
		quit("no event of a CQ of two slots");
	ibv_ack_cq_events(cq, 1);
	await_success(cq, "a CQ of two slots", id);
	await_success(sender->cq, "to a CQ of two slots", id);
}

/* Two queue pairs, of different slots if there are two, receive to one CQ. */
static void mix_slots(void)
{
	struct end *with[2] = { &own[0].end, &own[1].end };
	struct ibv_comp_channel *channel = ibv_create_comp_channel(device.context);
	struct ibv_cq *cq = channel ? ibv_create_cq(device.context, DEPTH, NULL, channel, 0) : NULL;
	struct ibv_qp_init_attr init = { .recv_cq = cq, .cap = { DEPTH, DEPTH, 1, 1, 0 },
					 .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct end receivers[2], senders[2];

	if (!cq || ibv_req_notify_cq(cq, 0))
		quit("a channel: %s", strerror(errno));
	for (int i = 1; i < threads && slot_of(with[1]) == slot_of(with[0]); i++)
		with[1] = &own[i].end;
	for (int i = 0; i < 2; i++) {
		init.send_cq = with[i]->cq;
		receivers[i] = (struct end){ .qp = ibv_create_qp(device.pd, &init), .cq = cq };
		if (!receivers[i].qp || ibv_modify_qp(receivers[i].qp, &attributes,
						      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
							      IBV_QP_ACCESS_FLAGS))
			quit("a queue pair with two CQs: %s", strerror(errno));
		receivers[i].card = with[i]->card;
		receivers[i].card.qpn = receivers[i].qp->qp_num;
		senders[i] = make_end(&device, NULL, DEPTH, own[0].mr);
		connect_ends(&receivers[i], &senders[i]);
		if (slot_of(&receivers[i]) != slot_of(with[i]))
			quit("a queue pair left the slot of its send CQ");
	}
	for (uint64_t turn = 0; turn < 20; turn++) {
		struct end *receiver = &receivers[turn % 2];

		post_receive(receiver, turn, own[0].memory + 4096, 100, own[0].mr);
		sleep_on(channel, cq, &senders[turn % 2], turn);
	}
	/* and without sleep, whichever comes first */
	for (uint64_t turn = 0; turn < 2 * POSTED; turn++) {
		uint64_t seen = 0;

		for (int i = 0; i < 2; i++) {
			post_receive(&receivers[i], i, own[0].memory + 4096, 100, own[0].mr);
			post_request(&senders[i], IBV_WR_SEND, i, own[0].memory, 100, own[0].mr, 0, 0);
		}
		for (int i = 0; i < 2; i++)
			seen |= 1 << await(cq, "two slots").wr_id;
		for (int i = 0; i < 2; i++)
			await_success(senders[i].cq, "to two slots", i);
		if (seen != 3)
			quit("two slots: completions %llu", (unsigned long long)seen);
	}
	printf("a CQ filled from slots %u and %u: slept and polled\n", slot_of(&receivers[0]),
	       slot_of(&receivers[1]));
	for (int i = 0; i < 2; i++) {
		drop_end(&receivers[i], false);
		drop_end(&senders[i], true);
	}
	if (ibv_destroy_cq(cq) || ibv_destroy_comp_channel(channel))
		quit("two CQs: taking down");
}

/* --- memory that is taken away --------------------------------------------------------------- */

static struct {
	struct ibv_mr *mr;
	uint8_t memory[VICTIM];
	atomic_uint epoch; /* odd while it may be written */
	atomic_ullong writes, refused;
} victim;
static pthread_barrier_t turns;

/* Thread 0 writes until it is refused, thread 1 has the queue pair that it writes through. */
static void *write_victim(void *argument)
{
	static struct end ends[2];
	long self = (long)argument;
	uint8_t *source = own[self].memory;

	for (int turn = 0; turn < VICTIMS; turn++) {
		struct ibv_wc wc = { 0 };
		int count = 0;

		pthread_barrier_wait(&turns);
		ends[self] = make_end(&device, NULL, DEPTH, own[self].mr);
		pthread_barrier_wait(&two);
		connect_end(&device, &ends[self], &ends[!self].card, TIMEOUT);
		pthread_barrier_wait(&turns);
		if (self == 0) {
			for (int i = 0; i < 4; i++)
				post_request(&ends[0], IBV_WR_RDMA_WRITE, i, source, BLOCK, own[0].mr,
					     (uintptr_t)victim.memory + i * BLOCK, victim.mr->rkey);
			for (;;) {
				wc = await(ends[0].cq, "victim");
				if (wc.status != IBV_WC_SUCCESS)
					break;
				atomic_fetch_add(&victim.writes, 1);
				post_request(&ends[0], IBV_WR_RDMA_WRITE, wc.wr_id, source, BLOCK, own[0].mr,
					     (uintptr_t)victim.memory + wc.wr_id * BLOCK, victim.mr->rkey);
			}
			if (wc.status != IBV_WC_REM_ACCESS_ERR &&
			    !(is_lossy && wc.status == IBV_WC_RETRY_EXC_ERR))
				quit("a region that is gone: %s", ibv_wc_status_str(wc.status));
			atomic_fetch_add(&victim.refused, 1);
			atomic_fetch_add(&victim.epoch, 1);
		} else {
			while (!(atomic_load(&victim.epoch) & 1) && count >= 0)
				count = ibv_poll_cq(ends[1].cq, 1, &wc);
		}
		pthread_barrier_wait(&turns);
		drop_end(&ends[self], true);
	}
	return NULL;
}

/* Deregisters what other threads write, and uses the memory for something else at once. */
static void take_memory_away(void)
{
	pthread_t ids[2];

	if (pthread_barrier_init(&turns, NULL, 3))
		quit("pthread_barrier_init");
	for (long i = 0; i < 2; i++)
		if (pthread_create(&ids[i], NULL, write_victim, (void *)i))
			quit("pthread_create");
	for (int turn = 0; turn < VICTIMS; turn++) {
		uint64_t before = atomic_load(&victim.writes);
		uint32_t rkey;

		victim.mr = registered(victim.memory, VICTIM);
		rkey = victim.mr->rkey;
		atomic_store(&victim.epoch, 0);
		pthread_barrier_wait(&turns);
		pthread_barrier_wait(&turns);
		while (atomic_load(&victim.writes) < before + 3)
			sched_yield();
		usleep(turn * 50);
		if (ibv_dereg_mr(victim.mr))
			quit("ibv_dereg_mr");
		memset(victim.memory, STAMP, VICTIM);
		while (!(atomic_load(&victim.epoch) & 1))
			sched_yield();
		if (!check_all("after ibv_dereg_mr", victim.memory, VICTIM, STAMP))
			quit("memory with key %#x was written after it was taken away", rkey);
		pthread_barrier_wait(&turns);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(ids[i], NULL);
	printf("%llu regions taken away during %llu writes\n", atomic_load(&victim.refused),
	       atomic_load(&victim.writes));
}

/* --- measurement ----------------------------------------------------------------------------- */

static struct bench {
	struct card writers[THREADS_MAX], targets[THREADS_MAX];
	atomic_int written, ready;
	atomic_bool stop;
	atomic_ullong messages[THREADS_MAX];
} *bench;
static double duration;

static void wait_for(atomic_int *count, const char *what)
{
	double deadline = seconds() + 60;

	while (atomic_load(count) < threads) {
		if (seconds() > deadline)
			quit("no %s", what);
		usleep(1000);
	}
}

static void *be_target(void *argument)
{
	long self = (long)argument;
	struct ibv_mr *mr = registered(malloc(AREA), AREA);
	struct end end = make_end(&device, NULL, DEPTH, mr);

	bench->targets[self] = end.card;
	wait_for(&bench->written, "writers");
	connect_end(&device, &end, &bench->writers[self], TIMEOUT);
	atomic_fetch_add(&bench->ready, 1);
	while (!atomic_load(&bench->stop))
		usleep(10000);
	return NULL;
}

static void *stream(void *argument)
{
	long self = (long)argument;
	struct ibv_mr *mr = registered(malloc(MESSAGE), MESSAGE);
	struct end end = make_end(&device, NULL, DEPTH, mr);
	struct card *to = &bench->targets[self];
	double stop;

	bench->writers[self] = end.card;
	atomic_fetch_add(&bench->written, 1);
	wait_for(&bench->ready, "targets");
	connect_end(&device, &end, to, TIMEOUT);
	stop = seconds() + duration;
	for (int i = 0; i < DEPTH; i++)
		post_request(&end, IBV_WR_RDMA_WRITE, i, mr->addr, MESSAGE, mr, to->address + i % 8 * MESSAGE,
			     to->rkey);
	while (seconds() < stop) {
		struct ibv_wc wc = await(end.cq, "stream");

		if (wc.status != IBV_WC_SUCCESS)
			quit("stream: %s", ibv_wc_status_str(wc.status));
		atomic_fetch_add(&bench->messages[self], 1);
		post_request(&end, IBV_WR_RDMA_WRITE, wc.wr_id, mr->addr, MESSAGE, mr,
			     to->address + wc.wr_id % 8 * MESSAGE, to->rkey);
	}
	return NULL;
}

static int measure(const char *name, int gid_index)
{
	unsigned long long messages = 0;
	pid_t child;

	bench = shared_memory(sizeof(*bench));
	child = fork();
	if (child < 0)
		quit("fork");
	if (child == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	device = open_device(name, gid_index);
	run_threads(threads, child ? stream : be_target);
	if (!child)
		_exit(0);
	atomic_store(&bench->stop, true);
	waitpid(child, NULL, 0);
	for (int i = 0; i < threads; i++) {
		printf("thread %d, slot %u: %.0f MB/s\n", i, bench->writers[i].qpn >> 16,
		       atomic_load(&bench->messages[i]) * (double)MESSAGE / 1e6 / duration);
		messages += atomic_load(&bench->messages[i]);
	}
	printf("%d threads: %.0f MB/s\n", threads, messages * (double)MESSAGE / 1e6 / duration);
	return 0;
}

int main(int argc, char **argv)
{
	const char *name = NULL;
	int option, gid_index = 1;

	setvbuf(stdout, NULL, _IOLBF, 0);
	while ((option = getopt(argc, argv, "d:g:n:r:b:l")) != -1) {
		switch (option) {
		case 'd': name = optarg; break;
		case 'g': gid_index = atoi(optarg); break;
		case 'n': threads = atoi(optarg); break;
		case 'r': rounds = atoi(optarg); break;
		case 'l': is_lossy = true; break;
		case 'b': duration = atof(optarg); break;
		default: return 2;
		}
	}
	if (threads < 1 || threads > THREADS_MAX || (duration <= 0 && threads % 2))
		quit("1 to %d threads, or pairs of them", THREADS_MAX);
	if (duration > 0)
		return measure(name, gid_index);

	device = open_device(name, gid_index);
	if (pthread_barrier_init(&all, NULL, threads))
		quit("pthread_barrier_init");
	run_threads(threads, exchange);
	count_slots();
	share_a_queue();
	mix_slots();
	take_memory_away();
	/* those who made them are gone */
	for (int i = 0; i < threads; i++) {
		drop_end(&own[i].end, true);
		if (ibv_dereg_mr(own[i].mr))
			quit("ibv_dereg_mr");
	}
	if (ibv_dealloc_pd(device.pd) || ibv_close_device(device.context))
		quit("taking down");
	printf("verbs_threads: all gone\n");
	return 0;
}
