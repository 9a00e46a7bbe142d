/* Rsockets: wrong use, connections, both directions at once, the ends, what waits, and peers that
 * are killed or do not keep to the protocol. Needs a link on lo; `cargo xtask programs --filter
 * rsockets` runs it. */

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

/* When something counts as hung. */
#define GUARD_MS 60000

static int failures;

static void must(const char *what, bool is_true)
{
	printf("%-5s %s\n", is_true ? "ok" : "WRONG", what);
	if (!is_true)
		printf("      errno is %d (%s)\n", errno, strerror(errno));
	fflush(stdout);
	failures += !is_true;
}

static void die(const char *what)
{
	perror(what);
	exit(2);
}

static bool fails(long result, int with)
{
	return result == -1 && errno == with;
}

static struct sockaddr_in loopback(uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = port };

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

static int stream(void)
{
	int descriptor = rsocket(AF_INET, SOCK_STREAM, 0);

	if (descriptor < 0)
		die("rsocket");
	return descriptor;
}

static int listener(struct sockaddr_in *address)
{
	socklen_t length = sizeof(*address);
	int descriptor = stream();

	*address = loopback(0);
	if (rbind(descriptor, (struct sockaddr *)address, length) || rlisten(descriptor, 8) ||
	    rgetsockname(descriptor, (struct sockaddr *)address, &length))
		die("a listener");
	return descriptor;
}

static int connected(const struct sockaddr_in *to)
{
	int descriptor = stream();

	if (rconnect(descriptor, (const struct sockaddr *)to, sizeof(*to)))
		die("rconnect");
	return descriptor;
}

static int accepted(int from)
{
	int descriptor = raccept(from, NULL, NULL);

	if (descriptor < 0)
		die("raccept");
	return descriptor;
}

static void wrong_use(void)
{
	struct sockaddr_in address = loopback(0);
	int descriptor = stream(), value = 1;
	char byte;

	printf("wrong use\n");
	must("no family but IP", fails(rsocket(AF_UNIX, SOCK_STREAM, 0), EOPNOTSUPP));
	must("no type but two", fails(rsocket(AF_INET, SOCK_RAW, 0), EOPNOTSUPP));
	must("no stream of UDP", fails(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EOPNOTSUPP));
	must("a plain descriptor is none", fails(rsend(0, &byte, 1, 0), EBADF));
	must("-1 is none", fails(rrecv(-1, &byte, 1, 0), EBADF));
	must("closing what is none", fails(rclose(12345), EBADF));
	must("receiving unconnected", fails(rrecv(descriptor, &byte, 1, 0), ENOTCONN));
	must("sending unconnected", fails(rsend(descriptor, &byte, 1, 0), ENOTCONN));
	must("accepting without listening", fails(raccept(descriptor, NULL, NULL), EINVAL));
	must("half an address",
	     fails(rconnect(descriptor, (struct sockaddr *)&address, 4), EINVAL));
	must("no address", fails(rbind(descriptor, NULL, 0), EINVAL));
	must("an option that is none",
	     fails(rsetsockopt(descriptor, SOL_SOCKET, SO_PASSCRED, &value, sizeof(value)),
		   EOPNOTSUPP));
	must("closing", rclose(descriptor) == 0);
	must("closing again", fails(rclose(descriptor), EBADF));
}

static void connecting(int from, const struct sockaddr_in *to)
{
	struct sockaddr_in name, peer;
	socklen_t length = sizeof(int);
	int error = -1, descriptor = stream(), other, before;
	struct pollfd poller;

	printf("connecting without waiting\n");
	must("nobody came", rfcntl(from, F_SETFL, O_NONBLOCK) == 0 &&
				    fails(raccept(from, NULL, NULL), EAGAIN));
	must("a flag is kept", rfcntl(from, F_GETFL) & O_NONBLOCK);
	rfcntl(from, F_SETFL, 0);
	rfcntl(descriptor, F_SETFL, O_NONBLOCK);
	must("it takes a while", fails(rconnect(descriptor, (const struct sockaddr *)to,
						sizeof(*to)), EINPROGRESS));
	poller = (struct pollfd){ .fd = descriptor, .events = POLLOUT };
	must("then it can be written", rpoll(&poller, 1, GUARD_MS) == 1 &&
					       poller.revents == POLLOUT);
	must("nothing went wrong", !rgetsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &length) &&
					   error == 0);
	must("it is connected", fails(rconnect(descriptor, (const struct sockaddr *)to,
					       sizeof(*to)), EISCONN));
	poller = (struct pollfd){ .fd = from, .events = POLLIN };
	must("the listener has one", rpoll(&poller, 1, GUARD_MS) == 1 && poller.revents == POLLIN);
	length = sizeof(peer);
	/* a program that keeps rsockets and descriptors apart opens one of its own first */
	before = open("/dev/null", O_RDONLY);
	other = raccept(from, (struct sockaddr *)&peer, &length);
	must("it is accepted", other >= 0 && length == sizeof(peer));
	must("its number is of now", other > before);
	close(before);
	length = sizeof(name);
	rgetsockname(descriptor, (struct sockaddr *)&name, &length);
	must("and has the right name", name.sin_port == peer.sin_port &&
					       name.sin_addr.s_addr == peer.sin_addr.s_addr);
	rclose(descriptor);
	rclose(other);

	printf("connecting to nobody\n");
	descriptor = stream();
	peer = loopback(htons(1));
	must("is refused", fails(rconnect(descriptor, (struct sockaddr *)&peer, sizeof(peer)),
				 ECONNREFUSED));
	rclose(descriptor);
}

