/*
 * Random verbs on queue pairs between two processes, and checks of what comes of them.
 *
 *   verbs_fuzz [-d DEVICE] [-g GID INDEX] [-t SECONDS] [-s SEED] [-v]
 *
 * Each process does one random thing after the other: it posts all kinds of requests, some of them
 * wrong, polls, changes states, destroys and makes queue pairs, regions and completion queues while
 * requests are under way. A model of the other process's memory and a table of all requests tell
 * what must be seen:
 *
 * - completions of a queue pair come in the order of its posts, each signalled request has exactly
 *   one, one that is not signalled has none unless it failed, and after a failure all are flushed;
 * - a status that blames a key, a range or a region is given only where there is something to blame;
 * - received messages are complete, in order and of the right length; what was written is read back;
 * - memory that was granted to nobody never changes;
 * - nothing is waited for longer than a minute.
 *
 * The seed decides what is done, not when packets arrive.
 */
#include "crew.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum {
	QPS = 4,           /* of each process; two share a CQ */
	CQS = 2,
	DEPTH = 16,        /* requests in flight on a queue pair, and receives */
	SLOT = 24000,      /* bytes of a message at most */
	AREA = 65536,      /* what a queue pair may write at the other end; atomics in its first words */
	WORDS = 64,        /* bytes of these */
	FORBIDDEN = 16384, /* registered, but not for others */
	GUARD_SECONDS = 60,
	SGES = 4,
	INLINE = 128,
	SENT_RING = 1024,
	CARDS = 4,
};

/* One request or receive that was posted. */
struct flight {
	uint64_t number; /* in its queue pair's life */
	enum ibv_wr_opcode opcode;
	uint32_t offset, length; /* in the area */
	bool signalled, tainted, inlined;
	unsigned int region_life, peer_region_life;
	uint64_t original; /* what an atomic should find */
	bool original_known;
	uint64_t written_before; /* order of the last write that a READ must see */
	double posted;
};

/* What the other process sees. */
struct public {
	struct card cards[QPS][CARDS]; /* by epoch: a new one does not overwrite the last */
	atomic_uint epochs[QPS], connected_to[QPS];
	/* lengths of messages, by their numbers in one connection */
	atomic_uint lengths[QPS][SENT_RING];
	/* the region of areas, with an odd life while it changes, and the forbidden one */
	atomic_uint region_life, region_key, forbidden_key;
	atomic_ullong area, forbidden;
	atomic_ullong steps, good, bad, connections, received;
};

static struct shared {
	atomic_bool stop, found;
	struct public process[2];
} *shared;

struct pair {
	struct end end;
	bool made, connected, broken, send_failed, receive_failed; /* broken: by us */
	unsigned int life, peer_epoch;
	struct flight sends[DEPTH], receives[DEPTH];
	uint64_t posted, completed, receives_posted, receives_completed;
	uint32_t messages, messages_received;
	uint64_t awaited; /* the signalled request that was the newest at the last look */
	int looks;        /* that found it unfinished */
	/* the model of our area at the other end */
	uint8_t value[AREA];
	bool known[AREA];
	uint64_t writer[AREA]; /* order of the post that wrote a byte last */
};

static struct device device;
static struct ibv_cq *cqs[CQS];
static struct ibv_comp_channel *channel;
static struct pair pairs[QPS];
static struct public *mine, *theirs;
static uint8_t *areas, *slots, *forbidden;
static struct ibv_mr *area_region, *slot_region, *forbidden_region;
static unsigned int slot_life = 1;
static uint64_t order; /* of all posts */
static const char *name;
static int self, gid_index = 1;
static bool verbose;
static uint64_t random_state;

enum { SLOTS = QPS * DEPTH * 2 * SLOT };

static uint32_t draw(uint32_t below)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (random_state >> 16) % below;
}

static bool chance(uint32_t percent)
{
	return draw(100) < percent;
}

#define FINDING(...) (atomic_store(&shared->found, true), dump(), quit("finding: " __VA_ARGS__))

/* Everything that is known of the queue pairs, for people. */
static void dump(void)
{
	for (int i = 0; i < QPS; i++) {
		struct pair *p = &pairs[i];
		struct ibv_qp_attr attributes = { 0 };
		struct ibv_qp_init_attr init;

		fprintf(stderr, "  process %d, pair %d: life %u, epochs %u %u, connected to %u %u, receives %llu of "
				"%llu completed\n", self, i, p->life, mine->epochs[i], theirs->epochs[i],
			mine->connected_to[i], theirs->connected_to[i], (unsigned long long)p->receives_completed,
			(unsigned long long)p->receives_posted);
		if (!p->made || ibv_query_qp(p->end.qp, &attributes, IBV_QP_STATE, &init))
			continue;
		fprintf(stderr, "    QPN %#x, state %d, next PSN %#x, expected PSN %#x, timeout %d, retries %d %d, "
				"path MTU %d\n", p->end.qp->qp_num, attributes.qp_state, attributes.sq_psn,
			attributes.rq_psn, attributes.timeout, attributes.retry_cnt, attributes.rnr_retry,
			attributes.path_mtu);
		for (uint64_t k = p->completed; k < p->posted; k++) {
			struct flight *flight = &p->sends[k % DEPTH];

			fprintf(stderr, "    request %llu: opcode %d, %u bytes%s%s%s, %.1f s ago\n",
				(unsigned long long)k, flight->opcode, flight->length,
				flight->signalled ? ", signalled" : "", flight->tainted ? ", wrong" : "",
				flight->inlined ? ", inline" : "", seconds() - flight->posted);
		}
	}
}

