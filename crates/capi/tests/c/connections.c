/* Connection management: events with their parameters, calls that wait, moving between channels, and
 * wrong use. Both ends are in this process. Needs a link; `cargo xtask programs --filter
 * connections` runs it on lo. */

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "both_ends.h"

#define PORT_NUMBER 7471
#define UDP_QKEY 0x01234567

/* Datagrams: a question and its answer */

static void datagrams(void)
{
	struct rdma_cm_id *listener = listener_on(channel, RDMA_PS_UDP);
	struct rdma_cm_id *asking = on_its_way(listener), *asked;
	struct rdma_conn_param param = { .private_data = "who?", .private_data_len = 4 };
	struct rdma_cm_event *event;

	printf("      datagrams\n");
	queue_pair(asking);
	must("the queue pair is ready at once", asking->qp->state == IBV_QPS_RTS);
	if (rdma_connect(asking, &param))
		die("rdma_connect");
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	must("the request names its listener", event->listen_id == listener);
	must("... and has the context of it", asked->context == &failures);
	must("private data fill their field", event->param.ud.private_data_len == 180 &&
		     !memcmp(event->param.ud.private_data, "who?\0", 5));
	must("the peer's port is known", rdma_get_dst_port(asked) == rdma_get_src_port(asking));
	rdma_ack_cm_event(event);
	queue_pair(asked);
	param = (struct rdma_conn_param){ .private_data = "me", .private_data_len = 2 };
	row("rdma_accept", "a datagram", 0, of_number(rdma_accept(asked, &param)));
	row("rdma_accept", "the same again", EINVAL, of_number(rdma_accept(asked, &param)));
	event = next(channel, RDMA_CM_EVENT_ESTABLISHED);
	must("the answer is of who asked", event->id == asking);
	must("... with the queue pair", event->param.ud.qp_num == asked->qp->qp_num);
	must("... its key", event->param.ud.qkey == UDP_QKEY);
	must("... and private data", event->param.ud.private_data_len == 136 &&
					     !memcmp(event->param.ud.private_data, "me", 3));
	struct ibv_ah *handle = ibv_create_ah(asking->pd, &event->param.ud.ah_attr);

	must("... and a way to it", handle && ibv_destroy_ah(handle) == 0);
	rdma_ack_cm_event(event);
	must("who answered is told nothing", is_quiet(channel));
	rdma_destroy_ep(asked);
	rdma_destroy_ep(asking);

	asking = on_its_way(listener);
	if (rdma_connect(asking, NULL))
		die("rdma_connect");
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	rdma_ack_cm_event(event);
	row("rdma_reject", "a datagram", 0, of_number(rdma_reject(asked, "no", 2)));
	event = next(channel, RDMA_CM_EVENT_UNREACHABLE);
	must("a refusal is status 2, with its data", event->status == 2 &&
		     !memcmp(event->param.ud.private_data, "no", 3));
	rdma_ack_cm_event(event);
	rdma_destroy_id(asked);
	rdma_destroy_id(asking);

	asking = on_its_way(listener);
	rdma_destroy_id(listener);
	if (rdma_connect(asking, NULL))
		die("rdma_connect");
	event = next(channel, RDMA_CM_EVENT_UNREACHABLE);
	must("without a listener it is status 1", event->status == 1);
	rdma_ack_cm_event(event);
	rdma_destroy_id(asking);
}

/* IPoIB's key is that of a group, which no RoCE device has. */
static void over_ipoib(void)
{
	struct rdma_cm_id *listener = listener_on(channel, RDMA_PS_IPOIB);
	struct rdma_cm_id *asking = on_its_way(listener);
	struct ibv_qp_init_attr request = { .cap = { .max_send_wr = 1, .max_recv_wr = 1 },
					    .qp_type = IBV_QPT_UD };

	row("rdma_create_qp", "port space IPoIB", ENODEV,
	    of_number(rdma_create_qp(asking, NULL, &request)));
	rdma_destroy_id(asking);
	rdma_destroy_id(listener);
}

/* Enhancements, for queue pairs that are the program's own */

