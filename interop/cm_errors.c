/* Requests that end an iWARP connection: each has a connection of its own, on which one end does
 * something wrong. Both ends check what they are told: completions and the end of the connection;
 * and that no byte came to where it must not. Asynchronous events are not waited for: the kernel's
 * device has them in some cases only.
 * Arguments: `cm_ends.h`.
 *
 * Prints a line for each connection, and ends with 0 if all was as it should be. */

#include <stdint.h>

#include "cm_ends.h"

enum {
	SIZE = 4096,
	/* The peer may use the middle of the buffer. */
	MIDDLE = 1024,
	MIDDLE_SIZE = 1024,
	LENGTH = 100,
	RECEIVE_SIZE = 64,
	BLANK = 0xee,
};

/* What goes wrong. */
enum fault { NOTHING, UNKNOWN_KEY, OUT_OF_BOUNDS, NOT_PERMITTED, NO_RECEIVE, TOO_LONG, OWN_KEY };

static const struct scene {
	const char *name;
	enum ibv_wr_opcode opcode;
	enum fault fault;
} scenes[] = {
	{ "a good WRITE", IBV_WR_RDMA_WRITE, NOTHING },
	{ "a good READ", IBV_WR_RDMA_READ, NOTHING },
	{ "a good SEND", IBV_WR_SEND, NOTHING },
	{ "a WRITE to an unknown key", IBV_WR_RDMA_WRITE, UNKNOWN_KEY },
	{ "a WRITE out of bounds", IBV_WR_RDMA_WRITE, OUT_OF_BOUNDS },
	{ "a WRITE that is not permitted", IBV_WR_RDMA_WRITE, NOT_PERMITTED },
	{ "a READ of an unknown key", IBV_WR_RDMA_READ, UNKNOWN_KEY },
	{ "a READ out of bounds", IBV_WR_RDMA_READ, OUT_OF_BOUNDS },
	{ "a SEND that nobody expects", IBV_WR_SEND, NO_RECEIVE },
	{ "a SEND that is too long", IBV_WR_SEND, TOO_LONG },
	{ "a SEND from an unknown key", IBV_WR_SEND, OWN_KEY },
};

enum { SCENES = sizeof(scenes) / sizeof(scenes[0]) };

/* The server's memory, as its private data. */
struct offer {
	uint64_t address;
	uint32_t rkey;
	uint32_t read_only_rkey;
};

static const struct scene *scene;

static void begin(int number)
{
	scene = &scenes[number];
	doing = scene->name;
}

/* An end of a connection. */
struct end {
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr, *middle, *read_only;
	uint8_t *buffer;
};

static struct end make(struct rdma_cm_id *id)
{
	const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct end end = { .id = id, .buffer = malloc(SIZE) };

	if (!end.buffer)
		fail("no memory");
	memset(end.buffer, BLANK, SIZE);
	end.pd = ibv_alloc_pd(id->verbs);
	end.cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
	if (!end.pd || !end.cq)
		fail("no protection domain or completion queue");
	end.mr = ibv_reg_mr(end.pd, end.buffer, SIZE, IBV_ACCESS_LOCAL_WRITE);
	end.middle = ibv_reg_mr(end.pd, end.buffer + MIDDLE, MIDDLE_SIZE, all);
	end.read_only = ibv_reg_mr(end.pd, end.buffer + MIDDLE, MIDDLE_SIZE,
				   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	if (!end.mr || !end.middle || !end.read_only)
		fail("no memory region");
	attr.send_cq = attr.recv_cq = end.cq;
	check(rdma_create_qp(id, end.pd, &attr), "rdma_create_qp");
	return end;
}

static void destroy(struct end *end)
{
	rdma_destroy_qp(end->id);
	check(ibv_destroy_cq(end->cq), "ibv_destroy_cq");
	check(ibv_dereg_mr(end->read_only), "ibv_dereg_mr");
	check(ibv_dereg_mr(end->middle), "ibv_dereg_mr");
	check(ibv_dereg_mr(end->mr), "ibv_dereg_mr");
	check(ibv_dealloc_pd(end->pd), "ibv_dealloc_pd");
	check(rdma_destroy_id(end->id), "rdma_destroy_id");
	free(end->buffer);
}

/* The next completion. */
static struct ibv_wc completion(struct end *end, const char *of)
{
	struct ibv_wc wc;