/* More peers than the backlog wait until the program has taken those before them, and one that has
 * gone again keeps its place. */
static void waiting(void)
{
	struct sockaddr_in to = loopback(0);
	socklen_t length = sizeof(to);
	int from = stream(), first = stream(), second = stream(), one;
	struct pollfd poller = { .events = POLLOUT };

	printf("more than the backlog\n");
	if (rbind(from, (struct sockaddr *)&to, length) || rlisten(from, 1) ||
	    rgetsockname(from, (struct sockaddr *)&to, &length))
		die("a listener");
	must("the first has room", rconnect(first, (struct sockaddr *)&to, sizeof(to)) == 0);
	rclose(first);
	rfcntl(second, F_SETFL, O_NONBLOCK);
	must("the second begins", fails(rconnect(second, (struct sockaddr *)&to, sizeof(to)),
					EINPROGRESS));
	poller.fd = second;
	must("and waits", rpoll(&poller, 1, 300) == 0);
	one = accepted(from);
	must("the first is taken", rclose(one) == 0);
	must("which makes room", rpoll(&poller, 1, GUARD_MS) == 1 && poller.revents == POLLOUT);
	one = accepted(from);
	rclose(second);
	rclose(one);
	rclose(from);
}

static void *poll_for_ever(void *descriptor)
{
	struct pollfd poller = { .fd = *(int *)descriptor, .events = POLLIN };

	return (void *)(intptr_t)(rpoll(&poller, 1, -1) == 1 ? poller.revents : 0);
}

/* Whoever polls an rsocket that another thread closes is told, as whoever reads from it is. */
static void closing_under_poll(const struct sockaddr_in *to, int from)
{
	int one = connected(to), ends[] = { listener(&(struct sockaddr_in){ 0 }), accepted(from) };
	struct timespec a_while = { .tv_nsec = 100 * 1000 * 1000 };
	pthread_t thread;
	void *told;

	printf("closing what is polled\n");
	for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++) {
		if (pthread_create(&thread, NULL, poll_for_ever, &ends[i]))
			die("a thread");
		/* it should sleep by then; if not it finds nothing there */
		nanosleep(&a_while, NULL);
		must("closing", rclose(ends[i]) == 0);
		pthread_join(thread, &told);
		/* a connection may say first that it ends */
		must(i ? "a connection says so" : "a listener says so",
		     i ? told != NULL : told == (void *)(intptr_t)POLLNVAL);
	}
	rclose(one);
}

