/* Shared receive queues: what is refused, who gets what, which events come. Needs a link;
 * `cargo xtask programs --filter shared-receives` runs it on lo. */

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "first_device.h"

#define GRH 40
#define QKEY 0x11111111
#define GUARD 30 /* seconds until something counts as hung */
#define GID 1 /* 127.0.0.1 */
#define LENGTH 64 /* of a receive */

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *send_cq, *receive_cq;
static struct ibv_mr *mr;
static struct ibv_srq *srq;
/* One connected to the other, and one for datagrams; all take their receives from the queue. */
static struct ibv_qp *asks, *answers, *datagrams;
static char memory[8192];
static int failures;

static void must(const char *what, bool is_true)
{
	printf("%-5s %s\n", is_true ? "ok" : "WRONG", what);
	fflush(stdout);
	failures += !is_true;
}

static void row(const char *how, int expected, int got)
{
	bool right = expected == got;

	printf("%-5s %-58s %-11s %s\n", right ? "ok" : "WRONG", how,
	       expected ? strerrorname_np(expected) : "0", right ? "" : strerror(got));
	failures += !right;
}

static int create(struct ibv_pd *in, uint32_t max_wr, uint32_t max_sge)
{
	struct ibv_srq_init_attr request = { .attr = { .max_wr = max_wr, .max_sge = max_sge } };
	struct ibv_srq *made;

	errno = 0;
	made = ibv_create_srq(in, &request);
	if (made && (errno = ibv_destroy_srq(made)))
		die("ibv_destroy_srq");
	return made ? 0 : errno;
}

static void creation(void)
{
	struct ibv_device_attr device;
	struct ibv_srq_init_attr request = { .srq_context = memory,
					     .attr = { .max_wr = 10, .max_sge = 2 } };
	struct ibv_srq_init_attr_ex extended = {
		.attr = { .max_wr = 1, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE,
		.pd = pd,
	};

	if (ibv_query_device(context, &device))
		die("ibv_query_device");
	must("the device has shared receive queues",
	     device.max_srq > 0 && device.max_srq_wr > 0 && device.max_srq_sge > 0 &&
		     device.device_cap_flags & IBV_DEVICE_SRQ_RESIZE);
	row("create_srq of the largest size", 0,
	    create(pd, device.max_srq_wr, device.max_srq_sge));
	row("create_srq over max_srq_wr", EINVAL, create(pd, device.max_srq_wr + 1, 1));
	row("create_srq over max_srq_sge", EINVAL, create(pd, 1, device.max_srq_sge + 1));
	row("create_srq for no receives", EINVAL, create(pd, 0, 1));
	row("create_srq without a PD", EINVAL, create(NULL, 1, 1));
	errno = 0;
	row("create_srq without attributes", EINVAL, ibv_create_srq(pd, NULL) ? 0 : errno);

	extended.srq_type = IBV_SRQT_XRC;
	errno = 0;
	row("create_srq_ex of type XRC", EOPNOTSUPP,
	    ibv_create_srq_ex(context, &extended) ? 0 : errno);
	extended.srq_type = IBV_SRQT_BASIC;
	srq = ibv_create_srq_ex(context, &extended);
	must("create_srq_ex of the basic type", srq && srq->pd == pd);
	row("destroy_srq", 0, ibv_destroy_srq(srq));

	srq = ibv_create_srq(pd, &request);
	if (!srq)
		die("ibv_create_srq");
	must("create_srq", srq->context == context && srq->pd == pd &&
				   srq->srq_context == memory && request.attr.max_wr == 15 &&
				   request.attr.max_sge == 2);
	row("dealloc_pd with a shared receive queue", EBUSY, ibv_dealloc_pd(pd));
}

static int modify(uint32_t max_wr, uint32_t limit, int mask)
{
	struct ibv_srq_attr to = { .max_wr = max_wr, .srq_limit = limit };

	return ibv_modify_srq(srq, &to, mask);
}

static struct ibv_srq_attr query(void)
{
	struct ibv_srq_attr now;

	if (ibv_query_srq(srq, &now))
		die("ibv_query_srq");
	return now;
}

static void changes(void)
{
	row("modify_srq, limit above the size", EINVAL, modify(0, 16, IBV_SRQ_LIMIT));
	row("modify_srq, size 0", EINVAL, modify(0, 0, IBV_SRQ_MAX_WR));
	row("modify_srq, unknown bit in the mask", EINVAL, modify(1, 1, 1 << 2));
	row("modify_srq of nothing", EINVAL, ibv_modify_srq(NULL, NULL, 0));
	row("query_srq of nothing", EINVAL, ibv_query_srq(NULL, NULL));
	row("modify_srq, size and limit", 0,
	    modify(20, 18, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT));
	must("... query_srq tells them", query().max_wr == 31 && query().srq_limit == 18);
	row("modify_srq, size below the limit", EINVAL, modify(17, 0, IBV_SRQ_MAX_WR));
	row("modify_srq, no limit", 0, modify(0, 0, IBV_SRQ_LIMIT));
	row("modify_srq, smaller again", 0, modify(7, 0, IBV_SRQ_MAX_WR));
	must("... query_srq tells it", query().max_wr == 7 && query().srq_limit == 0 &&
					       query().max_sge == 2);
}

static int post(uint64_t id, int elements)
{
	struct ibv_sge sges[3] = { { (uintptr_t)memory + id % 8 * LENGTH, GRH, mr->lkey },
				   { (uintptr_t)memory + id % 8 * LENGTH + GRH, LENGTH - GRH,
				     mr->lkey } };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = sges, .num_sge = elements };
	struct ibv_recv_wr *bad = NULL;
	int got = ibv_post_srq_recv(srq, &wr, &bad);

	if (got)
		must("... and bad_wr names it", bad == &wr);
	return got;
}