/* --- memory -------------------------------------------------------------------------------- */

static void check_memory(void)
{
	if (!check_guards("around areas", areas, QPS * AREA) ||
	    !check_guards("around slots", slots, SLOTS) ||
	    !check_all("forbidden", forbidden - CANARY, FORBIDDEN + 2 * CANARY, UNTOUCHED))
		FINDING("memory changed that nobody was granted");
}

static void register_areas(void)
{
	atomic_fetch_add(&mine->region_life, 1);
	if (area_region && ibv_dereg_mr(area_region))
		FINDING("ibv_dereg_mr");
	area_region = ibv_reg_mr(device.pd, areas, QPS * AREA, ALL_ACCESS);
	if (!area_region)
		FINDING("ibv_reg_mr: %s", strerror(errno));
	atomic_store(&mine->region_key, area_region->rkey);
	atomic_fetch_add(&mine->region_life, 1);
}

static void register_slots(void)
{
	if (slot_region && ibv_dereg_mr(slot_region))
		FINDING("ibv_dereg_mr");
	slot_region = ibv_reg_mr(device.pd, slots, SLOTS, IBV_ACCESS_LOCAL_WRITE);
	if (!slot_region)
		FINDING("ibv_reg_mr: %s", strerror(errno));
	slot_life++;
}

static uint8_t *send_slot(int pair, uint64_t number)
{
	return slots + (pair * 2 * DEPTH + number % DEPTH) * SLOT;
}

static uint8_t *receive_slot(int pair, uint64_t number)
{
	return slots + (pair * 2 * DEPTH + DEPTH + number % DEPTH) * SLOT;
}

/* --- the model ----------------------------------------------------------------------------- */

static void forget(struct pair *p, uint32_t offset, uint32_t length)
{
	memset(p->known + offset, false, length);
}

static bool changes_area(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
	       opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/* Nobody knows how far the requests came that are still in flight. */
static void lose_track(struct pair *p)
{
	for (uint64_t i = p->completed; i < p->posted; i++) {
		struct flight *flight = &p->sends[i % DEPTH];

		if (changes_area(flight->opcode))
			forget(p, flight->offset, flight->length);
	}
}

/* What a READ has brought, against the model; bytes that were written since do not count. */
static void check_read(int pair, struct flight *flight)
{
	struct pair *p = &pairs[pair];
	uint8_t *found = send_slot(pair, flight->number);

	for (uint32_t i = 0; i < flight->length; i++) {
		uint32_t at = flight->offset + i;

		if (p->known[at] && p->writer[at] <= flight->written_before && found[i] != p->value[at])
			FINDING("pair %d: read %#x at %u of %u, %#x was written", pair, found[i], i,
				flight->length, p->value[at]);
	}
}

/* --- completions --------------------------------------------------------------------------- */

/* wr_id: pair, life, kind, number */
static uint64_t identify(int pair, unsigned int life, bool receive, uint64_t number)
{
	return (uint64_t)pair << 56 | (uint64_t)(life & 0xffffff) << 32 | (uint64_t)receive << 31 |
	       (number & 0x7fffffff);
}

static bool to_blame(const struct flight *flight, enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_WR_FLUSH_ERR:
	case IBV_WC_RETRY_EXC_ERR:
		return true;
	case IBV_WC_RNR_RETRY_EXC_ERR: /* only what needs a receive */
		return flight->opcode != IBV_WR_RDMA_WRITE && flight->opcode != IBV_WR_RDMA_READ;
	case IBV_WC_LOC_PROT_ERR:
	case IBV_WC_LOC_QP_OP_ERR:
	case IBV_WC_MW_BIND_ERR:
		return flight->tainted || flight->region_life != slot_life;
	case IBV_WC_REM_ACCESS_ERR:
		return flight->tainted || flight->peer_region_life != atomic_load(&theirs->region_life);
	case IBV_WC_REM_INV_REQ_ERR: /* a receive too short, or a wrong range */
	case IBV_WC_REM_OP_ERR:      /* a receive whose region is gone */
		return true;
	default:
		return false;
	}
}

