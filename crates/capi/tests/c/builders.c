/* ibv_wr_*: every builder and setter over a connection, and two threads on one queue pair; and the
 * extended completion queue. Needs a link; `cargo xtask programs --filter builders` runs it on lo. */

#include <endian.h>
#include <pthread.h>
#include <unistd.h>

#include "builders.h"

static void creation(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr request = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC };
	const uint64_t strange[] = { IBV_QP_EX_WITH_BIND_MW, IBV_QP_EX_WITH_TSO,
				     IBV_QP_EX_WITH_ATOMIC_WRITE, 1 << 11, 1ull << 63 };

	if (!cq)
		die("ibv_create_cq");
	for (size_t i = 0; i < sizeof(strange) / sizeof(*strange); i++) {
		struct ibv_qp *qp = create(cq, cq, 1, IBV_QP_EX_WITH_SEND | strange[i]);

		row("create with an operation that is not supported", EOPNOTSUPP, qp ? 0 : errno);
	}
	struct ibv_qp *extended = create(cq, cq, 1, ALL), *none = create(cq, cq, 1, 0);
	struct ibv_qp *plain = ibv_create_qp(pd, &request);

	must("create with all operations of the device", extended);
	must("... the view is the queue pair itself",
	     ibv_qp_to_qp_ex(extended) == (struct ibv_qp_ex *)extended);
	must("create with no operation", none && ibv_qp_to_qp_ex(none));
	must("a plain queue pair has no view", plain && !ibv_qp_to_qp_ex(plain));
	if (ibv_destroy_qp(extended) || ibv_destroy_qp(none) || ibv_destroy_qp(plain) ||
	    ibv_destroy_cq(cq))
		die("destroy");
}

