/* ibv_wr_*: a batch is posted as a whole or not at all. Every error that spoils one, and batches that
 * the queue has no room for. Needs a link; `cargo xtask programs --filter spoilt` runs it on lo. */

#include <sys/mman.h>

#include "builders.h"

static char *unreadable;

static void good(struct pair *pair, uint64_t wr_id)
{
	ibv_wr_rdma_write(next(pair, wr_id), other_mr->rkey, remote(0));
	set_sge(pair, 0, 1);
}

static void no_setter(struct pair *pair)
{
	ibv_wr_send(next(pair, 1));
}

static void no_setter_between(struct pair *pair)
{
	no_setter(pair);
	good(pair, 1);
}

static void two_setters(struct pair *pair)
{
	good(pair, 1);
	set_sge(pair, 0, 1);
}

static void two_kinds_of_setter(struct pair *pair)
{
	good(pair, 1);
	ibv_wr_set_inline_data(pair->ex, memory, 1);
}

static void setter_of_local_inv(struct pair *pair)
{
	ibv_wr_local_inv(next(pair, 1), 0x123400);
	set_sge(pair, 0, 1);
}

static void inline_read(struct pair *pair)
{
	ibv_wr_rdma_read(next(pair, 1), other_mr->rkey, remote(0));
	ibv_wr_set_inline_data(pair->ex, memory, 8);
}

static void inline_too_long(struct pair *pair)
{
	ibv_wr_send(next(pair, 1));
	ibv_wr_set_inline_data(pair->ex, memory, 65);
}

static void inline_list_too_long(struct pair *pair)
{
	ibv_wr_send(next(pair, 1));
	ibv_wr_set_inline_data_list(
		pair->ex, 2, (struct ibv_data_buf[]){ { memory, 64 }, { memory, SIZE_MAX } });
}

static void inline_unreadable(struct pair *pair)
{
	ibv_wr_send(next(pair, 1));
	ibv_wr_set_inline_data(pair->ex, unreadable, 8);
}

static void too_many_sges(struct pair *pair)
{
	struct ibv_sge list[SIZE / 16] = { 0 };

	ibv_wr_send(next(pair, 1));
	ibv_wr_set_sge_list(pair->ex, SIZE / 16, list);
}

static void sges_nowhere(struct pair *pair)
{
	ibv_wr_send(next(pair, 1));
	ibv_wr_set_sge_list(pair->ex, 1, NULL);
}

static void atomic_unaligned(struct pair *pair)
{
	ibv_wr_atomic_fetch_add(next(pair, 1), other_mr->rkey, remote(4), 1);
	set_sge(pair, 0, 8);
}

static void atomic_short(struct pair *pair)
{
	ibv_wr_atomic_cmp_swp(next(pair, 1), other_mr->rkey, remote(8), 1, 2);
	set_sge(pair, 0, 7);
}

static void too_long(struct pair *pair)
{
	ibv_wr_send(next(pair, 1));
	set_sge(pair, 0, (1u << 31) + 1);
}

static void bind_mw(struct pair *pair)
{
	struct ibv_mw_bind_info info = { .mr = mr };

	ibv_wr_bind_mw(next(pair, 1), NULL, 0, &info);
}

static void tso(struct pair *pair)
{
	ibv_wr_send_tso(next(pair, 1), memory, 54, 1460);
	set_sge(pair, 0, 100);
}

static void atomic_write(struct pair *pair)
{
	ibv_wr_atomic_write(next(pair, 1), other_mr->rkey, remote(8), memory);
}

static void ud_address(struct pair *pair)
{
	good(pair, 1);
	ibv_wr_set_ud_addr(pair->ex, NULL, 1, 2);
}

static void xrc_srqn(struct pair *pair)
{
	good(pair, 1);
	ibv_wr_set_xrc_srqn(pair->ex, 1);
}

static void started_twice(struct pair *pair)
{
	ibv_wr_start(pair->ex);
}

static void longer_than_the_queue(struct pair *pair)
{
	for (int i = 0; i < DEPTH; i++)
		good(pair, 1);
}

static void first_of_two_errors(struct pair *pair)
{
	inline_unreadable(pair);
	bind_mw(pair);
}

static const struct {
	const char *how;
	void (*spoil)(struct pair *pair);
	int expected;
} ERRORS[] = {
	{ "no setter at the end", no_setter, EINVAL },
	{ "no setter in between", no_setter_between, EINVAL },
	{ "two setters", two_setters, EINVAL },
	{ "two kinds of setter", two_kinds_of_setter, EINVAL },
	{ "a setter for LOCAL_INV", setter_of_local_inv, EINVAL },
	{ "inline data of a READ", inline_read, EINVAL },
	{ "more inline data than max_inline_data", inline_too_long, EINVAL },
	{ "a list with more", inline_list_too_long, EINVAL },
	{ "inline data that cannot be read", inline_unreadable, EFAULT },
	{ "more places than max_send_sge", too_many_sges, EINVAL },
	{ "a list of places that is NULL", sges_nowhere, EINVAL },
	{ "atomic at an address that is no multiple of 8", atomic_unaligned, EINVAL },
	{ "atomic with room for 7 bytes", atomic_short, EINVAL },
	{ "more than max_msg_sz", too_long, EINVAL },
	{ "BIND_MW", bind_mw, EOPNOTSUPP },
	{ "TSO", tso, EOPNOTSUPP },
	{ "ATOMIC_WRITE", atomic_write, EOPNOTSUPP },
	{ "address of a datagram", ud_address, EINVAL },
	{ "number of an XRC SRQ", xrc_srqn, EINVAL },
	{ "started twice", started_twice, EINVAL },
	{ "longer than the queue", longer_than_the_queue, ENOMEM },
	{ "the first of two errors", first_of_two_errors, EFAULT },
};

