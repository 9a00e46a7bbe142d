/*
 * Two ends of reliable connections that do everything a responder can be asked to do, and what it
 * must refuse, and check data and completions at both ends.
 *
 *   verbs_twin server [options]          answers one client, then ends
 *   verbs_twin client [options] HOST
 *
 *     -d DEVICE   default: the first
 *     -g INDEX    of the GID (1)
 *     -m MTU      path MTU (1024)
 *     -p PORT     TCP port over which the two agree (18600)
 *     -k          the server's device is the kernel's rxe: expect what it is known to do otherwise
 *     -v          print every completion
 *
 * Written against libibverbs alone, so that one binary runs over the distribution's library (the
 * kernel's rxe) and over softrdma's. Each test has a queue pair of its own. The client requests,
 * the server responds; its device decides what the right answers are.
 */
#include <infiniband/verbs.h>
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	REGION = 256 * 1024, /* registered at each end */
	HALF = REGION / 2,   /* requests use the first half, receives the second */
	LONGEST = 65536,
	DEPTH = 64,
	GUARD_SECONDS = 60,
	READS = 4, /* outstanding at once */
	ALL_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		     IBV_ACCESS_REMOTE_ATOMIC,
};

/* What each end tells the other before a test. */
struct endpoint {
	union ibv_gid gid;
	uint64_t address;
	uint32_t rkey, qpn, psn, kernel;
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

static struct {
	const char *device;
	int gid_index, port;
	enum ibv_mtu mtu;
	bool server, kernel, verbose;
} options = { .gid_index = 1, .port = 18600, .mtu = IBV_MTU_1024 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *send_cq, *receive_cq;
static struct ibv_qp *qp;
static struct ibv_mr *region;
static uint8_t *memory;
static struct endpoint peer;
static int control = -1; /* the TCP connection */
static bool failed;	 /* the running test */

/* --- small things ------------------------------------------------------------------------- */

static void die(const char *what)
{
	fprintf(stderr, "verbs_twin: %s: %s\n", what, strerror(errno));
	exit(2);
}

/* Says what is wrong with the running test, which goes on, so that both ends stay in step. */
__attribute__((format(printf, 1, 2))) static void fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	printf("  wrong: ");
	vprintf(format, arguments);
	putchar('\n');
	va_end(arguments);
	failed = true;
}

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

static void exchange(const void *mine, void *theirs, size_t length)
{
	if (send(control, mine, length, MSG_NOSIGNAL) != (ssize_t)length ||
	    recv(control, theirs, length, MSG_WAITALL) != (ssize_t)length) {
		fprintf(stderr, "verbs_twin: the other end is gone\n");
		exit(2);
	}
}

/* Neither end passes before both have come here; true if both are content. */
static bool meet(void)
{
	uint8_t mine = failed, theirs;

	exchange(&mine, &theirs, 1);
	return !mine && !theirs;
}

/* --- verbs --------------------------------------------------------------------------------- */

/* The next completion, which must have this status. */
static struct ibv_wc reap(struct ibv_cq *cq, const char *what, enum ibv_wc_status expect)
{
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	time_t deadline = time(NULL) + GUARD_SECONDS;
	int count;

	while (!(count = ibv_poll_cq(cq, 1, &wc)) && time(NULL) < deadline)
		sched_yield();
	if (count != 1) {
		fail("%s: no completion", what);
		return wc;
	}
	if (options.verbose)
		printf("  %s: %s (%d)\n", what, ibv_wc_status_str(wc.status), wc.status);
	if (wc.status != expect)
		fail("%s: %s (%d), not %s (%d)", what, ibv_wc_status_str(wc.status), wc.status,
		     ibv_wc_status_str(expect), expect);
	return wc;
}

/* A request for LENGTH bytes from or to our LOCAL offset and, if it has one, the peer's REMOTE. */
static struct ibv_send_wr request(enum ibv_wr_opcode opcode, struct ibv_sge *sge, uint32_t local,
				  uint32_t length, uint64_t remote)
{
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = sge, .num_sge = length > 0,
				  .send_flags = IBV_SEND_SIGNALED };

	*sge = (struct ibv_sge){ (uintptr_t)memory + local, length, region->lkey };
	if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = peer.address + remote;
		wr.wr.atomic.rkey = peer.rkey;
	} else {
		wr.wr.rdma.remote_addr = peer.address + remote;
		wr.wr.rdma.rkey = peer.rkey;
	}
	return wr;
}

static void post(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	int error = ibv_post_send(qp, wr, &bad);

	if (error)
		fail("post_send: %s", strerror(error));
}

/* Posts one request and waits for its success. */
static void perform(enum ibv_wr_opcode opcode, uint32_t local, uint32_t length, uint64_t remote,
		    uint32_t immediate, const char *what)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = request(opcode, &sge, local, length, remote);

	wr.imm_data = htonl(immediate);
	post(&wr);
	reap(send_cq, what, IBV_WC_SUCCESS);
}

static void post_receive(uint32_t offset, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)memory + offset, length, region->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = offset, .sg_list = &sge, .num_sge = 1 };
	int error = ibv_post_recv(qp, &wr, &bad);

	if (error)
		fail("post_recv: %s", strerror(error));
}

static void modify(struct ibv_qp_attr attributes, int mask, const char *what)
{
	int error = ibv_modify_qp(qp, &attributes, mask);

	if (error) {
		errno = error;
		die(what);
	}
}