/* One batch with each operation that ends well. */
static void operations(void)
{
	struct pair pair = pair_of(DEPTH, ALL);
	struct ibv_sge list[2] = { { (uintptr_t)memory + 8, 3, mr->lkey },
				   { (uintptr_t)memory + 3, 2, mr->lkey } };
	uint64_t *counter = (uint64_t *)(other_memory + 2048);
	uint64_t *results = (uint64_t *)(memory + 2048);
	char inlined[16] = "inline";

	strcpy(memory, "hello, world");
	counter[0] = counter[1] = 7;
	for (uint64_t i = 0; i < 4; i++)
		post_receive(pair.other, i, 64 * i, 64);

	ibv_wr_start(pair.ex);
	ibv_wr_send(next(&pair, 1));
	set_sge(&pair, 0, 12);
	ibv_wr_send_imm(next(&pair, 2), htobe32(0x01020304));
	ibv_wr_set_sge_list(pair.ex, 2, list);
	ibv_wr_rdma_write(next(&pair, 3), other_mr->rkey, remote(1024));
	set_sge(&pair, 0, 5);
	ibv_wr_rdma_write_imm(next(&pair, 4), other_mr->rkey, remote(1032), htobe32(5));
	ibv_wr_set_inline_data(pair.ex, inlined, 7);
	/* the data was copied, number and flags were read */
	memset(inlined, '#', sizeof(inlined));
	pair.ex->wr_id = 99;
	pair.ex->wr_flags = 0;
	ibv_wr_atomic_fetch_add(next(&pair, 5), other_mr->rkey, remote(2048), 5);
	set_sge(&pair, 2048, 8);
	ibv_wr_atomic_cmp_swp(next(&pair, 6), other_mr->rkey, remote(2056), 7, 70);
	set_sge(&pair, 2056, 8);
	ibv_wr_rdma_read(next(&pair, 7), other_mr->rkey, remote(2048));
	pair.ex->wr_flags = 0;
	set_sge(&pair, 2064, 16);
	ibv_wr_rdma_write(next(&pair, 8), other_mr->rkey, remote(1100));
	pair.ex->wr_flags = IBV_SEND_FENCE;
	ibv_wr_set_inline_data_list(
		pair.ex, 3,
		(struct ibv_data_buf[]){ { memory, 5 }, { NULL, 0 }, { memory + 4, 8 } });
	pair.ex->wr_id = 9;
	pair.ex->wr_flags = 0;
	ibv_wr_rdma_write(pair.ex, other_mr->rkey, remote(1200));
	set_sge(&pair, 0, 5);
	ibv_wr_send(next(&pair, 10));
	ibv_wr_set_inline_data_list(pair.ex, 0, NULL);
	ibv_wr_send(next(&pair, 11));
	ibv_wr_set_sge_list(pair.ex, 0, NULL);
	row("a batch of every operation", 0, ibv_wr_complete(pair.ex));

	reap_as(pair.send_cq, "SEND", 1, IBV_WC_SEND);
	reap_as(pair.send_cq, "SEND with immediate", 2, IBV_WC_SEND);
	reap_as(pair.send_cq, "WRITE", 3, IBV_WC_RDMA_WRITE);
	reap_as(pair.send_cq, "WRITE with immediate", 4, IBV_WC_RDMA_WRITE);
	reap_as(pair.send_cq, "FETCH and ADD", 5, IBV_WC_FETCH_ADD);
	reap_as(pair.send_cq, "COMPARE and SWAP", 6, IBV_WC_COMP_SWAP);
	reap_as(pair.send_cq, "READ, flags changed after the builder", 7, IBV_WC_RDMA_READ);
	reap_as(pair.send_cq, "WRITE of a list of inline data", 8, IBV_WC_RDMA_WRITE);
	reap_as(pair.send_cq, "not signalled, then an empty SEND", 10, IBV_WC_SEND);
	struct ibv_wc wc = reap_as(pair.receive_cq, "received", 0, IBV_WC_RECV);

	must("... 12 bytes", wc.byte_len == 12 && !memcmp(other_memory, "hello, world", 12));
	wc = reap_as(pair.receive_cq, "received with immediate", 1, IBV_WC_RECV);
	must("... of two places", wc.byte_len == 5 && !memcmp(other_memory + 64, "orllo", 5));
	must("... the immediate", wc.wc_flags & IBV_WC_WITH_IMM && be32toh(wc.imm_data) == 0x01020304);
	wc = reap_as(pair.receive_cq, "immediate of a WRITE", 2, IBV_WC_RECV_RDMA_WITH_IMM);
	must("... the immediate", wc.wc_flags & IBV_WC_WITH_IMM && be32toh(wc.imm_data) == 5);
	must("... what was inline", !strcmp(other_memory + 1032, "inline"));
	wc = reap_as(pair.receive_cq, "received", 3, IBV_WC_RECV);
	must("... nothing", wc.byte_len == 0);
	must("written", !strcmp(other_memory + 1024, "hello"));
	must("written from a list", !memcmp(other_memory + 1100, "helloo, world", 13));
	must("written without a completion", !strcmp(other_memory + 1200, "hello"));
	must("added", results[0] == 7 && counter[0] == 12);
	must("swapped", results[1] == 7 && counter[1] == 70);
	must("read", results[2] == 12 && results[3] == 70);
	/* the last SEND of the batch waits for a receive */
	post_receive(pair.other, 4, 0, 64);
	reap_as(pair.send_cq, "an empty list of places", 11, IBV_WC_SEND);
	drop(pair);
}

