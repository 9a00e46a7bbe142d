/*
 * What programs that are many processes have in common.
 *
 * One process forks the others before any of them opens a device. They tell each other where
 * they are through shared memory, so no port is needed and a killed one leaves nothing behind.
 */
#pragma once

#include <infiniband/verbs.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	READS = 4, /* outstanding at once */
	ALL_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		     IBV_ACCESS_REMOTE_ATOMIC,
	CANARY = 8192,    /* bytes before and after guarded memory */
	UNTOUCHED = 0xa5, /* what is in them */
};

/* What a peer must know of a queue pair and a region. */
struct card {
	union ibv_gid gid;
	uint64_t address;
	uint32_t rkey, qpn, psn;
};

/* The device of this process; two of these are never needed. */
struct device {
	struct ibv_context *context;
	struct ibv_pd *pd;
	int gid_index;
};

/* A queue pair with one CQ for everything. */
struct end {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct card card;
};

/* Memory that all processes see. */
void *shared_memory(size_t size);

/* Ends the process with what went wrong. */
__attribute__((noreturn, format(printf, 1, 2))) void quit(const char *format, ...);

/* Byte INDEX of the data with this number; no two numbers agree for long. */
static inline uint8_t pattern(uint32_t number, uint32_t index)
{
	uint32_t mixed = (index + 1) * 2654435761u ^ number * 2246822519u;

	return mixed >> 24 ^ mixed >> 11;
}
void fill(uint8_t *bytes, uint32_t length, uint32_t number);
/* Whether it is that; says where not. */
bool check(const char *what, const uint8_t *bytes, uint32_t length, uint32_t number);
/* Whether every byte is VALUE; says where not. */
bool check_all(const char *what, const uint8_t *bytes, uint32_t length, uint8_t value);

/* Memory of UNTOUCHED bytes with canaries on both sides. */
uint8_t *guarded(size_t size);
/* Whether the canaries are as they were; says where not. */
bool check_guards(const char *what, const uint8_t *memory, size_t size);

/* Opens the device of this name. */
struct device open_device(const char *name, int gid_index);
/* A new queue pair in INIT; CQ may be shared with others, NULL for one of its own. */
struct end make_end(const struct device *device, struct ibv_cq *cq, int depth, struct ibv_mr *mr);
/* Destroys it, and its CQ if OWN_CQ. */
void drop_end(struct end *end, bool own_cq);
/* INIT to RTS. TIMEOUT as in ibv_qp_attr, 7 retries. */
void connect_end(const struct device *device, struct end *end, const struct card *peer, uint8_t timeout);

/* One request of LENGTH bytes at LOCAL, whose completion is signalled. */
int post_request(struct end *end, enum ibv_wr_opcode opcode, uint64_t id, void *local, uint32_t length,
		 struct ibv_mr *mr, uint64_t remote, uint32_t rkey);
int post_receive(struct end *end, uint64_t id, void *local, uint32_t length, struct ibv_mr *mr);
/* The next completion; quits after a minute without one. */
struct ibv_wc await(struct ibv_cq *cq, const char *what);

/* Seconds of a clock that never steps. */
double seconds(void);
/* Memory of this process that is resident, KiB. */
long resident_kib(void);
