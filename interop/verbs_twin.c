/*
 * Everything a responder can be asked to do, and what it must refuse, with a look at data and
 * completions at both ends. Usage in pair.h.
 *
 * Written against libibverbs alone, so that one binary runs over the distribution's library (the
 * kernel's rxe) and over softrdma's. The client requests, the server responds; its device decides
 * what the right answers are.
 */
#include "pair.h"

enum {
	REGION = 256 * 1024, /* registered at each end */
	HALF = REGION / 2,   /* requests use the first half, receives the second */
	LONGEST = 65536,
};

struct test {
	const char *name;
	void (*client)(const struct test *);
	void (*server)(const struct test *);
	/* server: how many receives to post and how large, what its region and its QP forbid */
	int receives;
	uint32_t receive_size;
	unsigned int region_forbids, qp_forbids;
	/* one operation for the client of the tests of refusals: a bad key or range, and the answer */
	enum ibv_wr_opcode opcode;
	uint32_t key_change;
	uint64_t offset;
	uint32_t length;
	enum ibv_wc_status expect, receive_expect;
};

/* Byte INDEX of the data with this number; no two numbers agree for long. */
static uint8_t pattern(uint32_t number, uint32_t index)
{
	uint32_t mixed = (index + 1) * 2654435761u ^ number * 2246822519u;

	return mixed >> 24 ^ mixed >> 11;
}

static void fill(uint32_t offset, uint32_t length, uint32_t number)
{
	for (uint32_t i = 0; i < length; i++)
		memory[offset + i] = pattern(number, i);
}

static void check(const char *what, uint32_t offset, uint32_t length, uint32_t number)
{
	for (uint32_t i = 0; i < length; i++)
		if (memory[offset + i] != pattern(number, i)) {
			fail("%s: byte %u of %u is %#x, not %#x", what, i, length, memory[offset + i],
			     pattern(number, i));
			return;
		}
}

static void check_zero(const char *what, uint32_t offset, uint32_t length)
{
	for (uint32_t i = 0; i < length; i++)
		if (memory[offset + i]) {
			fail("%s: byte %u was touched", what, i);
			return;
		}
}

static void set_up(const struct test *test)
{
	static uint8_t *bytes;
	struct setup setup = { .size = REGION, .region_access = ALL_ACCESS, .qp_access = ALL_ACCESS,
			       /* the kernel's rxe takes a retry count of 7 for infinite */
			       .timeout = 16, .retries = 6, .rnr_retries = 7 };

	if (!bytes && !(bytes = aligned_alloc(4096, REGION)))
		die("aligned_alloc");
	memset(bytes, 0, REGION);
	setup.memory = bytes;
	if (options.server) {
		setup.region_access &= ~test->region_forbids;
		setup.qp_access &= ~test->qp_forbids;
	}
	if (test->expect == IBV_WC_RNR_RETRY_EXC_ERR)
		setup.rnr_retries = 2;
	make_qp(&setup);
	for (int i = 0; options.server && i < test->receives; i++)
		post_receive(HALF + (i % 2) * LONGEST, test->receive_size);
	connect_qp(&setup);
}

/* --- the tests ----------------------------------------------------------------------------- */

static const uint32_t lengths[] = { 1, 2, 3, 4, 5, 63, 64, 255, 256, 257, 511, 1023, 1024, 1025, 2047,
				    4095, 4096, 4097, 8191, 32768, 65535, 65536 };
enum { LENGTHS = sizeof(lengths) / sizeof(*lengths) };

/* The server's part where it is passive: its receives must not complete. */
static void look_on(const struct test *test)
{
	struct ibv_wc wc;

	meet();
	if (test->receives && ibv_poll_cq(receive_cq, 1, &wc) != 0)
		fail("an unexpected completion of a receive");
}

static void send_client(const struct test *test)
{
	for (int i = 0; i < LENGTHS; i++) {
		fill(0, lengths[i], i);
		perform(test->opcode, 0, lengths[i], 0, 0xfeed0000 + i, "send");
	}
}

static void send_server(const struct test *test)
{
	bool immediate = test->opcode == IBV_WR_SEND_WITH_IMM;

	for (int i = 0; i < LENGTHS; i++) {
		struct ibv_wc wc = reap(receive_cq, "receive", IBV_WC_SUCCESS);

		if (wc.status != IBV_WC_SUCCESS)
			return;
		if (wc.byte_len != lengths[i] || wc.opcode != IBV_WC_RECV)
			fail("receive: %u bytes, opcode %d, not %u bytes", wc.byte_len, wc.opcode, lengths[i]);
		if (!!(wc.wc_flags & IBV_WC_WITH_IMM) != immediate)
			fail("receive: flags %#x", wc.wc_flags);
		if (immediate && ntohl(wc.imm_data) != 0xfeed0000u + i)
			fail("receive: immediate %#x", ntohl(wc.imm_data));
		check("received", wc.wr_id, lengths[i], i);
		post_receive(wc.wr_id, test->receive_size);
	}
}

