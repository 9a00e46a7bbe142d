/* The calls that wait. They are C because a program may cancel the thread that waits
 * (pthread_cancel unwinds its frames, and no frame of Rust may be among them) and because a signal
 * must be able to end the wait: both need the wait to be a plain read() with nothing held.
 *
 * The descriptors count: each event adds one, each read takes one, and the event itself is then
 * fetched without waiting. A program may have made the descriptor non-blocking; then there is EAGAIN
 * when there is no event. */

#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

struct ibv_async_event;
struct ibv_comp_channel;
struct ibv_context;
struct ibv_cq;
struct ibv_pd;
struct ibv_qp_init_attr;
struct rdma_addrinfo;
struct rdma_cm_event;
struct rdma_cm_id;
struct rdma_cm_join_mc_attr_ex;
struct rdma_conn_param;
struct rdma_event_channel;
struct sockaddr;

/* In src/verbs/event.rs. None of them waits. */
int softrdma_completion_descriptor(struct ibv_comp_channel *channel);
bool softrdma_take_completion_event(struct ibv_comp_channel *channel, struct ibv_cq **cq,
				    void **cq_context);
int softrdma_async_descriptor(struct ibv_context *context);
bool softrdma_take_async_event(struct ibv_context *context, struct ibv_async_event *event);

/* In src/rdmacm. None of them waits either. */
int softrdma_cm_descriptor(struct rdma_event_channel *channel);
bool softrdma_take_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event);
struct rdma_event_channel *softrdma_cm_waits_on(struct rdma_cm_id *id);
int softrdma_cm_keep(struct rdma_cm_id *id, struct rdma_cm_event *event);
int softrdma_cm_resolve_addr(struct rdma_cm_id *id, struct sockaddr *source,
			     struct sockaddr *destination, int timeout_ms);
int softrdma_cm_resolve_route(struct rdma_cm_id *id);
int softrdma_cm_connect(struct rdma_cm_id *id, struct rdma_conn_param *parameters);
int softrdma_cm_accept(struct rdma_cm_id *id, struct rdma_conn_param *parameters);
int softrdma_cm_disconnect(struct rdma_cm_id *id);
int softrdma_cm_join_multicast(struct rdma_cm_id *id, struct sockaddr *group, void *context);
int softrdma_cm_join_multicast_ex(struct rdma_cm_id *id,
				  struct rdma_cm_join_mc_attr_ex *attributes, void *context);
int softrdma_cm_begin_endpoint(struct rdma_cm_id **id, const struct rdma_addrinfo *info,
			       struct ibv_pd *pd, const struct ibv_qp_init_attr *attributes);
int softrdma_cm_resolve_endpoint(struct rdma_cm_id *id, const struct rdma_addrinfo *info);
int softrdma_cm_equip_endpoint(struct rdma_cm_id *id, struct ibv_pd *pd,
			       struct ibv_qp_init_attr *attributes);
void softrdma_rdma_destroy_ep(struct rdma_cm_id *id);
int softrdma_cm_take_request(struct rdma_cm_id *listener, struct rdma_cm_event *event,
			     struct rdma_cm_id **id);
int softrdma_cm_addrinfo_hints(const struct rdma_addrinfo *asked, struct addrinfo *hints);
int softrdma_cm_addrinfo(const struct rdma_addrinfo *asked, const struct addrinfo *found,
			 struct rdma_addrinfo **info);
int softrdma_cm_begin_addrinfo(struct rdma_cm_id *id, const struct rdma_addrinfo *asked);
int softrdma_cm_end_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo *info);

/* One unit of a counting descriptor; false with errno. */
static bool wait_for_one(int descriptor)
{
	uint64_t count;

	return read(descriptor, &count, sizeof(count)) == (ssize_t)sizeof(count);
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	int descriptor = softrdma_completion_descriptor(channel);

	if (descriptor < 0)
		return -1;
	/* A unit without an event: its CQ was destroyed in between. */
	do {
		if (!wait_for_one(descriptor))
			return -1;
	} while (!softrdma_take_completion_event(channel, cq, cq_context));
	return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	int descriptor = softrdma_async_descriptor(context);

	if (descriptor < 0)
		return -1;
	do {
		if (!wait_for_one(descriptor))
			return -1;
	} while (!softrdma_take_async_event(context, event));
	return 0;
}

