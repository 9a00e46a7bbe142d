/*
 * Very many queue pairs in one process: made, some of them connected and used, all destroyed.
 *
 *   verbs_many [-d DEVICE] [-g GID INDEX] [-n QUEUE PAIRS]
 */
#include "crew.h"

enum { BLOCK = 10000, USED = 50 };

int main(int argc, char **argv)
{
	const char *name = NULL;
	int option, count = 60000, gid_index = 1;
	struct device device;
	struct ibv_cq *cq;
	struct ibv_mr *region;
	struct end *ends;
	uint8_t *memory = calloc(2, BLOCK);
	double start = seconds();
	long before;

	setvbuf(stdout, NULL, _IOLBF, 0);
	while ((option = getopt(argc, argv, "d:g:n:")) != -1) {
		switch (option) {
		case 'd': name = optarg; break;
		case 'g': gid_index = atoi(optarg); break;
		case 'n': count = atoi(optarg); break;
		default: return 2;
		}
	}
	device = open_device(name, gid_index);
	cq = ibv_create_cq(device.context, 256, NULL, NULL, 0);
	region = ibv_reg_mr(device.pd, memory, 2 * BLOCK, ALL_ACCESS);
	ends = calloc(count, sizeof(*ends));
	if (!cq || !region || !ends || count < 2)
		quit("setting up: %s", strerror(errno));

	before = resident_kib();
	for (int i = 0; i < count; i++)
		ends[i] = make_end(&device, cq, 1, region);
	printf("%d queue pairs after %.1f s, %ld KiB\n", count, seconds() - start, resident_kib() - before);

	/* pairs from all over the table: the first with the last, and so on */
	for (int i = 0; i < USED && i < count / 2; i++) {
		int left = (long)i * (count / 2) / USED, right = count - 1 - left;
		struct ibv_wc wc;

		connect_end(&device, &ends[left], &ends[right].card, 16);
		connect_end(&device, &ends[right], &ends[left].card, 16);
		fill(memory, BLOCK, i);
		if (post_request(&ends[left], IBV_WR_RDMA_WRITE, i, memory, BLOCK, region,
				 (uintptr_t)memory + BLOCK, region->rkey))
			quit("post_send");
		wc = await(cq, "write");
		if (wc.status != IBV_WC_SUCCESS || wc.wr_id != (uint64_t)i || wc.qp_num != ends[left].qp->qp_num)
			quit("write %d: %s", i, ibv_wc_status_str(wc.status));
		if (!check("written", memory + BLOCK, BLOCK, i))
			return 1;
	}
	printf("%d pairs of them wrote\n", USED);
	for (int i = 0; i < count; i++)
		drop_end(&ends[i], false);
	if (ibv_destroy_cq(cq) || ibv_dereg_mr(region) || ibv_dealloc_pd(device.pd) ||
	    ibv_close_device(device.context))
		quit("taking down");
	printf("verbs_many: all gone after %.1f s, %ld KiB more than before\n", seconds() - start,
	       resident_kib() - before);
	return 0;
}
