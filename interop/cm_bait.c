/* A server that takes every connection and grants a little memory, for `cargo xtask soak streams` to
 * attack, and a client in a process of its own whose transfer must not suffer from it.
 *
 *   cm_bait SECONDS ADDRESS PORT
 *
 * Private data of a reply: address, key and length of what was granted. The server looks again and
 * again whether a byte changed that was granted to nobody; the client reads back all that it
 * writes. Prints "listening" once it does, and at last how fast the transfer was. */

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

enum {
	GUARD = 64 << 10,
	BAIT = 16 << 10,
	INBOX = 8 << 10,
	FLOW = 1 << 20,
	RECEIVES = 8,
	RECEIVE_SIZE = INBOX / RECEIVES,
	/* At once; others are refused. */
	BAITS = 64,
	MESSAGE_MAX = 64 << 10,
	BLANK = 0xee,
	PATIENCE_MS = 30000,
};

/* Where everything is in the server's buffer: a guard before each part, and one behind the last. */
enum {
	BAIT_AT = GUARD,
	INBOX_AT = BAIT_AT + BAIT + GUARD,
	FLOW_AT = INBOX_AT + INBOX + GUARD,
	WHOLE = FLOW_AT + FLOW + GUARD,
};

static const char FLOW_WISH[] = "flow";

struct offer {
	uint64_t address;
	uint32_t rkey;
	uint32_t length;
};

static const struct addrinfo *address;

static void fail(const char *what)
{
	fprintf(stderr, "wrong: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* --- the server --- */

struct bait {
	struct rdma_cm_id *id;
	int is_flow;
};

static uint8_t *buffer;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *bait_mr, *inbox_mr, *flow_mr;
static struct bait baits[BAITS];
static unsigned long taken, refused, ended;

static void open_device(struct ibv_context *verbs)
{
	const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	if (pd)
		return;
	pd = ibv_alloc_pd(verbs);
	cq = ibv_create_cq(verbs, 4 * BAITS * RECEIVES, NULL, NULL, 0);
	if (!pd || !cq)
		fail("no protection domain or completion queue");
	bait_mr = ibv_reg_mr(pd, buffer + BAIT_AT, BAIT, all);
	inbox_mr = ibv_reg_mr(pd, buffer + INBOX_AT, INBOX, IBV_ACCESS_LOCAL_WRITE);
	flow_mr = ibv_reg_mr(pd, buffer + FLOW_AT, FLOW, all);
	if (!bait_mr || !inbox_mr || !flow_mr)
		fail("no memory region");
}

static void take(struct rdma_cm_id *id, int is_flow)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct offer offer;
	struct rdma_conn_param param = {
		.private_data = &offer,
		.private_data_len = sizeof(offer),
		.responder_resources = 4,
		.initiator_depth = 4,
	};
	int free_at = 0;

	while (free_at < BAITS && baits[free_at].id)
		free_at++;
	open_device(id->verbs);
	attr.send_cq = attr.recv_cq = cq;
	if (free_at == BAITS) {
		refused++;
		rdma_reject(id, NULL, 0); /* it may be gone */
		rdma_destroy_id(id);
		return;
	}
	if (rdma_create_qp(id, pd, &attr))
		fail("rdma_create_qp");
	for (int i = 0; i < RECEIVES; i++) {
		struct ibv_sge sge = { (uintptr_t)buffer + INBOX_AT + (size_t)i * RECEIVE_SIZE,
				       RECEIVE_SIZE, inbox_mr->lkey };
		struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };

		if (ibv_post_recv(id->qp, &wr, &bad))
			fail("ibv_post_recv");
	}
	offer.address = (uintptr_t)buffer + (is_flow ? FLOW_AT : BAIT_AT);
	offer.rkey = is_flow ? flow_mr->rkey : bait_mr->rkey;
	offer.length = is_flow ? FLOW : BAIT;
	id->context = &baits[free_at];
	baits[free_at] = (struct bait){ .id = id, .is_flow = is_flow };
	if (rdma_accept(id, &param)) { /* gone */
		baits[free_at].id = NULL;
		rdma_destroy_qp(id);
		rdma_destroy_id(id);
		return;
	}
	taken++;
}

static void hear(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;

	while (!rdma_get_cm_event(channel, &event)) {
		const struct rdma_conn_param *conn = &event->param.conn;
		enum rdma_cm_event_type type = event->event;
		struct rdma_cm_id *id = event->id;
		struct bait *bait = id->context;
		int is_flow = type == RDMA_CM_EVENT_CONNECT_REQUEST &&
			      conn->private_data_len >= sizeof(FLOW_WISH) &&
			      !memcmp(conn->private_data, FLOW_WISH, sizeof(FLOW_WISH));

		rdma_ack_cm_event(event);
		switch (type) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			take(id, is_flow);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			break;
		default:
			ended++;
			bait->id = NULL;
			rdma_destroy_qp(id);
			rdma_destroy_id(id);
		}
	}
	if (errno != EAGAIN)
		fail("rdma_get_cm_event");
}

static void look_at_guards(void)
{
	static const size_t guards[] = { 0, BAIT_AT + BAIT, INBOX_AT + INBOX, FLOW_AT + FLOW };

	for (size_t i = 0; i < sizeof(guards) / sizeof(guards[0]); i++)
		for (size_t at = guards[i]; at < guards[i] + GUARD; at++)
			if (buffer[at] != BLANK) {
				fprintf(stderr, "wrong: byte %zu has changed\n", at);
				exit(1);
			}
}

