/* Wrong use of verbs, one row for each errno that a program can provoke: what was called, what must
 * come, what came. Needs a link; `cargo xtask programs --filter wrong-use` runs it on lo. */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "first_device.h"

#define DEPTH 3 /* sizes of queues are 2^n - 1 */

/* The objects that rows use; rows leave them as they were. */
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *reset, *init, *ready, *ready_lists;
static char *page, *read_only, *unmapped;
static long page_size;
static int failures;

/* The three ways of saying failure, as one number: 0 is success. */
static int of_pointer(const void *pointer)
{
	return pointer ? 0 : errno;
}

static int of_number(int answer)
{
	return answer < 0 ? errno : 0;
}

static const char *name_of(int number)
{
	return number ? strerrorname_np(number) : "0";
}

static void row(const char *verb, const char *how, int expected, int got)
{
	bool right = expected == got;

	printf("%-5s %-18s %-52s %-11s %s\n", right ? "ok" : "WRONG", verb, how, name_of(expected),
	       right ? "" : name_of(got));
	failures += !right;
}

static void must(const char *what, bool is_true)
{
	printf("%-5s %s\n", is_true ? "ok" : "WRONG", what);
	failures += !is_true;
}

/* Queue pairs */

static struct ibv_qp_init_attr qp_request(void)
{
	return (struct ibv_qp_init_attr){
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2,
			 .max_recv_sge = 2, .max_inline_data = 32 },
		.qp_type = IBV_QPT_RC,
	};
}

static int create_qp(struct ibv_qp_init_attr request)
{
	errno = 0;
	struct ibv_qp *qp = ibv_create_qp(pd, &request);
	int got = of_pointer(qp);

	if (qp && ibv_destroy_qp(qp))
		die("ibv_destroy_qp");
	return got;
}

static const int INIT_MASK = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
static const int RTR_MASK = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
static const int RTS_MASK = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

static struct ibv_qp_attr to_init(void)
{
	return (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = PORT,
				     .qp_access_flags = RW };
}

/* Connected to itself. */
static struct ibv_qp_attr to_rtr(const struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = PORT,
			     .grh = { .sgid_index = 1, .hop_limit = 64 } },
	};

	if (ibv_query_gid(context, PORT, 1, &attr.ah_attr.grh.dgid))
		die("ibv_query_gid");
	return attr;
}

static struct ibv_qp_attr to_rts(void)
{
	return (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7,
				     .rnr_retry = 7, .max_rd_atomic = 1 };
}

static struct ibv_qp *qp_in(enum ibv_qp_state state)
{
	struct ibv_qp_init_attr request = qp_request();
	struct ibv_qp *qp = ibv_create_qp(pd, &request);

	if (!qp)
		die("ibv_create_qp");
	if (request.cap.max_send_wr < DEPTH || request.cap.max_inline_data < 32)
		die("capabilities smaller than asked for");
	struct ibv_qp_attr attr = to_init();

	if (state >= IBV_QPS_INIT && (errno = ibv_modify_qp(qp, &attr, INIT_MASK)))
		die("to INIT");
	attr = to_rtr(qp);
	if (state >= IBV_QPS_RTR && (errno = ibv_modify_qp(qp, &attr, RTR_MASK)))
		die("to RTR");
	attr = to_rts();
	if (state >= IBV_QPS_RTS && (errno = ibv_modify_qp(qp, &attr, RTS_MASK)))
		die("to RTS");
	return qp;
}

static int modify_fresh(enum ibv_qp_state from, struct ibv_qp_attr attr, int mask)
{
	struct ibv_qp *qp = qp_in(from);
	int got = ibv_modify_qp(qp, &attr, mask);

	if (ibv_destroy_qp(qp))
		die("ibv_destroy_qp");
	return got;
}

/* RTR with one attribute changed by `change`. */
static int rtr_with(void (*change)(struct ibv_qp_attr *attr), int mask)
{
	struct ibv_qp *qp = qp_in(IBV_QPS_INIT);
	struct ibv_qp_attr attr = to_rtr(qp);

	if (change)
		change(&attr);
	int got = ibv_modify_qp(qp, &attr, mask);

	if (ibv_destroy_qp(qp))
		die("ibv_destroy_qp");
	return got;
}

