/*
 * What programs rely on without saying so: memory that changes while it is read, flags that are
 * polled, regions that vanish, peers that fall silent. Usage in pair.h.
 */
#define _GNU_SOURCE
#include "pair.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

enum { SIZE = 1 << 20, PAGE = 4096, GUARD_SECONDS = 60 };

static uint8_t *bytes; /* SIZE of them */

static struct setup usual(void)
{
	return (struct setup){ .memory = bytes, .size = SIZE, .region_access = ALL_ACCESS,
			       .qp_access = ALL_ACCESS, .timeout = 16, .retries = 6, .rnr_retries = 7 };
}

static void connect_usual(void)
{
	struct setup setup = usual();

	memset(bytes, 0, SIZE);
	make_qp(&setup);
	connect_qp(&setup);
}

/* Waits until what somebody else writes is no longer OLD, without a call into the library. */
static uint64_t wait_for_change(const volatile uint64_t *word, uint64_t old)
{
	time_t deadline = time(NULL) + GUARD_SECONDS;

	while (*word == old)
		if (time(NULL) > deadline) {
			fail("nothing came after %llu", (unsigned long long)old);
			break;
		}
	atomic_thread_fence(memory_order_acquire);
	return *word;
}

/* --- a counter that never rests is read 10,000 times, and no retry is allowed ---------------- */

static atomic_bool counting;

static void *count(void *word)
{
	while (atomic_load_explicit(&counting, memory_order_relaxed))
		++*(volatile uint64_t *)word;
	return NULL;
}

static void changing_counter(void)
{
	struct setup setup = usual();

	setup.retries = 0;
	setup.timeout = 20; /* 4 s, so that only a lost or a refused packet counts, not a slow machine */
	memset(bytes, 0, SIZE);
	make_qp(&setup);
	connect_qp(&setup);
	if (options.server) {
		pthread_t thread;

		counting = true;
		if (pthread_create(&thread, NULL, count, bytes))
			die("pthread_create");
		meet();
		counting = false;
		pthread_join(thread, NULL);
	} else {
		uint64_t last = 0, value;

		for (int i = 0; i < 10000 && !failed; i++) {
			perform(IBV_WR_RDMA_READ, 0, 8, 0, 0, "read of a counter");
			memcpy(&value, bytes, 8);
			if (value < last)
				fail("the counter went back from %llu to %llu", (unsigned long long)last,
				     (unsigned long long)value);
			last = value;
		}
		if (!last)
			fail("the counter never counted");
		meet();
	}
}

/* --- the last bytes of a write are the last to be seen --------------------------------------- */

static void last_byte(void)
{
	enum { ROUNDS = 2000 };

	connect_usual();
	for (uint64_t round = 1; round <= ROUNDS && !failed; round++) {
		uint32_t words = 1 + round * 37 % 8192;

		if (options.server) {
			uint64_t *area = (uint64_t *)bytes;

			wait_for_change(&area[words - 1], 0);
			for (uint32_t i = 0; i < words; i++)
				if (area[i] != round) {
					fail("round %llu: word %u of %u came after the last",
					     (unsigned long long)round, i, words);
					break;
				}
			memset(area, 0, words * 8);
		} else {
			for (uint32_t i = 0; i < words; i++)
				((uint64_t *)bytes)[i] = round;
			perform(IBV_WR_RDMA_WRITE, 0, words * 8, 0, 0, "write");
		}
		if (!meet())
			failed = true; /* both leave in the same round */
	}
}

/* --- data, then a flag, by two writes: never the flag first ---------------------------------- */

static void data_then_flag(void)
{
	enum { ROUNDS = 1000, FLAG = SIZE - 8 };

	connect_usual();
	for (uint64_t round = 1; round <= ROUNDS && !failed; round++) {
		uint32_t length = 1 + round * 977 % 30000;

		if (options.server) {
			wait_for_change((uint64_t *)(bytes + FLAG), round - 1);
			for (uint32_t i = 0; i < length; i++)
				if (bytes[i] != (uint8_t)round) {
					fail("round %llu: the flag came before byte %u of %u",
					     (unsigned long long)round, i, length);
					break;
				}
		} else {
			struct ibv_sge data, mark;
			struct ibv_send_wr flag = request(IBV_WR_RDMA_WRITE, &mark, FLAG, 8, FLAG);
			struct ibv_send_wr first = request(IBV_WR_RDMA_WRITE, &data, 0, length, 0);

			memset(bytes, round, length);
			memcpy(bytes + FLAG, &round, 8);
			first.send_flags = 0;
			first.next = &flag;
			post(&first);
			reap(send_cq, "flag", IBV_WC_SUCCESS);
		}
		if (!meet())
			failed = true;
	}
}

/* --- memory that is registered and then no longer there -------------------------------------- */

enum loss { UNMAPPED, PROTECTED, TRUNCATED, REPLACED_READ_ONLY, LOSSES };
static const char *const loss_names[] = { "unmapped", "protected", "truncated", "read-only" };

/* Takes from a region of a file its second half, which begins at HALF. */
enum { HALF = 8 * PAGE };

