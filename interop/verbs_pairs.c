/*
 * Pairs of processes that exchange data without end and check every byte of it.
 *
 *   verbs_pairs [-d DEVICE] [-g GID INDEX] [-n PROCESSES] [-t SECONDS] [-s SEED]
 *
 *     -k MS      kill one of the processes, on average after so long each time, and start it again
 *     -b         each process has a bait besides: a queue pair of its own for strangers to attack,
 *                among memory that nobody was granted; where it is, is printed
 *     -c CYCLES  instead: two processes make, connect, use and destroy a queue pair so often
 *
 * Each end of a pair sends, writes, reads back what it wrote, and reads what the other end always
 * has. A queue pair that fails is replaced. Its failure is an error of the test unless the other
 * process was killed, or had its own queue pair replaced.
 */
#include "crew.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum {
	WORKERS_MAX = 128,
	BLOCK = 40000,     /* bytes of a message */
	RECEIVES = 4,      /* posted */
	DEPTH = 16,        /* of every queue */
	TIMEOUT = 15,      /* 131 ms */
	GUARD_SECONDS = 60, /* for anything that is waited for */
	SETTLED = 2,       /* seconds after which a worker has all memory that it needs */
	BAIT = 16384,      /* bytes that the bait grants */
	CARDS = 4,
};

/* The region: what the peer reads, what it writes, what it sends. */
enum { CONSTANT = 0, WRITTEN = BLOCK, RECEIVED = 2 * BLOCK, REGION = (2 + RECEIVES) * BLOCK };
/* What only this end uses. */
enum { SENT = 0, READ_BACK = BLOCK, READ = 2 * BLOCK, OWN = 3 * BLOCK };

/* What all processes see of one. */
struct worker {
	struct card cards[CARDS]; /* by epoch: a new one does not overwrite the last */
	atomic_uint incarnation;  /* how often it was killed */
	atomic_uint epoch;        /* number of its queue pair */
	atomic_uint connected_to; /* epoch of the other end's */
	atomic_uint step;         /* of the cycles */
	atomic_ullong bytes, messages, failures;
	atomic_long resident, resident_first;
};

static struct shared {
	atomic_bool stop;
	atomic_int wrong, ended;
	struct worker workers[WORKERS_MAX];
} *shared;

static const char *name;
static int gid_index = 1, workers = 2, cycles;
static bool bait;

static void wrong(int self, const char *what)
{
	printf("wrong: worker %d: %s\n", self, what);
	atomic_fetch_add(&shared->wrong, 1);
}

/* --- the bait ------------------------------------------------------------------------------ */

static struct {
	struct end end;
	struct ibv_mr *region;
	uint8_t *memory;
	double next;
	unsigned int renewals;
} lure;

/* A queue pair that is connected with itself, so that it answers whoever knows its numbers. */
static void renew_bait(const struct device *device)
{
	if (lure.end.qp) {
		struct ibv_qp_attr attributes;
		struct ibv_qp_init_attr init;

		if (ibv_query_qp(lure.end.qp, &attributes, IBV_QP_STATE, &init))
			quit("ibv_query_qp of the bait");
		if (attributes.qp_state == IBV_QPS_RTS)
			return;
		drop_end(&lure.end, true);
	}
	lure.end = make_end(device, NULL, DEPTH, lure.region);
	for (int i = 0; i < RECEIVES; i++)
		post_receive(&lure.end, i, lure.memory, BAIT, lure.region);
	connect_end(device, &lure.end, &lure.end.card, TIMEOUT);
	lure.renewals++;
}

/* Prints what an attacker needs: number, PSNs of the next requests in both directions, what is granted. */
static void tell(const char *what, const struct end *end, unsigned int length)
{
	struct ibv_qp_attr attributes;
	struct ibv_qp_init_attr init;

	if (ibv_query_qp(end->qp, &attributes, IBV_QP_SQ_PSN | IBV_QP_RQ_PSN, &init))
		quit("ibv_query_qp");
	printf("target %s %u %u %u %u %llu %u\n", what, end->card.qpn, attributes.rq_psn, attributes.sq_psn,
	       end->card.rkey, (unsigned long long)end->card.address, length);
}