static void empty_client(const struct test *test)
{
	(void)test;
	perform(IBV_WR_SEND, 0, 0, 0, 0, "send of nothing");
	perform(IBV_WR_SEND_WITH_IMM, 0, 0, 0, 7, "send of an immediate");
	perform(IBV_WR_RDMA_WRITE, 0, 0, 0, 0, "write of nothing");
	perform(IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, 0, 8, "write of an immediate");
	perform(IBV_WR_RDMA_READ, 0, 0, 0, 0, "read of nothing");
}

static void empty_server(const struct test *test)
{
	static const struct { int opcode; uint32_t immediate; } expected[] = {
		{ IBV_WC_RECV, 0 }, { IBV_WC_RECV, 7 }, { IBV_WC_RECV_RDMA_WITH_IMM, 8 } };

	(void)test;
	for (int i = 0; i < 3; i++) {
		struct ibv_wc wc = reap(receive_cq, "receive", IBV_WC_SUCCESS);

		if (wc.byte_len != 0 || (int)wc.opcode != expected[i].opcode)
			fail("receive %d: %u bytes, opcode %d", i, wc.byte_len, wc.opcode);
		if (expected[i].immediate && ntohl(wc.imm_data) != expected[i].immediate)
			fail("receive %d: immediate %#x", i, ntohl(wc.imm_data));
	}
	check_zero("empty messages", 0, REGION);
}

/* WRITE: each length at an odd place, the server looks at it and around it, with and without an
 * immediate; the turns alternate over TCP where no completion tells the server. */
static void write_client(const struct test *test)
{
	for (int i = 0; i < LENGTHS; i++) {
		fill(0, lengths[i], i);
		perform(test->opcode, 0, lengths[i], 100 + i, 0xbeef0000 + i, "write");
		meet();
		meet();
	}
}

static void write_server(const struct test *test)
{
	for (int i = 0; i < LENGTHS; i++) {
		uint32_t place = 100 + i;

		if (test->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
			struct ibv_wc wc = reap(receive_cq, "receive", IBV_WC_SUCCESS);

			if (wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM || wc.byte_len != lengths[i])
				fail("receive: opcode %d, %u bytes", wc.opcode, wc.byte_len);
			if (!(wc.wc_flags & IBV_WC_WITH_IMM) || ntohl(wc.imm_data) != 0xbeef0000u + i)
				fail("receive: flags %#x, immediate %#x", wc.wc_flags, ntohl(wc.imm_data));
			/* the data is there when the immediate is, and before the client's completion */
			check("written", place, lengths[i], i);
			post_receive(HALF, test->receive_size);
		}
		meet();
		check("written", place, lengths[i], i);
		check_zero("before what was written", 0, place);
		check_zero("after what was written", place + lengths[i], HALF - place - lengths[i]);
		memset(memory, 0, HALF);
		meet();
	}
}

static void read_client(const struct test *test)
{
	(void)test;
	meet();
	for (int i = 0; i < LENGTHS; i++) {
		perform(IBV_WR_RDMA_READ, 1000, lengths[i], i, 0, "read");
		for (uint32_t k = 0; k < lengths[i]; k++)
			if (memory[1000 + k] != pattern(42, i + k)) {
				fail("read of %u: byte %u", lengths[i], k);
				break;
			}
		check_zero("before what was read", 0, 1000);
		check_zero("after what was read", 1000 + lengths[i], HALF - 1000 - lengths[i]);
		memset(memory, 0, HALF);
	}
	meet();
}

static void read_server(const struct test *test)
{
	(void)test;
	fill(0, HALF, 42);
	meet();
	meet();
	check("what was read", 0, HALF, 42);
}

static uint64_t atomic(enum ibv_wr_opcode opcode, uint64_t remote, uint64_t compare_add, uint64_t swap)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = request(opcode, &sge, 8, 8, remote);
	uint64_t original;

	wr.wr.atomic.compare_add = compare_add;
	wr.wr.atomic.swap = swap;
	post(&wr);
	reap(send_cq, "atomic", IBV_WC_SUCCESS);
	memcpy(&original, memory + 8, 8);
	return original;
}

static void expect_value(const char *what, uint64_t value, uint64_t expected)
{
	if (value != expected)
		fail("%s: %#llx, not %#llx", what, (unsigned long long)value, (unsigned long long)expected);
}

static const uint64_t one = 0x0102030405060708, two = 0x1112131415161718;

