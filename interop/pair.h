/*
 * Two ends of reliable connections: what verbs_twin, verbs_trials and verbs_load have in common.
 *
 *   PROGRAM server [options]          answers one client, then ends
 *   PROGRAM client [options] HOST
 *
 *     -d DEVICE   default: the first
 *     -g INDEX    of the GID (1)
 *     -m MTU      path MTU (1024)
 *     -p PORT     TCP port over which the two agree (18600)
 *     -k          the server's device is the kernel's rxe: expect what it is known to do otherwise
 *     -l          the network loses packets: a refusal may not arrive, and none is repeated
 *     -n CLIENTS  that the server answers, where the test is made for several (1)
 *     -s SECONDS  how long a load lasts (1)
 *     -t TEXT     only tests with this in their names (both ends need the same)
 *     -v          print every completion
 *
 * A program is a table of tests. Each has a queue pair of its own, a part for either end, and
 * the TCP connection to keep both in step.
 */
#pragma once

#include <infiniband/verbs.h>
#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	DEPTH = 64, /* of every queue */
	READS = 4,  /* outstanding at once */
	ALL_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		     IBV_ACCESS_REMOTE_ATOMIC,
};

struct options {
	const char *device, *only;
	int gid_index, port;
	unsigned int clients, seconds;
	enum ibv_mtu mtu;
	bool server, kernel, lossy, verbose;
};

/* What each end tells the other before a test. */
struct endpoint {
	union ibv_gid gid;
	uint64_t address;
	uint32_t rkey, qpn, psn, kernel, process;
};

/* How a connection is made. */
struct setup {
	uint8_t *memory;
	size_t size;
	unsigned int region_access, qp_access;
	uint8_t timeout, retries, rnr_retries;
};

extern struct options options;
extern struct ibv_context *context;
extern struct ibv_cq *send_cq, *receive_cq;
extern struct ibv_qp *qp;
extern struct ibv_mr *region;
extern uint8_t *memory; /* the one of the setup */
extern struct endpoint peer;
extern bool failed; /* the running test */
extern int control; /* the TCP connection to the peer, which meet() uses */

/* Reads the command line, opens the device, and finds the other end. */
void pair_start(int argc, char **argv);
/* The server: takes the next of its clients, whose connection becomes control. */
void accept_client(void);

/* The queue pair and the region of a test. Between the two the server can post receives. */
void make_qp(const struct setup *setup);
void connect_qp(const struct setup *setup);
void drop_qp(void);

uint64_t now_ns(void);
/* For qsort() of uint64_t. */
int by_value(const void *left, const void *right);

/* Whether -t wants this test. */
bool wanted(const char *name);
/* Prints the result of a test, which is good only if it is at both ends. */
bool conclude(const char *name);

/* Says what is wrong with the running test, which goes on, so that both ends stay in step. */
__attribute__((format(printf, 1, 2))) void fail(const char *format, ...);
/* Ends the program because nothing more can be tested. */
__attribute__((noreturn)) void die(const char *what);

/* Neither end passes before both have come here; true if both are content. */
bool meet(void);

/* A request for LENGTH bytes from or to our LOCAL offset and, if it has one, the peer's REMOTE. */
struct ibv_send_wr request(enum ibv_wr_opcode opcode, struct ibv_sge *sge, uint32_t local,
			   uint32_t length, uint64_t remote);
void post(struct ibv_send_wr *wr);
void post_receive(uint32_t offset, uint32_t length);
/* The next completion, which must have this status. Where the network is lossy, a peer that has
 * refused something may have fallen silent instead. */
struct ibv_wc reap(struct ibv_cq *cq, const char *what, enum ibv_wc_status expect);
/* Posts one request and waits for its success. */
void perform(enum ibv_wr_opcode opcode, uint32_t local, uint32_t length, uint64_t remote,
	     uint32_t immediate, const char *what);