static void serve(pid_t client)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener;
	struct ibv_wc wc[16];
	double looked = now();
	int status;

	buffer = malloc(WHOLE);
	if (!buffer || !channel)
		fail("no memory or event channel");
	memset(buffer, BLANK, WHOLE);
	if (fcntl(channel->fd, F_SETFL, O_NONBLOCK))
		fail("fcntl");
	if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, address->ai_addr) || rdma_listen(listener, BAITS))
		fail("listening");
	printf("listening\n");
	fflush(stdout);
	while (waitpid(client, &status, WNOHANG) == 0) {
		struct pollfd events = { .fd = channel->fd, .events = POLLIN };

		if (poll(&events, 1, 5) < 0 && errno != EINTR)
			fail("poll");
		hear(channel);
		while (cq && ibv_poll_cq(cq, 16, wc) > 0)
			; /* what strangers send is of no interest */
		if (now() - looked > 0.1) {
			look_at_guards();
			looked = now();
		}
	}
	look_at_guards();
	if (!WIFEXITED(status) || WEXITSTATUS(status)) {
		fprintf(stderr, "wrong: the transfer ended with %#x\n", (unsigned)status);
		exit(1);
	}
	printf("cm_bait: %lu connections taken, %lu refused, %lu ended\n", taken, refused, ended);
}

/* --- the transfer --- */

static struct rdma_cm_id *connected(struct rdma_event_channel *channel, struct offer *offer)
{
	static const enum rdma_cm_event_type steps[] = {
		RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_ESTABLISHED
	};
	/* a copy for each attempt: what is made is written into it */
	static const struct ibv_qp_init_attr wanted = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct rdma_conn_param param = {
		.private_data = FLOW_WISH,
		.private_data_len = sizeof(FLOW_WISH),
		.responder_resources = 1,
		.initiator_depth = 1,
	};
	struct rdma_cm_id *id;

again:
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(id, NULL, address->ai_addr, PATIENCE_MS))
		fail("rdma_resolve_addr");
	for (int step = 0; step < 3; step++) {
		struct rdma_cm_event *event;

		if (rdma_get_cm_event(channel, &event))
			fail("rdma_get_cm_event");
		if (event->event != steps[step])
			fail(rdma_event_str(event->event));
		if (step == 2)
			memcpy(offer, event->param.conn.private_data, sizeof(*offer));
		rdma_ack_cm_event(event);
		if (step == 0 && rdma_resolve_route(id, PATIENCE_MS))
			fail("rdma_resolve_route");
		if (step == 1) {
			struct ibv_qp_init_attr attr = wanted;

			if (rdma_create_qp(id, NULL, &attr))
				fail("rdma_create_qp");
			if (rdma_connect(id, &param)) {
				if (errno != ECONNREFUSED)
					fail("rdma_connect");
				rdma_destroy_qp(id);
				rdma_destroy_id(id);
				usleep(50000); /* the server is not there yet */
				goto again;
			}
		}
	}
	return id;
}

static void transfer(double seconds)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	uint8_t *source = malloc(MESSAGE_MAX), *back = malloc(MESSAGE_MAX);
	struct ibv_mr *source_mr, *back_mr;
	struct rdma_cm_id *id;
	struct offer offer;
	double end, start;
	uint64_t bytes = 0;
	unsigned seed = 1;

	if (!channel || !source || !back)
		fail("no memory or event channel");
	id = connected(channel, &offer);
	source_mr = ibv_reg_mr(id->pd, source, MESSAGE_MAX, 0);
	back_mr = ibv_reg_mr(id->pd, back, MESSAGE_MAX, IBV_ACCESS_LOCAL_WRITE);
	if (!source_mr || !back_mr)
		fail("no memory region");
	start = now();
	for (end = start + seconds; now() < end;) {
		uint32_t length = 1 + (uint32_t)rand_r(&seed) % MESSAGE_MAX;
		uint64_t at = offer.address + (uint32_t)rand_r(&seed) % (offer.length - length);
		struct ibv_sge there = { (uintptr_t)source, length, source_mr->lkey };
		struct ibv_sge here = { (uintptr_t)back, length, back_mr->lkey };
		struct ibv_send_wr *bad, read = {
			.sg_list = &here, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
			.wr.rdma = { at, offer.rkey },
		}, write = {
			.next = &read, .sg_list = &there, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.wr.rdma = { at, offer.rkey },
		};

		for (uint32_t i = 0; i < length; i += 61)
			source[i] = (uint8_t)rand_r(&seed);
		if (ibv_post_send(id->qp, &write, &bad))
			fail("ibv_post_send");
		for (int left = 2; left;) {
			struct ibv_wc wc;
			int found = ibv_poll_cq(id->send_cq, 1, &wc);

			if (found < 0)
				fail("ibv_poll_cq");
			if (found && wc.status)
				fail(ibv_wc_status_str(wc.status));
			left -= found;
			if (!found)
				sched_yield();
		}
		if (memcmp(source, back, length))
			fail("what was read is not what was written");
		bytes += length;
	}
	printf("cm_bait: %.1f MB/s checked\n", (double)bytes / 1e6 / (now() - start));
	fflush(stdout);
	rdma_disconnect(id);
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *found;
	pid_t client;

	if (argc != 4) {
		fprintf(stderr, "usage: %s SECONDS ADDRESS PORT\n", argv[0]);
		return 2;
	}
	if (getaddrinfo(argv[2], argv[3], &hints, &found))
		fail("no address");
	address = found;
	client = fork(); /* before either opens a device */
	if (client < 0)
		fail("fork");
	if (!client) {
		transfer(atof(argv[1]));
		_exit(0);
	}
	serve(client);
	return 0;
}