static void atomic_client(const struct test *test)
{
	(void)test;
	for (uint64_t i = 0; i < 20; i++)
		expect_value("fetch and add", atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, one, 0), i * one);
	expect_value("swap without match", atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 16, one, two), 0);
	expect_value("swap with match", atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 16, 0, two), 0);
	expect_value("swap with match", atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 16, two, one), two);
	expect_value("wrapping add", atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 16, -one, 0), one);
	meet();
}

static void atomic_server(const struct test *test)
{
	uint64_t words[3];

	(void)test;
	meet();
	memcpy(words, memory, sizeof(words));
	expect_value("sum", words[0], 20 * one);
	expect_value("between", words[1], 0);
	expect_value("swapped and added", words[2], 0);
}

/* Many requests at once, one completion for all: they happen in their order, a fenced one not
 * before the reads that precede it. */
static void pipeline_client(const struct test *test)
{
	enum { ROUNDS = 8, BLOCK = 5000 };

	(void)test;
	for (int i = 0; i < ROUNDS; i++) {
		uint32_t place = i * 3 * BLOCK;
		struct ibv_sge sge[4];
		struct ibv_send_wr wr[4] = {
			request(IBV_WR_RDMA_WRITE, &sge[0], 0, BLOCK, 0),
			request(IBV_WR_RDMA_READ, &sge[1], HALF, BLOCK, 0), /* what was just written */
			request(IBV_WR_RDMA_WRITE, &sge[2], HALF, BLOCK, place + BLOCK), /* what was read */
			request(IBV_WR_SEND, &sge[3], 0, BLOCK, 0),
		};

		wr[2].send_flags |= IBV_SEND_FENCE;
		for (int k = 0; k < 3; k++) {
			wr[k].next = &wr[k + 1];
			wr[k].send_flags &= ~IBV_SEND_SIGNALED;
		}
		fill(0, BLOCK, i);
		post(wr);
		reap(send_cq, "last of four", IBV_WC_SUCCESS);
		check("read", HALF, BLOCK, i);
	}
	meet();
}

static void pipeline_server(const struct test *test)
{
	for (int i = 0; i < 8; i++) {
		struct ibv_wc wc = reap(receive_cq, "receive", IBV_WC_SUCCESS);

		if (wc.status != IBV_WC_SUCCESS)
			break;
		check("written before the send", i * 3 * 5000 + 5000, 5000, i);
		check("received", wc.wr_id, 5000, i);
		post_receive(wc.wr_id, test->receive_size);
	}
	meet();
}

/* One request that must fail with test->expect; the next one is flushed. */
static void refused_client(const struct test *test)
{
	struct ibv_sge sge[2];
	struct ibv_send_wr wr = request(test->opcode, &sge[0], 0, test->length, test->offset);
	struct ibv_send_wr next = request(IBV_WR_SEND, &sge[1], 0, 1, 0);
	enum ibv_wc_status expect = test->expect;

	/* a message that does not fit: the standard's invalid request, the kernel's operational error */
	if (test->receive_expect == IBV_WC_LOC_LEN_ERR && peer.kernel)
		expect = IBV_WC_REM_OP_ERR;
	if (test->opcode != IBV_WR_ATOMIC_FETCH_AND_ADD)
		wr.wr.rdma.rkey ^= test->key_change;
	else
		wr.wr.atomic.rkey ^= test->key_change;
	fill(0, test->length, 99);
	post(&wr);
	reap(send_cq, "refused", expect);
	post(&next);
	reap(send_cq, "posted after it", IBV_WC_WR_FLUSH_ERR);
	if (test->opcode == IBV_WR_RDMA_READ)
		check("target of a refused read", 0, test->length, 99);
	meet();
}

static void refused_server(const struct test *test)
{
	enum ibv_wc_status expect = test->receive_expect;

	if (expect == IBV_WC_LOC_LEN_ERR && options.kernel)
		expect = IBV_WC_LOC_QP_OP_ERR;
	for (int i = 0; i < test->receives; i++, expect = IBV_WC_WR_FLUSH_ERR)
		reap(receive_cq, "receive", expect);
	meet();
	if (test->opcode != IBV_WR_SEND)
		check_zero("refused", 0, REGION);
}

/* An atomic at an odd address is refused where it is posted. */
static void unaligned_client(const struct test *test)
{
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = request(test->opcode, &sge, 0, 8, 3);
	int error = ibv_post_send(qp, &wr, &bad);

	if (error != EINVAL)
		fail("post_send: %s", strerror(error));
	meet();
}

#define REFUSED .client = refused_client, .server = refused_server
#define FLUSHED .receives = 2, .receive_size = 64, .receive_expect = IBV_WC_WR_FLUSH_ERR