/* Invalidation of a plain region is an error at one end: with builders the same as without. */
static void invalidation(void)
{
	struct ibv_wc ends[2][2];
	enum ibv_wc_status local[2];

	for (int built = 0; built < 2; built++) {
		struct pair pair = pair_of(DEPTH, ALL);
		struct ibv_send_wr *bad, wr = { .wr_id = 3, .opcode = IBV_WR_SEND_WITH_INV,
						.send_flags = IBV_SEND_SIGNALED,
						.invalidate_rkey = other_mr->rkey };

		post_receive(pair.other, 0, 0, 64);
		if (built) {
			ibv_wr_start(pair.ex);
			ibv_wr_send_inv(next(&pair, 3), other_mr->rkey);
			ibv_wr_set_sge_list(pair.ex, 0, NULL);
			row("SEND with invalidate", 0, ibv_wr_complete(pair.ex));
		} else if (ibv_post_send(pair.qp, &wr, &bad))
			die("ibv_post_send");
		ends[built][0] = reap(pair.send_cq);
		ends[built][1] = reap(pair.receive_cq);
		drop(pair);

		pair = pair_of(DEPTH, ALL);
		wr.opcode = IBV_WR_LOCAL_INV;
		wr.invalidate_rkey = mr->rkey;
		if (built) {
			ibv_wr_start(pair.ex);
			ibv_wr_local_inv(next(&pair, 3), mr->rkey);
			row("LOCAL_INV", 0, ibv_wr_complete(pair.ex));
		} else if (ibv_post_send(pair.qp, &wr, &bad))
			die("ibv_post_send");
		struct ibv_wc wc = reap(pair.send_cq);

		must("... completes as what it is", wc.wr_id == 3);
		local[built] = wc.status;
		drop(pair);
	}
	must("SEND with invalidate is the same for the sender",
	     ends[0][0].status == ends[1][0].status && ends[1][0].wr_id == 3);
	must("... and for the receiver", ends[0][1].status == ends[1][1].status);
	must("LOCAL_INV is the same", local[0] == local[1] && local[1] != IBV_WC_SUCCESS);
}

/* Completions field by field. */
static void extended_poll(void)
{
	struct ibv_cq_init_attr_ex request = { .cqe = DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &request);
	struct ibv_cq *send_cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
	struct pair pair = pair_on(send_cq, ibv_cq_ex_to_cq(cq), DEPTH, ALL);
	struct ibv_poll_cq_attr none = { 0 }, unknown = { .comp_mask = 1 };

	row("start_poll with an unknown attribute", EINVAL, ibv_start_poll(cq, &unknown));
	row("start_poll without a completion", ENOENT, ibv_start_poll(cq, &none));
	post_receive(pair.other, 11, 0, 64);
	post_receive(pair.other, 12, 64, 64);
	post_receive(pair.other, 13, 128, 4);
	ibv_wr_start(pair.ex);
	ibv_wr_send_imm(next(&pair, 1), htobe32(0x01020304));
	set_sge(&pair, 0, 12);
	ibv_wr_send(next(&pair, 2));
	set_sge(&pair, 0, 3);
	ibv_wr_send(next(&pair, 3)); /* longer than its receive */
	set_sge(&pair, 0, 5);
	row("three messages", 0, ibv_wr_complete(pair.ex));
	for (uint64_t id = 1; id <= 3; id++)
		must("... sent, the last one refused",
		     reap(pair.send_cq).status == (id < 3 ? IBV_WC_SUCCESS : IBV_WC_REM_INV_REQ_ERR));

	row("start_poll", 0, ibv_start_poll(cq, &none));
	must("... the first", cq->wr_id == 11 && cq->status == IBV_WC_SUCCESS);
	must("... opcode and length", ibv_wc_read_opcode(cq) == IBV_WC_RECV &&
					      ibv_wc_read_byte_len(cq) == 12);
	must("... the immediate", ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM &&
					  be32toh(ibv_wc_read_imm_data(cq)) == 0x01020304);
	must("... number of the queue pair", ibv_wc_read_qp_num(cq) == pair.other->qp_num);
	must("... what a connection does not have",
	     !ibv_wc_read_vendor_err(cq) && !ibv_wc_read_src_qp(cq) && !ibv_wc_read_slid(cq) &&
		     !ibv_wc_read_sl(cq) && !ibv_wc_read_dlid_path_bits(cq));
	row("next_poll", 0, ibv_next_poll(cq));
	must("... the second", cq->wr_id == 12 && ibv_wc_read_byte_len(cq) == 3 &&
				       !(ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM));
	row("next_poll", 0, ibv_next_poll(cq));
	must("... an error", cq->wr_id == 13 && cq->status == IBV_WC_LOC_LEN_ERR &&
				     ibv_wc_read_qp_num(cq) == pair.other->qp_num);
	row("next_poll at the end", ENOENT, ibv_next_poll(cq));
	ibv_end_poll(cq);
	row("start_poll after the end", ENOENT, ibv_start_poll(cq, &none));
	drop(pair);
}

