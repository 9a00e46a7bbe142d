/* Connection management with both ends in this process, for the programs of this folder: rows of
 * calls, IDs, and the events that must come. */
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <rdma/rdma_cma.h>

#include "first_device.h"

static struct rdma_event_channel *channel;
static int failures;

static inline int of_number(int answer)
{
	return answer < 0 ? errno : 0;
}

static inline const char *name_of(int number)
{
	return number ? strerrorname_np(number) : "0";
}

static inline void row(const char *call, const char *how, int expected, int got)
{
	bool right = expected == got;

	printf("%-5s %-20s %-52s %-14s %s\n", right ? "ok" : "WRONG", call, how, name_of(expected),
	       right ? "" : name_of(got));
	failures += !right;
}

static inline void must(const char *what, bool is_true)
{
	printf("%-5s %s\n", is_true ? "ok" : "WRONG", what);
	fflush(stdout);
	failures += !is_true;
}

static inline struct sockaddr_in loopback(uint16_t port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static inline struct rdma_cm_id *id_on(struct rdma_event_channel *on, enum rdma_port_space space)
{
	struct rdma_cm_id *id;

	if (rdma_create_id(on, &id, &failures, space))
		die("rdma_create_id");
	return id;
}

static inline struct rdma_cm_id *listener_on(struct rdma_event_channel *on,
					     enum rdma_port_space space)
{
	struct rdma_cm_id *id = id_on(on, space);
	struct sockaddr_in address = loopback(0);

	if (rdma_bind_addr(id, (struct sockaddr *)&address) || rdma_listen(id, 0))
		die("listen");
	return id;
}

/* The next event, which must be of this kind. */
static inline struct rdma_cm_event *next(struct rdma_event_channel *from,
					 enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;

	if (rdma_get_cm_event(from, &event))
		die("rdma_get_cm_event");
	if (event->event != kind) {
		fprintf(stderr, "%s and not %s, status %d\n", rdma_event_str(event->event),
			rdma_event_str(kind), event->status);
		exit(2);
	}
	return event;
}

static inline void take(struct rdma_event_channel *from, enum rdma_cm_event_type kind)
{
	if (rdma_ack_cm_event(next(from, kind)))
		die("rdma_ack_cm_event");
}

static inline bool is_quiet(const struct rdma_event_channel *of)
{
	struct pollfd poller = { .fd = of->fd, .events = POLLIN };

	return poll(&poller, 1, 0) == 0;
}

/* An ID that knows its way to who listens. */
static inline struct rdma_cm_id *on_its_way(struct rdma_cm_id *listener)
{
	struct rdma_cm_id *id = id_on(channel, listener->ps);
	struct sockaddr_in to = loopback(ntohs(rdma_get_src_port(listener)));

	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000))
		die("rdma_resolve_addr");
	take(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(id, 2000))
		die("rdma_resolve_route");
	take(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

static inline void queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr request = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.qp_type = id->qp_type,
	};

	if (rdma_create_qp(id, NULL, &request))
		die("rdma_create_qp");
}
