/* Multicast groups: what is refused, who gets what is sent to one. Needs a link;
 * `cargo xtask programs --filter multicast-groups` runs it on lo. */

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "first_device.h"

#define GRH 40
#define QKEY 0x11111111
#define GUARD 30 /* seconds until something counts as hung */
#define PAIRS 3
#define TO_ALL 0xffffff

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *send_cq, *receive_cq;
static struct ibv_mr *mr;
static struct ibv_qp *qps[PAIRS];
static struct ibv_qp *connection;
static char memory[8192];
/* Index of the address that all happens with: 127.0.0.1, then ::1. */
static uint8_t own = 1;
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

/* ::ffff:239.77.1.last, or ff1e::last */
static union ibv_gid group(uint8_t last)
{
	if (own == 1)
		return (union ibv_gid){ .raw = { [10] = 0xff, 0xff, 239, 77, 1, last } };
	return (union ibv_gid){ .raw = { 0xff, 0x1e, [15] = last } };
}

static struct ibv_qp *queue_pair(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr request = {
		.send_cq = send_cq,
		.recv_cq = receive_cq,
		.cap = { .max_send_wr = 15, .max_recv_wr = 15, .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.qp_type = type,
		.sq_sig_all = 1,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &request);
	struct ibv_qp_attr to = { .port_num = PORT, .qkey = QKEY };

	if (!qp)
		die("ibv_create_qp");
	if (type != IBV_QPT_UD)
		return qp;
	for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		int mask = IBV_QP_STATE;

		to.qp_state = state;
		if (state == IBV_QPS_INIT)
			mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
		if (state == IBV_QPS_RTS)
			mask |= IBV_QP_SQ_PSN;
		errno = ibv_modify_qp(qp, &to, mask);
		if (errno)
			die("ibv_modify_qp");
	}
	return qp;
}

