/* See crew.h. */
#include "crew.h"

#include <sched.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <time.h>

enum { GUARD_SECONDS = 60 };

void *shared_memory(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		quit("mmap: %s", strerror(errno));
	return memory;
}

void quit(const char *format, ...)
{
	va_list arguments;

	fflush(stdout);
	fprintf(stderr, "process %d: ", getpid());
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	_exit(2);
}

void fill(uint8_t *bytes, uint32_t length, uint32_t number)
{
	for (uint32_t i = 0; i < length; i++)
		bytes[i] = pattern(number, i);
}

bool check(const char *what, const uint8_t *bytes, uint32_t length, uint32_t number)
{
	for (uint32_t i = 0; i < length; i++)
		if (bytes[i] != pattern(number, i)) {
			printf("wrong: %s: byte %u of %u is %#x, not %#x\n", what, i, length, bytes[i],
			       pattern(number, i));
			return false;
		}
	return true;
}

bool check_all(const char *what, const uint8_t *bytes, uint32_t length, uint8_t value)
{
	for (uint32_t i = 0; i < length; i++)
		if (bytes[i] != value) {
			printf("wrong: %s: byte %u of %u is %#x, not %#x\n", what, i, length, bytes[i], value);
			return false;
		}
	return true;
}

uint8_t *guarded(size_t size)
{
	uint8_t *whole = aligned_alloc(4096, (size + 2 * CANARY + 4095) / 4096 * 4096);

	if (!whole)
		quit("no memory");
	memset(whole, UNTOUCHED, size + 2 * CANARY);
	return whole + CANARY;
}

bool check_guards(const char *what, const uint8_t *memory, size_t size)
{
	return check_all(what, memory - CANARY, CANARY, UNTOUCHED) &&
	       check_all(what, memory + size, CANARY, UNTOUCHED);
}

double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

long resident_kib(void)
{
	char line[128];
	long kib = -1;
	FILE *status = fopen("/proc/self/status", "r");

	while (status && fgets(line, sizeof(line), status))
		if (sscanf(line, "VmRSS: %ld kB", &kib) == 1)
			break;
	if (status)
		fclose(status);
	return kib;
}

struct device open_device(const char *name, int gid_index)
{
	struct device device = { .gid_index = gid_index };
	int count = 0, i = 0;
	struct ibv_device **list = ibv_get_device_list(&count);

	while (list && i < count && name && strcmp(ibv_get_device_name(list[i]), name))
		i++;
	if (!list || i >= count)
		quit("no device %s", name ? name : "at all");
	device.context = ibv_open_device(list[i]);
	if (!device.context)
		quit("ibv_open_device: %s", strerror(errno));
	ibv_free_device_list(list);
	device.pd = ibv_alloc_pd(device.context);
	if (!device.pd)
		quit("ibv_alloc_pd: %s", strerror(errno));
	return device;
}

struct end make_end(const struct device *device, struct ibv_cq *cq, int depth, struct ibv_mr *mr)
{
	static atomic_uint starts;
	struct end end = { .cq = cq ? cq : ibv_create_cq(device->context, 2 * depth, NULL, NULL, 0) };
	struct ibv_qp_init_attr init = { .send_cq = end.cq, .recv_cq = end.cq,
					 .cap = { depth, depth, 2, 2, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_INIT, .port_num = 1,
					  .qp_access_flags = ALL_ACCESS };
	int error;

	if (!end.cq)
		quit("ibv_create_cq: %s", strerror(errno));
	end.qp = ibv_create_qp(device->pd, &init);
	if (!end.qp)
		quit("ibv_create_qp: %s", strerror(errno));
	end.card = (struct card){ .qpn = end.qp->qp_num,
				  .psn = (atomic_fetch_add(&starts, 1) * 2654435761u ^ (uint32_t)getpid() * 40503u) & 0xffffff };
	if (mr) {
		end.card.address = (uintptr_t)mr->addr;
		end.card.rkey = mr->rkey;
	}
	if (ibv_query_gid(device->context, 1, device->gid_index, &end.card.gid))
		quit("ibv_query_gid: %s", strerror(errno));
	error = ibv_modify_qp(end.qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						   IBV_QP_ACCESS_FLAGS);
	if (error)
		quit("to INIT: %s", strerror(error));
	return end;
}

void drop_end(struct end *end, bool own_cq)
{
	int error = ibv_destroy_qp(end->qp);

	if (error)
		quit("ibv_destroy_qp: %s", strerror(error));
	error = own_cq ? ibv_destroy_cq(end->cq) : 0;
	if (error)
		quit("ibv_destroy_cq: %s", strerror(error));
}

void connect_end(const struct device *device, struct end *end, const struct card *peer, uint8_t timeout)
{
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qpn,
		.rq_psn = peer->psn, .max_dest_rd_atomic = READS, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = peer->gid, .hop_limit = 64, .sgid_index = device->gid_index } } };
	int error = ibv_modify_qp(end->qp, &attributes,
				  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);

	if (error)
		quit("to RTR: %s", strerror(error));
	attributes = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = end->card.psn, .timeout = timeout,
					   .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = READS };
	error = ibv_modify_qp(end->qp, &attributes,
			      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				      IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
	if (error)
		quit("to RTS: %s", strerror(error));
}

int post_request(struct end *end, enum ibv_wr_opcode opcode, uint64_t id, void *local, uint32_t length,
		 struct ibv_mr *mr, uint64_t remote, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)local, length, mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = id, .opcode = opcode, .sg_list = &sge, .num_sge = 1,
					.send_flags = IBV_SEND_SIGNALED,
					.wr.rdma = { .remote_addr = remote, .rkey = rkey } };

	return ibv_post_send(end->qp, &wr, &bad);
}

int post_receive(struct end *end, uint64_t id, void *local, uint32_t length, struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)local, length, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };

	return ibv_post_recv(end->qp, &wr, &bad);
}

struct ibv_wc await(struct ibv_cq *cq, const char *what)
{
	struct ibv_wc wc = { 0 };
	double deadline = seconds() + GUARD_SECONDS;
	int count;

	while (!(count = ibv_poll_cq(cq, 1, &wc))) {
		if (seconds() > deadline)
			quit("%s: no completion", what);
		sched_yield();
	}
	if (count < 0)
		quit("%s: ibv_poll_cq: %d", what, count);
	return wc;
}
