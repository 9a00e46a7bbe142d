/* Address handles and queue pairs of unreliable datagrams: what is refused, what fails, what
 * arrives. Needs a link; `cargo xtask programs --filter datagrams` runs it on lo. */

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "first_device.h"

#define GRH 40
#define QKEY 0x11111111
#define GUARD 30 /* seconds until something counts as hung */
#define GID 1 /* 127.0.0.1 */

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *send_cq, *receive_cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp;
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

static struct ibv_ah_attr address(void)
{
	struct ibv_ah_attr address = { .is_global = 1, .port_num = PORT };

	address.grh.sgid_index = GID;
	if (ibv_query_gid(context, PORT, GID, &address.grh.dgid))
		die("ibv_query_gid");
	return address;
}

static void handles(void)
{
	struct ibv_ah_attr good = address(), bad;
	struct ibv_ah *ah;

	row("create_ah without attributes", EINVAL, ibv_create_ah(pd, NULL) ? 0 : errno);
	bad = good;
	bad.is_global = 0;
	row("create_ah without a GRH", EINVAL, ibv_create_ah(pd, &bad) ? 0 : errno);
	bad = good;
	bad.port_num = 2;
	row("create_ah on port 2", EINVAL, ibv_create_ah(pd, &bad) ? 0 : errno);
	bad = good;
	bad.grh.sgid_index = 200;
	row("create_ah with an empty GID index", ENODATA, ibv_create_ah(pd, &bad) ? 0 : errno);
	row("destroy_ah of nothing", EINVAL, ibv_destroy_ah(NULL));
	struct ibv_pd *own = ibv_alloc_pd(context);

	ah = ibv_create_ah(own, &good);
	must("create_ah", ah && ah->pd == own && ah->context == context);
	row("dealloc_pd with an address handle", EBUSY, ibv_dealloc_pd(own));
	row("destroy_ah", 0, ibv_destroy_ah(ah));
	row("dealloc_pd without it", 0, ibv_dealloc_pd(own));
}

static int modify(enum ibv_qp_state state, int mask)
{
	struct ibv_qp_attr to = { .qp_state = state, .port_num = PORT, .qkey = QKEY, .sq_psn = 5 };

	return ibv_modify_qp(qp, &to, mask | IBV_QP_STATE);
}

static enum ibv_qp_state state(void)
{
	struct ibv_qp_attr attributes;
	struct ibv_qp_init_attr init;

	if (ibv_query_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_QKEY, &init))
		die("ibv_query_qp");
	must("... query_qp tells type and Q_Key",
	     init.qp_type == IBV_QPT_UD && attributes.qkey == QKEY);
	return attributes.qp_state;
}

static void open_queue_pair(void)
{
	struct ibv_qp_init_attr_ex request = {
		.send_cq = send_cq,
		.recv_cq = receive_cq,
		.cap = { .max_send_wr = 15, .max_recv_wr = 15, .max_send_sge = 1,
			 .max_recv_sge = 2 },
		.qp_type = IBV_QPT_UD,
		.sq_sig_all = 1,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
	};
	int init = IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	row("create with RDMA WRITE", EOPNOTSUPP, ibv_create_qp_ex(context, &request) ? 0 : errno);
	request.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	qp = ibv_create_qp_ex(context, &request);
	if (!qp)
		die("ibv_create_qp_ex");
	row("RESET to INIT without a Q_Key", EINVAL, modify(IBV_QPS_INIT, init));
	row("RESET to INIT with access flags", EINVAL,
	    modify(IBV_QPS_INIT, init | IBV_QP_QKEY | IBV_QP_ACCESS_FLAGS));
	row("RESET to INIT", 0, modify(IBV_QPS_INIT, init | IBV_QP_QKEY));
	row("INIT to RTR with a path", EINVAL, modify(IBV_QPS_RTR, IBV_QP_AV));
	row("INIT to RTR", 0, modify(IBV_QPS_RTR, 0));
	row("RTR to RTS", 0, modify(IBV_QPS_RTS, IBV_QP_SQ_PSN));
}

static void post_receive(uint64_t id, uint32_t length)
{
	struct ibv_sge sges[2] = { { (uintptr_t)memory, GRH, mr->lkey },
				   { (uintptr_t)memory + 4096, length - GRH, mr->lkey } };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = sges, .num_sge = 2 }, *bad;

	if (ibv_post_recv(qp, &wr, &bad))
		die("ibv_post_recv");
}

/* A SEND of `length` bytes to ourselves. */
static struct ibv_send_wr send_to(struct ibv_ah *ah, struct ibv_sge *sge, uint32_t length)
{
	struct ibv_send_wr wr = { .wr_id = length, .sg_list = sge, .num_sge = 1,
				  .opcode = IBV_WR_SEND };

	*sge = (struct ibv_sge){ (uintptr_t)memory + 6144, length, mr->lkey };
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qp->qp_num;
	wr.wr.ud.remote_qkey = QKEY;
	return wr;
}

static struct ibv_wc completion(struct ibv_cq *cq)
{
	time_t start = time(NULL);
	struct ibv_wc wc;
	int count;

	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
		if (time(NULL) > start + GUARD)
			die("no completion");
	if (count < 0)
		die("ibv_poll_cq");
	return wc;
}

static void post(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	if (ibv_post_send(qp, wr, &bad))
		die("ibv_post_send");
}