int softrdma_rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	int descriptor = softrdma_cm_descriptor(channel);

	if (descriptor < 0)
		return -1;
	if (!event) {
		errno = EINVAL;
		return -1;
	}
	do {
		if (!wait_for_one(descriptor))
			return -1;
	} while (!softrdma_take_cm_event(channel, event));
	return 0;
}

/* An ID that was made without a channel has one of its own, and calls on it wait for what comes of
 * them; of some, nothing will. */
static int settled(struct rdma_cm_id *id, int started)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_event *event;

	if (started)
		return started < 0 ? -1 : 0;
	channel = softrdma_cm_waits_on(id);
	if (!channel)
		return 0;
	if (softrdma_rdma_get_cm_event(channel, &event))
		return -1;
	return softrdma_cm_keep(id, event);
}

int softrdma_rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *source,
			       struct sockaddr *destination, int timeout_ms)
{
	return settled(id, softrdma_cm_resolve_addr(id, source, destination, timeout_ms));
}

int softrdma_rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
	(void)timeout_ms;
	return settled(id, softrdma_cm_resolve_route(id));
}

int softrdma_rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *parameters)
{
	return settled(id, softrdma_cm_connect(id, parameters));
}

int softrdma_rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *parameters)
{
	return settled(id, softrdma_cm_accept(id, parameters));
}

int softrdma_rdma_disconnect(struct rdma_cm_id *id)
{
	return settled(id, softrdma_cm_disconnect(id));
}

int softrdma_rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *group, void *context)
{
	return settled(id, softrdma_cm_join_multicast(id, group, context));
}

int softrdma_rdma_join_multicast_ex(struct rdma_cm_id *id,
				    struct rdma_cm_join_mc_attr_ex *attributes, void *context)
{
	return settled(id, softrdma_cm_join_multicast_ex(id, attributes, context));
}

int softrdma_rdma_get_request(struct rdma_cm_id *listener, struct rdma_cm_id **id)
{
	struct rdma_event_channel *channel = softrdma_cm_waits_on(listener);
	struct rdma_cm_event *event;

	if (!channel || !id) {
		errno = EINVAL;
		return -1;
	}
	if (softrdma_rdma_get_cm_event(channel, &event))
		return -1;
	return softrdma_cm_take_request(listener, event, id);
}

int softrdma_rdma_create_ep(struct rdma_cm_id **to, struct rdma_addrinfo *info, struct ibv_pd *pd,
			    struct ibv_qp_init_attr *attributes)
{
	struct rdma_cm_id *id;
	int begun;

	if (!to) {
		errno = EINVAL;
		return -1;
	}
	begun = softrdma_cm_begin_endpoint(&id, info, pd, attributes);
	if (begun < 0)
		return -1;
	if (!begun && (settled(id, softrdma_cm_resolve_endpoint(id, info)) ||
		       settled(id, softrdma_cm_resolve_route(id)) ||
		       softrdma_cm_equip_endpoint(id, pd, attributes))) {
		int error = errno;

		softrdma_rdma_destroy_ep(id);
		errno = error;
		return -1;
	}
	*to = id;
	return 0;
}

int softrdma_rdma_getaddrinfo(const char *node, const char *service,
			      const struct rdma_addrinfo *asked, struct rdma_addrinfo **info)
{
	struct addrinfo hints, *found = NULL;
	int answer;

	if (!info || (!node && !service && !asked)) {
		errno = EINVAL;
		return -1;
	}
	if (node || service) {
		answer = softrdma_cm_addrinfo_hints(asked, &hints);
		if (!answer)
			answer = getaddrinfo(node, service, &hints, &found);
		if (answer)
			return answer;
	}
	answer = softrdma_cm_addrinfo(asked, found, info);
	if (found)
		freeaddrinfo(found);
	return answer;
}

int softrdma_rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
				   const struct rdma_addrinfo *asked)
{
	struct rdma_addrinfo *info;
	int answer;

	if (softrdma_cm_begin_addrinfo(id, asked))
		return -1;
	answer = softrdma_rdma_getaddrinfo(node, service, asked, &info);
	if (answer) {
		/* An EAI_ code is not for errno. */
		if (answer != -1 && answer != EAI_SYSTEM)
			errno = ENOENT;
		return -1;
	}
	return settled(id, softrdma_cm_end_addrinfo(id, info));
}