/* Two threads, each with batches of three; the third message of each is signalled. Batches that
 * find no room are repeated, and come whole. */

#define BATCHES 3000

static void *send_batches(void *argument)
{
	struct pair *pair = *(struct pair **)argument;
	uint32_t thread = ((struct pair **)argument)[1] ? 1 : 0;
	uint64_t refused = 0;

	for (uint32_t batch = 0; batch < BATCHES; batch++) {
		int result;

		do {
			ibv_wr_start(pair->ex);
			for (uint32_t place = 0; place < 3; place++) {
				uint32_t what = thread << 31 | batch << 2 | place;

				next(pair, what)->wr_flags = place == 2 ? IBV_SEND_SIGNALED : 0;
				ibv_wr_send_imm(pair->ex, htobe32(what));
				ibv_wr_set_inline_data(pair->ex, &what, sizeof(what));
			}
			/* now and then one that is given up */
			if (batch % 16 == 0 && !(refused++ & 1)) {
				ibv_wr_abort(pair->ex);
				result = ENOMEM;
			} else {
				result = ibv_wr_complete(pair->ex);
			}
			if (result == ENOMEM)
				usleep(100); /* the other one reaps */
		} while (result == ENOMEM);
		if (result) {
			errno = result;
			die("ibv_wr_complete");
		}
	}
	return NULL;
}

static void two_threads(void)
{
	struct pair pair = pair_of(15, ALL);
	void *arguments[2][2] = { { &pair, NULL }, { &pair, &pair } };
	pthread_t threads[2];
	uint32_t received = 0, completed = 0, expected[2] = { 0, 0 };
	uint32_t current = 0;
	bool whole = true, in_order = true, intact = true;
	time_t start = time(NULL);

	for (uint32_t i = 0; i < DEPTH; i++)
		post_receive(pair.other, i, 64 * i, 64);
	for (int i = 0; i < 2; i++)
		if (pthread_create(&threads[i], NULL, send_batches, arguments[i]))
			die("pthread_create");
	while (received < 2 * 3 * BATCHES || completed < 2 * BATCHES) {
		struct ibv_wc wc[8];
		int count = ibv_poll_cq(pair.send_cq, 8, wc);

		for (int i = 0; i < count; i++)
			in_order &= !wc[i].status && (wc[i].wr_id & 3) == 2;
		completed += count;
		count = ibv_poll_cq(pair.receive_cq, 8, wc);
		for (int i = 0; i < count; i++, received++) {
			uint32_t what = be32toh(wc[i].imm_data), place = received % 3, carried;

			memcpy(&carried, other_memory + 64 * wc[i].wr_id, sizeof(carried));
			intact &= !wc[i].status && carried == what && wc[i].byte_len == 4;
			if (place == 0)
				current = what;
			whole &= what == current + place && (what & 3) == place;
			if (place == 0)
				in_order &= (current << 1 >> 3) == expected[current >> 31]++;
			post_receive(pair.other, wc[i].wr_id, 64 * wc[i].wr_id, 64);
		}
		if (time(NULL) > start + 2 * GUARD)
			die("two threads do not finish");
	}
	for (int i = 0; i < 2; i++)
		if (pthread_join(threads[i], NULL))
			die("pthread_join");
	must("two threads: batches arrive whole", whole);
	must("... in the order of each thread", in_order);
	must("... with their data", intact);
	drop(pair);
}

int main(void)
{
	begin();
	creation();
	operations();
	invalidation();
	extended_poll();
	two_threads();
	return end();
}
