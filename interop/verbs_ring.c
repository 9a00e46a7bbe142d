/*
 * Many processes in a ring: each writes to the next one, is written to by the one before it, and
 * checks what it got. All sleep while they wait.
 *
 *   verbs_ring [-d DEVICE] [-g GID INDEX] [-n PROCESSES] [-r ROUNDS] [-k]
 *
 * With -k all of them keep their devices afterwards until the program is ended.
 */
#include "crew.h"

#include <arpa/inet.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>

enum { MEMBERS_MAX = 300, BLOCK = 5000, ROUNDS_MAX = 64, GUARD_SECONDS = 300 };

/* What all see. */
static struct {
	struct card towards_next[MEMBERS_MAX], towards_previous[MEMBERS_MAX];
	atomic_int ready, connected, done;
} *table;

static int members = 250, rounds = 8, gid_index = 1;
static const char *name;

static void wait_for(atomic_int *count)
{
	atomic_fetch_add(count, 1);
	while (atomic_load(count) < members)
		usleep(2000);
}

/* The next completion, slept for. Completions of both queue pairs meet in one CQ. */
static struct ibv_wc sleep_for(struct ibv_cq *cq, struct ibv_comp_channel *channel)
{
	struct ibv_wc wc;
	void *context;
	int count;

	for (;;) {
		count = ibv_poll_cq(cq, 1, &wc);
		if (count)
			break;
		if (ibv_req_notify_cq(cq, 0))
			quit("ibv_req_notify_cq");
		count = ibv_poll_cq(cq, 1, &wc);
		if (count)
			break;
		if (ibv_get_cq_event(channel, &cq, &context))
			quit("ibv_get_cq_event: %s", strerror(errno));
		ibv_ack_cq_events(cq, 1);
	}
	if (count != 1 || wc.status != IBV_WC_SUCCESS)
		quit("completion: %s", ibv_wc_status_str(wc.status));
	return wc;
}

static void member(int self)
{
	int next = (self + 1) % members, previous = (self + members - 1) % members;
	struct device device = open_device(name, gid_index);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(device.context);
	struct ibv_cq *cq = ibv_create_cq(device.context, 4 * ROUNDS_MAX, NULL, channel, 0);
	uint8_t *memory = calloc(rounds + 1, BLOCK); /* one block for each round, and what is sent */
	struct ibv_mr *region = ibv_reg_mr(device.pd, memory, (rounds + 1) * BLOCK, ALL_ACCESS);
	struct end to, from;

	alarm(GUARD_SECONDS);
	if (!channel || !cq || !region)
		quit("setting up: %s", strerror(errno));
	to = make_end(&device, cq, ROUNDS_MAX, region);
	from = make_end(&device, cq, ROUNDS_MAX, region);
	table->towards_next[self] = to.card;
	table->towards_previous[self] = from.card;
	for (int i = 0; i < rounds; i++)
		if (post_receive(&from, i, memory, 0, region))
			quit("post_receive");
	wait_for(&table->ready);
	connect_end(&device, &to, &table->towards_previous[next], 16);
	connect_end(&device, &from, &table->towards_next[previous], 16);
	wait_for(&table->connected);

	for (int i = 0, sent = 0, received = 0; i < rounds; i++) {
		uint8_t *mine = memory + rounds * BLOCK;

		fill(mine, BLOCK, self * ROUNDS_MAX + i);
		if (post_request(&to, IBV_WR_RDMA_WRITE_WITH_IMM, i, mine, BLOCK, region,
				 table->towards_previous[next].address + i * BLOCK,
				 table->towards_previous[next].rkey))
			quit("post_send");
		while (sent <= i || received <= i) {
			struct ibv_wc wc = sleep_for(cq, channel);

			if (wc.opcode == IBV_WC_RDMA_WRITE)
				sent++;
			else if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == BLOCK)
				received++;
			else
				quit("completion: opcode %d, %u bytes", wc.opcode, wc.byte_len);
		}
		if (!check("written", memory + i * BLOCK, BLOCK, previous * ROUNDS_MAX + i))
			quit("round %d", i);
	}
	wait_for(&table->done);
}

int main(int argc, char **argv)
{
	bool keep = false;
	int option, wrong = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	while ((option = getopt(argc, argv, "d:g:n:r:k")) != -1) {
		switch (option) {
		case 'd': name = optarg; break;
		case 'g': gid_index = atoi(optarg); break;
		case 'n': members = atoi(optarg); break;
		case 'r': rounds = atoi(optarg); break;
		case 'k': keep = true; break;
		default: return 2;
		}
	}
	if (members < 1 || members > MEMBERS_MAX || rounds > ROUNDS_MAX)
		return 2;
	table = shared_memory(sizeof(*table));
	for (int i = 0; i < members; i++) {
		if (fork())
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		member(i);
		if (keep) {
			alarm(0);
			pause();
		}
		exit(0);
	}
	while (keep && atomic_load(&table->done) < members && waitpid(-1, NULL, WNOHANG) == 0)
		usleep(10000);
	if (keep && atomic_load(&table->done) == members)
		printf("verbs_ring: %d processes keep their devices\n", members);
	for (int i = 0, status; i < members && wait(&status) > 0; i++)
		wrong += status != 0;
	printf("verbs_ring: %d processes, %d of them failed\n", members, wrong);
	return wrong > 0;
}