static void sent(int pair, const struct ibv_wc *wc, uint64_t number)
{
	struct pair *p = &pairs[pair];
	struct flight *flight;

	if (number < p->completed || number >= p->posted)
		FINDING("pair %d: completion of %llu, which is not in flight", pair, (unsigned long long)number);
	/* those before it were not signalled, and went well */
	for (; p->completed < number; p->completed++) {
		flight = &p->sends[p->completed % DEPTH];
		if (flight->signalled || p->send_failed)
			FINDING("pair %d: %llu completes before %llu", pair, (unsigned long long)number,
				(unsigned long long)p->completed);
	}
	flight = &p->sends[number % DEPTH];
	p->completed++;
	if (wc->status == IBV_WC_SUCCESS) {
		if (p->send_failed)
			FINDING("pair %d: %llu succeeds after a failure", pair, (unsigned long long)number);
		if (!flight->signalled)
			FINDING("pair %d: %llu was not signalled", pair, (unsigned long long)number);
		if (flight->tainted)
			FINDING("pair %d: %llu with a wrong key or range succeeds", pair,
				(unsigned long long)number);
		if (flight->opcode == IBV_WR_RDMA_READ)
			check_read(pair, flight);
		if (flight->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
		    flight->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			uint64_t original;

			memcpy(&original, send_slot(pair, number), 8);
			if (flight->original_known && original != flight->original)
				FINDING("pair %d: an atomic found %#llx, not %#llx", pair,
					(unsigned long long)original, (unsigned long long)flight->original);
		}
		atomic_fetch_add(&mine->good, 1);
		return;
	}
	if (!to_blame(flight, wc->status))
		FINDING("pair %d: %llu (opcode %d, %u bytes): %s", pair, (unsigned long long)number,
			flight->opcode, flight->length, ibv_wc_status_str(wc->status));
	if (p->send_failed && wc->status != IBV_WC_WR_FLUSH_ERR)
		FINDING("pair %d: a second failure: %s", pair, ibv_wc_status_str(wc->status));
	p->send_failed = true;
	p->completed--;
	lose_track(p);
	p->completed++;
	atomic_fetch_add(&mine->bad, 1);
}

static uint32_t data_number(unsigned int epoch, uint32_t message)
{
	return epoch * 1000003 + message;
}

static void received(int pair, const struct ibv_wc *wc, uint64_t number)
{
	struct pair *p = &pairs[pair];
	struct flight *flight = &p->receives[number % DEPTH];
	uint32_t length, message = p->messages_received;

	if (number != p->receives_completed || number >= p->receives_posted)
		FINDING("pair %d: receive %llu completes, not %llu", pair, (unsigned long long)number,
			(unsigned long long)p->receives_completed);
	p->receives_completed++;
	if (wc->status != IBV_WC_SUCCESS) {
		if (p->receive_failed && wc->status != IBV_WC_WR_FLUSH_ERR)
			FINDING("pair %d: a second failed receive: %s", pair, ibv_wc_status_str(wc->status));
		if (wc->status == IBV_WC_LOC_PROT_ERR && !flight->tainted && flight->region_life == slot_life)
			FINDING("pair %d: receive %llu: %s", pair, (unsigned long long)number,
				ibv_wc_status_str(wc->status));
		p->receive_failed = true;
		return;
	}
	if (p->receive_failed)
		FINDING("pair %d: a receive succeeds after a failed one", pair);
	p->messages_received++;
	atomic_fetch_add(&mine->received, 1);
	length = atomic_load(&theirs->lengths[pair][message % SENT_RING]);
	if (wc->byte_len != length)
		FINDING("pair %d: message %u has %u bytes, not %u", pair, message, wc->byte_len, length);
	if ((wc->wc_flags & IBV_WC_WITH_IMM) && ntohl(wc->imm_data) != message)
		FINDING("pair %d: message %u has immediate %u", pair, message, ntohl(wc->imm_data));
	if (wc->opcode == IBV_WC_RECV && !check("received", receive_slot(pair, number), length,
						data_number(p->peer_epoch, message)))
		FINDING("pair %d: message %u has wrong data", pair, message);
}

static void completed(const struct ibv_wc *wc)
{
	int pair = wc->wr_id >> 56;
	bool receive = wc->wr_id >> 31 & 1;
	struct pair *p = &pairs[pair];
	uint64_t number = wc->wr_id & 0x7fffffff;

	if (verbose)
		printf("%d: pair %d life %u %s %llu: %s\n", self, pair, p->life, receive ? "receive" : "send",
		       (unsigned long long)number, ibv_wc_status_str(wc->status));
	if (pair >= QPS)
		FINDING("a completion of nobody: wr_id %#llx", (unsigned long long)wc->wr_id);
	if ((wc->wr_id >> 32 & 0xffffff) != (p->life & 0xffffff))
		return; /* left over from before a reset */
	if (wc->qp_num != p->end.qp->qp_num)
		FINDING("pair %d: a completion with QPN %u", pair, wc->qp_num);
	if (receive)
		received(pair, wc, number);
	else
		sent(pair, wc, number);
}