static void mtu_zero(struct ibv_qp_attr *attr) { attr->path_mtu = 0; }
static void mtu_six(struct ibv_qp_attr *attr) { attr->path_mtu = 6; }
static void qpn_too_long(struct ibv_qp_attr *attr) { attr->dest_qp_num = 1 << 24; }
static void reads_over_limit(struct ibv_qp_attr *attr) { attr->max_dest_rd_atomic = 129; }
static void gid_empty(struct ibv_qp_attr *attr) { attr->ah_attr.grh.sgid_index = 200; }
static void no_grh(struct ibv_qp_attr *attr) { attr->ah_attr.is_global = 0; }
static void port_two(struct ibv_qp_attr *attr) { attr->ah_attr.port_num = 2; }

/* Work requests */

static int post(struct ibv_qp *qp, struct ibv_send_wr wr, struct ibv_sge *list, int count)
{
	struct ibv_send_wr *bad = NULL;

	wr.sg_list = list;
	wr.num_sge = count;
	int got = ibv_post_send(qp, &wr, &bad);

	if (got)
		must("... and bad_wr names it", bad == &wr);
	return got;
}

static int post_receive(struct ibv_qp *qp, struct ibv_sge *list, int count)
{
	struct ibv_recv_wr wr = { .sg_list = list, .num_sge = count }, *bad = NULL;
	int got = ibv_post_recv(qp, &wr, &bad);

	if (got)
		must("... and bad_wr names it", bad == &wr);
	return got;
}

/* Tables */

static int register_mr(void *address, size_t length, int access)
{
	errno = 0;
	struct ibv_mr *region = ibv_reg_mr(pd, address, length, access);
	int got = of_pointer(region);

	if (region && ibv_dereg_mr(region))
		die("ibv_dereg_mr");
	return got;
}

static void queries(void)
{
	struct ibv_port_attr port;
	struct ibv_device_attr_ex device;
	struct ibv_query_device_ex_input input = { .comp_mask = 1 };
	union ibv_gid gid;
	struct ibv_gid_entry entry;
	uint16_t pkey;

	row("query_device_ex", "as it should be", 0, ibv_query_device_ex(context, NULL, &device));
	row("query_device_ex", "unknown extension", EINVAL,
	    ibv_query_device_ex(context, &input, &device));
	row("query_port", "port 0", EINVAL, ibv_query_port(context, 0, &port));
	row("query_port", "port 2", EINVAL, ibv_query_port(context, 2, &port));
	row("query_gid", "empty entry", 0, of_number(ibv_query_gid(context, PORT, 200, &gid)));
	row("query_gid", "beyond the table", EINVAL,
	    of_number(ibv_query_gid(context, PORT, 1024, &gid)));
	row("query_gid", "port 2", EINVAL, of_number(ibv_query_gid(context, 2, 0, &gid)));
	row("query_gid_ex", "empty entry", ENODATA,
	    ibv_query_gid_ex(context, PORT, 200, &entry, 0));
	row("query_gid_ex", "beyond the table", EINVAL,
	    ibv_query_gid_ex(context, PORT, 1024, &entry, 0));
	row("query_gid_table", "no room", EINVAL,
	    (int)-ibv_query_gid_table(context, &entry, 0, 0));
	row("query_pkey", "index 1", ENOENT, of_number(ibv_query_pkey(context, PORT, 1, &pkey)));
}

