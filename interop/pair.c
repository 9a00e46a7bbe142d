/* See pair.h. */
#include "pair.h"

#include <getopt.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <time.h>

enum { GUARD_SECONDS = 60 };

struct options options = { .gid_index = 1, .port = 18600, .clients = 1, .seconds = 1,
			   .mtu = IBV_MTU_1024, .only = "" };
struct ibv_context *context;
struct ibv_cq *send_cq, *receive_cq;
struct ibv_qp *qp;
struct ibv_mr *region;
uint8_t *memory;
struct endpoint peer;
bool failed;
int control = -1;

static struct ibv_pd *pd;
static struct endpoint mine;

/* --- setting up ---------------------------------------------------------------------------- */

static void open_device(void)
{
	int count = 0, i = 0;
	struct ibv_device **list = ibv_get_device_list(&count);

	while (i < count && options.device && strcmp(ibv_get_device_name(list[i]), options.device))
		i++;
	if (!list || i >= count) {
		fprintf(stderr, "no device %s\n", options.device ? options.device : "at all");
		exit(2);
	}
	context = ibv_open_device(list[i]);
	if (!context)
		die("ibv_open_device");
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	send_cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
	receive_cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
	if (!pd || !send_cq || !receive_cq)
		die("setting up");
}

static void send_at_once(void)
{
	setsockopt(control, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
}

static int listen_for_clients(void)
{
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(options.port) };
	int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
	if (bind(listener, (struct sockaddr *)&any, sizeof(any)) || listen(listener, options.clients))
		die("listen");
	return listener;
}

void accept_client(void)
{
	static int listener = -1;
	static unsigned int accepted;

	if (listener < 0)
		listener = listen_for_clients();
	control = accept(listener, NULL, NULL);
	if (control < 0)
		die("accept");
	send_at_once();
	if (++accepted == options.clients)
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
	send_at_once();
}

static void usage(const char *program)
{
	fprintf(stderr, "usage: %s server|client [-d DEVICE] [-g INDEX] [-m MTU] [-p PORT] [-k] [-l] "
			"[-n CLIENTS] [-s SECONDS] [-t TEXT] [-v] [HOST]\n", program);
	exit(2);
}

static const char *parse(int argc, char **argv)
{
	int option;

	if (argc < 2 || (strcmp(argv[1], "server") && strcmp(argv[1], "client")))
		usage(argv[0]);
	options.server = !strcmp(argv[1], "server");
	optind = 2;
	while ((option = getopt(argc, argv, "d:g:m:p:kln:s:t:v")) != -1) {
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
		case 'l': options.lossy = true; break;
		case 'n': options.clients = atoi(optarg); break;
		case 's': options.seconds = atoi(optarg); break;
		case 't': options.only = optarg; break;
		case 'v': options.verbose = true; break;
		default: usage(argv[0]);
		}
	}
	if (options.server != (optind == argc) || !options.clients)
		usage(argv[0]);
	return argv[optind];
}

void pair_start(int argc, char **argv)
{
	const char *host = parse(argc, argv);

	setvbuf(stdout, NULL, _IOLBF, 0);
	srand(time(NULL) ^ getpid());
	open_device();
	if (options.server)
		accept_client();
	else
		connect_server(host);
}

/* --- both ends ----------------------------------------------------------------------------- */

void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(2);
}

void fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	printf("  wrong: ");
	vprintf(format, arguments);
	putchar('\n');
	va_end(arguments);
	failed = true;
}

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

int by_value(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return (a > b) - (a < b);
}

static void exchange(const void *mine, void *theirs, size_t length)
{
	if (send(control, mine, length, MSG_NOSIGNAL) != (ssize_t)length ||
	    recv(control, theirs, length, MSG_WAITALL) != (ssize_t)length) {
		fprintf(stderr, "the other end is gone\n");
		exit(2);
	}
}

bool meet(void)
{
	uint8_t here = failed, there;

	exchange(&here, &there, 1);
	return !here && !there;
}

bool wanted(const char *name)
{
	return strstr(name, options.only) != NULL;
}

