/*
 * Loads that perftest does not have; usage in pair.h, a load is chosen with -t.
 *
 * Clients print what they measured, one line: `load: ` and numbers with their units.
 */
#define _GNU_SOURCE
#include "pair.h"

#include <time.h>

enum {
	MESSAGE = 64 << 10,
	WINDOW = 16, /* messages of a sender in flight */
	SIZE = WINDOW * MESSAGE,
	GUARD_SECONDS = 60,
};

static uint8_t *bytes; /* SIZE for each client */

static void connect_part(unsigned int client)
{
	struct setup setup = { .memory = bytes + (size_t)client * SIZE, .size = SIZE,
			       .region_access = ALL_ACCESS, .qp_access = ALL_ACCESS,
			       .timeout = 14, .retries = 7, .rnr_retries = 7 };

	make_qp(&setup);
	connect_qp(&setup);
}

/* --- a program that polls, computes for 2 ms and polls again is written to ------------------- */

enum { POLL_NS = 100000, COMPUTE_NS = 2000000, PAUSE_NS_MAX = 1000000, SAMPLES_MAX = 1 << 20 };
enum { STOP = 0, MAILBOX = 64 }; /* offsets in the program's memory */

static void poll_and_compute(void)
{
	const volatile uint64_t *stop = (uint64_t *)(bytes + STOP);
	time_t guard = time(NULL) + options.seconds + GUARD_SECONDS;
	struct ibv_wc wc;

	while (!*stop) {
		for (uint64_t end = now_ns() + POLL_NS; now_ns() < end;)
			ibv_poll_cq(receive_cq, 1, &wc);
		for (uint64_t end = now_ns() + COMPUTE_NS; now_ns() < end;)
			;
		if (time(NULL) > guard) {
			fail("the client never said stop");
			break;
		}
	}
}

static void write_now_and_then(void)
{
	uint64_t *delays = calloc(SAMPLES_MAX, sizeof(*delays));
	uint64_t end = now_ns() + options.seconds * 1000000000ull;
	size_t count = 0;

	if (!delays)
		die("calloc");
	while (count < SAMPLES_MAX && !failed && (now_ns() < end || !count)) {
		/* so that the writes meet every moment of the other's cycle */
		struct timespec pause = { .tv_nsec = rand() % PAUSE_NS_MAX };
		uint64_t start;

		nanosleep(&pause, NULL);
		start = now_ns();
		perform(IBV_WR_RDMA_WRITE, MAILBOX, 8, MAILBOX, 0, "write");
		delays[count++] = now_ns() - start;
	}
	*(uint64_t *)(bytes + STOP) = 1;
	perform(IBV_WR_RDMA_WRITE, STOP, 8, STOP, 0, "stop");
	qsort(delays, count, sizeof(*delays), by_value);
	printf("load: p50 %llu ns, p99 %llu ns, %zu writes\n",
	       (unsigned long long)delays[count / 2],
	       (unsigned long long)delays[count * 99 / 100], count);
	free(delays);
}

static void busy_program(void)
{
	connect_part(0);
	if (options.server)
		poll_and_compute();
	else
		write_now_and_then();
	meet();
	drop_qp();
}

/* --- many processes write to one ------------------------------------------------------------- */

static void write_much(void)
{
	uint64_t start = now_ns(), end = start + options.seconds * 1000000000ull, moved = 0;
	unsigned int posted = 0, done = 0;

	while (!failed && (now_ns() < end || done < posted)) {
		struct ibv_wc wc;
		int count;

		while (posted - done < WINDOW && now_ns() < end) {
			struct ibv_sge sge;
			uint32_t offset = posted++ % WINDOW * MESSAGE;
			struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge, offset, MESSAGE, offset);

			post(&wr);
		}
		count = ibv_poll_cq(send_cq, 1, &wc);
		if (count < 0 || (count > 0 && wc.status != IBV_WC_SUCCESS))
			fail("after %llu bytes: %s", (unsigned long long)moved,
			     count < 0 ? "ibv_poll_cq" : ibv_wc_status_str(wc.status));
		if (count > 0) {
			done++;
			moved += MESSAGE;
		}
		if (now_ns() > end + GUARD_SECONDS * 1000000000ull)
			fail("%u of %u writes never completed", posted - done, posted);
	}
	printf("load: %llu bytes in %llu ns\n", (unsigned long long)moved,
	       (unsigned long long)(now_ns() - start));
}

static void incast(void)
{
	struct client {
		int control;
		struct ibv_qp *qp;
		struct ibv_mr *region;
	} *clients = calloc(options.clients, sizeof(*clients));

	if (!clients)
		die("calloc");
	if (!options.server) {
		connect_part(0);
		meet(); /* all are here */
		write_much();
		meet();
		drop_qp();
	} else {
		for (unsigned int i = 0; i < options.clients; i++) {
			if (i > 0)
				accept_client();
			connect_part(i);
			clients[i] = (struct client){ control, qp, region };
		}
		for (int step = 0; step < 2; step++) /* the start, the end */
			for (unsigned int i = 0; i < options.clients; i++) {
				control = clients[i].control;
				if (!meet())
					failed = true;
			}
		for (unsigned int i = 0; i < options.clients; i++) {
			qp = clients[i].qp;
			region = clients[i].region;
			drop_qp();
		}
	}
	free(clients);
}

static const struct load {
	const char *name;
	void (*run)(void);
} loads[] = {
	{ "busy", busy_program },
	{ "incast", incast },
};

int main(int argc, char **argv)
{
	pair_start(argc, argv);
	bytes = aligned_alloc(4096, (size_t)options.clients * SIZE);
	if (!bytes)
		die("aligned_alloc");
	memset(bytes, 0, (size_t)options.clients * SIZE);
	for (const struct load *load = loads; load < loads + sizeof(loads) / sizeof(*loads); load++)
		if (!strcmp(load->name, options.only)) {
			load->run();
			return failed;
		}
	fprintf(stderr, "no load \"%s\": -t busy, or -t incast\n", options.only);
	return 2;
}