static void poll_some(int which, int most)
{
	struct ibv_wc wc[16];
	int count;

	while (most > 0) {
		count = ibv_poll_cq(cqs[which], most < 16 ? most : 16, wc);
		if (count < 0)
			FINDING("ibv_poll_cq: %d", count);
		if (count == 0)
			return;
		for (int i = 0; i < count; i++)
			completed(&wc[i]);
		most -= count;
	}
}

/* What must have completed by now. Called once a second, and counts these calls: a machine that
 * stood still for a while is no finding. */
static void check_progress(void)
{
	for (int i = 0; i < QPS; i++) {
		struct pair *p = &pairs[i];
		uint64_t last = p->posted;

		/* the newest signalled one brings all before it with it */
		while (last > p->completed && !p->sends[(last - 1) % DEPTH].signalled && !p->send_failed)
			last--;
		if (!p->connected || last == p->completed || last != p->awaited)
			p->looks = 0;
		else if (++p->looks > GUARD_SECONDS)
			FINDING("pair %d: %llu has not completed for a minute", i, (unsigned long long)last - 1);
		p->awaited = last;
	}
}

/* --- posting ------------------------------------------------------------------------------- */

static uint32_t draw_length(uint32_t most)
{
	uint32_t length;

	switch (draw(6)) {
	case 0: length = draw(17); break;
	case 1: length = draw(300); break;
	case 2: length = 1024 * draw(5) + draw(3); break;
	case 3: length = draw(5000); break;
	default: length = draw(SLOT + 1); break;
	}
	return length < most ? length : most;
}

/* LENGTH bytes at MEMORY in some pieces, all of which are one after the other. */
static int cut(struct ibv_sge *sges, uint8_t *memory, uint32_t length, uint32_t key)
{
	int count = length ? 1 + draw(SGES) : draw(2);

	for (int i = 0; i < count; i++) {
		uint32_t part = i == count - 1 ? length : draw(length + 1);

		sges[i] = (struct ibv_sge){ (uintptr_t)memory, part, key };
		memory += part;
		length -= part;
	}
	return count;
}

/* Sees to it that something is wrong with a request, if it can be: nobody looks at the key of
 * nothing, and inline data needs none. */
static void spoil(struct ibv_send_wr *wr, struct flight *flight)
{
	bool remote = flight->opcode != IBV_WR_SEND && flight->opcode != IBV_WR_SEND_WITH_IMM;
	bool atomic = flight->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
		      flight->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
	uint32_t *rkey = atomic ? &wr->wr.atomic.rkey : &wr->wr.rdma.rkey;
	uint64_t *address = atomic ? &wr->wr.atomic.remote_addr : &wr->wr.rdma.remote_addr;
	struct ibv_sge *sge = wr->num_sge ? &wr->sg_list[draw(wr->num_sge)] : NULL;

	if (remote && flight->length && chance(60)) {
		flight->tainted = true;
		switch (draw(3)) {
		case 0: *rkey ^= 1u << draw(32); break;
		case 1: *address += (uint64_t)(QPS * AREA) * 2; break;
		default: /* a region that is not for others */
			*rkey = atomic_load(&theirs->forbidden_key);
			*address = atomic_load(&theirs->forbidden);
			break;
		}
	} else if (sge && sge->length && !flight->inlined) {
		flight->tainted = true;
		if (chance(50))
			sge->lkey ^= 1u << draw(32);
		else
			sge->addr = (uintptr_t)slots + SLOTS + 1 - sge->length;
	}
}

/* Prepares request NUMBER of a pair, with its flight. */
static void prepare(int pair, uint64_t number, struct ibv_send_wr *wr, struct ibv_sge *sges, uint32_t message)
{
	static const enum ibv_wr_opcode opcodes[] = {
		IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE,
		IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_RDMA_READ, IBV_WR_RDMA_READ,
		IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD };
	struct pair *p = &pairs[pair];
	struct flight *flight = &p->sends[number % DEPTH];
	enum ibv_wr_opcode opcode = opcodes[draw(sizeof(opcodes) / sizeof(*opcodes))];
	bool atomic = opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
	uint8_t *slot = send_slot(pair, number);
	uint64_t base = atomic_load(&theirs->area) + (uint64_t)pair * AREA;

	*flight = (struct flight){ .number = number, .opcode = opcode, .signalled = chance(50),
				   .region_life = slot_life, .posted = seconds(),
				   .peer_region_life = atomic_load(&theirs->region_life) };
	if (flight->peer_region_life & 1)
		flight->peer_region_life = 0; /* its key may be the old one */
	flight->length = atomic ? 8 : draw_length(SLOT);
	flight->offset = atomic ? 8 * draw(WORDS / 8) : WORDS + draw(AREA - WORDS - flight->length + 1);
	*wr = (struct ibv_send_wr){ .wr_id = identify(pair, p->life, false, number), .opcode = opcode,
				    .sg_list = sges, .imm_data = htonl(message),
				    .send_flags = flight->signalled ? IBV_SEND_SIGNALED : 0 };
	wr->num_sge = atomic ? 1 : cut(sges, slot, flight->length, slot_region->lkey);
	if (chance(10))
		wr->send_flags |= IBV_SEND_FENCE;
	if (chance(10))
		wr->send_flags |= IBV_SEND_SOLICITED;
	if (atomic) {
		sges[0] = (struct ibv_sge){ (uintptr_t)slot, 8, slot_region->lkey };
		wr->wr.atomic.remote_addr = base + flight->offset;
		wr->wr.atomic.rkey = atomic_load(&theirs->region_key);
		wr->wr.atomic.compare_add = chance(50) ? draw(3) : random_state;
		wr->wr.atomic.swap = draw(3);
	} else {
		wr->wr.rdma.remote_addr = base + flight->offset;
		wr->wr.rdma.rkey = atomic_load(&theirs->region_key);
		if (opcode != IBV_WR_RDMA_READ && flight->length <= INLINE && chance(30)) {
			wr->send_flags |= IBV_SEND_INLINE;
			flight->inlined = true;
		}
		fill(slot, flight->length, data_number(atomic_load(&mine->epochs[pair]), message));
	}
	if (chance(1))
		spoil(wr, flight);
}