static void posting(void)
{
	struct ibv_recv_wr list[3] = { { .next = &list[1] }, { .next = &list[2], .num_sge = -1 } };
	struct ibv_recv_wr *bad = NULL;

	row("post_srq_recv, more elements than max_sge", EINVAL, post(0, 3));
	row("post_srq_recv, -1 elements", EINVAL, post(0, -1));
	row("post_srq_recv, the second of a list is wrong", EINVAL,
	    ibv_post_srq_recv(srq, list, &bad));
	must("... and bad_wr names it", bad == &list[1]);
	for (int i = 1; i < 7; i++)
		if (post(0, 0))
			die("the first of the list alone was posted: there is room");
	row("post_srq_recv, queue full", ENOMEM, post(0, 1));
	row("modify_srq, size below what waits", EINVAL, modify(6, 0, IBV_SRQ_MAX_WR));
	row("destroy_srq with work posted", 0, ibv_destroy_srq(srq));
	row("destroy_srq of nothing", EINVAL, ibv_destroy_srq(NULL));
}

static struct ibv_qp *queue_pair(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr request = {
		.send_cq = send_cq,
		.recv_cq = receive_cq,
		.srq = srq,
		/* of receives nothing is looked at */
		.cap = { .max_send_wr = 15, .max_recv_wr = 10, .max_send_sge = 1,
			 .max_recv_sge = 100 },
		.qp_type = type,
		.sq_sig_all = 1,
	}, told;
	struct ibv_qp_attr attributes;
	struct ibv_qp *qp = ibv_create_qp(pd, &request);

	if (!qp)
		die("ibv_create_qp");
	must("create_qp gives the sizes of receives back as they were",
	     qp->srq == srq && request.cap.max_recv_wr == 10 && request.cap.max_recv_sge == 100);
	if (ibv_query_qp(qp, &attributes, IBV_QP_STATE, &told))
		die("ibv_query_qp");
	must("query_qp names the queue", told.srq == srq);
	return qp;
}