static void memory(void)
{
	void *last = (void *)(UINTPTR_MAX - 4095);

	row("reg_mr", "as it should be", 0, register_mr(page, page_size, RW));
	row("reg_mr", "REMOTE_WRITE without LOCAL_WRITE", EINVAL,
	    register_mr(page, page_size, IBV_ACCESS_REMOTE_WRITE));
	row("reg_mr", "REMOTE_ATOMIC without LOCAL_WRITE", EINVAL,
	    register_mr(page, page_size, IBV_ACCESS_REMOTE_ATOMIC));
	row("reg_mr", "unknown right, bit 12", EINVAL, register_mr(page, page_size, 1 << 12));
	row("reg_mr", "unknown right, bit 18", EINVAL, register_mr(page, page_size, 1 << 18));
	row("reg_mr", "optional right", 0,
	    register_mr(page, page_size, IBV_ACCESS_RELAXED_ORDERING));
	row("reg_mr", "ZERO_BASED", EOPNOTSUPP,
	    register_mr(page, page_size, IBV_ACCESS_ZERO_BASED));
	row("reg_mr", "ON_DEMAND", EOPNOTSUPP, register_mr(page, page_size, IBV_ACCESS_ON_DEMAND));
	row("reg_mr", "range wraps", EINVAL, register_mr(last, 8192, 0));
	row("reg_mr", "not mapped", EFAULT, register_mr(unmapped, page_size, 0));
	row("reg_mr", "end not mapped", EFAULT, register_mr(unmapped - 8, 16, 0));
	row("reg_mr", "read-only with LOCAL_WRITE", EFAULT, register_mr(read_only, page_size, RW));
	row("reg_mr", "read-only without write rights", 0,
	    register_mr(read_only, page_size, IBV_ACCESS_REMOTE_READ));
	row("reg_mr", "no PD", EINVAL, (errno = 0, of_pointer(ibv_reg_mr(NULL, page, 8, 0))));

	errno = 0;
	row("rereg_mr", "new rights", EOPNOTSUPP,
	    ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) ==
			    IBV_REREG_MR_ERR_CMD ? errno : 0);
	row("rereg_mr", "translation of length 0", EINVAL,
	    ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, page, 0, 0) ==
			    IBV_REREG_MR_ERR_INPUT ? errno : 0);
	errno = 0;
	row("alloc_mw", "type 1", EOPNOTSUPP, of_pointer(ibv_alloc_mw(pd, IBV_MW_TYPE_1)));
	row("dealloc_pd", "in use", EBUSY, ibv_dealloc_pd(pd));
}

static int create_cq(int entries, int vector)
{
	errno = 0;
	struct ibv_cq *made = ibv_create_cq(context, entries, NULL, NULL, vector);
	int got = of_pointer(made);

	if (made && ibv_destroy_cq(made))
		die("ibv_destroy_cq");
	return got;
}

static int create_cq_ex(struct ibv_cq_init_attr_ex request)
{
	errno = 0;
	struct ibv_cq_ex *made = ibv_create_cq_ex(context, &request);
	int got = of_pointer(made);

	if (made && ibv_destroy_cq(ibv_cq_ex_to_cq(made)))
		die("ibv_destroy_cq");
	return got;
}

static void completion_queues(void)
{
	struct ibv_wc wc;

	row("create_cq", "1 entry", 0, create_cq(1, 0));
	row("create_cq", "0 entries", EINVAL, create_cq(0, 0));
	row("create_cq", "-1 entries", EINVAL, create_cq(-1, 0));
	row("create_cq", "over max_cqe", EINVAL, create_cq(1 << 22, 0));
	row("create_cq", "vector = num_comp_vectors", EINVAL,
	    create_cq(1, context->num_comp_vectors));
	row("create_cq", "vector -1", EINVAL, create_cq(1, -1));
	row("create_cq_ex", "all fields", 0,
	    create_cq_ex((struct ibv_cq_init_attr_ex){ .cqe = 1,
						       .wc_flags = IBV_WC_STANDARD_FLAGS }));
	row("create_cq_ex", "timestamps", EOPNOTSUPP,
	    create_cq_ex((struct ibv_cq_init_attr_ex){
		    .cqe = 1, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP }));
	row("create_cq_ex", "IGNORE_OVERRUN", EOPNOTSUPP,
	    create_cq_ex((struct ibv_cq_init_attr_ex){
		    .cqe = 1, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		    .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN }));
	row("resize_cq", "0 entries", EINVAL, ibv_resize_cq(cq, 0));
	row("resize_cq", "over max_cqe", EINVAL, ibv_resize_cq(cq, 1 << 22));
	row("poll_cq", "-1 entries", EINVAL, -ibv_poll_cq(cq, -1, &wc));
	row("destroy_cq", "in use", EBUSY, ibv_destroy_cq(cq));
	row("destroy_comp_channel", "in use", EBUSY, ibv_destroy_comp_channel(channel));
}

