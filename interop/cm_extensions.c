/* What an iWARP connection can do only where both ends have RFC 7306: a WRITE with immediate
 * data, and atomics. Both ends check what comes of it.
 * Arguments: `cm_ends.h`.
 *
 * Prints a line for each request, and ends with 0 if all was as it should be. */

#include <stdint.h>

#include <rdma/rdma_verbs.h>

#include "cm_ends.h"

enum {
	LENGTH = 3000,
	IMMEDIATE = 0x01020304,
};

/* What the word of the server becomes. */
static const uint64_t FIRST = 41, ADDED = 1ULL << 40, LAST = 0x1122334455667788;

/* Of the server; what its private data say. */
struct offer {
	uint64_t address;
	uint32_t rkey;
};

/* Of either end. */
static struct memory {
	uint64_t word;
	uint8_t bytes[LENGTH];
} memory;

static struct ibv_mr *make(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct ibv_mr *mr;

	check(rdma_create_qp(id, NULL, &attr), "rdma_create_qp");
	mr = ibv_reg_mr(id->pd, &memory, sizeof(memory),
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	if (!mr)
		fail("no memory region");
	return mr;
}

static void destroy(struct rdma_cm_id *id, struct ibv_mr *mr)
{
	check(ibv_dereg_mr(mr), "ibv_dereg_mr");
	rdma_destroy_qp(id);
	check(rdma_destroy_id(id), "rdma_destroy_id");
}

/* The client's WRITE comes last: it takes a receive. */
static void expect_write(struct rdma_cm_id *id)
{
	struct ibv_wc wc;

	if (rdma_get_recv_comp(id, &wc) != 1)
		fail("no completion");
	if (wc.status || wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM)
		fail("%s, opcode %d", ibv_wc_status_str(wc.status), wc.opcode);
	if (!(wc.wc_flags & IBV_WC_WITH_IMM) || ntohl(wc.imm_data) != IMMEDIATE)
		fail("immediate data %#x", ntohl(wc.imm_data));
	if (wc.byte_len != LENGTH)
		fail("%u bytes", wc.byte_len);
	for (int i = 0; i < LENGTH; i++)
		if (memory.bytes[i] != 'w')
			fail("byte %d is %#x", i, memory.bytes[i]);
	if (memory.word != LAST)
		fail("the word is %#llx", (unsigned long long)memory.word);
	printf("%s: ok\n", doing);
}

static void serve(struct sockaddr *address)
{
	struct rdma_cm_id *listener = listen_at(address);
	struct rdma_cm_event *event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	struct ibv_mr *mr = make(id);
	struct offer offer = { (uintptr_t)&memory, mr->rkey };
	struct rdma_conn_param param = {
		.private_data = &offer,
		.private_data_len = sizeof(offer),
		.responder_resources = 1,
		.initiator_depth = 1,
	};

	check(rdma_ack_cm_event(event), "rdma_ack_cm_event");
	memory.word = FIRST;
	check(rdma_post_recv(id, NULL, memory.bytes, LENGTH, mr), "rdma_post_recv");
	check(rdma_accept(id, &param), "rdma_accept");
	expect_only(RDMA_CM_EVENT_ESTABLISHED);
	doing = "a WRITE with immediate";
	expect_write(id);
	check(rdma_disconnect(id), "rdma_disconnect");
	expect_only(RDMA_CM_EVENT_DISCONNECTED);
	destroy(id, mr);
	check(rdma_destroy_id(listener), "rdma_destroy_id");
}

/* One request on all bytes, or on the word, to its good end. */
static void ask(struct rdma_cm_id *id, struct ibv_mr *mr, struct ibv_send_wr wr)
{
	int is_atomic = wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
			wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
	struct ibv_sge sge = { (uintptr_t)memory.bytes, LENGTH, mr->lkey };
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	if (is_atomic) {
		sge.addr = (uintptr_t)&memory.word;
		sge.length = sizeof(memory.word);
	}
	wr.sg_list = &sge;
	wr.num_sge = 1;
	check(ibv_post_send(id->qp, &wr, &bad), "ibv_post_send");
	if (rdma_get_send_comp(id, &wc) != 1)
		fail("no completion");
	if (wc.status)
		fail("%s", ibv_wc_status_str(wc.status));
	printf("%s: ok\n", doing);
}

static void expect_old(uint64_t wanted)
{
	if (memory.word != wanted)
		fail("the word was %#llx", (unsigned long long)memory.word);
}

static void visit(struct sockaddr *address)
{
	struct rdma_cm_id *id = way_to(address);
	struct ibv_mr *mr = make(id);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_event *event;
	struct offer offer;

	check(rdma_connect(id, &param), "rdma_connect");
	event = expect(RDMA_CM_EVENT_ESTABLISHED);
	if (event->param.conn.private_data_len < sizeof(offer))
		fail("no offer");
	memcpy(&offer, event->param.conn.private_data, sizeof(offer));
	check(rdma_ack_cm_event(event), "rdma_ack_cm_event");

	doing = "FETCH and ADD";
	ask(id, mr, (struct ibv_send_wr){
		.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.wr.atomic = { offer.address, ADDED, 0, offer.rkey },
	});
	expect_old(FIRST);
	doing = "COMPARE and SWAP";
	ask(id, mr, (struct ibv_send_wr){
		.opcode = IBV_WR_ATOMIC_CMP_AND_SWP,
		.wr.atomic = { offer.address, FIRST + ADDED, LAST, offer.rkey },
	});
	expect_old(FIRST + ADDED);
	doing = "a WRITE with immediate";
	memset(memory.bytes, 'w', LENGTH);
	ask(id, mr, (struct ibv_send_wr){
		.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.imm_data = htonl(IMMEDIATE),
		.wr.rdma = { offer.address + offsetof(struct memory, bytes), offer.rkey },
	});
	expect_only(RDMA_CM_EVENT_DISCONNECTED);
	destroy(id, mr);
}

int main(int argc, char **argv)
{
	return be_an_end(argc, argv, "7177", serve, visit);
}