bool conclude(const char *name)
{
	bool ok = meet();

	printf("%s %s\n", ok ? "ok  " : "FAIL", name);
	return ok;
}

/* --- connections --------------------------------------------------------------------------- */

static void modify(struct ibv_qp_attr attributes, int mask, const char *what)
{
	int error = ibv_modify_qp(qp, &attributes, mask);

	if (error) {
		errno = error;
		die(what);
	}
}

void make_qp(const struct setup *setup)
{
	struct ibv_qp_init_attr init = { .send_cq = send_cq, .recv_cq = receive_cq,
					 .cap = { DEPTH, DEPTH, 2, 2, 0 }, .qp_type = IBV_QPT_RC };

	memory = setup->memory;
	region = ibv_reg_mr(pd, memory, setup->size, setup->region_access);
	if (!region)
		die("ibv_reg_mr");
	qp = ibv_create_qp(pd, &init);
	if (!qp)
		die("ibv_create_qp");
	mine = (struct endpoint){ .address = (uintptr_t)memory, .rkey = region->rkey, .qpn = qp->qp_num,
				  .psn = rand() & 0xffffff, .kernel = options.kernel, .process = getpid() };
	if (ibv_query_gid(context, 1, options.gid_index, &mine.gid))
		die("ibv_query_gid");
	modify((struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1,
				     .qp_access_flags = setup->qp_access },
	       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "to INIT");
}

void connect_qp(const struct setup *setup)
{
	exchange(&mine, &peer, sizeof(mine));
	modify((struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = options.mtu,
				     .dest_qp_num = peer.qpn, .rq_psn = peer.psn,
				     .max_dest_rd_atomic = READS, .min_rnr_timer = 12,
				     .ah_attr = { .is_global = 1, .port_num = 1,
						  .grh = { .dgid = peer.gid, .hop_limit = 64,
							   .sgid_index = options.gid_index } } },
	       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, "to RTR");
	modify((struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = mine.psn,
				     .timeout = setup->timeout, .retry_cnt = setup->retries,
				     .rnr_retry = setup->rnr_retries, .max_rd_atomic = READS },
	       IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		       IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC, "to RTS");
	meet(); /* or a request could come before its responder is ready */
}

void drop_qp(void)
{
	struct ibv_wc wc;

	if (ibv_destroy_qp(qp))
		fail("ibv_destroy_qp");
	if (region && ibv_dereg_mr(region))
		fail("ibv_dereg_mr");
	while (ibv_poll_cq(send_cq, 1, &wc) > 0 || ibv_poll_cq(receive_cq, 1, &wc) > 0)
		;
}

/* --- work requests ------------------------------------------------------------------------- */

struct ibv_wc reap(struct ibv_cq *cq, const char *what, enum ibv_wc_status expect)
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
	if (options.lossy && expect != IBV_WC_SUCCESS && wc.status == IBV_WC_RETRY_EXC_ERR)
		return wc;
	if (wc.status != expect)
		fail("%s: %s (%d), not %s (%d)", what, ibv_wc_status_str(wc.status), wc.status,
		     ibv_wc_status_str(expect), expect);
	return wc;
}

struct ibv_send_wr request(enum ibv_wr_opcode opcode, struct ibv_sge *sge, uint32_t local,
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

void post(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	int error = ibv_post_send(qp, wr, &bad);

	if (error)
		fail("post_send: %s", strerror(error));
}

void post_receive(uint32_t offset, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)memory + offset, length, region->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = offset, .sg_list = &sge, .num_sge = 1 };
	int error = ibv_post_recv(qp, &wr, &bad);

	if (error)
		fail("post_recv: %s", strerror(error));
}

void perform(enum ibv_wr_opcode opcode, uint32_t local, uint32_t length, uint64_t remote,
	     uint32_t immediate, const char *what)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = request(opcode, &sge, local, length, remote);

	wr.imm_data = htonl(immediate);
	post(&wr);
	reap(send_cq, what, IBV_WC_SUCCESS);
}