/* What an accepted request will have done when it has been executed, in order. */
static void foresee(struct pair *p, int pair, const struct ibv_send_wr *wr, struct flight *flight)
{
	uint64_t before, after;

	order++;
	flight->written_before = order;
	if (flight->tainted)
		return;
	switch (flight->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		memcpy(p->value + flight->offset, send_slot(pair, flight->number), flight->length);
		memset(p->known + flight->offset, true, flight->length);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		memcpy(&before, p->value + flight->offset, 8);
		flight->original = before;
		flight->original_known = p->known[flight->offset];
		if (flight->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
			after = before + wr->wr.atomic.compare_add;
		else
			after = before == wr->wr.atomic.compare_add ? wr->wr.atomic.swap : before;
		memcpy(p->value + flight->offset, &after, 8);
		break;
	default:
		return;
	}
	for (uint32_t i = 0; i < flight->length; i++)
		p->writer[flight->offset + i] = order;
}

static bool takes_receive(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static void post_some(int pair)
{
	enum { MOST = 6 };
	struct pair *p = &pairs[pair];
	struct ibv_send_wr wrs[MOST], *bad = NULL;
	struct ibv_sge sges[MOST][SGES];
	uint64_t room = DEPTH - (p->posted - p->completed);
	uint32_t message = p->messages;
	int count = 1 + draw(MOST), accepted, error;

	if (!p->connected || room == 0)
		return;
	if ((uint64_t)count > room)
		count = room;
	for (int i = 0; i < count; i++) {
		prepare(pair, p->posted + i, &wrs[i], sges[i], message);
		if (takes_receive(wrs[i].opcode)) {
			uint32_t length = p->sends[(p->posted + i) % DEPTH].length;

			atomic_store(&mine->lengths[pair][message % SENT_RING], length);
			message++;
		}
		wrs[i].next = i + 1 < count ? &wrs[i + 1] : NULL;
	}
	error = ibv_post_send(p->end.qp, wrs, &bad);
	accepted = error ? (bad ? bad - wrs : -1) : count;
	if (accepted < 0 || accepted > count || (error && accepted == count))
		FINDING("pair %d: ibv_post_send: %s, but the bad request is none of them", pair, strerror(error));
	if (error && error != ENOMEM && error != EINVAL)
		FINDING("pair %d: ibv_post_send: %s", pair, strerror(error));
	if (error == EINVAL && !p->sends[(p->posted + accepted) % DEPTH].tainted)
		FINDING("pair %d: ibv_post_send: %s for request %d of %d, opcode %d", pair, strerror(error),
			accepted, count, wrs[accepted].opcode);
	for (int i = 0; i < accepted; i++, p->posted++) {
		foresee(p, pair, &wrs[i], &p->sends[p->posted % DEPTH]);
		if (takes_receive(wrs[i].opcode))
			p->messages++;
	}
	if (p->send_failed)
		lose_track(p);
}

static void receive_some(int pair)
{
	struct pair *p = &pairs[pair];
	int count = 1 + draw(8);

	if (!p->made)
		return;
	while (count-- && p->receives_posted - p->receives_completed < DEPTH) {
		struct flight *flight = &p->receives[p->receives_posted % DEPTH];
		struct ibv_sge sges[SGES];
		struct ibv_recv_wr *bad, wr = {
			.wr_id = identify(pair, p->life, true, p->receives_posted), .sg_list = sges };
		int error;

		*flight = (struct flight){ .number = p->receives_posted, .region_life = slot_life,
					   .posted = seconds() };
		wr.num_sge = cut(sges, receive_slot(pair, p->receives_posted),
				 chance(98) ? SLOT : draw_length(SLOT), slot_region->lkey);
		if (wr.num_sge && chance(1)) {
			sges[draw(wr.num_sge)].lkey ^= 1u << draw(32);
			flight->tainted = true;
		}
		error = ibv_post_recv(p->end.qp, &wr, &bad);
		if (error)
			FINDING("pair %d: ibv_post_recv: %s", pair, strerror(error));
		p->receives_posted++;
	}
}

/* --- lives of queue pairs ------------------------------------------------------------------ */

static enum ibv_qp_state state_of(struct pair *p)
{
	struct ibv_qp_attr attributes = { 0 };
	struct ibv_qp_init_attr init;
	int error = ibv_query_qp(p->end.qp, &attributes, IBV_QP_STATE | IBV_QP_CAP, &init);

	if (error)
		FINDING("ibv_query_qp: %s", strerror(error));
	return attributes.qp_state;
}

static void change(struct pair *p, enum ibv_qp_state state)
{
	struct ibv_qp_attr attributes = { .qp_state = state };
	int error = ibv_modify_qp(p->end.qp, &attributes, IBV_QP_STATE);

	if (error)
		FINDING("to state %d: %s", state, strerror(error));
	if (state_of(p) != state)
		FINDING("state %d, not %d", state_of(p), state);
}

/* Everything of the life before is over. */
static void begin_life(int pair)
{
	struct pair *p = &pairs[pair];

	lose_track(p);
	p->life++;
	p->looks = 0;
	p->posted = p->completed = p->receives_posted = p->receives_completed = 0;
	p->messages = p->messages_received = 0;
	p->connected = p->broken = p->send_failed = p->receive_failed = false;
}

static void publish(int pair)
{
	unsigned int epoch = atomic_load(&mine->epochs[pair]) + 1;

	mine->cards[pair][epoch % CARDS] = pairs[pair].end.card;
	atomic_store(&mine->connected_to[pair], 0);
	atomic_fetch_add(&mine->epochs[pair], 1);
}

static void make(int pair)
{
	struct pair *p = &pairs[pair];
	struct ibv_qp_init_attr init = { .send_cq = cqs[pair % CQS], .recv_cq = cqs[pair % CQS],
					 .cap = { DEPTH, DEPTH, SGES, SGES, INLINE }, .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_INIT, .port_num = 1,
					  .qp_access_flags = ALL_ACCESS };
	int error;

	if (!p->made) {
		p->end.qp = ibv_create_qp(device.pd, &init);
		if (!p->end.qp)
			FINDING("ibv_create_qp: %s", strerror(errno));
		p->made = true;
	}
	begin_life(pair);
	p->end.card = (struct card){ .qpn = p->end.qp->qp_num, .psn = draw(1 << 24) };
	if (ibv_query_gid(device.context, 1, gid_index, &p->end.card.gid))
		FINDING("ibv_query_gid");
	error = ibv_modify_qp(p->end.qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						      IBV_QP_ACCESS_FLAGS);
	if (error)
		FINDING("to INIT: %s", strerror(error));
	for (int i = draw(4); i > 0; i--)
		receive_some(pair);
	publish(pair);
}

static void destroy(int pair)
{
	int error = ibv_destroy_qp(pairs[pair].end.qp);

	if (error)
		FINDING("ibv_destroy_qp: %s", strerror(error));
	begin_life(pair);
	pairs[pair].made = false;
}

/* Connects with the other end's newest queue pair, unless that is the one of the last time or is
 * itself connected with an older one of ours: after a reset they would half understand each other. */
static void try_to_connect(int pair)
{
	struct pair *p = &pairs[pair];
	unsigned int epoch = atomic_load(&theirs->epochs[pair]);
	struct card card = theirs->cards[pair][epoch % CARDS];
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_RTR, .dest_qp_num = card.qpn,
		.rq_psn = card.psn, .max_dest_rd_atomic = READS, .min_rnr_timer = 1 + draw(12),
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = card.gid, .hop_limit = 64, .sgid_index = gid_index } } };
	unsigned int its_choice;
	int error;

	if (!p->made || p->connected || p->broken || !epoch || epoch == p->peer_epoch)
		return;
	atomic_store(&mine->connected_to[pair], epoch);
	its_choice = atomic_load(&theirs->connected_to[pair]);
	if (epoch != atomic_load(&theirs->epochs[pair]) ||
	    (its_choice && its_choice != atomic_load(&mine->epochs[pair]))) {
		atomic_store(&mine->connected_to[pair], 0);
		return;
	}
	/* both must choose the same */
	attributes.path_mtu = IBV_MTU_256 + (card.psn ^ p->end.card.psn) % 5;
	p->peer_epoch = epoch;
	error = ibv_modify_qp(p->end.qp, &attributes,
			      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (error)
		FINDING("to RTR: %s", strerror(error));
	attributes = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = p->end.card.psn,
					   .timeout = 10 + draw(5), .retry_cnt = 5 + draw(3),
					   .rnr_retry = 2 + draw(5), .max_rd_atomic = READS };
	error = ibv_modify_qp(p->end.qp, &attributes,
			      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				      IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
	if (error && state_of(p) == IBV_QPS_ERR) { /* by a request of the peer */
		p->broken = true;
		return;
	}
	if (error)
		FINDING("to RTS: %s", strerror(error));
	p->connected = true;
	atomic_fetch_add(&mine->connections, 1);
}