static void bytes(int from, const struct sockaddr_in *to)
{
	int one = connected(to), two = accepted(from);
	char got[16] = "";
	struct iovec pieces[2] = { { "ab", 2 }, { "cdef", 4 } };
	struct iovec places[2] = { { got, 3 }, { got + 3, 13 } };
	struct pollfd pollers[2];
	int ends[2];
	fd_set set;
	struct timeval none = { 0, 1000 };
	char *hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	printf("bytes\n");
	must("nothing there", fails(rrecv(two, got, 1, MSG_DONTWAIT), EAGAIN));
	must("in pieces", rwritev(one, pieces, 2) == 6);
	must("a look", rrecv(two, got, 2, MSG_PEEK | MSG_WAITALL) == 2 && !memcmp(got, "ab", 2));
	memset(got, 0, sizeof(got));
	must("all of it", rrecv(two, got, 6, MSG_WAITALL) == 6 && !strcmp(got, "abcdef"));
	memset(got, 0, sizeof(got));
	must("into places", rsend(one, "uvwxyz", 6, 0) == 6 && rreadv(two, places, 2) >= 3 &&
				    !memcmp(got, "uvw", 3));
	while (rrecv(two, got, sizeof(got), MSG_DONTWAIT) > 0)
		;
	must("from where nothing is", fails(rsend(one, hole, 4096, 0), EFAULT));
	must("and from a little of that", fails(rsend(one, hole, 10, 0), EFAULT));
	must("it goes on", rsend(one, "0123456789", 10, 0) == 10);
	must("to where nothing is", fails(rrecv(two, hole, 10, 0), EFAULT));
	must("nothing is lost", rrecv(two, got, 10, MSG_WAITALL) == 10 &&
					!memcmp(got, "0123456789", 10));

	printf("polling\n");
	if (pipe(ends))
		die("pipe");
	pollers[0] = (struct pollfd){ .fd = two, .events = POLLIN };
	pollers[1] = (struct pollfd){ .fd = ends[0], .events = POLLIN };
	must("nothing in time", rpoll(pollers, 2, 10) == 0);
	must("nothing now", rpoll(pollers, 2, 0) == 0);
	must("a pipe", write(ends[1], "x", 1) == 1 && rpoll(pollers, 2, GUARD_MS) == 1 &&
			       pollers[1].revents == POLLIN && !pollers[0].revents);
	must("both", rsend(one, "x", 1, 0) == 1 && rrecv(two, got, 1, MSG_PEEK) == 1 &&
			     rpoll(pollers, 2, GUARD_MS) == 2);
	FD_ZERO(&set);
	FD_SET(two, &set);
	must("select", rselect(two + 1, &set, NULL, NULL, NULL) == 1 && FD_ISSET(two, &set));
	rrecv(two, got, 1, 0);
	must("select in vain", rselect(two + 1, &set, NULL, NULL, &none) == 0 && !FD_ISSET(two, &set));
	close(ends[0]);
	close(ends[1]);

	printf("the ends\n");
	must("one end says that it is done", rshutdown(one, SHUT_WR) == 0);
	must("the other reads that", rrecv(two, got, 1, 0) == 0);
	must("and writes", rsend(two, "bye", 3, 0) == 3);
	must("which is read", rrecv(one, got, 3, MSG_WAITALL) == 3);
	must("who is done does not write", fails(rsend(one, "x", 1, 0), ECONNRESET));
	must("closing", rclose(two) == 0);
	must("is read", rrecv(one, got, 1, 0) == 0);
	pollers[0] = (struct pollfd){ .fd = one, .events = POLLIN };
	must("and polled", rpoll(pollers, 1, GUARD_MS) == 1 && pollers[0].revents & POLLHUP);
	rclose(one);
	munmap(hole, 4096);
}

#define LONG (3 << 20)

static void *write_long(void *descriptor)
{
	int from = (int)(intptr_t)descriptor;
	uint32_t *words = malloc(LONG);
	ssize_t sent;

	for (uint32_t i = 0; i < LONG / sizeof(*words); i++)
		words[i] = i * 2654435761u;
	sent = rsend(from, words, LONG, 0);
	free(words);
	return (void *)(intptr_t)(sent == LONG);
}

static void *read_long(void *descriptor)
{
	int from = (int)(intptr_t)descriptor;
	uint32_t *words = malloc(LONG);
	bool is_right = rrecv(from, words, LONG, MSG_WAITALL) == LONG;

	for (uint32_t i = 0; is_right && i < LONG / sizeof(*words); i++)
		is_right = words[i] == i * 2654435761u;
	free(words);
	return (void *)(intptr_t)is_right;
}

static void *read_one(void *descriptor)
{
	char byte;

	rrecv((int)(intptr_t)descriptor, &byte, 1, 0);
	return NULL;
}

static void threads(int from, const struct sockaddr_in *to)
{
	int one = connected(to), two = accepted(from);
	void *(*const work[4])(void *) = { write_long, write_long, read_long, read_long };
	const int where[4] = { one, two, one, two };
	pthread_t ids[4], waits;
	void *result;
	char byte = 0;

	printf("both directions at once\n");
	for (int i = 0; i < 4; i++) {
		if (pthread_create(&ids[i], NULL, work[i], (void *)(intptr_t)where[i]))
			die("pthread_create");
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(ids[i], &result);
		must(i < 2 ? "written" : "read and right", result);
	}

	printf("a thread that waits is cancelled\n");
	if (pthread_create(&waits, NULL, read_one, (void *)(intptr_t)two))
		die("pthread_create");
	usleep(100000);
	pthread_cancel(waits);
	pthread_join(waits, &result);
	must("it was", result == PTHREAD_CANCELED);
	must("the rsocket lives", rsend(one, "!", 1, 0) == 1 && rrecv(two, &byte, 1, 0) == 1 &&
					  byte == '!');
	rclose(one);
	rclose(two);
}