static void step(struct ibv_qp *qp, struct ibv_qp_attr attributes, int mask)
{
	errno = ibv_modify_qp(qp, &attributes, mask | IBV_QP_STATE);
	if (errno)
		die("ibv_modify_qp");
}

/* INIT, RTR, RTS. */
static void connect_to(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
				   .dest_qp_num = peer, .max_dest_rd_atomic = 1,
				   .min_rnr_timer = 12 };

	rtr.ah_attr.is_global = 1;
	rtr.ah_attr.port_num = PORT;
	rtr.ah_attr.grh.sgid_index = GID;
	if (ibv_query_gid(context, PORT, GID, &rtr.ah_attr.grh.dgid))
		die("ibv_query_gid");
	step(qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = PORT },
	     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	step(qp, rtr,
	     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	step(qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7,
				       .rnr_retry = 7, .max_rd_atomic = 1 },
	     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		     IBV_QP_MAX_QP_RD_ATOMIC);
}

static void open_queue_pairs(void)
{
	struct ibv_srq_init_attr request = { .attr = { .max_wr = 7, .max_sge = 2 } };
	struct ibv_context *other = ibv_open_device(context->device);
	struct ibv_pd *others = other ? ibv_alloc_pd(other) : NULL;
	struct ibv_qp_init_attr foreign = { .send_cq = send_cq, .recv_cq = receive_cq,
					    .qp_type = IBV_QPT_RC };
	struct ibv_recv_wr wr = { 0 }, *bad = NULL;

	foreign.srq = others ? ibv_create_srq(others, &request) : NULL;
	if (!foreign.srq)
		die("a shared receive queue of a second context");
	errno = 0;
	row("create_qp with a queue of another context", EINVAL,
	    ibv_create_qp(pd, &foreign) ? 0 : errno);
	if (ibv_destroy_srq(foreign.srq) || ibv_dealloc_pd(others) || ibv_close_device(other))
		die("close the second context");

	srq = ibv_create_srq(pd, &request);
	if (!srq)
		die("ibv_create_srq");
	asks = queue_pair(IBV_QPT_RC);
	answers = queue_pair(IBV_QPT_RC);
	datagrams = queue_pair(IBV_QPT_UD);
	row("destroy_srq with queue pairs", EBUSY, ibv_destroy_srq(srq));
	connect_to(asks, answers->qp_num);
	connect_to(answers, asks->qp_num);
	step(datagrams, (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = PORT,
					      .qkey = QKEY },
	     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
	step(datagrams, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR }, 0);
	step(datagrams, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS }, IBV_QP_SQ_PSN);
	row("post_recv to a queue pair with a shared queue", EINVAL,
	    ibv_post_recv(asks, &wr, &bad));
	must("... and bad_wr names it", bad == &wr);
}

static struct ibv_wc completion(struct ibv_cq *cq)
{
	time_t start = time(NULL);
	struct ibv_wc wc;
	int count;

	while (!(count = ibv_poll_cq(cq, 1, &wc)))
		if (time(NULL) > start + GUARD)
			die("no completion");
	if (count < 0)
		die("ibv_poll_cq");
	return wc;
}

static void send_message(struct ibv_qp *qp)
{
	struct ibv_sge sge = { (uintptr_t)memory + 4096, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_ah_attr address = { .is_global = 1, .port_num = PORT };

	if (qp->qp_type == IBV_QPT_UD) {
		address.grh.sgid_index = GID;
		if (ibv_query_gid(context, PORT, GID, &address.grh.dgid))
			die("ibv_query_gid");
		wr.wr.ud.ah = ibv_create_ah(pd, &address);
		wr.wr.ud.remote_qpn = qp->qp_num;
		wr.wr.ud.remote_qkey = QKEY;
	}
	if (ibv_post_send(qp, &wr, &bad))
		die("ibv_post_send");
	if (qp->qp_type == IBV_QPT_UD && ibv_destroy_ah(wr.wr.ud.ah))
		die("ibv_destroy_ah");
}

/* A message of `from` takes the receive `id`, and it is the one of `to`. */
static void travels(struct ibv_qp *from, struct ibv_qp *to, uint64_t id)
{
	struct ibv_wc wc;

	send_message(from);
	wc = completion(receive_cq);
	must("a message takes the oldest receive, whoever it is for",
	     wc.status == IBV_WC_SUCCESS && wc.wr_id == id && wc.qp_num == to->qp_num);
	must("... and its send completes", completion(send_cq).status == IBV_WC_SUCCESS);
}

static bool has_event(void)
{
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };

	return poll(&fd, 1, 0) == 1;
}

