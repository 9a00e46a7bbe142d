/* Two ends that make connections by rdma_cm and end them in every way, and check at both what they
 * are told: which events come and in which order, private data and its room, resources. Over RoCE
 * and over iWARP, whose events differ.
 * Arguments: `cm_ends.h`.
 *
 * The client says in the private data of each request what is to become of it. Prints a line for
 * each connection, and ends with 0 if all was as it should be. */

#include <stdint.h>

#include "cm_ends.h"

enum {
	/* Room for private data that a program sees, where it is not as long as it was given. */
	REQUEST_ROOM = 56,
	REPLY_ROOM = 196,
	REJECT_ROOM = 148,
	/* Reasons of a REJ. An MPA reply has none, which the kernel tells as this. */
	NOBODY_LISTENS = 8,
	CONSUMER = 28,
	NO_REASON = -ECONNRESET,
	RESOURCES = 3,
	DEPTH = 2,
};

/* What the client asks for, and what the server's private data then says. */
static const struct {
	const char *wish;
	const char *answer;
} scenes[] = {
	{ "refuse me", "no room for you" },
	{ "close it yourself", "as you like" },
	{ "wait for my end", "take your time" },
	{ "both at once", "why not" },
};

enum { REFUSED, SERVER_CLOSES, CLIENT_CLOSES, BOTH_CLOSE, SCENES };

static int is_iwarp(const struct rdma_cm_id *id)
{
	return id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
}

/* Private data comes with all the room it could have, filled up with zeros; over iWARP as it is. */
static void check_data(const struct rdma_cm_event *event, const char *text, size_t room)
{
	const struct rdma_conn_param *param = &event->param.conn;
	const uint8_t *data = param->private_data;
	size_t length = strlen(text);

	if (is_iwarp(event->id))
		room = length;
	if (param->private_data_len != room)
		fail("%s: room for %u bytes, not %zu", rdma_event_str(event->event),
		     param->private_data_len, room);
	if (memcmp(data, text, length))
		fail("%s: private data '%.40s', not '%s'", rdma_event_str(event->event),
		     (const char *)data, text);
	for (size_t i = length; i < room; i++)
		if (data[i])
			fail("%s: byte %zu is not zero", rdma_event_str(event->event), i);
}

static void make_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);

	if (!pd || !cq)
		fail("no protection domain or completion queue");
	attr.send_cq = attr.recv_cq = cq;
	check(rdma_create_qp(id, pd, &attr), "rdma_create_qp");
}

static void expect_state(struct rdma_cm_id *id, enum ibv_qp_state state)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	check(ibv_query_qp(id->qp, &attr, IBV_QP_STATE, &init), "ibv_query_qp");
	if (attr.qp_state != state)
		fail("the queue pair is in state %d, not %d", attr.qp_state, state);
}