/* All that is posted is flushed. */
static void break_down(int pair)
{
	change(&pairs[pair], IBV_QPS_ERR);
	pairs[pair].broken = true;
}

/* A new life: of the same queue pair, or of another. */
static void renew(int pair)
{
	if (pairs[pair].made && chance(50))
		destroy(pair);
	else if (pairs[pair].made)
		change(&pairs[pair], IBV_QPS_RESET);
	make(pair);
}

/* What must not be possible, and must change nothing. */
static void attempt_nonsense(int pair)
{
	struct pair *p = &pairs[pair];
	enum ibv_qp_state before = state_of(p), target = draw(8);
	struct ibv_qp_attr attributes = { .qp_state = target, .cur_qp_state = draw(8), .port_num = draw(4),
					  .path_mtu = draw(9), .dest_qp_num = draw(1 << 24),
					  .pkey_index = draw(70000) };
	int mask = IBV_QP_STATE | IBV_QP_CUR_STATE | 1 << (2 + draw(23)), error;

	/* ERR and RESET are always allowed, and what has no attributes */
	if (target == IBV_QPS_RESET || target == IBV_QPS_ERR || target == before || target == IBV_QPS_RTS ||
	    target == IBV_QPS_SQD)
		return;
	error = ibv_modify_qp(p->end.qp, &attributes, mask);
	if (!error)
		FINDING("pair %d: from state %d to %d with mask %#x", pair, before, target, mask);
	if (state_of(p) != before && state_of(p) != IBV_QPS_ERR)
		FINDING("pair %d: a refused change led from state %d to %d", pair, before, state_of(p));
}

