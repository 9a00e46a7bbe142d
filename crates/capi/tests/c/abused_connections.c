/* Connection management under abuse: groups that cannot be joined, IDs that are destroyed while the
 * program has their events, calls of several threads at once, a forked child. Both ends are in this
 * process. Needs a link; `cargo xtask programs --filter abused-connections` runs it on lo. */

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "both_ends.h"

#define THREADS 4
#define ROUNDS 100

/* Groups */

static int join_ex(struct rdma_cm_id *id, uint32_t mask, uint32_t flags, struct sockaddr *address)
{
	struct rdma_cm_join_mc_attr_ex attributes = { .comp_mask = mask, .join_flags = flags,
						      .addr = address };

	return of_number(rdma_join_multicast_ex(id, &attributes, NULL));
}

static void groups(void)
{
	const uint32_t both = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	struct rdma_cm_id *id = id_on(channel, RDMA_PS_UDP), *tcp = id_on(channel, RDMA_PS_TCP);
	struct sockaddr_in here = loopback(0), in = loopback(0);
	struct sockaddr *group = (struct sockaddr *)&in;
	struct rdma_cm_event *event;

	printf("      groups\n");
	in.sin_addr.s_addr = htonl(0xef4d0101); /* 239.77.1.1 */
	row("rdma_join_multicast", "no ID", EINVAL,
	    of_number(rdma_join_multicast(NULL, group, NULL)));
	row("rdma_join_multicast", "no address", EINVAL,
	    of_number(rdma_join_multicast(id, NULL, NULL)));
	row("rdma_join_multicast", "an ID without an address", EINVAL,
	    of_number(rdma_join_multicast(id, group, NULL)));
	row("rdma_join_multicast_ex", "no attributes", EINVAL,
	    of_number(rdma_join_multicast_ex(id, NULL, NULL)));
	if (rdma_bind_addr(id, (struct sockaddr *)&here) ||
	    rdma_bind_addr(tcp, (struct sockaddr *)&here))
		die("rdma_bind_addr");
	row("rdma_join_multicast", "of the port space TCP", EINVAL,
	    of_number(rdma_join_multicast(tcp, group, NULL)));
	row("rdma_join_multicast_ex", "without flags", EINVAL,
	    join_ex(id, RDMA_CM_JOIN_MC_ATTR_ADDRESS, RDMA_MC_JOIN_FLAG_FULLMEMBER, group));
	row("rdma_join_multicast_ex", "with an unknown field", EOPNOTSUPP,
	    join_ex(id, both | 1 << 7, RDMA_MC_JOIN_FLAG_FULLMEMBER, group));
	row("rdma_join_multicast_ex", "with an unknown flag", EOPNOTSUPP,
	    join_ex(id, both, 1 << 7, group));
	row("rdma_leave_multicast", "no ID", EINVAL, of_number(rdma_leave_multicast(NULL, group)));
	row("rdma_leave_multicast", "no address", EINVAL,
	    of_number(rdma_leave_multicast(id, NULL)));
	row("rdma_leave_multicast", "a group that it is not in", EADDRNOTAVAIL,
	    of_number(rdma_leave_multicast(id, group)));
	must("none of that is an event", is_quiet(channel));

	row("rdma_join_multicast", "without a queue pair", 0,
	    of_number(rdma_join_multicast(id, group, NULL)));
	event = next(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	must("... whom to send to is told", event->id == id && event->param.ud.qp_num == 0xffffff);
	rdma_ack_cm_event(event);
	row("rdma_leave_multicast", "a group", 0, of_number(rdma_leave_multicast(id, group)));
	row("rdma_leave_multicast", "again", EADDRNOTAVAIL,
	    of_number(rdma_leave_multicast(id, group)));
	row("rdma_join_multicast_ex", "to send only", 0,
	    join_ex(id, both, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, group));
	take(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	row("rdma_destroy_id", "of a member", 0, of_number(rdma_destroy_id(id)));
	rdma_destroy_id(tcp);
}

/* Destroyed while the program has an event */

static atomic_bool acknowledged;

static void *acknowledge_later(void *event)
{
	usleep(50000);
	atomic_store(&acknowledged, true);
	rdma_ack_cm_event(event);
	return NULL;
}

static void destroy_with(struct rdma_cm_event *event, struct rdma_cm_id *id, const char *how)
{
	pthread_t thread;

	atomic_store(&acknowledged, false);
	if (pthread_create(&thread, NULL, acknowledge_later, event))
		die("pthread_create");
	row("rdma_destroy_id", how, 0, of_number(rdma_destroy_id(id)));
	must("... waits until it is acknowledged", atomic_load(&acknowledged));
	pthread_join(thread, NULL);
}

static void destroying(void)
{
	struct rdma_cm_id *listener = listener_on(channel, RDMA_PS_TCP), *asking, *asked;
	struct rdma_cm_id *id = id_on(channel, RDMA_PS_TCP);
	struct rdma_conn_param param = { .qp_num = 0x100001 };
	struct sockaddr_in to = loopback(7471);
	struct rdma_cm_event *event;

	printf("      destroying\n");
	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000))
		die("rdma_resolve_addr");
	destroy_with(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED), id, "with its event fetched");

	/* the event of a request is the listener's; the new ID can go before */
	asking = on_its_way(listener);
	if (rdma_connect(asking, &param))
		die("rdma_connect");
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	row("rdma_destroy_id", "of a request, with the event fetched", 0,
	    of_number(rdma_destroy_id(asked)));
	destroy_with(event, listener, "of the listener");
	take(channel, RDMA_CM_EVENT_REJECTED);
	rdma_destroy_id(asking);

	/* and one that nobody fetched goes with the listener */
	listener = listener_on(channel, RDMA_PS_TCP);
	asking = on_its_way(listener);
	param.qp_num = 0x100002;
	if (rdma_connect(asking, &param))
		die("rdma_connect");
	struct pollfd poller = { .fd = channel->fd, .events = POLLIN };

	if (poll(&poller, 1, -1) != 1)
		die("poll");
	row("rdma_destroy_id", "of a listener with a request", 0,
	    of_number(rdma_destroy_id(listener)));
	take(channel, RDMA_CM_EVENT_REJECTED);
	rdma_destroy_id(asking);
	must("nothing else was told", is_quiet(channel));
}