/* Looks after it now and then, and tells where everything is. */
static void tend_bait(const struct device *device, int self, const struct end *flow)
{
	struct ibv_wc wc;

	if (!bait || seconds() < lure.next)
		return;
	if (!lure.memory) {
		lure.memory = guarded(BAIT);
		lure.region = ibv_reg_mr(device->pd, lure.memory, BAIT, ALL_ACCESS);
		if (!lure.region)
			quit("ibv_reg_mr of the bait");
	}
	renew_bait(device);
	/* what is posted to one in the error state comes back at once */
	while (ibv_poll_cq(lure.end.cq, 1, &wc) > 0 && wc.status != IBV_WC_WR_FLUSH_ERR)
		post_receive(&lure.end, 0, lure.memory, BAIT, lure.region);
	if (!check_guards("around the bait", lure.memory, BAIT))
		wrong(self, "memory that was not granted has changed");
	tell("bait", &lure.end, BAIT);
	tell("flow", flow, REGION);
	lure.next = seconds() + 0.3;
}

/* --- a worker ------------------------------------------------------------------------------ */

/* Sleeps until the CQ may have something, a second at most. */
static void sleep_on(struct ibv_cq *cq, struct ibv_comp_channel *channel, struct ibv_wc *wc, int *count)
{
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
	void *context;

	if (ibv_req_notify_cq(cq, 0))
		quit("ibv_req_notify_cq");
	*count = ibv_poll_cq(cq, 1, wc);
	if (*count || poll(&readable, 1, 1000) <= 0)
		return;
	if (ibv_get_cq_event(channel, &cq, &context))
		quit("ibv_get_cq_event: %s", strerror(errno));
	ibv_ack_cq_events(cq, 1);
}

/* Counts naps and not seconds: a machine that stood still for a while is no finding. */
static struct ibv_wc next_completion(struct ibv_cq *cq, struct ibv_comp_channel *channel)
{
	struct ibv_wc wc = { 0 };
	int count, tries = 0;

	while (!(count = ibv_poll_cq(cq, 1, &wc))) {
		if (tries++ < 200)
			sched_yield();
		else
			sleep_on(cq, channel, &wc, &count);
		if (count)
			break;
		if (tries > 200 + GUARD_SECONDS)
			quit("nothing completed for %d s", GUARD_SECONDS);
	}
	if (count < 0)
		quit("ibv_poll_cq");
	return wc;
}

/* What a process works with; only the queue pair is made anew after a failure. */
struct bench {
	int self, peer;
	struct device device;
	struct ibv_comp_channel *channel;
	uint8_t *memory, *own;
	struct ibv_mr *region, *own_region;
};

static struct bench set_up(int self)
{
	struct bench b = { .self = self, .peer = self ^ 1, .device = open_device(name, gid_index),
			   .memory = guarded(REGION), .own = guarded(OWN) };

	b.channel = ibv_create_comp_channel(b.device.context);
	b.region = ibv_reg_mr(b.device.pd, b.memory, REGION, ALL_ACCESS);
	b.own_region = ibv_reg_mr(b.device.pd, b.own, OWN, IBV_ACCESS_LOCAL_WRITE);
	if (!b.channel || !b.region || !b.own_region)
		quit("setting up: %s", strerror(errno));
	fill(b.memory + CONSTANT, BLOCK, self);
	return b;
}

static uint32_t message_number(int sender, uint32_t count)
{
	return 1000 + count * WORKERS_MAX + sender;
}

static void receive_into(struct bench *b, struct end *end, uint64_t place)
{
	int error = post_receive(end, place, b->memory + RECEIVED + place * BLOCK, BLOCK, b->region);

	if (error)
		quit("post_recv: %s", strerror(error));
}

