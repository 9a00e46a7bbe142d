/* Two ends that meet by rdma_cm, for the programs of this folder whose connections are scenes, one
 * after the other: arguments, errors, and the events that have to come.
 *
 *   PROGRAM server ADDRESS [PORT]
 *   PROGRAM client ADDRESS [PORT]
 *
 * ADDRESS is the server's at both. */
#pragma once

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

enum {
	/* Whatever has to come comes within this. */
	PATIENCE_MS = 30000,
	/* Between two calls while nobody listens. */
	PAUSE_US = 200000,
};

static struct rdma_event_channel *channel;
/* What is going on, for who reads of an error. */
static const char *doing = "before the first";

static inline void fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fprintf(stderr, "%s: ", doing);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

/* For calls that tell by errno, and for those that give it. */
static inline void check(int result, const char *what)
{
	if (result)
		fail("%s: %s", what, strerror(result > 0 ? result : errno));
}

/* The next event. */
static inline struct rdma_cm_event *next_event(const char *wanted)
{
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	if (poll(&readable, 1, PATIENCE_MS) != 1)
		fail("no %s", wanted);
	check(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	return event;
}

/* The same, which has to be this one. */
static inline struct rdma_cm_event *expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = next_event(rdma_event_str(type));

	if (event->event != type)
		fail("%s, status %d, instead of %s", rdma_event_str(event->event), event->status,
		     rdma_event_str(type));
	return event;
}

static inline void expect_only(enum rdma_cm_event_type type)
{
	check(rdma_ack_cm_event(expect(type)), "rdma_ack_cm_event");
}

static inline struct rdma_cm_id *listen_at(struct sockaddr *address)
{
	struct rdma_cm_id *listener;

	check(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_bind_addr(listener, address), "rdma_bind_addr");
	check(rdma_listen(listener, 4), "rdma_listen");
	return listener;
}

/* An ID that knows its way to the server. */
static inline struct rdma_cm_id *way_to(struct sockaddr *address)
{
	struct rdma_cm_id *id;

	check(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_resolve_addr(id, NULL, address, PATIENCE_MS), "rdma_resolve_addr");
	expect_only(RDMA_CM_EVENT_ADDR_RESOLVED);
	check(rdma_resolve_route(id, PATIENCE_MS), "rdma_resolve_route");
	expect_only(RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

/* Does what the arguments say; what `main` returns. */
static inline int be_an_end(int argc, char **argv, const char *port,
			    void (*serve)(struct sockaddr *), void (*visit)(struct sockaddr *))
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *address;
	int is_server = argc > 1 && !strcmp(argv[1], "server");

	if (argc < 3 || argc > 4 || (!is_server && strcmp(argv[1], "client"))) {
		fprintf(stderr, "usage: %s server|client ADDRESS [PORT]\n", argv[0]);
		return 2;
	}
	if (getaddrinfo(argv[2], argc > 3 ? argv[3] : port, &hints, &address))
		fail("%s is no address", argv[2]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	channel = rdma_create_event_channel();
	if (!channel)
		fail("no event channel");
	(is_server ? serve : visit)(address->ai_addr);
	rdma_destroy_event_channel(channel);
	freeaddrinfo(address);
	return 0;
}
