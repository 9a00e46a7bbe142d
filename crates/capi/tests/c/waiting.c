/* The calls that wait: without waiting, interrupted by a signal, cancelled; and destroying, which
 * waits for acknowledgements. Needs a link; `cargo xtask programs --filter waiting` runs it on lo. */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "first_device.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static int failures;

static void must(const char *what, bool is_true)
{
	printf("%-5s %s\n", is_true ? "ok" : "WRONG", what);
	fflush(stdout);
	failures += !is_true;
}

static int get_cq_event(void)
{
	struct ibv_cq *which;
	void *cookie;

	return ibv_get_cq_event(channel, &which, &cookie);
}

static int get_async_event(void)
{
	struct ibv_async_event event;

	return ibv_get_async_event(context, &event);
}

/* Without waiting */

static void non_blocking(const char *what, int descriptor, int (*get)(void))
{
	struct pollfd poller = { .fd = descriptor, .events = POLLIN };
	int flags = fcntl(descriptor, F_GETFL);

	must("poll() finds no event", poll(&poller, 1, 0) == 0);
	if (fcntl(descriptor, F_SETFL, flags | O_NONBLOCK))
		die("fcntl");
	errno = 0;
	printf("      %s with O_NONBLOCK\n", what);
	must("EAGAIN when there is no event", get() == -1 && errno == EAGAIN);
	if (fcntl(descriptor, F_SETFL, flags))
		die("fcntl");
}

/* Interrupted */

static void ignore(int number)
{
	(void)number;
}

static void interrupted(const char *what, int (*get)(void))
{
	struct sigaction action = { .sa_handler = ignore }; /* no SA_RESTART */

	if (sigaction(SIGALRM, &action, NULL))
		die("sigaction");
	/* Again and again: the first could come before the wait. */
	ualarm(50000, 50000);
	errno = 0;
	int got = get();
	int error = errno;

	ualarm(0, 0);
	printf("      %s and a signal\n", what);
	must("EINTR", got == -1 && error == EINTR);
}

/* Cancelled */

static void *wait_for_ever(void *get)
{
	((int (*)(void))(uintptr_t)get)();
	return NULL;
}

static void cancelled(const char *what, int (*get)(void))
{
	pthread_t thread;
	void *result;

	if (pthread_create(&thread, NULL, wait_for_ever, (void *)(uintptr_t)get))
		die("pthread_create");
	usleep(50000); /* most likely it waits by now; if not, the result is the same */
	if (pthread_cancel(thread) || pthread_join(thread, &result))
		die("pthread_cancel");
	printf("      %s in a thread that is cancelled\n", what);
	must("the thread ends", result == PTHREAD_CANCELED);
}

/* Of calls that do not wait a thread comes back, cancelled or not, and ends then. */

static atomic_bool is_cancelled;
static atomic_int came_back;

static void *call_and_end(void *unused)
{
	struct ibv_device **devices;
	static char bytes[8];
	struct ibv_mr *mr;
	struct ibv_cq *made;
	int count;

	(void)unused;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	while (!atomic_load(&is_cancelled))
		usleep(1000);
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	devices = ibv_get_device_list(&count);
	atomic_fetch_add(&came_back, devices != NULL);
	ibv_free_device_list(devices);
	mr = ibv_reg_mr(pd, bytes, sizeof(bytes), IBV_ACCESS_LOCAL_WRITE);
	atomic_fetch_add(&came_back, mr != NULL && ibv_dereg_mr(mr) == 0);
	made = ibv_create_cq(context, 16, NULL, NULL, 0);
	atomic_fetch_add(&came_back, made != NULL && ibv_destroy_cq(made) == 0);
	pthread_testcancel();
	return NULL;
}

static void cancelled_without_waiting(void)
{
	pthread_t thread;
	void *result;

	if (pthread_create(&thread, NULL, call_and_end, NULL) || pthread_cancel(thread))
		die("pthread_cancel");
	atomic_store(&is_cancelled, true);
	if (pthread_join(thread, &result))
		die("pthread_join");
	must("calls that do not wait come back in a cancelled thread", atomic_load(&came_back) == 3);
	must("... which ends then", result == PTHREAD_CANCELED);
}

static struct ibv_qp *queue_pair(void)
{
	struct ibv_qp_init_attr request = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &request);

	if (!qp)
		die("ibv_create_qp");
	return qp;
}

static void connect_to(struct ibv_qp *qp, const struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					     IBV_QP_ACCESS_FLAGS))
		die("INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1 } },
	};
	if (ibv_query_gid(context, 1, 1, &attr.ah_attr.grh.dgid) ||
	    ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					     IBV_QP_MIN_RNR_TIMER))
		die("RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7,
				     .rnr_retry = 7, .max_rd_atomic = 1 };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					     IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					     IBV_QP_MAX_QP_RD_ATOMIC))
		die("RTS");
}