static void post_receives(void)
{
	for (int i = 0; i < PAIRS; i++) {
		struct ibv_sge sge = { (uintptr_t)memory + 128 * i, GRH + 8, mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;

		if (ibv_post_recv(qps[i], &wr, &bad))
			die("ibv_post_recv");
	}
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

/* What a receive has: the bit of its queue pair for a message to the group, 0 for a marker. */
static unsigned int received(union ibv_gid to, uint8_t hops)
{
	struct ibv_wc wc = completion(receive_cq);
	const char *got = memory + 128 * wc.wr_id + GRH;

	if (wc.status != IBV_WC_SUCCESS || wc.wr_id >= PAIRS || wc.byte_len != GRH + 8 ||
	    wc.src_qp != qps[0]->qp_num || wc.qp_num != qps[wc.wr_id]->qp_num)
		die("a receive that is none");
	if (strcmp(got, "message"))
		return 0;
	if (own == 1)
		must("... the IPv4 header names the group, with the TTL asked for",
		     !memcmp(got - 4, to.raw + 12, 4) && (uint8_t)got[8 - 20] == hops);
	else
		must("... the IPv6 header names the group, with the hop limit asked for",
		     !memcmp(got - 16, to.raw, 16) && (uint8_t)got[7 - GRH] == hops);
	return 1u << wc.wr_id;
}

static void post_send(struct ibv_ah *to, uint32_t qpn, const char *text)
{
	struct ibv_sge sge = { (uintptr_t)memory + 4096, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	strcpy(memory + 4096, text);
	wr.wr.ud.ah = to;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = QKEY;
	if (ibv_post_send(qps[0], &wr, &bad) || completion(send_cq).status != IBV_WC_SUCCESS)
		die("ibv_post_send");
}

static struct ibv_ah *handle(union ibv_gid to, uint8_t hops)
{
	struct ibv_ah_attr address = { .is_global = 1, .port_num = PORT };
	struct ibv_ah *ah;

	address.grh = (struct ibv_global_route){ .dgid = to, .sgid_index = own,
						 .hop_limit = hops };
	ah = ibv_create_ah(pd, &address);
	if (!ah)
		die("ibv_create_ah");
	return ah;
}

/* Whether a send of the first queue pair comes to those of `expected`, a bit for each, and to
 * nobody else: they still take a marker. */
static bool comes_to(unsigned int expected, union ibv_gid to, uint32_t qpn, uint8_t hops)
{
	struct ibv_ah *there = handle(to, hops), *back;
	unsigned int who = 0;
	union ibv_gid here;

	memset(memory, 0, 4096);
	post_receives();
	post_send(there, qpn, "message");
	for (int i = 0; i < PAIRS; i++)
		if (expected & 1u << i)
			who |= received(to, hops ? hops : 64);
	if (ibv_query_gid(context, PORT, own, &here))
		die("ibv_query_gid");
	back = handle(here, 64);
	for (int i = 0; i < PAIRS; i++)
		if (!(who & 1u << i)) {
			post_send(back, qps[i]->qp_num, "marker");
			who |= received(to, hops ? hops : 64);
		}
	if (ibv_destroy_ah(there) || ibv_destroy_ah(back))
		die("ibv_destroy_ah");
	return who == expected;
}

static void refusals(void)
{
	union ibv_gid good = group(1), here;

	if (ibv_query_gid(context, PORT, own, &here))
		die("ibv_query_gid");
	row("attach_mcast, no QP", EINVAL, ibv_attach_mcast(NULL, &good, 0));
	row("attach_mcast, no GID", EINVAL, ibv_attach_mcast(qps[0], NULL, 0));
	row("attach_mcast, a connection", EINVAL, ibv_attach_mcast(connection, &good, 0));
	row("attach_mcast, an address of ours", EINVAL, ibv_attach_mcast(qps[0], &here, 0));
	row("detach_mcast, not attached", EINVAL, ibv_detach_mcast(qps[0], &good, 0));
	row("detach_mcast, no QP", EINVAL, ibv_detach_mcast(NULL, &good, 0));
	row("attach_mcast", 0, ibv_attach_mcast(qps[0], &good, 0));
	row("attach_mcast twice", 0, ibv_attach_mcast(qps[0], &good, 7));
	row("destroy_qp while it is attached", EBUSY, ibv_destroy_qp(qps[0]));
	row("detach_mcast", 0, ibv_detach_mcast(qps[0], &good, 0));
	row("detach_mcast twice", EINVAL, ibv_detach_mcast(qps[0], &good, 0));
}

/* More groups than a socket can be in. */
static void many(void)
{
	int joined = 0, got = 0;
	union ibv_gid to;

	while (!got && joined < 250) {
		to = group(joined + 1);
		got = ibv_attach_mcast(qps[0], &to, 0);
		joined += !got;
	}
	must("20 groups at least", joined >= 20);
	row("attach_mcast to more than the kernel allows", ENOMEM, got);
	while (joined--) {
		to = group(joined + 1);
		if (ibv_detach_mcast(qps[0], &to, 0))
			die("ibv_detach_mcast");
	}
}

static void traffic(void)
{
	union ibv_gid one = group(1), two = group(2);

	must("nobody is attached, nobody receives", comes_to(0, one, TO_ALL, 64));
	row("attach_mcast of the first", 0, ibv_attach_mcast(qps[0], &one, 0));
	row("attach_mcast of the second", 0, ibv_attach_mcast(qps[1], &one, 0));
	must("both receive, the sender too", comes_to(3, one, TO_ALL, 64));
	must("one hop is enough", comes_to(3, one, TO_ALL, 1));
	must("no hops said: as routes have it", comes_to(3, one, TO_ALL, 0));
	must("another group is another group", comes_to(0, two, TO_ALL, 64));
	must("a group with the number of one queue pair is nobody's",
	     comes_to(0, one, qps[1]->qp_num, 64));
	row("attach_mcast of the third to the other", 0, ibv_attach_mcast(qps[2], &two, 0));
	must("the third receives that", comes_to(4, two, TO_ALL, 64));
	row("detach_mcast of the first", 0, ibv_detach_mcast(qps[0], &one, 0));
	must("the second still receives", comes_to(2, one, TO_ALL, 64));
	row("detach_mcast of the second", 0, ibv_detach_mcast(qps[1], &one, 0));
	must("nobody is left", comes_to(0, one, TO_ALL, 64));
	row("detach_mcast of the third", 0, ibv_detach_mcast(qps[2], &two, 0));
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
	for (int i = 0; i < PAIRS; i++)
		qps[i] = queue_pair(IBV_QPT_UD);
	connection = queue_pair(IBV_QPT_RC);

	refusals();
	many();
	traffic();
	own = 2;
	traffic();

	for (int i = 0; i < PAIRS; i++)
		row("destroy_qp", 0, ibv_destroy_qp(qps[i]));
	row("destroy_qp", 0, ibv_destroy_qp(connection));
	row("close", 0, ibv_destroy_cq(send_cq) | ibv_destroy_cq(receive_cq) | ibv_dereg_mr(mr) |
				ibv_dealloc_pd(pd) | ibv_close_device(context));
	printf("%d wrong\n", failures);
	return failures != 0;
}
