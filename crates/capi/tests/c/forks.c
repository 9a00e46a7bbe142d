/* A program with a connection and an rsocket forks. Whatever its children do, both live as long as
 * the program does: no longer when it is killed, though a child lives on. Needs a link on lo;
 * `cargo xtask programs --filter forks` runs it over both protocols. */

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>

#include "both_ends.h"

/* When something counts as hung. TCP itself would notice a dead peer after 90 s. */
#define GUARD_S 30

#define GO_ON 'x'
#define LAST '.'

/* One end of both connections; a word at a time goes to and fro. */
struct end {
	struct rdma_cm_id *id;
	struct ibv_mr *region;
	char in, out;
	int socket;
};

static void ready(struct end *end)
{
	struct ibv_qp_init_attr request = {
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};

	if (rdma_create_qp(end->id, NULL, &request))
		die("rdma_create_qp");
	end->region = rdma_reg_msgs(end->id, end, sizeof(*end));
	if (!end->region || rdma_post_recv(end->id, NULL, &end->in, 1, end->region))
		die("a receive");
}

static void say(struct end *end, char word)
{
	struct ibv_wc done;

	end->out = word;
	if (rdma_post_send(end->id, NULL, &end->out, 1, end->region, 0) ||
	    rdma_get_send_comp(end->id, &done) != 1 || done.status != IBV_WC_SUCCESS)
		die("a word");
}

static char hear(struct end *end)
{
	struct ibv_wc done;
	char word;

	if (rdma_get_recv_comp(end->id, &done) != 1 || done.status != IBV_WC_SUCCESS)
		die("no word");
	word = end->in;
	if (rdma_post_recv(end->id, NULL, &end->in, 1, end->region))
		die("a receive");
	return word;
}

static void talk(struct end *end, char word)
{
	char byte = word;

	say(end, word);
	if (hear(end) != word)
		die("another word");
	if (rsend(end->socket, &byte, 1, 0) != 1 ||
	    rrecv(end->socket, &byte, 1, MSG_WAITALL) != 1 || byte != word)
		die("another word from the rsocket");
}

static char answer(struct end *end)
{
	char word = hear(end), byte;

	say(end, word);
	if (rrecv(end->socket, &byte, 1, MSG_WAITALL) != 1 || rsend(end->socket, &byte, 1, 0) != 1)
		die("no word from the rsocket");
	return word;
}

/* What children do */

static int leaves(struct end *end)
{
	(void)end;
	_exit(0);
}

static int exits(struct end *end)
{
	(void)end;
	exit(0);
}

static int executes(struct end *end)
{
	(void)end;
	execl("/bin/true", "true", NULL);
	return 1;
}

/* Nothing of this is the child's to end. */
static int meddles(struct end *end)
{
	char byte = '!';

	if (!rdma_disconnect(end->id))
		return 1;
	if (!rdma_post_send(end->id, NULL, &end->out, 1, end->region, 0))
		return 2;
	if (rsend(end->socket, &byte, 1, 0) != -1)
		return 3;
	if (!rclose(end->socket))
		return 4;
	rdma_destroy_qp(end->id);
	rdma_destroy_id(end->id);
	return 0;
}

static int rsocket_at(struct sockaddr_in *address)
{
	socklen_t length = sizeof(*address);
	int descriptor = rsocket(AF_INET, SOCK_STREAM, 0);

	*address = loopback(0);
	if (descriptor < 0 || rbind(descriptor, (struct sockaddr *)address, length) ||
	    rlisten(descriptor, 1) ||
	    rgetsockname(descriptor, (struct sockaddr *)address, &length))
		die("a listener");
	return descriptor;
}

/* It opens a device of its own, and connects to itself. */
static int opens(struct end *end)
{
	struct sockaddr_in to;
	int listener = rsocket_at(&to), one = rsocket(AF_INET, SOCK_STREAM, 0), two;
	char byte = '?';

	(void)end;
	rfcntl(one, F_SETFL, O_NONBLOCK);
	if (!rconnect(one, (struct sockaddr *)&to, sizeof(to)) || errno != EINPROGRESS)
		return 1;
	two = raccept(listener, NULL, NULL);
	if (two < 0 || rsend(two, "=", 1, 0) != 1)
		return 2;
	rfcntl(one, F_SETFL, 0);
	if (rrecv(one, &byte, 1, MSG_WAITALL) != 1 || byte != '=')
		return 3;
	return rclose(one) || rclose(two) || rclose(listener) ? 4 : 0;
}

static int (*const children[])(struct end *) = { leaves, exits, executes, meddles, opens };