static void creation(void)
{
	struct ibv_qp_init_attr request = qp_request();
	struct ibv_context *other = ibv_open_device(context->device);
	struct ibv_cq *others = other ? ibv_create_cq(other, 1, NULL, NULL, 0) : NULL;

	if (!others)
		die("a second context");
#define WITH(how, expected, change)                                                             \
	request = qp_request(), change, row("create_qp", how, expected, create_qp(request))
	WITH("as it should be", 0, (void)0);
	WITH("no work requests", 0, (request.cap.max_send_wr = request.cap.max_recv_wr = 0));
	WITH("type RAW_PACKET", EOPNOTSUPP, request.qp_type = IBV_QPT_RAW_PACKET);
	WITH("type XRC_SEND", EOPNOTSUPP, request.qp_type = IBV_QPT_XRC_SEND);
	WITH("type DRIVER", EOPNOTSUPP, request.qp_type = IBV_QPT_DRIVER);
	WITH("type GSI", EINVAL, request.qp_type = 1);
	WITH("max_send_wr over the limit", EINVAL, request.cap.max_send_wr = (1 << 20) + 1);
	WITH("max_recv_wr over the limit", EINVAL, request.cap.max_recv_wr = (1 << 20) + 1);
	WITH("max_send_sge 33", EINVAL, request.cap.max_send_sge = 33);
	WITH("max_recv_sge 33", EINVAL, request.cap.max_recv_sge = 33);
	WITH("max_inline_data 513", EINVAL, request.cap.max_inline_data = 513);
	WITH("no send CQ", EINVAL, request.send_cq = NULL);
	WITH("no receive CQ", EINVAL, request.recv_cq = NULL);
	WITH("CQ of another context", EINVAL, request.recv_cq = others);
#undef WITH
	struct ibv_qp_init_attr_ex extended = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.create_flags = IBV_QP_CREATE_SCATTER_FCS,
	};

	errno = 0;
	row("create_qp_ex", "create_flags", EOPNOTSUPP,
	    of_pointer(ibv_create_qp_ex(context, &extended)));
	extended.comp_mask = IBV_QP_INIT_ATTR_CREATE_FLAGS;
	extended.create_flags = 0;
	errno = 0;
	row("create_qp_ex", "no PD", EINVAL, of_pointer(ibv_create_qp_ex(context, &extended)));

	if (ibv_destroy_cq(others) || ibv_close_device(other))
		die("close the second context");
}