/* Several threads */

static struct rdma_cm_id *shared;
static atomic_int successes, others;
static pthread_barrier_t barrier;

static void count(int number)
{
	if (number == 0)
		successes++;
	else if (number != EINVAL)
		others++;
}

static void *connect_shared(void *param)
{
	pthread_barrier_wait(&barrier);
	count(of_number(rdma_connect(shared, param)));
	return NULL;
}

static void *accept_shared(void *param)
{
	pthread_barrier_wait(&barrier);
	count(of_number(rdma_accept(shared, param)));
	return NULL;
}

static void *disconnect_shared(void *unused)
{
	(void)unused;
	pthread_barrier_wait(&barrier);
	count(of_number(rdma_disconnect(shared)));
	return NULL;
}

/* IDs of its own, on the channel of all. */
static void *come_and_go(void *unused)
{
	(void)unused;
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < ROUNDS; i++)
		if (rdma_destroy_id(listener_on(channel, RDMA_PS_TCP)) ||
		    rdma_destroy_id(id_on(channel, RDMA_PS_UDP)))
			others++;
	return NULL;
}

/* Returns how many succeeded; none fails but with EINVAL. */
static int at_once(void *(*call)(void *), void *argument)
{
	pthread_t threads[THREADS];

	successes = 0;
	others = 0;
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, call, argument))
			die("pthread_create");
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return others ? -1 : successes;
}