	for (int waited = 0; waited < PATIENCE_MS; waited++) {
		int found = ibv_poll_cq(end->cq, 1, &wc);

		if (found < 0)
			fail("ibv_poll_cq");
		if (found)
			return wc;
		usleep(1000);
	}
	fail("no completion of %s", of);
	return wc;
}

/* Whether nothing but these bytes was written, all of them with this value. */
static void expect_bytes(const struct end *end, size_t start, size_t length, uint8_t value)
{
	for (size_t i = 0; i < SIZE; i++) {
		uint8_t wanted = i - start < length ? value : BLANK;

		if (end->buffer[i] != wanted)
			fail("byte %zu is %#x, not %#x", i, end->buffer[i], wanted);
	}
}

/* A peer's WRITE tells nobody: the last byte is there when all of it is. */
static void await_byte(const volatile uint8_t *byte)
{
	for (int waited = 0; *byte == BLANK; waited++) {
		if (waited == PATIENCE_MS)
			fail("nothing was written");
		usleep(1000);
	}
}

/* Who has got what was sent ends the connection: kernels may drop what comes right before the end
 * of the stream. */
static void serve_one(struct end *end)
{
	int receives = scene->opcode == IBV_WR_SEND && scene->fault != NO_RECEIVE;
	size_t written = 0;

	if (receives) {
		struct ibv_wc wc = completion(end, "the receive");
		int is_good = wc.status == IBV_WC_SUCCESS;

		if (is_good != (scene->fault == NOTHING))
			fail("the receive: %s", ibv_wc_status_str(wc.status));
		if (is_good && wc.byte_len != RECEIVE_SIZE)
			fail("%u bytes came", wc.byte_len);
		written = is_good ? RECEIVE_SIZE : 0;
	}
	if (scene->opcode == IBV_WR_RDMA_WRITE && scene->fault == NOTHING) {
		written = LENGTH;
		await_byte(end->buffer + MIDDLE + LENGTH - 1);
	}
	if (scene->fault == NOTHING) {
		usleep(200000); /* until the client has heard that its request has left */
		check(rdma_disconnect(end->id), "rdma_disconnect");
	}
	expect_only(RDMA_CM_EVENT_DISCONNECTED);
	expect_bytes(end, receives ? 0 : MIDDLE, written, 'c');
}

static void serve(struct sockaddr *address)
{
	struct rdma_cm_id *listener = listen_at(address);

	for (int number = 0; number < SCENES; number++) {
		struct rdma_cm_event *event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
		struct end end = make(event->id);
		struct offer offer = {
			.address = (uintptr_t)end.buffer + MIDDLE,
			.rkey = end.middle->rkey,
			.read_only_rkey = end.read_only->rkey,
		};
		struct rdma_conn_param param = {
			.private_data = &offer,
			.private_data_len = sizeof(offer),
			.responder_resources = 1,
			.initiator_depth = 1,
		};

		begin(number);
		check(rdma_ack_cm_event(event), "rdma_ack_cm_event");
		if (scene->fault != NO_RECEIVE) {
			struct ibv_sge sge = { (uintptr_t)end.buffer, RECEIVE_SIZE, end.mr->lkey };
			struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };

			check(ibv_post_recv(end.id->qp, &wr, &bad), "ibv_post_recv");
		}
		if (scene->opcode == IBV_WR_RDMA_READ)
			memset(end.buffer + MIDDLE, 's', MIDDLE_SIZE);
		check(rdma_accept(end.id, &param), "rdma_accept");
		expect_only(RDMA_CM_EVENT_ESTABLISHED);
		if (scene->opcode == IBV_WR_RDMA_READ) {
			expect_only(RDMA_CM_EVENT_DISCONNECTED);
			expect_bytes(&end, MIDDLE, MIDDLE_SIZE, 's');
		} else if (scene->fault == OWN_KEY) {
			/* it only learns that the connection has ended */
			expect_only(RDMA_CM_EVENT_DISCONNECTED);
			expect_bytes(&end, 0, 0, 0);
		} else {
			serve_one(&end);
		}
		destroy(&end);
		printf("%s: ok\n", scene->name);
	}
	check(rdma_destroy_id(listener), "rdma_destroy_id");
}