static void errors(void)
{
	struct pair pair = pair_of(DEPTH, ALL);

	for (size_t i = 0; i < sizeof(ERRORS) / sizeof(*ERRORS); i++) {
		ibv_wr_start(pair.ex);
		good(&pair, 1);
		ERRORS[i].spoil(&pair);
		good(&pair, 1);
		errno = 0;
		row(ERRORS[i].how, ERRORS[i].expected, ibv_wr_complete(pair.ex));
		if (errno != ERRORS[i].expected)
			must("... and errno says so", false);
		ibv_wr_start(pair.ex);
		good(&pair, 2);
		if (ibv_wr_complete(pair.ex))
			must("... and the next batch is posted", false);
		if (reap(pair.send_cq).wr_id != 2)
			must("... and nothing of it is posted", false);
	}
	row("completed without a start", EINVAL, ibv_wr_complete(pair.ex));
	good(&pair, 1);
	ibv_wr_start(pair.ex);
	row("a builder before the start is not there; nothing to do", 0, ibv_wr_complete(pair.ex));

	ibv_wr_start(pair.ex);
	good(&pair, 1);
	ibv_wr_abort(pair.ex);
	ibv_wr_start(pair.ex);
	inline_unreadable(&pair);
	ibv_wr_abort(pair.ex);
	ibv_wr_start(pair.ex);
	good(&pair, 2);
	row("after two that were aborted", 0, ibv_wr_complete(pair.ex));
	must("... nothing of them is posted", reap(pair.send_cq).wr_id == 2);
	drop(pair);

	pair = pair_of(DEPTH, ALL & ~IBV_QP_EX_WITH_SEND);
	ibv_wr_start(pair.ex);
	good(&pair, 1);
	ibv_wr_send(next(&pair, 1));
	set_sge(&pair, 0, 1);
	row("an operation that was not announced", EINVAL, ibv_wr_complete(pair.ex));
	ibv_wr_start(pair.ex);
	good(&pair, 2);
	row("one that was", 0, ibv_wr_complete(pair.ex));
	must("... and nothing before it is posted", reap(pair.send_cq).wr_id == 2);
	drop(pair);

	pair = pair_of(DEPTH, ALL);
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };

	if (ibv_modify_qp(pair.qp, &reset, IBV_QP_STATE))
		die("to RESET");
	ibv_wr_start(pair.ex);
	good(&pair, 1);
	row("state RESET", EINVAL, ibv_wr_complete(pair.ex));
	drop(pair);
}

/* The queue has room for a part of the batch only. */
static void full(void)
{
	struct pair pair = pair_of(3, ALL);

	for (uint64_t id = 0; id < 2; id++) {
		struct ibv_send_wr *bad, wr = { .wr_id = id, .opcode = IBV_WR_SEND,
						.send_flags = IBV_SEND_SIGNALED };

		/* it waits for a receive */
		if (ibv_post_send(pair.qp, &wr, &bad))
			die("ibv_post_send");
	}
	ibv_wr_start(pair.ex);
	for (int i = 0; i < 2; i++) {
		ibv_wr_send(next(&pair, 9));
		set_sge(&pair, 0, 1);
	}
	row("two requests and room for one", ENOMEM, ibv_wr_complete(pair.ex));
	ibv_wr_start(pair.ex);
	ibv_wr_send(next(&pair, 2));
	set_sge(&pair, 0, 1);
	row("one request and room for one", 0, ibv_wr_complete(pair.ex));
	ibv_wr_start(pair.ex);
	ibv_wr_send(next(&pair, 9));
	set_sge(&pair, 0, 1);
	row("one request and no room", ENOMEM, ibv_wr_complete(pair.ex));
	for (uint64_t id = 0; id < 4; id++)
		post_receive(pair.other, id, 0, 64);
	for (uint64_t id = 0; id < 3; id++)
		reap_as(pair.send_cq, "... what was posted is sent", id, IBV_WC_SEND);
	ibv_wr_start(pair.ex);
	for (uint64_t id = 3; id < 4; id++) {
		ibv_wr_send(next(&pair, id));
		set_sge(&pair, 0, 1);
	}
	row("the queue is empty again", 0, ibv_wr_complete(pair.ex));
	reap_as(pair.send_cq, "... and nothing else was posted", 3, IBV_WC_SEND);
	drop(pair);
}

int main(void)
{
	/* not a hole, which another thread's stack may fill */
	unreadable = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (unreadable == MAP_FAILED)
		die("mmap");
	begin();
	errors();
	full();
	return end();
}