static const struct test tests[] = {
	{ "send", send_client, send_server, 2, LONGEST, .opcode = IBV_WR_SEND },
	{ "send with immediate", send_client, send_server, 2, LONGEST, .opcode = IBV_WR_SEND_WITH_IMM },
	{ "empty messages", empty_client, empty_server, 3, 0 },
	{ "write", write_client, write_server, .opcode = IBV_WR_RDMA_WRITE },
	{ "write with immediate", write_client, write_server, 2, 0, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM },
	{ "read", read_client, read_server, .opcode = IBV_WR_RDMA_READ },
	{ "atomics", atomic_client, atomic_server },
	{ "pipeline with a fence", pipeline_client, pipeline_server, 2, LONGEST },
	{ "unaligned atomic", unaligned_client, look_on, 1, 64, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD },
	{ "write with a wrong key", REFUSED, FLUSHED, .opcode = IBV_WR_RDMA_WRITE, .length = 100,
	  .key_change = 0x5500, .expect = IBV_WC_REM_ACCESS_ERR },
	{ "read with a wrong key", REFUSED, FLUSHED, .opcode = IBV_WR_RDMA_READ, .length = 100,
	  .key_change = 0x5500, .expect = IBV_WC_REM_ACCESS_ERR },
	{ "atomic with a wrong key", REFUSED, FLUSHED, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .length = 8,
	  .key_change = 0x5500, .expect = IBV_WC_REM_ACCESS_ERR },
	{ "write out of bounds", REFUSED, FLUSHED, .opcode = IBV_WR_RDMA_WRITE, .length = 3000,
	  .offset = REGION - 1000, .expect = IBV_WC_REM_ACCESS_ERR },
	{ "read out of bounds", REFUSED, FLUSHED, .opcode = IBV_WR_RDMA_READ, .length = 3000,
	  .offset = REGION - 1000, .expect = IBV_WC_REM_ACCESS_ERR },
	{ "read before the region", REFUSED, FLUSHED, .opcode = IBV_WR_RDMA_READ, .length = 100,
	  .offset = -1, .expect = IBV_WC_REM_ACCESS_ERR },
	{ "write to a region that forbids it", REFUSED, FLUSHED, .opcode = IBV_WR_RDMA_WRITE, .length = 100,
	  .region_forbids = IBV_ACCESS_REMOTE_WRITE, .expect = IBV_WC_REM_ACCESS_ERR },
	{ "read of a region that forbids it", REFUSED, FLUSHED, .opcode = IBV_WR_RDMA_READ, .length = 100,
	  .region_forbids = IBV_ACCESS_REMOTE_READ, .expect = IBV_WC_REM_ACCESS_ERR },
	{ "atomic on a region that forbids it", REFUSED, FLUSHED, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
	  .length = 8, .region_forbids = IBV_ACCESS_REMOTE_ATOMIC, .expect = IBV_WC_REM_ACCESS_ERR },
	{ "write to a QP that forbids it", REFUSED, FLUSHED, .opcode = IBV_WR_RDMA_WRITE, .length = 100,
	  .qp_forbids = IBV_ACCESS_REMOTE_WRITE, .expect = IBV_WC_REM_INV_REQ_ERR },
	{ "read from a QP that forbids it", REFUSED, FLUSHED, .opcode = IBV_WR_RDMA_READ, .length = 100,
	  .qp_forbids = IBV_ACCESS_REMOTE_READ, .expect = IBV_WC_REM_INV_REQ_ERR },
	{ "atomic on a QP that forbids it", REFUSED, FLUSHED, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
	  .length = 8, .qp_forbids = IBV_ACCESS_REMOTE_ATOMIC, .expect = IBV_WC_REM_INV_REQ_ERR },
	{ "send that does not fit", REFUSED, .receives = 2, .receive_size = 64, .opcode = IBV_WR_SEND,
	  .length = 100, .expect = IBV_WC_REM_INV_REQ_ERR, .receive_expect = IBV_WC_LOC_LEN_ERR },
	{ "send of several packets that does not fit", REFUSED, .receives = 1, .receive_size = 5000,
	  .opcode = IBV_WR_SEND, .length = 9000, .expect = IBV_WC_REM_INV_REQ_ERR,
	  .receive_expect = IBV_WC_LOC_LEN_ERR },
	{ "send without a receive", REFUSED, .opcode = IBV_WR_SEND, .length = 100,
	  .expect = IBV_WC_RNR_RETRY_EXC_ERR },
};

int main(int argc, char **argv)
{
	unsigned int passed = 0, wrong = 0;

	pair_start(argc, argv);
	for (const struct test *test = tests; test < tests + sizeof(tests) / sizeof(*tests); test++) {
		if (!wanted(test->name))
			continue;
		failed = false;
		set_up(test);
		(options.server ? test->server : test->client)(test);
		meet(); /* neither leaves while the other still needs it */
		drop_qp();
		if (conclude(test->name))
			passed++;
		else
			wrong++;
	}
	printf("verbs_twin: %u passed, %u failed\n", passed, wrong);
	return passed == 0 || wrong > 0;
}