/* Finds the other end's newest queue pair, one that this end was not connected with before. */
static bool find_peer(struct bench *b, struct card *card, unsigned int *epoch)
{
	struct worker *me = &shared->workers[b->self], *peer = &shared->workers[b->peer];
	double deadline = seconds() + GUARD_SECONDS;

	while (!atomic_load(&shared->stop)) {
		*epoch = atomic_load(&peer->epoch);
		if (*epoch && *epoch != atomic_load(&me->connected_to)) {
			*card = peer->cards[*epoch % CARDS];
			if (atomic_load(&peer->epoch) == *epoch)
				return true;
		}
		if (seconds() > deadline)
			quit("worker %d waits in vain for its peer", b->self);
		usleep(1000);
	}
	return false;
}

/* One round: a SEND, a WRITE that is read back, and a READ, while the other end does the same. */
static enum ibv_wc_status exchange(struct bench *b, struct end *end, const struct card *peer, uint32_t round,
				   uint32_t *received)
{
	struct worker *me = &shared->workers[b->self];
	uint32_t number = message_number(b->self, round);
	int left = 4, error;

	fill(b->own + SENT, BLOCK, number);
	error = post_request(end, IBV_WR_SEND, 1000, b->own + SENT, BLOCK, b->own_region, 0, 0) ||
		post_request(end, IBV_WR_RDMA_WRITE, 1000, b->own + SENT, BLOCK, b->own_region,
			     peer->address + WRITTEN, peer->rkey) ||
		post_request(end, IBV_WR_RDMA_READ, 1000, b->own + READ_BACK, BLOCK, b->own_region,
			     peer->address + WRITTEN, peer->rkey) ||
		post_request(end, IBV_WR_RDMA_READ, 1000, b->own + READ, BLOCK, b->own_region,
			     peer->address + CONSTANT, peer->rkey);
	if (error)
		quit("post_send");
	while (left > 0) {
		struct ibv_wc wc = next_completion(end->cq, b->channel);

		if (wc.status != IBV_WC_SUCCESS)
			return wc.status;
		if (wc.wr_id == 1000) {
			left--;
		} else {
			if (!check("received", b->memory + RECEIVED + wc.wr_id * BLOCK, BLOCK,
				   message_number(b->peer, *received)))
				wrong(b->self, "a message with wrong data");
			(*received)++;
			receive_into(b, end, wc.wr_id);
		}
	}
	if (!check("read back", b->own + READ_BACK, BLOCK, number))
		wrong(b->self, "what was written and read");
	if (!check("read", b->own + READ, BLOCK, b->peer))
		wrong(b->self, "what was read");
	atomic_fetch_add(&me->bytes, 4ull * BLOCK);
	atomic_fetch_add(&me->messages, 4);
	return IBV_WC_SUCCESS;
}

static void watch_memory(struct worker *me, double start)
{
	long now = resident_kib();

	atomic_store(&me->resident, now);
	if (seconds() - start < SETTLED)
		atomic_store(&me->resident_first, now);
}

