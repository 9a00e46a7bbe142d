/* The two calls that wait. They are C because a program may cancel the thread that waits
 * (pthread_cancel unwinds its frames, and no frame of Rust may be among them) and because a signal
 * must be able to end the wait: both need the wait to be a plain read() with nothing held.
 *
 * The descriptors count: each event adds one, each read takes one, and the event itself is then
 * fetched without waiting. A program may have made the descriptor non-blocking; then there is EAGAIN
 * when there is no event. */

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

struct ibv_async_event;
struct ibv_comp_channel;
struct ibv_context;
struct ibv_cq;

/* In src/verbs/event.rs. None of them waits. */
int softrdma_completion_descriptor(struct ibv_comp_channel *channel);
bool softrdma_take_completion_event(struct ibv_comp_channel *channel, struct ibv_cq **cq,
				    void **cq_context);
int softrdma_async_descriptor(struct ibv_context *context);
bool softrdma_take_async_event(struct ibv_context *context, struct ibv_async_event *event);

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
