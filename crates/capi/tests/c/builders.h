/* A connection within one process, for programs of ibv_wr_*. */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "first_device.h"

#define DEPTH 63 /* sizes of queues are 2^n - 1 */
#define SIZE 4096
#define GUARD 30 /* seconds until something counts as hung */

static const uint64_t ALL = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
			    IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
			    IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
			    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV |
			    IBV_QP_EX_WITH_SEND_WITH_INV;

/* A connection within this process, each end with a queue and memory of its own. */
struct pair {
	struct ibv_cq *send_cq, *receive_cq;
	struct ibv_qp *qp, *other;
	struct ibv_qp_ex *ex;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr, *other_mr;
static char memory[SIZE] __attribute__((aligned(8)));
static char other_memory[SIZE] __attribute__((aligned(8)));
static int failures;

static inline void must(const char *what, bool is_true)
{
	printf("%-5s %s\n", is_true ? "ok" : "WRONG", what);
	fflush(stdout);
	failures += !is_true;
}

static inline void row(const char *how, int expected, int got)
{
	bool right = expected == got;

	printf("%-5s %-58s %-11s %s\n", right ? "ok" : "WRONG", how,
	       expected ? strerrorname_np(expected) : "0", right ? "" : strerror(got));
	failures += !right;
}

static inline struct ibv_qp *create(struct ibv_cq *send_cq, struct ibv_cq *receive_cq, uint32_t depth,
			     uint64_t operations)
{
	struct ibv_qp_init_attr_ex request = {
		.send_cq = send_cq,
		.recv_cq = receive_cq,
		.cap = { .max_send_wr = depth, .max_recv_wr = DEPTH, .max_send_sge = 2,
			 .max_recv_sge = 1, .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = operations,
	};

	errno = 0;
	return ibv_create_qp_ex(context, &request);
}

static inline void connect_to(struct ibv_qp *qp, const struct ibv_qp *peer)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = PORT,
				    .qp_access_flags = RW };
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = PORT,
			     .grh = { .sgid_index = 1, .hop_limit = 64 } },
	};
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7,
				   .rnr_retry = 7, .max_rd_atomic = 4 };

	if (ibv_query_gid(context, PORT, 1, &rtr.ah_attr.grh.dgid) ||
	    ibv_modify_qp(qp, &init,
			  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
	    ibv_modify_qp(qp, &rtr,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				  IBV_QP_MIN_RNR_TIMER) ||
	    ibv_modify_qp(qp, &rts,
			  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		die("connect");
}

static inline struct pair pair_on(struct ibv_cq *send_cq, struct ibv_cq *receive_cq,
				  uint32_t depth, uint64_t operations)
{
	struct pair pair = { .send_cq = send_cq, .receive_cq = receive_cq };

	if (!pair.send_cq || !pair.receive_cq)
		die("ibv_create_cq");
	pair.qp = create(pair.send_cq, pair.send_cq, depth, operations);
	pair.other = create(pair.receive_cq, pair.receive_cq, depth, operations);
	if (!pair.qp || !pair.other)
		die("ibv_create_qp_ex");
	pair.ex = ibv_qp_to_qp_ex(pair.qp);
	if (!pair.ex)
		die("ibv_qp_to_qp_ex");
	connect_to(pair.qp, pair.other);
	connect_to(pair.other, pair.qp);
	memset(memory, 0, SIZE);
	memset(other_memory, 0, SIZE);
	return pair;
}

static inline struct pair pair_of(uint32_t depth, uint64_t operations)
{
	return pair_on(ibv_create_cq(context, DEPTH, NULL, NULL, 0),
		       ibv_create_cq(context, DEPTH, NULL, NULL, 0), depth, operations);
}

static inline void drop(struct pair pair)
{
	if (ibv_destroy_qp(pair.qp) || ibv_destroy_qp(pair.other) ||
	    ibv_destroy_cq(pair.send_cq) || ibv_destroy_cq(pair.receive_cq))
		die("destroy");
}

static inline struct ibv_wc reap(struct ibv_cq *cq)
{
	time_t start = time(NULL);
	struct ibv_wc wc;

	for (;;) {
		int count = ibv_poll_cq(cq, 1, &wc);

		if (count == 1)
			return wc;
		if (count < 0 || time(NULL) > start + GUARD)
			die("no completion");
	}
}

/* The next completion, a success that says it is this. */
static inline struct ibv_wc reap_as(struct ibv_cq *cq, const char *what, uint64_t wr_id,
			     enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = reap(cq);

	if (wc.status || wc.wr_id != wr_id || wc.opcode != opcode)
		printf("      wr_id %llu, opcode %d: %s\n", (unsigned long long)wc.wr_id, wc.opcode,
		       ibv_wc_status_str(wc.status));
	must(what, !wc.status && wc.wr_id == wr_id && wc.opcode == opcode);
	return wc;
}

static inline void post_receive(struct ibv_qp *qp, uint64_t wr_id, uint32_t offset, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)other_memory + offset, length, other_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(qp, &wr, &bad))
		die("ibv_post_recv");
}

/* Sets number and flags of what is built next. */
static inline struct ibv_qp_ex *next(struct pair *pair, uint64_t wr_id)
{
	pair->ex->wr_id = wr_id;
	pair->ex->wr_flags = IBV_SEND_SIGNALED;
	return pair->ex;
}

static inline void set_sge(struct pair *pair, uint32_t offset, uint32_t length)
{
	ibv_wr_set_sge(pair->ex, mr->lkey, (uintptr_t)memory + offset, length);
}

static inline uint64_t remote(uint32_t offset)
{
	return (uintptr_t)other_memory + offset;
}

static inline void begin(void)
{
	context = open_first_device();
	pd = ibv_alloc_pd(context);
	mr = pd ? ibv_reg_mr(pd, memory, SIZE, RW) : NULL;
	other_mr = pd ? ibv_reg_mr(pd, other_memory, SIZE, RW) : NULL;
	if (!mr || !other_mr)
		die("PD or MR");
}

/* The exit code of the program. */
static inline int end(void)
{
	if (ibv_dereg_mr(mr) || ibv_dereg_mr(other_mr) || ibv_dealloc_pd(pd) ||
	    ibv_close_device(context))
		die("destroy");
	printf("%d wrong\n", failures);
	return failures != 0;
}