static void transitions(void)
{
	struct ibv_qp_attr attr = to_init();

	row("modify_qp", "RESET to INIT", 0, modify_fresh(IBV_QPS_RESET, attr, INIT_MASK));
	row("modify_qp", "RESET to INIT, no port", EINVAL,
	    modify_fresh(IBV_QPS_RESET, attr, INIT_MASK & ~IBV_QP_PORT));
	row("modify_qp", "RESET to INIT with a Q_Key", EINVAL,
	    modify_fresh(IBV_QPS_RESET, attr, INIT_MASK | IBV_QP_QKEY));
	row("modify_qp", "unknown bit in the mask", EINVAL,
	    modify_fresh(IBV_QPS_RESET, attr, INIT_MASK | 1 << 30));
	attr.port_num = 2;
	row("modify_qp", "port 2", EINVAL, modify_fresh(IBV_QPS_RESET, attr, INIT_MASK));
	attr = to_init();
	attr.pkey_index = 1;
	row("modify_qp", "P_Key index 1", EINVAL, modify_fresh(IBV_QPS_RESET, attr, INIT_MASK));
	attr = to_init();
	attr.qp_access_flags = 1 << 12;
	row("modify_qp", "unknown right", EINVAL, modify_fresh(IBV_QPS_RESET, attr, INIT_MASK));
	attr = to_init();
	attr.qp_state = 99;
	row("modify_qp", "state 99", EINVAL, modify_fresh(IBV_QPS_RESET, attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_ERR;
	row("modify_qp", "RESET to ERR", EINVAL, modify_fresh(IBV_QPS_RESET, attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	row("modify_qp", "RESET to RTS", EINVAL, modify_fresh(IBV_QPS_RESET, attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_ERR;
	row("modify_qp", "INIT to ERR", 0, modify_fresh(IBV_QPS_INIT, attr, IBV_QP_STATE));

	row("modify_qp", "INIT to RTR", 0, rtr_with(NULL, RTR_MASK));
	row("modify_qp", "INIT to RTR, no address", EINVAL, rtr_with(NULL, RTR_MASK & ~IBV_QP_AV));
	row("modify_qp", "path MTU 0", EINVAL, rtr_with(mtu_zero, RTR_MASK));
	row("modify_qp", "path MTU 6", EINVAL, rtr_with(mtu_six, RTR_MASK));
	row("modify_qp", "QPN over 24 bits", EINVAL, rtr_with(qpn_too_long, RTR_MASK));
	row("modify_qp", "max_dest_rd_atomic 129", EINVAL, rtr_with(reads_over_limit, RTR_MASK));
	row("modify_qp", "GID index empty", ENODATA, rtr_with(gid_empty, RTR_MASK));
	row("modify_qp", "no GRH", EINVAL, rtr_with(no_grh, RTR_MASK));
	row("modify_qp", "port 2 in the address", EINVAL, rtr_with(port_two, RTR_MASK));

	attr = to_rts();
	row("modify_qp", "RTR to RTS", 0, modify_fresh(IBV_QPS_RTR, attr, RTS_MASK));
	row("modify_qp", "RTR to RTS, no timeout", EINVAL,
	    modify_fresh(IBV_QPS_RTR, attr, RTS_MASK & ~IBV_QP_TIMEOUT));
	attr.timeout = 32;
	row("modify_qp", "timeout 32", EINVAL, modify_fresh(IBV_QPS_RTR, attr, RTS_MASK));
	attr = to_rts();
	attr.retry_cnt = 8;
	row("modify_qp", "retry_cnt 8", EINVAL, modify_fresh(IBV_QPS_RTR, attr, RTS_MASK));
	attr = to_rts();
	attr.max_rd_atomic = 129;
	row("modify_qp", "max_rd_atomic 129", EINVAL, modify_fresh(IBV_QPS_RTR, attr, RTS_MASK));
	row("modify_qp", "no attributes", EINVAL, ibv_modify_qp(reset, NULL, IBV_QP_STATE));
	row("modify_qp", "no QP", EINVAL, ibv_modify_qp(NULL, &attr, IBV_QP_STATE));
}

static void posting(void)
{
	struct ibv_sge sge[33] = {
		{ .addr = (uintptr_t)page, .length = 8, .lkey = mr->lkey },
		{ .addr = (uintptr_t)page, .length = 33, .lkey = mr->lkey },
	};
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND };
	struct ibv_send_wr inlined = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE };
	struct ibv_send_wr add = { .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD };
	struct ibv_send_wr strange = { .opcode = 99 };

	row("post_send", "state RESET", EINVAL, post(reset, send, sge, 1));
	row("post_send", "state INIT", EINVAL, post(init, send, sge, 1));
	row("post_send", "more elements than max_send_sge", EINVAL, post(ready, send, sge, 3));
	row("post_send", "33 elements", EINVAL, post(ready, send, sge, 33));
	row("post_send", "-1 elements", EINVAL, post(ready, send, sge, -1));
	row("post_send", "inline data over max_inline_data", EINVAL,
	    post(ready, inlined, &sge[1], 1));
	row("post_send", "opcode 99", EINVAL, post(ready, strange, sge, 1));
	row("post_send", "atomic of 4 bytes", EINVAL,
	    (sge[0].length = 4, post(ready, add, sge, 1)));
	sge[0].length = 8;
	add.wr.atomic.remote_addr = (uintptr_t)page + 4;
	row("post_send", "atomic at an address that is no multiple of 8", EINVAL,
	    post(ready, add, sge, 1));

	row("post_recv", "state RESET", EINVAL, post_receive(reset, sge, 1));
	row("post_recv", "more elements than max_recv_sge", EINVAL, post_receive(init, sge, 3));
	row("post_recv", "-1 elements", EINVAL, post_receive(init, sge, -1));
	for (int i = 0; i < DEPTH; i++)
		if (post_receive(init, sge, 1))
			die("ibv_post_recv");
	row("post_recv", "queue full", ENOMEM, post_receive(init, sge, 1));

	/* A list: what is before the bad one is posted, what is behind it is not. No receive is
	 * posted, so the first stays in the queue. */
	struct ibv_send_wr list[3] = { send, strange, send }, *bad = NULL;

	for (int i = 0; i < 3; i++) {
		list[i].next = i < 2 ? &list[i + 1] : NULL;
		list[i].sg_list = sge;
		list[i].num_sge = 1;
	}
	row("post_send", "second of a list of three", EINVAL,
	    ibv_post_send(ready_lists, list, &bad));
	must("... and bad_wr names the second", bad == &list[1]);
	if (post(ready_lists, send, sge, 1) || post(ready_lists, send, sge, 1))
		die("the third of the list was posted, or the queue is too short");
	row("post_send", "queue full", ENOMEM, post(ready_lists, send, sge, 1));
}

static void unsupported(void)
{
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = 0 };
	union ibv_gid gid = { .raw = { 0xff } };
	struct ibv_ece ece = { 0 };

	errno = 0;
	row("open_xrcd", "any", EOPNOTSUPP, of_pointer(ibv_open_xrcd(context, &xrcd)));
	row("attach_mcast", "a connection", EINVAL, ibv_attach_mcast(reset, &gid, 0));
	row("set_ece", "any", EOPNOTSUPP, ibv_set_ece(reset, &ece));
	errno = 0;
	row("import_device", "any", EOPNOTSUPP, of_pointer(ibv_import_device(0)));
}

int main(void)
{
	context = open_first_device();
	page_size = sysconf(_SC_PAGESIZE);
	page = mmap(NULL, page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	read_only = mmap(NULL, 2 * page_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unmapped = read_only + page_size;
	if (page == MAP_FAILED || read_only == MAP_FAILED || munmap(unmapped, page_size))
		die("mmap");
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	cq = channel ? ibv_create_cq(context, 64, NULL, channel, 0) : NULL;
	mr = pd ? ibv_reg_mr(pd, page, page_size, RW) : NULL;
	if (!cq || !mr)
		die("PD, channel, CQ or MR");
	reset = qp_in(IBV_QPS_RESET);
	init = qp_in(IBV_QPS_INIT);
	ready = qp_in(IBV_QPS_RTS);
	ready_lists = qp_in(IBV_QPS_RTS);

	queries();
	memory();
	completion_queues();
	creation();
	transitions();
	posting();
	unsupported();

	row("destroy_qp", "no QP", EINVAL, ibv_destroy_qp(NULL));
	struct ibv_qp *pairs[] = { reset, init, ready, ready_lists };

	for (unsigned int i = 0; i < sizeof(pairs) / sizeof(*pairs); i++)
		row("destroy_qp", "with and without work posted", 0, ibv_destroy_qp(pairs[i]));
	row("destroy_cq", "free", 0, ibv_destroy_cq(cq));
	row("destroy_comp_channel", "free", 0, ibv_destroy_comp_channel(channel));
	row("dereg_mr", "free", 0, ibv_dereg_mr(mr));
	row("dealloc_pd", "free", 0, ibv_dealloc_pd(pd));
	row("close_device", "free", 0, ibv_close_device(context));
	printf("%d wrong\n", failures);
	return failures != 0;
}