static atomic_bool acknowledged;

static void *acknowledge_later(void *argument)
{
	usleep(100000);
	atomic_store(&acknowledged, true);
	ibv_ack_cq_events(argument, 1);
	return NULL;
}

static void *acknowledge_async_later(void *argument)
{
	usleep(100000);
	atomic_store(&acknowledged, true);
	ibv_ack_async_event(argument);
	return NULL;
}

static void completion_events(void)
{
	struct ibv_qp *qp = queue_pair();
	struct ibv_recv_wr receive = { .wr_id = 1 }, *bad_receive;
	struct ibv_send_wr send = { .wr_id = 2, .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_cq *which = NULL;
	struct ibv_wc wc[2];
	void *cookie = NULL;
	pthread_t thread;
	int count = 0;

	connect_to(qp, qp);
	if (ibv_req_notify_cq(cq, 0) || ibv_post_recv(qp, &receive, &bad_receive) ||
	    ibv_post_send(qp, &send, &bad_send))
		die("post");
	must("an event comes", ibv_get_cq_event(channel, &which, &cookie) == 0);
	must("... of the queue, with its context", which == cq && cookie == &failures);
	while (count < 2) {
		int got = ibv_poll_cq(cq, 2 - count, wc + count);

		if (got < 0)
			die("ibv_poll_cq");
		count += got;
	}
	must("both completions are good", wc[0].status == IBV_WC_SUCCESS &&
						  wc[1].status == IBV_WC_SUCCESS);
	struct pollfd poller = { .fd = channel->fd, .events = POLLIN };

	must("one event for two completions", poll(&poller, 1, 0) == 0);

	atomic_store(&acknowledged, false);
	if (ibv_destroy_qp(qp) || pthread_create(&thread, NULL, acknowledge_later, cq))
		die("destroy");
	must("destroy_cq succeeds", ibv_destroy_cq(cq) == 0);
	must("... after the event was acknowledged", atomic_load(&acknowledged));
	pthread_join(thread, NULL);
}

/* A WRITE with a key that nobody has is an access error of the responder, an asynchronous event. */
static void async_events(void)
{
	struct ibv_qp *qp = queue_pair(), *peer = queue_pair();
	struct ibv_send_wr write = { .opcode = IBV_WR_RDMA_WRITE }, *bad;
	struct ibv_sge sge = { 0 };
	struct ibv_async_event event;
	struct ibv_mr *mr;
	static char bytes[8];
	pthread_t thread;
	struct ibv_wc wc;

	connect_to(peer, qp);
	connect_to(qp, peer);
	mr = ibv_reg_mr(pd, bytes, sizeof(bytes), IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		die("ibv_reg_mr");
	sge = (struct ibv_sge){ .addr = (uintptr_t)bytes, .length = 8, .lkey = mr->lkey };
	write.sg_list = &sge;
	write.num_sge = 1;
	write.wr.rdma.rkey = mr->rkey + 0x100;
	if (ibv_post_send(qp, &write, &bad))
		die("ibv_post_send");
	while (ibv_poll_cq(cq, 1, &wc) == 0)
		;
	must("a WRITE without a right fails", wc.status == IBV_WC_REM_ACCESS_ERR);
	must("an asynchronous event comes", ibv_get_async_event(context, &event) == 0);
	must("... of access, about the peer",
	     event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == peer);
	atomic_store(&acknowledged, false);
	if (pthread_create(&thread, NULL, acknowledge_async_later, &event))
		die("pthread_create");
	must("destroy_qp succeeds", ibv_destroy_qp(peer) == 0);
	must("... after the event was acknowledged", atomic_load(&acknowledged));
	pthread_join(thread, NULL);
	if (ibv_destroy_qp(qp) || ibv_dereg_mr(mr))
		die("destroy");
}

int main(void)
{
	context = open_first_device();
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	cq = channel ? ibv_create_cq(context, 16, &failures, channel, 0) : NULL;
	if (!pd || !cq)
		die("PD, channel or CQ");

	non_blocking("ibv_get_cq_event", channel->fd, get_cq_event);
	non_blocking("ibv_get_async_event", context->async_fd, get_async_event);
	interrupted("ibv_get_cq_event", get_cq_event);
	interrupted("ibv_get_async_event", get_async_event);
	cancelled("ibv_get_cq_event", get_cq_event);
	cancelled("ibv_get_async_event", get_async_event);
	cancelled_without_waiting();
	async_events();
	completion_events();

	must("the channel is free", ibv_destroy_comp_channel(channel) == 0);
	must("the PD is free", ibv_dealloc_pd(pd) == 0);
	must("the device closes", ibv_close_device(context) == 0);
	printf("%d wrong\n", failures);
	return failures != 0;
}