/* One queue pair until it fails or the time is over. */
static void one_life(struct bench *b, double start)
{
	struct worker *me = &shared->workers[b->self], *other = &shared->workers[b->peer];
	struct ibv_cq *cq = ibv_create_cq(b->device.context, 2 * DEPTH, NULL, b->channel, 0);
	struct end end;
	struct card card;
	unsigned int mine, theirs, incarnation;
	uint32_t round = 0, received = 0;
	enum ibv_wc_status status = IBV_WC_SUCCESS;

	if (!cq)
		quit("ibv_create_cq: %s", strerror(errno));
	end = make_end(&b->device, cq, DEPTH, b->region);
	mine = atomic_load(&me->epoch) + 1;
	me->cards[mine % CARDS] = end.card;
	atomic_store(&me->epoch, mine);
	for (int i = 0; i < RECEIVES; i++)
		receive_into(b, &end, i);
	if (find_peer(b, &card, &theirs)) {
		incarnation = atomic_load(&other->incarnation);
		atomic_store(&me->connected_to, theirs);
		connect_end(&b->device, &end, &card, TIMEOUT);
		while (status == IBV_WC_SUCCESS && !atomic_load(&shared->stop)) {
			status = exchange(b, &end, &card, round++, &received);
			watch_memory(me, start);
			tend_bait(&b->device, b->self, &end);
		}
		/* the other end must not have been what this queue pair was connected with */
		if (status != IBV_WC_SUCCESS && !atomic_load(&shared->stop)) {
			atomic_fetch_add(&me->failures, 1);
			if (incarnation == atomic_load(&other->incarnation) &&
			    theirs == atomic_load(&other->epoch) && mine == atomic_load(&other->connected_to)) {
				printf("wrong: worker %d, round %u: %s (%d) with nobody killed\n", b->self, round,
				       ibv_wc_status_str(status), status);
				atomic_fetch_add(&shared->wrong, 1);
			}
		}
	}
	if (atomic_load(&shared->stop)) { /* it may still be needed by the other end's last round */
		double deadline = seconds() + 5;

		atomic_fetch_add(&shared->ended, 1);
		while (atomic_load(&shared->ended) < workers && seconds() < deadline)
			usleep(1000);
	}
	drop_end(&end, true);
	if (!check_guards("around the region", b->memory, REGION) ||
	    !check_guards("around what is private", b->own, OWN))
		wrong(b->self, "memory that was not registered has changed");
}

static void work(int self)
{
	double start = seconds();
	struct bench b = set_up(self);

	while (!atomic_load(&shared->stop))
		one_life(&b, start);
	if (bait)
		printf("worker %d: %u baits\n", self, lure.renewals);
}

/* --- cycles -------------------------------------------------------------------------------- */

/* Neither goes on before both have come here. */
static void meet(struct bench *b)
{
	unsigned int step = atomic_fetch_add(&shared->workers[b->self].step, 1) + 1;
	double deadline = seconds() + GUARD_SECONDS;

	for (unsigned int tries = 0; atomic_load(&shared->workers[b->peer].step) < step; tries++) {
		if (tries % 1024 == 1023 && seconds() > deadline)
			quit("worker %d waits in vain for its peer", b->self);
		sched_yield();
	}
}

/* Prints resident memory at each power of ten from 100 on, and at the end. */
static void cycle(int self)
{
	struct bench b = set_up(self);
	int mark = 100;

	for (int i = 1; i <= cycles; i++) {
		struct end end = make_end(&b.device, NULL, DEPTH, b.region);
		struct ibv_wc wc;
		int left = 3;

		shared->workers[self].cards[0] = end.card;
		receive_into(&b, &end, 0);
		meet(&b);
		connect_end(&b.device, &end, &shared->workers[b.peer].cards[0], TIMEOUT);
		meet(&b);
		fill(b.own + SENT, 64, message_number(self, i));
		if (post_request(&end, IBV_WR_RDMA_WRITE, 1000, b.own + SENT, BLOCK, b.own_region,
				 shared->workers[b.peer].cards[0].address + WRITTEN,
				 shared->workers[b.peer].cards[0].rkey) ||
		    post_request(&end, IBV_WR_SEND, 1000, b.own + SENT, 64, b.own_region, 0, 0))
			quit("post_send");
		while (left > 0) {
			wc = await(end.cq, "a cycle");
			if (wc.status != IBV_WC_SUCCESS)
				quit("cycle %d: %s", i, ibv_wc_status_str(wc.status));
			left--;
		}
		if (!check("received", b.memory + RECEIVED, 64, message_number(b.peer, i)) ||
		    !check("written", b.memory + WRITTEN, 64, message_number(b.peer, i)))
			wrong(self, "a cycle with wrong data");
		meet(&b);
		drop_end(&end, true);
		if (i == mark || i == cycles) {
			printf("worker %d: cycle %d: resident %ld KiB\n", self, i, resident_kib());
			mark *= 10;
		}
	}
}