static void several_threads(void)
{
	struct rdma_cm_id *listener = listener_on(channel, RDMA_PS_TCP), *asking;
	struct rdma_conn_param param = { .qp_num = 0x200001 };
	struct rdma_cm_event *event;

	printf("      %d threads at once\n", THREADS);
	if (pthread_barrier_init(&barrier, NULL, THREADS))
		die("pthread_barrier_init");
	shared = asking = on_its_way(listener);
	must("one of them connects", at_once(connect_shared, &param) == 1);
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	shared = event->id;
	rdma_ack_cm_event(event);
	param.qp_num = 0x200002;
	must("one of them accepts", at_once(accept_shared, &param) == 1);
	take(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
	if (rdma_establish(asking))
		die("rdma_establish");
	take(channel, RDMA_CM_EVENT_ESTABLISHED);
	must("all of them disconnect", at_once(disconnect_shared, NULL) == THREADS);
	take(channel, RDMA_CM_EVENT_DISCONNECTED);
	if (rdma_disconnect(asking)) /* the answer */
		die("rdma_disconnect");
	take(channel, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_id(shared);
	rdma_destroy_id(asking);
	rdma_destroy_id(listener);
	must("IDs come and go", at_once(come_and_go, NULL) == 0);
	must("nothing is left in the channel", is_quiet(channel));
	pthread_barrier_destroy(&barrier);
}

/* A child of fork has nothing of its parent's connections, and can make its own. */

static int child(struct rdma_cm_id *of_parent, struct rdma_cm_id *listener)
{
	struct rdma_conn_param param = { .qp_num = 0x300001 };

	if (rdma_connect(of_parent, &param) == 0)
		return 1;
	channel = rdma_create_event_channel();
	if (!channel)
		return 2;
	/* its address is remembered in the structure, which is a copy */
	struct rdma_cm_id *own = on_its_way(listener);

	if (rdma_connect(own, &param))
		return 3;
	take(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
	if (rdma_establish(own))
		return 4;
	take(channel, RDMA_CM_EVENT_DISCONNECTED);
	return rdma_destroy_id(own) ? 5 : 0;
}

static void forking(void)
{
	struct rdma_cm_id *listener = listener_on(channel, RDMA_PS_TCP);
	struct rdma_cm_id *asking = on_its_way(listener), *asked;
	struct rdma_conn_param param = { .qp_num = 0x300002 };
	struct rdma_cm_event *event;
	int status = -1;
	pid_t pid;

	printf("      a child\n");
	fflush(stdout);
	pid = fork();
	if (pid < 0)
		die("fork");
	if (pid == 0)
		_exit(child(asking, listener));
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	must("the child asks its parent", event->param.conn.qp_num == 0x300001);
	rdma_ack_cm_event(event);
	row("rdma_accept", "the child", 0, of_number(rdma_accept(asked, &param)));
	take(channel, RDMA_CM_EVENT_ESTABLISHED);
	row("rdma_disconnect", "from the child", 0, of_number(rdma_disconnect(asked)));
	take(channel, RDMA_CM_EVENT_DISCONNECTED);
	if (waitpid(pid, &status, 0) != pid)
		die("waitpid");
	must("the child had a connection of its own, and none of its parent's",
	     WIFEXITED(status) && WEXITSTATUS(status) == 0);
	rdma_destroy_id(asked);

	param.qp_num = 0x300003;
	row("rdma_connect", "what the child could not", 0,
	    of_number(rdma_connect(asking, &param)));
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	rdma_ack_cm_event(event);
	rdma_destroy_id(asked);
	take(channel, RDMA_CM_EVENT_REJECTED);
	rdma_destroy_id(asking);
	rdma_destroy_id(listener);
}

int main(void)
{
	channel = rdma_create_event_channel();
	if (!channel)
		die("rdma_create_event_channel");
	groups();
	destroying();
	several_threads();
	forking();
	must("nothing is left in the channel", is_quiet(channel));
	rdma_destroy_event_channel(channel);
	printf("%d wrong\n", failures);
	return failures != 0;
}