static void refusals(struct ibv_ah *ah)
{
	struct ibv_port_attr port;
	struct ibv_send_wr wr, *bad = NULL;
	struct ibv_sge sge;

	if (ibv_query_port(context, PORT, &port))
		die("ibv_query_port");
	wr = send_to(ah, &sge, (128u << port.active_mtu) + 1);
	row("post of more than a packet", EINVAL, ibv_post_send(qp, &wr, &bad));
	must("... bad_wr names it", bad == &wr);
	wr = send_to(NULL, &sge, 8);
	row("post without an address handle", EINVAL, ibv_post_send(qp, &wr, &bad));
	wr = send_to(ah, &sge, 8);
	wr.wr.ud.remote_qpn = 1 << 24;
	row("post to a QPN of 25 bits", EINVAL, ibv_post_send(qp, &wr, &bad));
	wr = send_to(ah, &sge, 8);
	wr.opcode = IBV_WR_RDMA_READ;
	row("post of a READ", EINVAL, ibv_post_send(qp, &wr, &bad));
}

static void exchange(void)
{
	struct ibv_ah_attr to = address();
	struct ibv_ah *ah = ibv_create_ah(pd, &to), *back;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	if (!ah)
		die("ibv_create_ah");
	refusals(ah);
	post_receive(1, GRH + 100);
	strcpy(memory + 6144, "hello");
	wr = send_to(ah, &sge, 6);
	post(&wr);
	row("destroy_ah of one that is in use", 0, ibv_destroy_ah(ah));
	wc = completion(send_cq);
	must("the send completes all the same", wc.wr_id == 6 && wc.status == IBV_WC_SUCCESS);
	wc = completion(receive_cq);
	must("what was sent arrives behind a GRH", wc.wr_id == 1 && !wc.status &&
		     wc.byte_len == GRH + 6 && wc.wc_flags == IBV_WC_GRH &&
		     !strcmp(memory + 4096, "hello"));
	must("... and says by whom it was sent", wc.src_qp == qp->qp_num && wc.qp_num == qp->qp_num);
	must("... as IPv4", memory[20] == 0x45 && memory[32] == 127 && memory[36] == 127);

	back = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)memory, PORT);
	if (!back)
		die("ibv_create_ah_from_wc");
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);

	post_receive(2, GRH + 100);
	ibv_wr_start(ex);
	ex->wr_id = 9;
	ex->wr_flags = 0;
	ibv_wr_send_imm(ex, htobe32(7));
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory + 6144, 6);
	ibv_wr_set_ud_addr(ex, back, wc.src_qp, QKEY);
	row("the way back, by a builder", 0, ibv_wr_complete(ex));
	must("... is sent", completion(send_cq).wr_id == 9);
	wc = completion(receive_cq);
	must("... and arrives", !wc.status && wc.imm_data == htobe32(7) &&
		     wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM));
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 6);
	row("a builder without an addressee", EINVAL, ibv_wr_complete(ex));
	if (ibv_destroy_ah(back))
		die("ibv_destroy_ah");
}

static void failing(void)
{
	struct ibv_ah_attr to = address();
	struct ibv_ah *ah = ibv_create_ah(pd, &to);
	struct ibv_port_attr before, after;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	if (ibv_query_port(context, PORT, &before))
		die("ibv_query_port");
	post_receive(1, GRH + 7);
	post_receive(2, GRH + 8);
	wr = send_to(ah, &sge, 4);
	wr.wr.ud.remote_qkey = QKEY + 1;
	post(&wr);
	must("a wrong Q_Key is no error of the sender", !completion(send_cq).status);
	wr = send_to(ah, &sge, 8);
	post(&wr);
	post(&wr);
	for (int i = 0; i < 2; i++)
		must("sent", !completion(send_cq).status);
	wc = completion(receive_cq);
	must("a receive that is too small ends so", wc.wr_id == 1 && wc.status == IBV_WC_LOC_LEN_ERR);
	wc = completion(receive_cq);
	must("... and nothing else does", wc.wr_id == 2 && !wc.status && wc.byte_len == GRH + 8);
	if (ibv_query_port(context, PORT, &after))
		die("ibv_query_port");
	must("the wrong Q_Key was counted", after.qkey_viol_cntr == before.qkey_viol_cntr + 1);

	wr = send_to(ah, &sge, 8);
	sge.lkey ^= 0xff00;
	post(&wr);
	must("a wrong L_Key", completion(send_cq).status == IBV_WC_LOC_PROT_ERR);
	must("... ends the send queue", state() == IBV_QPS_SQE);
	wr = send_to(ah, &sge, 8);
	post(&wr);
	must("... which flushes", completion(send_cq).status == IBV_WC_WR_FLUSH_ERR);
	row("... until it is started again", 0, modify(IBV_QPS_RTS, 0));
	post_receive(3, GRH + 8);
	post(&wr);
	must("... and sends", !completion(send_cq).status);
	must("... what arrives", completion(receive_cq).wr_id == 3);
	if (ibv_destroy_ah(ah))
		die("ibv_destroy_ah");
}

int main(void)
{
	context = open_first_device();
	pd = ibv_alloc_pd(context);
	send_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	receive_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	mr = pd ? ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE) : NULL;
	if (!send_cq || !receive_cq || !mr)
		die("set-up");
	handles();
	open_queue_pair();
	exchange();
	failing();
	if (ibv_destroy_qp(qp) || ibv_dereg_mr(mr) || ibv_dealloc_pd(pd) ||
	    ibv_destroy_cq(send_cq) || ibv_destroy_cq(receive_cq) || ibv_close_device(context))
		die("the end");
	printf("%d wrong\n", failures);
	return failures != 0;
}