/* Connects; again, while nobody listens. */
static struct end connect_to(struct sockaddr *address, struct offer *offer)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };

	for (;;) {
		struct rdma_cm_id *id = way_to(address);
		struct end end = make(id);
		struct rdma_cm_event *event;

		if (!rdma_connect(id, &param)) {
			event = expect(RDMA_CM_EVENT_ESTABLISHED);
			if (event->param.conn.private_data_len < sizeof(*offer))
				fail("no offer");
			memcpy(offer, event->param.conn.private_data, sizeof(*offer));
			check(rdma_ack_cm_event(event), "rdma_ack_cm_event");
			return end;
		}
		if (errno != ECONNREFUSED)
			check(-1, "rdma_connect");
		destroy(&end);
		usleep(PAUSE_US);
	}
}

static void ask(struct end *end, const struct offer *offer)
{
	int is_send = scene->opcode == IBV_WR_SEND;
	struct ibv_sge sge = { (uintptr_t)end->buffer, LENGTH, end->mr->lkey };
	struct ibv_send_wr *bad, wr = { .opcode = scene->opcode, .sg_list = &sge, .num_sge = 1 };
	struct ibv_wc wc;
	int is_good;

	wr.wr.rdma.remote_addr = offer->address;
	wr.wr.rdma.rkey = offer->rkey;
	if (is_send && scene->fault != TOO_LONG)
		sge.length = RECEIVE_SIZE;
	switch (scene->fault) {
	case UNKNOWN_KEY:
		wr.wr.rdma.rkey = offer->rkey ^ 0x55555500;
		break;
	case NOT_PERMITTED:
		wr.wr.rdma.rkey = offer->read_only_rkey;
		break;
	case OUT_OF_BOUNDS:
		wr.wr.rdma.remote_addr += MIDDLE_SIZE - 10;
		break;
	case OWN_KEY:
		sge.lkey ^= 0x55555500;
		break;
	default:
		break;
	}
	if (scene->opcode != IBV_WR_RDMA_READ)
		memset(end->buffer, 'c', SIZE);
	check(ibv_post_send(end->id->qp, &wr, &bad), "ibv_post_send");
	wc = completion(end, "the request");
	is_good = wc.status == IBV_WC_SUCCESS;
	if (!is_good && scene->fault == NOTHING)
		fail("the request: %s", ibv_wc_status_str(wc.status));
	/* what left is complete, whatever the peer then thinks of it */
	if (is_good && (scene->fault == OWN_KEY ||
			(scene->opcode == IBV_WR_RDMA_READ && scene->fault != NOTHING)))
		fail("the request has succeeded");
	if (scene->fault == NOTHING && scene->opcode == IBV_WR_RDMA_READ)
		check(rdma_disconnect(end->id), "rdma_disconnect");
	expect_only(RDMA_CM_EVENT_DISCONNECTED);
	if (scene->opcode == IBV_WR_RDMA_READ)
		expect_bytes(end, 0, scene->fault == NOTHING ? LENGTH : 0, 's');
}

static void visit(struct sockaddr *address)
{
	for (int number = 0; number < SCENES; number++) {
		struct offer offer;
		struct end end = connect_to(address, &offer);

		begin(number);
		ask(&end, &offer);
		destroy(&end);
		printf("%s: ok\n", scene->name);
	}
}

int main(int argc, char **argv)
{
	return be_an_end(argc, argv, "7176", serve, visit);
}