static void lose(uint8_t *area, int file, enum loss loss)
{
	int error = 0;

	switch (loss) {
	case UNMAPPED: error = munmap(area + HALF, HALF); break;
	case PROTECTED: error = mprotect(area + HALF, HALF, PROT_NONE); break;
	case TRUNCATED: error = ftruncate(file, HALF); break;
	case REPLACED_READ_ONLY:
		error = mmap(area + HALF, HALF, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
			MAP_FAILED;
		break;
	case LOSSES: break;
	}
	if (error)
		die(loss_names[loss]);
}

/* One end (the server's if REMOTE) loses memory; a write or read over the edge must fail alone. */
static void lost_memory(bool remote, enum loss loss, enum ibv_wr_opcode opcode)
{
	bool loser = options.server == remote;
	enum ibv_wc_status expect = remote ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_PROT_ERR;
	int file = memfd_create("trial", MFD_CLOEXEC);
	uint8_t *area;
	struct setup setup = usual();

	if (file < 0 || ftruncate(file, 2 * HALF))
		die("memfd_create");
	area = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (area == MAP_FAILED)
		die("mmap");
	setup.memory = area;
	setup.size = 2 * HALF;
	make_qp(&setup);
	connect_qp(&setup);
	if (loser)
		lose(area, file, loss);
	meet();
	if (!options.server) {
		struct ibv_sge sge;
		struct ibv_send_wr wr = request(opcode, &sge, HALF - 3000, 6000, HALF - 3000);

		post(&wr);
		reap(send_cq, loss_names[loss], expect);
	}
	meet(); /* the loser is still alive to come here */
	drop_qp();
	region = NULL;
	munmap(area, 2 * HALF);
	close(file);
}

static void lost_region(void)
{
	for (enum loss loss = 0; loss < LOSSES; loss++)
		for (int remote = 0; remote < 2; remote++) {
			lost_memory(remote, loss, remote ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ);
			if (loss != REPLACED_READ_ONLY) /* which may still be read */
				lost_memory(remote, loss, remote ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE);
		}
	connect_usual(); /* and the device goes on */
	if (!options.server)
		perform(IBV_WR_RDMA_WRITE, 0, 100, 0, 0, "write afterwards");
}

/* --- two posts, and then not another call ---------------------------------------------------- */

static void silence(void)
{
	enum { ROUNDS = 50 };
	uint64_t delays[ROUNDS];
	volatile uint64_t *area = (uint64_t *)bytes;

	connect_usual();
	for (int round = 0; round < ROUNDS; round++) {
		if (options.server) {
			uint64_t sent = wait_for_change(&area[1], round ? area[2] : 0);

			delays[round] = now_ns() - sent;
			area[2] = sent;
		} else {
			struct ibv_sge sge[2];
			struct ibv_send_wr first = request(IBV_WR_RDMA_WRITE, &sge[0], 0, 8, 0);
			struct ibv_send_wr second = request(IBV_WR_RDMA_WRITE, &sge[1], 8, 8, 8);

			area[0] = area[1] = now_ns();
			post(&first);
			post(&second);
		}
		meet(); /* comes only when the server has seen it; no library call in between */
		if (!options.server) {
			reap(send_cq, "first", IBV_WC_SUCCESS);
			reap(send_cq, "second", IBV_WC_SUCCESS);
		}
		meet();
	}
	if (options.server) {
		qsort(delays, ROUNDS, sizeof(*delays), by_value);
		printf("  seen after %llu us (median), %llu us (worst)\n",
		       (unsigned long long)delays[ROUNDS / 2] / 1000,
		       (unsigned long long)delays[ROUNDS - 1] / 1000);
	}
}

/* --- deregistering while a stopped peer acknowledges nothing --------------------------------- */

static bool is_stopped(uint32_t process)
{
	char path[64], text[256] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%u/stat", process);
	file = fopen(path, "r");
	if (file) {
		text[fread(text, 1, sizeof(text) - 1, file)] = 0;
		fclose(file);
	}
	return strstr(text, ") T ") != NULL;
}

static void deregister(void)
{
	struct setup setup = usual();
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	int count;
	time_t deadline = time(NULL) + GUARD_SECONDS;

	setup.timeout = 18;
	memset(bytes, 0, SIZE);
	make_qp(&setup);
	connect_qp(&setup);
	if (options.server) {
		raise(SIGSTOP);
		meet();
		return;
	}
	while (!is_stopped(peer.process) && time(NULL) < deadline)
		sched_yield();
	wr = request(IBV_WR_RDMA_WRITE, &sge, 0, SIZE, 0);
	post(&wr);
	if (ibv_dereg_mr(region))
		fail("ibv_dereg_mr");
	region = NULL;
	if (ibv_poll_cq(send_cq, 1, &wc) != 0)
		fail("deregistering waited for the peer");
	/* what was not sent by now can no longer be: the write fails, or had left as a whole */
	kill(peer.process, SIGCONT);
	while (!(count = ibv_poll_cq(send_cq, 1, &wc)) && time(NULL) < deadline)
		;
	if (count != 1 || (wc.status != IBV_WC_SUCCESS && wc.status != IBV_WC_LOC_PROT_ERR))
		fail("the write ended with %d (%d completions)", wc.status, count);
	meet();
}

static const struct test {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "a changing counter", changing_counter },
	{ "the last byte comes last", last_byte },
	{ "data before its flag", data_then_flag },
	{ "regions that vanish", lost_region },
	{ "two posts, then silence", silence },
	{ "deregistering under a silent peer", deregister },
};

int main(int argc, char **argv)
{
	unsigned int passed = 0, wrong = 0;

	pair_start(argc, argv);
	bytes = aligned_alloc(PAGE, SIZE);
	if (!bytes)
		die("aligned_alloc");
	for (const struct test *test = tests; test < tests + sizeof(tests) / sizeof(*tests); test++) {
		if (!wanted(test->name))
			continue;
		failed = false;
		test->run();
		meet();
		drop_qp();
		if (conclude(test->name))
			passed++;
		else
			wrong++;
	}
	printf("verbs_trials: %u passed, %u failed\n", passed, wrong);
	return passed == 0 || wrong > 0;
}