static void enhancements(void)
{
	struct rdma_cm_id *listener = listener_on(channel, RDMA_PS_TCP);
	struct rdma_cm_id *asking = on_its_way(listener), *asked;
	struct rdma_conn_param param = { .qp_num = 0x123456, .responder_resources = 3,
					 .initiator_depth = 5, .retry_count = 6,
					 .rnr_retry_count = 5, .private_data = "hi",
					 .private_data_len = 2 };
	struct ibv_ece ece = { .vendor_id = 0x123456, .options = 0x80000001 }, told;
	struct rdma_cm_event *event;

	printf("      queue pairs of the program's own\n");
	row("rdma_set_local_ece", "an offer", 0, of_number(rdma_set_local_ece(asking, &ece)));
	row("rdma_set_local_ece", "nothing", EINVAL, of_number(rdma_set_local_ece(asking, NULL)));
	ece.vendor_id = 0;
	row("rdma_set_local_ece", "no vendor", EINVAL, of_number(rdma_set_local_ece(asking, &ece)));
	if (rdma_connect(asking, &param))
		die("rdma_connect");
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	must("depth and resources are swapped", event->param.conn.responder_resources == 5 &&
							event->param.conn.initiator_depth == 3);
	must("retries and queue pair are the peer's", event->param.conn.retry_count == 6 &&
		     event->param.conn.rnr_retry_count == 5 &&
		     event->param.conn.qp_num == 0x123456);
	must("private data fill their field", event->param.conn.private_data_len == 56);
	rdma_ack_cm_event(event);
	row("rdma_get_remote_ece", "of the request", 0,
	    of_number(rdma_get_remote_ece(asked, &told)));
	must("... is what was offered", told.vendor_id == 0x123456 &&
						told.options == 0x80000001 && !told.comp_mask);
	told.options = 1;
	if (rdma_set_local_ece(asked, &told))
		die("rdma_set_local_ece");
	param.qp_num = 0x654321;
	row("rdma_accept", "without a queue pair", 0, of_number(rdma_accept(asked, &param)));
	event = next(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
	must("the response has 196 bytes", event->param.conn.private_data_len == 196);
	rdma_ack_cm_event(event);
	row("rdma_get_remote_ece", "of the response", 0,
	    of_number(rdma_get_remote_ece(asking, &told)));
	must("... is what was chosen", told.vendor_id == 0x123456 && told.options == 1);

	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	int mask = 0;

	row("rdma_init_qp_attr", "RTR", 0, of_number(rdma_init_qp_attr(asking, &attr, &mask)));
	must("... names the peer", attr.dest_qp_num == 0x654321 && (mask & IBV_QP_DEST_QPN));
	attr.qp_state = IBV_QPS_SQD;
	row("rdma_init_qp_attr", "SQD", EINVAL, of_number(rdma_init_qp_attr(asking, &attr, &mask)));
	row("rdma_notify", "before the REP was heard of", EINVAL,
	    of_number(rdma_notify(asking, IBV_EVENT_COMM_EST)));
	row("rdma_notify", "the first data came", 0,
	    of_number(rdma_notify(asked, IBV_EVENT_COMM_EST)));
	take(channel, RDMA_CM_EVENT_ESTABLISHED);
	row("rdma_notify", "again", EISCONN,
	    of_number(rdma_notify(asked, IBV_EVENT_COMM_EST)));
	row("rdma_establish", "a response", 0, of_number(rdma_establish(asking)));
	row("rdma_establish", "again", EINVAL, of_number(rdma_establish(asking)));

	/* both at once: each is told once */
	row("rdma_disconnect", "the active side", 0, of_number(rdma_disconnect(asking)));
	row("rdma_disconnect", "the passive side", 0, of_number(rdma_disconnect(asked)));
	take(channel, RDMA_CM_EVENT_DISCONNECTED);
	take(channel, RDMA_CM_EVENT_DISCONNECTED);
	row("rdma_disconnect", "what is over", 0, of_number(rdma_disconnect(asking)));
	rdma_destroy_id(asked);
	rdma_destroy_id(asking);

	asking = on_its_way(listener);
	param.qp_num = 0x111111; /* the others are stale for a while */
	if (rdma_connect(asking, &param))
		die("rdma_connect");
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	rdma_ack_cm_event(event);
	row("rdma_reject_ece", "a request", 0, of_number(rdma_reject_ece(asked, NULL, 0)));
	event = next(channel, RDMA_CM_EVENT_REJECTED);
	must("the reason is 35, with 148 bytes",
	     event->status == 35 && event->param.conn.private_data_len == 148);
	rdma_ack_cm_event(event);
	row("rdma_accept", "what was refused", EINVAL, of_number(rdma_accept(asked, &param)));
	rdma_destroy_id(asked);
	rdma_destroy_id(asking);
	rdma_destroy_id(listener);
}

/* Calls that wait */

static void *answer_one(void *listener)
{
	struct rdma_cm_id *id;

	if (rdma_get_request(listener, &id))
		die("rdma_get_request");
	must("the listener gave it a queue pair", id->qp && id->recv_cq && id->send_cq);
	must("... and a channel of its own",
	     id->channel != ((struct rdma_cm_id *)listener)->channel);
	must("... and its request", id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	row("rdma_accept", "waits", 0, of_number(rdma_accept(id, NULL)));
	must("... until it is established", id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	return id;
}

static void waiting(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP };
	struct ibv_qp_init_attr request = { .cap = { .max_send_wr = 1, .max_recv_wr = 1,
						     .max_send_sge = 1, .max_recv_sge = 1 } };
	struct rdma_cm_id *listener, *active, *passive;
	struct rdma_addrinfo *info;
	pthread_t thread;
	char port[8];
	void *result;

	printf("      calls that wait\n");
	if (rdma_getaddrinfo("127.0.0.1", "0", &hints, &info))
		die("rdma_getaddrinfo");
	must("for a listener it is the source", info->ai_src_addr && !info->ai_dst_addr &&
							info->ai_qp_type == IBV_QPT_RC);
	row("rdma_create_ep", "to listen", 0,
	    of_number(rdma_create_ep(&listener, info, NULL, &request)));
	rdma_freeaddrinfo(info);
	row("rdma_listen", "an endpoint", 0, of_number(rdma_listen(listener, 0)));
	snprintf(port, sizeof(port), "%d", ntohs(rdma_get_src_port(listener)));

	if (pthread_create(&thread, NULL, answer_one, listener))
		die("pthread_create");
	hints.ai_flags = RAI_NUMERICHOST;
	if (rdma_getaddrinfo("127.0.0.1", port, &hints, &info))
		die("rdma_getaddrinfo");
	row("rdma_create_ep", "to connect", 0,
	    of_number(rdma_create_ep(&active, info, NULL, &request)));
	must("... knows its route", active->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED &&
					    active->route.num_paths == 1);
	row("rdma_connect", "waits", 0, of_number(rdma_connect(active, NULL)));
	must("... until it is established",
	     active->event->event == RDMA_CM_EVENT_ESTABLISHED && active->qp->state == IBV_QPS_RTS);
	pthread_join(thread, &result);
	passive = result;
	row("rdma_get_request", "of who does not listen", EAGAIN,
	    (fcntl(passive->channel->fd, F_SETFL, O_NONBLOCK),
	     of_number(rdma_get_request(passive, &active))));
	fcntl(passive->channel->fd, F_SETFL, 0);
	row("rdma_migrate_id", "between two that wait", EINVAL,
	    of_number(rdma_migrate_id(active, NULL)));
	row("rdma_migrate_id", "to events", 0, of_number(rdma_migrate_id(active, channel)));
	must("... gives up the event that it kept", !active->event && active->channel == channel);
	if (rdma_disconnect(active))
		die("rdma_disconnect");
	/* the peer's closing is its next event, the end of its own the one after that */
	row("rdma_disconnect", "waits", 0, of_number(rdma_disconnect(passive)));
	must("... until it is told", passive->event->event == RDMA_CM_EVENT_DISCONNECTED);
	take(channel, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_ep(active);
	rdma_destroy_ep(passive);
	rdma_destroy_ep(listener);

	request.send_cq = request.recv_cq = NULL; /* the ones that were made are gone */
	row("rdma_create_ep", "to connect where nobody listens", 0,
	    of_number(rdma_create_ep(&active, info, NULL, &request)));
	row("rdma_connect", "nobody listens", ECONNREFUSED, of_number(rdma_connect(active, NULL)));
	must("... with the event", active->event->event == RDMA_CM_EVENT_REJECTED &&
					   active->event->status == 8);
	rdma_destroy_ep(active);
	request.send_cq = request.recv_cq = NULL;
	info->ai_qp_type = IBV_QPT_XRC_SEND;
	row("rdma_create_ep", "XRC", EOPNOTSUPP,
	    of_number(rdma_create_ep(&active, info, NULL, &request)));
	rdma_freeaddrinfo(info);
}

static void *wait_for_request(void *listener)
{
	struct rdma_cm_id *id;

	rdma_get_request(listener, &id);
	return NULL;
}

static void cancelled(void)
{
	struct rdma_cm_id *listener = listener_on(NULL, RDMA_PS_TCP);
	pthread_t thread;
	void *result;

	if (pthread_create(&thread, NULL, wait_for_request, listener))
		die("pthread_create");
	usleep(50000); /* most likely it waits by now; if not, the result is the same */
	if (pthread_cancel(thread) || pthread_join(thread, &result))
		die("pthread_cancel");
	must("a thread that waits for a request can be cancelled", result == PTHREAD_CANCELED);
	row("rdma_destroy_id", "of it", 0, of_number(rdma_destroy_id(listener)));
}

/* From one channel to another, with events that wait and one that was fetched */

static atomic_bool acknowledged;

static void *acknowledge_later(void *event)
{
	usleep(100000);
	atomic_store(&acknowledged, true);
	rdma_ack_cm_event(event);
	return NULL;
}

static void migrating(void)
{
	struct rdma_event_channel *other = rdma_create_event_channel();
	struct rdma_cm_id *id = id_on(channel, RDMA_PS_TCP), *stays = id_on(channel, RDMA_PS_TCP);
	struct sockaddr_in to = loopback(PORT_NUMBER);
	struct rdma_cm_event *event;
	pthread_t thread;

	printf("      between channels\n");
	if (!other || rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) ||
	    rdma_resolve_addr(stays, NULL, (struct sockaddr *)&to, 2000))
		die("rdma_resolve_addr");
	event = next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (event->id != id || rdma_resolve_route(id, 2000) ||
	    pthread_create(&thread, NULL, acknowledge_later, event))
		die("rdma_resolve_route");
	row("rdma_migrate_id", "with an event in the program's hands", 0,
	    of_number(rdma_migrate_id(id, other)));
	must("... waits until it is acknowledged", atomic_load(&acknowledged));
	pthread_join(thread, NULL);
	event = next(other, RDMA_CM_EVENT_ROUTE_RESOLVED);
	must("an event that waited comes through the new one", event->id == id);
	rdma_ack_cm_event(event);
	event = next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	must("those of others stay", event->id == stays && is_quiet(channel) && is_quiet(other));
	rdma_ack_cm_event(event);

	row("rdma_migrate_id", "to waiting", 0, of_number(rdma_migrate_id(stays, NULL)));
	row("rdma_resolve_route", "waits", 0, of_number(rdma_resolve_route(stays, 2000)));
	rdma_destroy_id(stays);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(other);
}

/* Wrong use */

static int set(struct rdma_cm_id *id, int option, const void *value, size_t length)
{
	return of_number(rdma_set_option(id, RDMA_OPTION_ID, option, (void *)(uintptr_t)value,
					 length));
}

static void options(void)
{
	struct rdma_cm_id *id = id_on(channel, RDMA_PS_TCP), *ud = id_on(channel, RDMA_PS_UDP);
	struct rdma_cm_id *listener = listener_on(channel, RDMA_PS_TCP);
	uint8_t byte = 18, too_long = 32;
	int flag = 1;

	row("rdma_set_option", "TOS", 0, set(id, RDMA_OPTION_ID_TOS, &byte, 1));
	row("rdma_set_option", "TOS of 4 bytes", EINVAL, set(id, RDMA_OPTION_ID_TOS, &flag, 4));
	row("rdma_set_option", "REUSEADDR", 0, set(id, RDMA_OPTION_ID_REUSEADDR, &flag, 4));
	row("rdma_set_option", "REUSEADDR of a listener", EINVAL,
	    set(listener, RDMA_OPTION_ID_REUSEADDR, &flag, 4));
	row("rdma_set_option", "AFONLY", 0, set(id, RDMA_OPTION_ID_AFONLY, &flag, 4));
	row("rdma_set_option", "ACK_TIMEOUT", 0, set(id, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1));
	row("rdma_set_option", "ACK_TIMEOUT over 31", EINVAL,
	    set(id, RDMA_OPTION_ID_ACK_TIMEOUT, &too_long, 1));
	row("rdma_set_option", "ACK_TIMEOUT of datagrams", EINVAL,
	    set(ud, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1));
	row("rdma_set_option", "no value", EINVAL, set(id, RDMA_OPTION_ID_TOS, NULL, 1));
	row("rdma_set_option", "unknown", ENOSYS, set(id, 99, &byte, 1));
	rdma_destroy_id(listener);
	rdma_destroy_id(ud);
	rdma_destroy_id(id);
}

static void wrong_use(void)
{
	struct rdma_cm_id *id = id_on(channel, RDMA_PS_TCP), *other;
	struct sockaddr_in here = loopback(0), elsewhere = loopback(0);
	struct sockaddr_storage strange = { .ss_family = AF_UNIX };
	struct rdma_conn_param param = { .responder_resources = 129 };
	struct ibv_qp_init_attr request = { .qp_type = IBV_QPT_RC };
	struct rdma_addrinfo hints = { 0 }, *info;
	struct rdma_cm_event *event;
	char long_data[57] = { 0 };

	printf("      wrong use\n");
	elsewhere.sin_addr.s_addr = htonl(0xc0000201); /* 192.0.2.1: documentation */
	row("rdma_create_id", "unknown port space", EINVAL,
	    of_number(rdma_create_id(channel, &other, NULL, 7)));
	row("rdma_create_id", "no place for it", EINVAL,
	    of_number(rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP)));
	row("rdma_bind_addr", "no address", EINVAL, of_number(rdma_bind_addr(id, NULL)));
	row("rdma_bind_addr", "of another family", EINVAL,
	    of_number(rdma_bind_addr(id, (struct sockaddr *)&strange)));
	strange.ss_family = AF_IB;
	row("rdma_bind_addr", "of InfiniBand", ENODEV,
	    of_number(rdma_bind_addr(id, (struct sockaddr *)&strange)));
	row("rdma_bind_addr", "not of this host", ENODEV,
	    of_number(rdma_bind_addr(id, (struct sockaddr *)&elsewhere)));
	row("rdma_resolve_route", "no destination", EINVAL, of_number(rdma_resolve_route(id, 1)));
	row("rdma_connect", "no destination", EINVAL, of_number(rdma_connect(id, &param)));
	row("rdma_create_qp", "no device", EINVAL, of_number(rdma_create_qp(id, NULL, &request)));
	row("rdma_accept", "nobody asked", EINVAL, of_number(rdma_accept(id, &param)));
	row("rdma_reject", "nobody asked", EINVAL, of_number(rdma_reject(id, NULL, 0)));
	row("rdma_disconnect", "no connection", EINVAL, of_number(rdma_disconnect(id)));
	row("rdma_establish", "no response", EINVAL, of_number(rdma_establish(id)));
	row("rdma_notify", "another event", EINVAL, of_number(rdma_notify(id, IBV_EVENT_QP_FATAL)));
	row("rdma_bind_addr", "any port", 0,
	    of_number(rdma_bind_addr(id, (struct sockaddr *)&here)));
	row("rdma_bind_addr", "again", EINVAL,
	    of_number(rdma_bind_addr(id, (struct sockaddr *)&here)));
	other = id_on(channel, RDMA_PS_TCP);
	here.sin_port = rdma_get_src_port(id);
	row("rdma_bind_addr", "the same port", EADDRINUSE,
	    of_number(rdma_bind_addr(other, (struct sockaddr *)&here)));
	rdma_destroy_id(other);
	other = id_on(channel, RDMA_PS_UDP);
	row("rdma_bind_addr", "the same port of another space", 0,
	    of_number(rdma_bind_addr(other, (struct sockaddr *)&here)));
	rdma_destroy_id(other);

	row("rdma_resolve_addr", "no address", EINVAL,
	    of_number(rdma_resolve_addr(id, NULL, NULL, 1)));
	here.sin_port = htons(PORT_NUMBER);
	row("rdma_resolve_addr", "a bound ID", 0,
	    of_number(rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 1)));
	row("rdma_resolve_addr", "again", EINVAL,
	    of_number(rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 1)));
	take(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	row("rdma_listen", "with a destination", EINVAL, of_number(rdma_listen(id, 1)));
	if (rdma_resolve_route(id, 1))
		die("rdma_resolve_route");
	take(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	row("rdma_connect", "129 READs", EINVAL, of_number(rdma_connect(id, &param)));
	row("rdma_connect", "no queue pair, no parameters", EINVAL,
	    of_number(rdma_connect(id, NULL)));
	param = (struct rdma_conn_param){ .private_data = long_data, .private_data_len = 57 };
	row("rdma_connect", "57 bytes of private data", EINVAL,
	    of_number(rdma_connect(id, &param)));
	param.private_data_len = 56;
	row("rdma_connect", "56 bytes", 0, of_number(rdma_connect(id, &param)));
	event = next(channel, RDMA_CM_EVENT_REJECTED);
	must("nobody listens: reason 8", event->status == 8);
	row("rdma_ack_cm_event", "an event", 0, of_number(rdma_ack_cm_event(event)));
	row("rdma_ack_cm_event", "none", EINVAL, of_number(rdma_ack_cm_event(NULL)));
	row("rdma_connect", "again", EINVAL, of_number(rdma_connect(id, &param)));
	row("rdma_get_request", "an ID with a channel", EINVAL,
	    of_number(rdma_get_request(id, &other)));
	row("rdma_destroy_id", "the ID", 0, of_number(rdma_destroy_id(id)));
	row("rdma_destroy_id", "none", EINVAL, of_number(rdma_destroy_id(NULL)));

	row("rdma_getaddrinfo", "nothing", EINVAL, of_number(rdma_getaddrinfo(NULL, NULL, NULL, &info)));
	hints.ai_flags = RAI_NUMERICHOST;
	must("rdma_getaddrinfo: a name that is no number",
	     rdma_getaddrinfo("localhost", NULL, &hints, &info) != 0);
	hints = (struct rdma_addrinfo){ .ai_port_space = RDMA_PS_UDP };
	must("rdma_getaddrinfo: a port space has its queue pairs",
	     rdma_getaddrinfo("127.0.0.1", "7", &hints, &info) == 0 &&
		     info->ai_qp_type == IBV_QPT_UD && info->ai_dst_len && !info->ai_src_len);
	rdma_freeaddrinfo(info);
	hints = (struct rdma_addrinfo){ .ai_port_space = RDMA_PS_TCP, .ai_dst_len = sizeof(here),
					.ai_dst_addr = (struct sockaddr *)&here };
	must("rdma_getaddrinfo: no names, the hints again",
	     rdma_getaddrinfo(NULL, NULL, &hints, &info) == 0 &&
		     info->ai_dst_len == sizeof(here) && info->ai_dst_addr != hints.ai_dst_addr &&
		     !memcmp(info->ai_dst_addr, &here, sizeof(here)));
	rdma_freeaddrinfo(info);
	rdma_freeaddrinfo(NULL);
}

int main(void)
{
	channel = rdma_create_event_channel();
	if (!channel)
		die("rdma_create_event_channel");
	datagrams();
	over_ipoib();
	enhancements();
	waiting();
	cancelled();
	migrating();
	options();
	wrong_use();
	must("nothing is left in the channel", is_quiet(channel));
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(NULL);
	printf("%d wrong\n", failures);
	return failures != 0;
}