static struct rdma_conn_param parameters(const char *text)
{
	return (struct rdma_conn_param){
		.private_data = text,
		.private_data_len = (uint8_t)strlen(text),
		.responder_resources = RESOURCES,
		.initiator_depth = DEPTH,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
}

static void end(struct rdma_cm_id *id)
{
	struct ibv_cq *cq = id->qp->send_cq;
	struct ibv_pd *pd = id->qp->pd;

	rdma_destroy_qp(id);
	check(ibv_destroy_cq(cq), "ibv_destroy_cq");
	check(ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	check(rdma_destroy_id(id), "rdma_destroy_id");
}

/* What happens once both are connected: who closes hears of it after the other has answered. Only
 * the client waits until the names are free again: the server may have its next request by then,
 * and where both close at once nobody may be told. A TCP connection that the other end has closed
 * need not be closed, and has no names to wait for. */
static void part(struct rdma_cm_id *id, int scene, int is_server)
{
	int closes_first = scene == BOTH_CLOSE || is_server == (scene == SERVER_CLOSES);

	/* of another end that closes at once TCP may tell before this looks */
	if (!is_iwarp(id) || (closes_first && scene != BOTH_CLOSE))
		expect_state(id, IBV_QPS_RTS);
	/* the kernel's siw does not read a reply that comes with the end of the stream */
	if (is_iwarp(id) && is_server)
		usleep(200000);
	if (closes_first)
		check(rdma_disconnect(id), "rdma_disconnect");
	expect_only(RDMA_CM_EVENT_DISCONNECTED);
	if (!is_iwarp(id)) {
		if (!closes_first)
			check(rdma_disconnect(id), "rdma_disconnect");
		expect_state(id, IBV_QPS_ERR);
		if (!is_server && scene != BOTH_CLOSE)
			expect_only(RDMA_CM_EVENT_TIMEWAIT_EXIT);
	}
	end(id);
}

static void serve(struct sockaddr *address)
{
	struct rdma_cm_id *listener = listen_at(address);

	for (int scene = 0; scene < SCENES; scene++) {
		struct rdma_cm_event *event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
		struct rdma_conn_param param = parameters(scenes[scene].answer);
		struct rdma_cm_id *id = event->id;

		doing = scenes[scene].wish;
		check_data(event, scenes[scene].wish, REQUEST_ROOM);
		/* the other's depth is what we have to answer, its resources are what we may ask */
		if (event->param.conn.responder_resources != DEPTH ||
		    event->param.conn.initiator_depth != RESOURCES)
			fail("resources %u and depth %u", event->param.conn.responder_resources,
			     event->param.conn.initiator_depth);
		if (event->listen_id != listener)
			fail("a request of another listener");
		check(rdma_ack_cm_event(event), "rdma_ack_cm_event");
		if (scene == REFUSED) {
			check(rdma_reject(id, param.private_data, param.private_data_len),
			      "rdma_reject");
			check(rdma_destroy_id(id), "rdma_destroy_id");
		} else {
			param.responder_resources = DEPTH;
			param.initiator_depth = RESOURCES;
			make_queue_pair(id);
			check(rdma_accept(id, &param), "rdma_accept");
			expect_only(RDMA_CM_EVENT_ESTABLISHED);
			part(id, scene, 1);
		}
		printf("%s: ok\n", scenes[scene].wish);
	}
	check(rdma_destroy_id(listener), "rdma_destroy_id");
}

/* Asks for a connection; again, while nobody listens. */
static struct rdma_cm_id *ask(struct sockaddr *address, int scene)
{
	struct rdma_conn_param param = parameters(scenes[scene].wish);
	int wanted = scene == REFUSED ? RDMA_CM_EVENT_REJECTED : RDMA_CM_EVENT_ESTABLISHED;

	doing = scenes[scene].wish;
	for (;;) {
		struct rdma_cm_id *id = way_to(address);
		struct rdma_cm_event *event;
		int is_early;

		make_queue_pair(id);
		if (rdma_connect(id, &param)) {
			/* TCP says at once that nobody listens */
			if (!is_iwarp(id) || errno != ECONNREFUSED)
				check(-1, "rdma_connect");
			end(id);
			usleep(PAUSE_US);
			continue;
		}
		event = next_event("answer");
		is_early = event->event == RDMA_CM_EVENT_REJECTED && event->status == NOBODY_LISTENS;
		if (!is_early) {
			if ((int)event->event != wanted)
				fail("%s, status %d", rdma_event_str(event->event), event->status);
			if (scene == REFUSED) {
				if (event->status != (is_iwarp(id) ? NO_REASON : CONSUMER))
					fail("refused with reason %d", event->status);
				/* the kernel's siw looks at the end of the stream first, if it
				 * comes with the reply, and then knows no more */
				if (!is_iwarp(id) || event->param.conn.private_data_len)
					check_data(event, scenes[scene].answer, REJECT_ROOM);
			} else {
				check_data(event, scenes[scene].answer, REPLY_ROOM);
			}
		}
		check(rdma_ack_cm_event(event), "rdma_ack_cm_event");
		if (!is_early)
			return id;
		end(id);
		usleep(PAUSE_US);
	}
}

static void visit(struct sockaddr *address)
{
	for (int scene = 0; scene < SCENES; scene++) {
		struct rdma_cm_id *id = ask(address, scene);

		if (scene == REFUSED) {
			if (!is_iwarp(id))
				expect_state(id, IBV_QPS_ERR);
			end(id);
		} else {
			part(id, scene, 0);
		}
		printf("%s: ok\n", scenes[scene].wish);
	}
}

int main(int argc, char **argv)
{
	return be_an_end(argc, argv, "7175", serve, visit);
}