/* The next event that is of this type: a queue pair tells of its first packet as well. */
static struct ibv_async_event event_of(enum ibv_event_type type)
{
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	do {
		if (poll(&fd, 1, GUARD * 1000) != 1)
			die("no event");
		if (ibv_get_async_event(context, &event))
			die("ibv_get_async_event");
		ibv_ack_async_event(&event);
	} while (event.event_type != type);
	return event;
}

static void traffic(void)
{
	struct ibv_async_event event;

	for (int id = 0; id < 4; id++)
		if (post(id, 2))
			die("ibv_post_srq_recv");
	row("modify_srq, limit 3", 0, modify(0, 3, IBV_SRQ_LIMIT));
	travels(asks, answers, 0);
	must("as many as the limit wait: no event", !has_event() && query().srq_limit == 3);
	travels(datagrams, datagrams, 1);
	event = event_of(IBV_EVENT_SRQ_LIMIT_REACHED);
	must("fewer wait: the event names the queue", event.element.srq == srq);
	must("... and the limit is gone", query().srq_limit == 0);
	travels(answers, asks, 2);
	travels(asks, answers, 3);
	must("one event only", !has_event());

	/* Nothing is posted: the sender is told to come again. */
	send_message(asks);
	usleep(20000);
	must("a message for which there is no receive waits",
	     !ibv_poll_cq(send_cq, 1, &(struct ibv_wc){ 0 }));
	if (post(4, 2) || post(5, 2))
		die("ibv_post_srq_recv");
	must("... and takes the one that comes", completion(receive_cq).wr_id == 4);
	must("... and its send completes", completion(send_cq).status == IBV_WC_SUCCESS);

	/* The end of one queue pair leaves the others what was posted. */
	step(answers, (struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, 0);
	event = event_of(IBV_EVENT_QP_LAST_WQE_REACHED);
	must("a queue pair in ERR takes no more: the event names it",
	     event.element.qp == answers);
	must("... nothing was flushed", !ibv_poll_cq(receive_cq, 1, &(struct ibv_wc){ 0 }));
	travels(datagrams, datagrams, 5);
}

int main(void)
{
	context = open_first_device();
	pd = ibv_alloc_pd(context);
	send_cq = ibv_create_cq(context, 15, NULL, NULL, 0);
	receive_cq = ibv_create_cq(context, 15, NULL, NULL, 0);
	mr = pd ? ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE) : NULL;
	if (!send_cq || !receive_cq || !mr)
		die("PD, CQs or MR");

	creation();
	changes();
	posting();
	open_queue_pairs();
	traffic();

	struct ibv_qp *pairs[] = { asks, answers, datagrams };

	for (unsigned int i = 0; i < sizeof(pairs) / sizeof(*pairs); i++)
		row("destroy_qp", 0, ibv_destroy_qp(pairs[i]));
	row("destroy_srq", 0, ibv_destroy_srq(srq));
	row("destroy_cq", 0, ibv_destroy_cq(send_cq) | ibv_destroy_cq(receive_cq));
	row("dereg_mr", 0, ibv_dereg_mr(mr));
	row("dealloc_pd", 0, ibv_dealloc_pd(pd));
	row("close_device", 0, ibv_close_device(context));
	printf("%d wrong\n", failures);
	return failures != 0;
}