static void exchange_cq(int which)
{
	int error = ibv_destroy_cq(cqs[which]);

	if (error != EBUSY)
		FINDING("ibv_destroy_cq of one in use: %s", strerror(error));
	for (int i = which; i < QPS; i += CQS)
		if (pairs[i].made)
			destroy(i);
	error = ibv_destroy_cq(cqs[which]);
	if (error)
		FINDING("ibv_destroy_cq: %s", strerror(error));
	cqs[which] = ibv_create_cq(device.context, 4 * QPS * DEPTH, NULL, channel, 0);
	if (!cqs[which])
		FINDING("ibv_create_cq: %s", strerror(errno));
	for (int i = which; i < QPS; i += CQS)
		make(i);
}

static void listen_for_events(int which)
{
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *context;
	int error = ibv_req_notify_cq(cqs[which], chance(30));

	if (error)
		FINDING("ibv_req_notify_cq: %s", strerror(error));
	if (chance(50))
		poll_some(which, 1);
	if (poll(&readable, 1, chance(20) ? 2 : 0) == 1) {
		if (ibv_get_cq_event(channel, &cq, &context))
			FINDING("ibv_get_cq_event: %s", strerror(errno));
		if (cq != cqs[0] && cq != cqs[1])
			FINDING("an event of no CQ");
		ibv_ack_cq_events(cq, 1);
	}
}

static void resize(int which)
{
	int error = ibv_resize_cq(cqs[which], 4 * QPS * DEPTH + draw(1000));

	if (error)
		FINDING("ibv_resize_cq: %s", strerror(error));
}

/* --- all together -------------------------------------------------------------------------- */

static void step(void)
{
	int pair = draw(QPS), which = draw(CQS);
	struct pair *p = &pairs[pair];
	uint32_t what = draw(1000);

	if (!p->connected && !p->broken)
		try_to_connect(pair);
	else if (p->connected && atomic_load(&theirs->epochs[pair]) != p->peer_epoch && chance(5))
		return renew(pair);
	else if ((p->send_failed || p->receive_failed || p->broken) && chance(10))
		return renew(pair);
	if (what < 350)
		post_some(pair);
	else if (what < 600)
		receive_some(pair);
	else if (what < 900)
		poll_some(which, 1 + draw(40));
	else if (what < 930)
		listen_for_events(which);
	else if (what < 940)
		state_of(p);
	else if (what < 950)
		attempt_nonsense(pair);
	else if (what < 955)
		check_memory();
	else if (what < 958)
		resize(which);
	else if (what < 960)
		usleep(draw(3000));
	else if (what < 961 && chance(30))
		break_down(pair);
	else if (what < 962 && chance(30))
		renew(pair);
	else if (what < 963 && chance(10))
		register_areas();
	else if (what < 964 && chance(10))
		register_slots();
	else if (what < 965 && chance(5))
		exchange_cq(which);
	else
		sched_yield();
}