static void connect_qp(const struct test *test)
{
	struct ibv_qp_init_attr init = { .send_cq = send_cq, .recv_cq = receive_cq,
					 .cap = { DEPTH, DEPTH, 2, 2, 0 }, .qp_type = IBV_QPT_RC };
	unsigned int access = ALL_ACCESS;
	struct endpoint mine = { .psn = rand() & 0xffffff, .kernel = options.kernel };
	bool impatient = test->expect == IBV_WC_RNR_RETRY_EXC_ERR;

	memset(memory, 0, REGION);
	if (options.server)
		access &= ~test->region_forbids;
	region = ibv_reg_mr(pd, memory, REGION, access);
	if (!region)
		die("ibv_reg_mr");
	qp = ibv_create_qp(pd, &init);
	if (!qp)
		die("ibv_create_qp");
	if (ibv_query_gid(context, 1, options.gid_index, &mine.gid))
		die("ibv_query_gid");
	mine.address = (uintptr_t)memory;
	mine.rkey = region->rkey;
	mine.qpn = qp->qp_num;
	exchange(&mine, &peer, sizeof(mine));

	access = options.server ? ALL_ACCESS & ~test->qp_forbids : ALL_ACCESS;
	modify((struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access },
	       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "to INIT");
	for (int i = 0; options.server && i < test->receives; i++)
		post_receive(HALF + (i % 2) * LONGEST, test->receive_size);
	modify((struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = options.mtu,
				     .dest_qp_num = peer.qpn, .rq_psn = peer.psn,
				     .max_dest_rd_atomic = READS, .min_rnr_timer = 12,
				     .ah_attr = { .is_global = 1, .port_num = 1,
						  .grh = { .dgid = peer.gid, .hop_limit = 64,
							   .sgid_index = options.gid_index } } },
	       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, "to RTR");
	/* the kernel's rxe takes a retry count of 7 for infinite */
	modify((struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = mine.psn, .timeout = 16,
				     .retry_cnt = 6, .rnr_retry = impatient ? 2 : 7,
				     .max_rd_atomic = READS },
	       IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		       IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC, "to RTS");
	meet(); /* or a request could come before its responder is ready */
}

static void drop_qp(void)
{
	struct ibv_wc wc;

	if (ibv_destroy_qp(qp))
		fail("ibv_destroy_qp");
	if (ibv_dereg_mr(region))
		fail("ibv_dereg_mr");
	while (ibv_poll_cq(send_cq, 1, &wc) > 0 || ibv_poll_cq(receive_cq, 1, &wc) > 0)
		;
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

/* --- setting up ---------------------------------------------------------------------------- */

static void open_device(void)
{
	int count = 0, i = 0;
	struct ibv_device **list = ibv_get_device_list(&count);

	while (i < count && options.device && strcmp(ibv_get_device_name(list[i]), options.device))
		i++;
	if (!list || i >= count) {
		fprintf(stderr, "verbs_twin: no device %s\n", options.device ? options.device : "at all");
		exit(2);
	}
	context = ibv_open_device(list[i]);
	if (!context)
		die("ibv_open_device");
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	send_cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
	receive_cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
	memory = aligned_alloc(4096, REGION);
	if (!pd || !send_cq || !receive_cq || !memory)
		die("setting up");
}

static void accept_client(void)
{
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(options.port) };
	int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
	if (bind(listener, (struct sockaddr *)&any, sizeof(any)) || listen(listener, 1))
		die("listen");
	control = accept(listener, NULL, NULL);
	if (control < 0)
		die("accept");
	close(listener);
}

static void connect_server(const char *host)
{
	struct addrinfo *found, hints = { .ai_socktype = SOCK_STREAM };
	char port[8];

	snprintf(port, sizeof(port), "%d", options.port);
	if (getaddrinfo(host, port, &hints, &found))
		die(host);
	control = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(control, found->ai_addr, found->ai_addrlen))
		die(host);
	freeaddrinfo(found);
}

static void usage(void)
{
	fprintf(stderr, "usage: verbs_twin server|client [-d DEVICE] [-g INDEX] [-m MTU] [-p PORT] [-k] "
			"[-v] [HOST]\n");
	exit(2);
}

static const char *parse(int argc, char **argv)
{
	int option;

	if (argc < 2 || (strcmp(argv[1], "server") && strcmp(argv[1], "client")))
		usage();
	options.server = !strcmp(argv[1], "server");
	optind = 2;
	while ((option = getopt(argc, argv, "d:g:m:p:kv")) != -1) {
		switch (option) {
		case 'd': options.device = optarg; break;
		case 'g': options.gid_index = atoi(optarg); break;
		case 'm':
			options.mtu = IBV_MTU_256;
			while (options.mtu < IBV_MTU_4096 && 128 << options.mtu < atoi(optarg))
				options.mtu++;
			break;
		case 'p': options.port = atoi(optarg); break;
		case 'k': options.kernel = true; break;
		case 'v': options.verbose = true; break;
		default: usage();
		}
	}
	if (options.server != (optind == argc))
		usage();
	return argv[optind];
}

int main(int argc, char **argv)
{
	const char *host = parse(argc, argv);
	unsigned int passed = 0, count = sizeof(tests) / sizeof(*tests);

	setvbuf(stdout, NULL, _IOLBF, 0);
	srand(time(NULL) ^ getpid());
	open_device();
	if (options.server)
		accept_client();
	else
		connect_server(host);
	setsockopt(control, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));

	for (const struct test *test = tests; test < tests + count; test++) {
		bool ok;

		failed = false;
		connect_qp(test);
		(options.server ? test->server : test->client)(test);
		ok = meet();
		drop_qp();
		passed += ok;
		printf("%s %s\n", ok ? "ok  " : "FAIL", test->name);
	}
	printf("verbs_twin: %u passed, %u failed\n", passed, count - passed);
	return passed != count;
}