/* --- all together -------------------------------------------------------------------------- */

static pid_t start_worker(int self)
{
	pid_t child = fork();

	if (child < 0)
		quit("fork: %s", strerror(errno));
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (cycles)
			cycle(self);
		else
			work(self);
		exit(0);
	}
	return child;
}

/* Workers that have ended, although nobody killed them; with EXPECTED waits until all have. */
static void look_for_the_dead(pid_t *children, bool expected)
{
	for (int i = 0, status; i < workers; i++) {
		if (!children[i] || waitpid(children[i], &status, expected ? 0 : WNOHANG) <= 0)
			continue;
		if (!expected || status) {
			printf("wrong: worker %d ended with status %#x\n", i, status);
			atomic_fetch_add(&shared->wrong, 1);
		}
		children[i] = 0;
	}
}

int main(int argc, char **argv)
{
	int option, kill_ms = 0, duration = 10, kills = 0;
	unsigned int seed = getpid();
	pid_t children[WORKERS_MAX];
	unsigned long long bytes = 0, failures = 0;
	double start, next_kill;

	setvbuf(stdout, NULL, _IOLBF, 0);
	while ((option = getopt(argc, argv, "d:g:n:t:s:k:bc:")) != -1) {
		switch (option) {
		case 'd': name = optarg; break;
		case 'g': gid_index = atoi(optarg); break;
		case 'n': workers = atoi(optarg); break;
		case 't': duration = atoi(optarg); break;
		case 's': seed = atoi(optarg); break;
		case 'k': kill_ms = atoi(optarg); break;
		case 'b': bait = true; break;
		case 'c': cycles = atoi(optarg); break;
		default: return 2;
		}
	}
	if (workers < 2 || workers > WORKERS_MAX || workers % 2 || (cycles && workers != 2))
		return 2;
	shared = shared_memory(sizeof(*shared));
	srand(seed);
	printf("verbs_pairs: %d processes, seed %u\n", workers, seed);
	for (int i = 0; i < workers; i++)
		children[i] = start_worker(i);

	start = seconds();
	next_kill = start + 1;
	while (!cycles && seconds() - start < duration) {
		usleep(10000);
		look_for_the_dead(children, false);
		if (kill_ms && seconds() > next_kill) {
			int victim = rand() % workers;
			struct worker *worker = &shared->workers[victim];

			next_kill = seconds() + (1 + rand() % (2 * kill_ms)) / 1000.0;
			if (!children[victim])
				continue;
			atomic_fetch_add(&worker->incarnation, 1);
			kill(children[victim], SIGKILL);
			waitpid(children[victim], NULL, 0);
			kills++;
			usleep(rand() % 100000);
			atomic_store(&worker->resident_first, 0);
			children[victim] = start_worker(victim);
		}
	}
	atomic_store(&shared->stop, !cycles);
	look_for_the_dead(children, true);

	for (int i = 0; i < workers; i++) {
		struct worker *worker = &shared->workers[i];

		bytes += atomic_load(&worker->bytes);
		failures += atomic_load(&worker->failures);
		if (!cycles && !kill_ms)
			printf("worker %d: resident %ld KiB, %ld KiB more than at first\n", i,
			       atomic_load(&worker->resident),
			       atomic_load(&worker->resident) - atomic_load(&worker->resident_first));
		if (!cycles && !atomic_load(&worker->messages)) {
			printf("wrong: worker %d did nothing\n", i);
			atomic_fetch_add(&shared->wrong, 1);
		}
	}
	printf("verbs_pairs: %.1f MB/s checked, %d kills, %llu queue pairs failed with them, %d wrong\n",
	       bytes / 1e6 / (seconds() - start), kills, failures, atomic_load(&shared->wrong));
	return atomic_load(&shared->wrong) > 0;
}