/* The program: forked before anything was opened here, and killed in the end. */
static void program(int ports_from, int child_to, int lifeline)
{
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct sockaddr_in to = loopback(0);
	struct end end = { .socket = rsocket(AF_INET, SOCK_STREAM, 0) };
	uint16_t ports[2];
	pid_t child;
	int status;

	if (read(ports_from, ports, sizeof(ports)) != sizeof(ports))
		_exit(1);
	to.sin_port = ports[0];
	if (rdma_create_id(NULL, &end.id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(end.id, NULL, (struct sockaddr *)&to, 2000) ||
	    rdma_resolve_route(end.id, 2000))
		die("a way");
	ready(&end);
	if (rdma_connect(end.id, &param))
		die("rdma_connect");
	to.sin_port = ports[1];
	if (rconnect(end.socket, (struct sockaddr *)&to, sizeof(to)))
		die("rconnect");
	for (size_t i = 0; i < sizeof(children) / sizeof(*children); i++) {
		child = fork();
		if (child == 0)
			_exit(children[i](&end));
		talk(&end, GO_ON);
		if (waitpid(child, &status, 0) != child || status) {
			fprintf(stderr, "child %zu ended with status %#x\n", i, status);
			exit(2);
		}
		talk(&end, GO_ON);
	}
	child = fork();
	if (child == 0) {
		/* until whoever holds the other end is done, or gone */
		ssize_t got = read(lifeline, &status, 1);

		_exit(got != 0);
	}
	if (write(child_to, &child, sizeof(child)) != sizeof(child))
		die("write");
	talk(&end, LAST);
	for (;;)
		pause();
}

/* The other end of both; `sockets` listens for one of them. */
static void accept_both(struct end *end, int sockets)
{
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);

	end->id = event->id;
	rdma_ack_cm_event(event);
	ready(end);
	if (rdma_accept(end->id, &param))
		die("rdma_accept");
	take(channel, RDMA_CM_EVENT_ESTABLISHED);
	end->socket = raccept(sockets, NULL, NULL);
	if (end->socket < 0)
		die("raccept");
}

static void killed(struct end *end, pid_t parent, pid_t child)
{
	struct pollfd poller = { .fd = channel->fd, .events = POLLIN };
	char byte;
	ssize_t got;

	kill(parent, SIGKILL);
	if (waitpid(parent, NULL, 0) != parent)
		die("waitpid");
	must("the connection ends with the program", poll(&poller, 1, GUARD_S * 1000) == 1);
	take(channel, RDMA_CM_EVENT_DISCONNECTED);
	poller.fd = end->socket;
	must("and the rsocket", rpoll(&poller, 1, GUARD_S * 1000) == 1);
	got = rrecv(end->socket, &byte, 1, MSG_DONTWAIT);
	must("which says so", got == 0 || (got == -1 && errno == ECONNRESET));
	must("though a child lives on", kill(child, 0) == 0 && waitpid(child, NULL, WNOHANG) == 0);
}

int main(void)
{
	int ports[2], child_from[2], lifeline[2], sockets;
	struct rdma_cm_id *listener;
	struct sockaddr_in address;
	struct end end = { 0 };
	uint16_t numbers[2];
	pid_t parent, child;

	alarm(4 * GUARD_S);
	/* the child of a killed program is ours */
	if (pipe(ports) || pipe(child_from) || pipe(lifeline) ||
	    prctl(PR_SET_CHILD_SUBREAPER, 1))
		die("pipe");
	parent = fork();
	if (parent < 0)
		die("fork");
	if (parent == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(lifeline[1]);
		program(ports[0], child_from[1], lifeline[0]);
	}
	channel = rdma_create_event_channel();
	if (!channel)
		die("rdma_create_event_channel");
	listener = listener_on(channel, RDMA_PS_TCP);
	sockets = rsocket_at(&address);
	numbers[0] = rdma_get_src_port(listener);
	numbers[1] = address.sin_port;
	if (write(ports[1], numbers, sizeof(numbers)) != sizeof(numbers))
		die("write");
	accept_both(&end, sockets);
	while (answer(&end) != LAST)
		;
	must("nothing ended with a child", is_quiet(channel));
	if (read(child_from[0], &child, sizeof(child)) != sizeof(child))
		die("read");
	killed(&end, parent, child);
	close(lifeline[1]);
	if (waitpid(child, NULL, 0) != child)
		die("waitpid");
	rclose(end.socket);
	rclose(sockets);
	rdma_destroy_qp(end.id);
	rdma_dereg_mr(end.region);
	rdma_destroy_id(end.id);
	rdma_destroy_id(listener);
	rdma_destroy_event_channel(channel);
	printf("%d wrong\n", failures);
	return failures != 0;
}