/* Connects, sends a byte, and stays. Forked before anything was opened here. */
static void victim(int port_from)
{
	struct sockaddr_in to = loopback(0);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (read(port_from, &to.sin_port, sizeof(to.sin_port)) != sizeof(to.sin_port))
		_exit(1);
	rsend(connected(&to), "x", 1, 0);
	for (;;)
		pause();
}

static void killed(int from, const struct sockaddr_in *to, pid_t child, int port_to)
{
	char byte;
	ssize_t got;
	int two;

	printf("a peer is killed\n");
	if (write(port_to, &to->sin_port, sizeof(to->sin_port)) != sizeof(to->sin_port))
		die("write");
	two = accepted(from);
	must("it lived", rrecv(two, &byte, 1, 0) == 1 && byte == 'x');
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	got = rrecv(two, &byte, 1, 0);
	must("which is read", got == 0 || fails(got, ECONNRESET));
	must("and written", fails(rsend(two, &byte, 1, 0), ECONNRESET));
	must("closing", rclose(two) == 0);
}

/* A peer that speaks verbs, and the protocol as far as it likes. */
struct peer {
	struct rdma_cm_id *id;
	struct ibv_mr *region;
	char memory[4096];
};

/* Version 1, iomaps, 100 credits; its list and its buffer are in its memory. */
static void greet(uint8_t hello[40], const struct peer *peer)
{
	uint64_t address = htobe64((uintptr_t)peer->memory);
	uint32_t key = htobe32(peer->region->rkey), entries = htobe32(2), length = htobe32(1024);

	memset(hello, 0, 40);
	memcpy(hello, "\1\2\0\144", 4);
	memcpy(hello + 8, &address, 8);
	memcpy(hello + 16, &key, 4);
	memcpy(hello + 20, &entries, 4);
	address = htobe64((uintptr_t)peer->memory + 1024);
	memcpy(hello + 24, &address, 8);
	memcpy(hello + 32, &key, 4);
	memcpy(hello + 36, &length, 4);
}