static void process(int number, unsigned int seed)
{
	double look = seconds();
	uint64_t steps = 0;

	self = number;
	mine = &shared->process[number];
	theirs = &shared->process[!number];
	random_state = (seed * 2ull + number + 1) * 0x9e3779b97f4a7c15;
	device = open_device(name, gid_index);
	channel = ibv_create_comp_channel(device.context);
	areas = guarded(QPS * AREA);
	slots = guarded(SLOTS);
	forbidden = guarded(FORBIDDEN);
	forbidden_region = ibv_reg_mr(device.pd, forbidden, FORBIDDEN, IBV_ACCESS_LOCAL_WRITE);
	if (!channel || !forbidden_region)
		quit("setting up: %s", strerror(errno));
	memset(areas, 0, QPS * AREA);
	for (int i = 0; i < QPS; i++)
		memset(pairs[i].known, true, AREA);
	atomic_store(&mine->area, (uintptr_t)areas);
	atomic_store(&mine->forbidden, (uintptr_t)forbidden);
	atomic_store(&mine->forbidden_key, forbidden_region->rkey);
	register_areas();
	register_slots();
	for (int i = 0; i < CQS; i++)
		cqs[i] = ibv_create_cq(device.context, 4 * QPS * DEPTH, NULL, channel, 0);
	while (!atomic_load(&theirs->region_life) || atomic_load(&theirs->region_life) & 1)
		usleep(1000);
	for (int i = 0; i < QPS; i++)
		make(i);

	while (!atomic_load(&shared->stop)) {
		step();
		atomic_store(&mine->steps, ++steps);
		if (atomic_load(&shared->found)) { /* by the other one */
			dump();
			break;
		}
		if (seconds() - look < 1)
			continue;
		look = seconds();
		check_memory();
		check_progress();
	}
	for (int i = 0; i < QPS; i++)
		destroy(i);
	check_memory();
	if (ibv_destroy_cq(cqs[0]) || ibv_destroy_cq(cqs[1]) || ibv_destroy_comp_channel(channel) ||
	    ibv_dereg_mr(area_region) || ibv_dereg_mr(slot_region) || ibv_dereg_mr(forbidden_region) ||
	    ibv_dealloc_pd(device.pd) || ibv_close_device(device.context))
		FINDING("taking down");
}

static pid_t start(int number, unsigned int seed)
{
	pid_t child = fork();

	if (child < 0)
		quit("fork: %s", strerror(errno));
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		process(number, seed);
		exit(0);
	}
	return child;
}

int main(int argc, char **argv)
{
	int option, duration = 10, wrong = 0;
	unsigned int seed = getpid();
	unsigned long long steps[2] = { 0 };
	pid_t children[2];
	double begin, look;

	setvbuf(stdout, NULL, _IOLBF, 0);
	while ((option = getopt(argc, argv, "d:g:t:s:v")) != -1) {
		switch (option) {
		case 'd': name = optarg; break;
		case 'g': gid_index = atoi(optarg); break;
		case 't': duration = atoi(optarg); break;
		case 's': seed = strtoul(optarg, NULL, 0); break;
		case 'v': verbose = true; break;
		default: return 2;
		}
	}
	shared = shared_memory(sizeof(*shared));
	for (int i = 0; i < 2; i++)
		children[i] = start(i, seed);
	begin = look = seconds();
	while (seconds() - begin < duration && !wrong) {
		int status;

		usleep(50000);
		for (int i = 0; i < 2; i++)
			if (waitpid(children[i], &status, WNOHANG) > 0) {
				printf("process %d ended with status %#x\n", i, status);
				children[i] = 0;
				wrong++;
			}
		if (seconds() - look < GUARD_SECONDS)
			continue;
		look = seconds();
		for (int i = 0; i < 2; i++) { /* one call that does not return */
			unsigned long long now = atomic_load(&shared->process[i].steps);

			if (now == steps[i]) {
				printf("process %d hangs after step %llu\n", i, now);
				wrong++;
			}
			steps[i] = now;
		}
	}
	atomic_store(&shared->stop, true);
	for (int i = 0; i < 2; i++) {
		struct public *p = &shared->process[i];
		int status = 0, tries = 0;

		while (children[i] && waitpid(children[i], &status, WNOHANG) == 0 && tries++ < 1000 * (wrong ? 1 : GUARD_SECONDS))
			usleep(1000);
		if (children[i] && (status || tries > 1000 * (wrong ? 1 : GUARD_SECONDS))) {
			kill(children[i], SIGKILL);
			printf("process %d ended with status %#x\n", i, status);
			wrong++;
		}
		printf("process %d: %llu steps, %llu connections, %llu requests succeeded, %llu failed, %llu "
		       "messages received\n", i, (unsigned long long)p->steps, (unsigned long long)p->connections,
		       (unsigned long long)p->good, (unsigned long long)p->bad, (unsigned long long)p->received);
		if (!wrong && duration >= 5 && (p->good < 100 || p->received < 10)) {
			printf("process %d did nothing to speak of\n", i);
			wrong++;
		}
	}
	printf("verbs_fuzz: seed %u, %s\n", seed, wrong ? "FAILED" : "no finding");
	return wrong > 0;
}