/* With a version of 0 it says nothing. */
static int reach(struct peer *peer, const struct sockaddr_in *to, uint8_t version)
{
	struct sockaddr_in address = *to;
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_recv_wr *bad, receive = { .wr_id = 1 };
	uint8_t hello[40];
	struct rdma_conn_param parameters = {
		.private_data = version ? hello : NULL,
		.private_data_len = version ? sizeof(hello) : 0,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};

	if (rdma_create_id(NULL, &peer->id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(peer->id, NULL, (struct sockaddr *)&address, 2000) ||
	    rdma_resolve_route(peer->id, 2000) || rdma_create_qp(peer->id, NULL, &attributes))
		die("a peer");
	peer->region = ibv_reg_mr(peer->id->pd, peer->memory, sizeof(peer->memory),
				  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!peer->region)
		die("ibv_reg_mr");
	for (int i = 0; i < 4; i++) {
		if (ibv_post_recv(peer->id->qp, &receive, &bad))
			die("ibv_post_recv");
	}
	greet(hello, peer);
	hello[0] = version;
	return rdma_connect(peer->id, &parameters);
}

static void leave(struct peer *peer)
{
	ibv_dereg_mr(peer->region);
	rdma_destroy_qp(peer->id);
	rdma_destroy_id(peer->id);
}

/* Where the peer may write, from what the rsocket said. */
struct place {
	uint64_t address;
	uint32_t key, length;
};

static struct place place_at(const struct peer *peer, size_t at)
{
	const uint8_t *said = peer->id->event->param.conn.private_data;
	struct place place;

	memcpy(&place.address, said + at, 8);
	memcpy(&place.key, said + at + 8, 4);
	memcpy(&place.length, said + at + 12, 4);
	place.address = be64toh(place.address);
	place.key = be32toh(place.key);
	place.length = be32toh(place.length);
	return place;
}

#define LIST 8
#define BUFFER 24

/* Posts one request with the first bytes of the upper half of the peer's memory. */
static void post(struct peer *peer, enum ibv_wr_opcode opcode, uint64_t address, uint32_t key,
		 uint32_t length, uint32_t word)
{
	struct ibv_sge piece = { (uintptr_t)peer->memory + 2048, length, peer->region->lkey };
	struct ibv_send_wr *bad, request = {
		.opcode = opcode,
		.imm_data = htonl(word),
		.sg_list = &piece,
		.num_sge = length ? 1 : 0,
	};

	request.wr.rdma.remote_addr = address;
	request.wr.rdma.rkey = key;
	if (ibv_post_send(peer->id->qp, &request, &bad))
		die("ibv_post_send");
}

/* Waits until the peer's request is done. */
static bool is_done(struct peer *peer)
{
	struct ibv_wc completion;
	int count;

	while (!(count = ibv_poll_cq(peer->id->send_cq, 1, &completion)))
		;
	return count == 1 && completion.status == IBV_WC_SUCCESS;
}

/* Everything that ends a connection at once. */
static void break_it(struct peer *peer, int how)
{
	const uint32_t words[] = { 0x20000000, 0x5fffffff, 0xe0000007, 0xffffffff, 0x1fffffff,
				   0x00100000 };
	struct place buffer = place_at(peer, BUFFER);
	uint64_t end = buffer.address + 2 * (uint64_t)buffer.length;

	switch (how) {
	case 0 ... 5:
		printf("      a word of %08x\n", words[how]);
		post(peer, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, 0, words[how]);
		break;
	case 6:
		printf("      bytes behind its buffer\n");
		post(peer, IBV_WR_RDMA_WRITE_WITH_IMM, end - 32, buffer.key, 64, 64);
		break;
	case 7:
		printf("      bytes by a key that it was not given\n");
		post(peer, IBV_WR_RDMA_WRITE_WITH_IMM, buffer.address, buffer.key ^ 0xff00, 64, 64);
		break;
	case 8:
		printf("      a SEND of bytes\n");
		post(peer, IBV_WR_SEND, 0, 0, 64, 0);
		break;
	default:
		printf("      a SEND without a word\n");
		post(peer, IBV_WR_SEND, 0, 0, 0, 0);
		break;
	}
}

#define BREAKS 10

/* A credit of any sequence, and a piece of buffer that is none. */
static void promise_nonsense(struct peer *peer, int three)
{
	struct place list = place_at(peer, LIST);
	char bytes[512] = "";
	ssize_t sent;

	printf("      a promise of memory that it does not have\n");
	memset(peer->memory + 2048, 0xee, 16);
	post(peer, IBV_WR_RDMA_WRITE_WITH_IMM, list.address + 16, list.key, 16, 0x8000ffff);
	must("is taken", is_done(peer));
	do {
		sent = rsend(three, bytes, sizeof(bytes), 0);
	} while (sent > 0);
	must("and breaks the connection when it is used", fails(sent, ECONNRESET));
}

static void hostile(int from, const struct sockaddr_in *to)
{
	int one = connected(to), two = accepted(from), three;
	struct peer peer;
	char bytes[8] = "";

	printf("peers that do not keep to the protocol\n");
	must("one of another version is refused",
	     fails(reach(&peer, to, 9), ECONNREFUSED));
	leave(&peer);
	must("one that says nothing is refused", fails(reach(&peer, to, 0), ECONNREFUSED));
	leave(&peer);
	for (int how = 0; how <= BREAKS; how++) {
		if (reach(&peer, to, 1))
			die("rdma_connect");
		three = accepted(from);
		if (how < BREAKS) {
			break_it(&peer, how);
			must("breaks its connection", fails(rrecv(three, bytes, 1, 0), ECONNRESET));
		} else {
			promise_nonsense(&peer, three);
		}
		must("closing", rclose(three) == 0);
		leave(&peer);
	}
	must("others are undisturbed", rsend(one, "?", 1, 0) == 1 &&
					       rrecv(two, bytes, 1, 0) == 1 && *bytes == '?');
	rclose(one);
	rclose(two);
}

int main(void)
{
	struct sockaddr_in address;
	int ends[2], from;
	pid_t child;

	if (pipe(ends))
		die("pipe");
	child = fork();
	if (child < 0)
		die("fork");
	if (!child)
		victim(ends[0]);

	wrong_use();
	from = listener(&address);
	connecting(from, &address);
	waiting();
	closing_under_poll(&address, from);
	bytes(from, &address);
	threads(from, &address);
	hostile(from, &address);
	killed(from, &address, child, ends[1]);
	must("closing the listener", rclose(from) == 0);
	printf("%d failures\n", failures);
	return failures != 0;
}
