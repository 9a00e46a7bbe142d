/* Rsockets, as far as their calls wait. As in blocking.c, what waits is C: a program may cancel the
 * thread, and no frame of Rust may be among those that unwind then. Each call tries, and sleeps for
 * as long as the answer is "wait": on the descriptor of the rsocket, which is readable when
 * something came over the network, and on a bell, which other threads ring. ppoll, because programs
 * preload wrappers around poll. */

#define _GNU_SOURCE /* ppoll */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <fcntl.h>
#include <time.h>

/* What a step answers besides results and -1. */
#define WAIT (-2)

/* In src/rsocket. None of them waits. */
enum purpose { FOR_READ, FOR_WRITE, FOR_CONNECT, FOR_DRAIN };

ssize_t softrdma_rs_receive(int socket, void *to, size_t length, int flags, struct sockaddr *source,
			    socklen_t *source_length);
ssize_t softrdma_rs_send(int socket, const void *from, size_t length, int flags,
			 const struct sockaddr *to, socklen_t to_length);
ssize_t softrdma_rs_write_mapped(int socket, const void *from, size_t length, off_t offset,
				 int flags);
int softrdma_rs_accept(int socket, struct sockaddr *peer, socklen_t *peer_length);
int softrdma_rs_connect(int socket, const struct sockaddr *to, socklen_t to_length);
int softrdma_rs_connected(int socket);
int softrdma_rs_shutdown(int socket, int how);
int softrdma_rs_drain(int socket);
int softrdma_rs_close(int socket);
int softrdma_rs_fcntl(int socket, int command, int argument);
int softrdma_rs_check(struct pollfd *fds, nfds_t count, int timeout_ms, nfds_t *others);
void *softrdma_rs_waiter(void);
void softrdma_rs_waiter_free(void *waiter);
int softrdma_rs_watch(void *waiter, struct pollfd *fds, nfds_t count, struct pollfd *to_sleep_on);
int softrdma_rs_collect(struct pollfd *fds, nfds_t count, const struct pollfd *slept_on);
int softrdma_rs_watch_for(void *waiter, int socket, enum purpose purpose,
			  struct pollfd *to_sleep_on);

/* Sleeps until it is worth to try again; false with errno. */
static bool wait_for(int socket, enum purpose purpose)
{
	struct pollfd fds[2];
	void *waiter = softrdma_rs_waiter();
	int ready;

	if (!waiter)
		return false;
	pthread_cleanup_push(softrdma_rs_waiter_free, waiter);
	ready = softrdma_rs_watch_for(waiter, socket, purpose, fds);
	if (!ready)
		ready = ppoll(fds, 2, NULL, NULL);
	pthread_cleanup_pop(1);
	return ready >= 0;
}

static ssize_t receive(int socket, char *to, size_t length, int flags, struct sockaddr *source,
		       socklen_t *source_length)
{
	size_t done = 0;
	ssize_t step;

	do {
		step = softrdma_rs_receive(socket, to + done, length - done, flags, source,
					   source_length);
		if (step == WAIT) {
			if (wait_for(socket, FOR_READ))
				continue;
			step = -1;
		}
		if (step <= 0)
			return done ? (ssize_t)done : step;
		done += step;
		if (!(flags & MSG_WAITALL) || (flags & MSG_PEEK))
			break;
	} while (done < length);
	return done;
}

static ssize_t transmit(int socket, const char *from, size_t length, int flags,
			const struct sockaddr *to, socklen_t to_length)
{
	size_t done = 0;
	ssize_t step;

	do {
		step = softrdma_rs_send(socket, from + done, length - done, flags, to, to_length);
		if (step == WAIT) {
			if (wait_for(socket, FOR_WRITE))
				continue;
			step = -1;
		}
		if (step < 0)
			return done ? (ssize_t)done : step;
		done += step;
	} while (done < length);
	return done;
}

ssize_t softrdma_rrecv(int socket, void *to, size_t length, int flags)
{
	return receive(socket, to, length, flags, NULL, NULL);
}

ssize_t softrdma_rrecvfrom(int socket, void *to, size_t length, int flags, struct sockaddr *source,
			   socklen_t *source_length)
{
	return receive(socket, to, length, flags, source, source_length);
}

ssize_t softrdma_rread(int socket, void *to, size_t length)
{
	return receive(socket, to, length, 0, NULL, NULL);
}

/* Fills one piece after the other; waits for the first byte only, but for MSG_WAITALL. */
static ssize_t receive_pieces(int socket, const struct iovec *pieces, size_t count, int flags,
			      struct sockaddr *source, socklen_t *source_length)
{
	ssize_t done = 0, step;
	size_t i;

	for (i = 0; i < count; i++) {
		if (!pieces[i].iov_len)
			continue;
		step = receive(socket, pieces[i].iov_base, pieces[i].iov_len, flags, source,
			       source_length);
		if (step < 0)
			return done ? done : step;
		done += step;
		if ((size_t)step < pieces[i].iov_len)
			break;
		if (!(flags & MSG_WAITALL))
			flags |= MSG_DONTWAIT;
	}
	return done;
}

ssize_t softrdma_rreadv(int socket, const struct iovec *pieces, int count)
{
	if (count < 0 || (count && !pieces)) {
		errno = EINVAL;
		return -1;
	}
	return receive_pieces(socket, pieces, count, 0, NULL, NULL);
}

ssize_t softrdma_rrecvmsg(int socket, struct msghdr *message, int flags)
{
	ssize_t done;

	if (!message || (message->msg_iovlen && !message->msg_iov)) {
		errno = EINVAL;
		return -1;
	}
	if (message->msg_control && message->msg_controllen) {
		errno = EOPNOTSUPP;
		return -1;
	}
	done = receive_pieces(socket, message->msg_iov, message->msg_iovlen, flags,
			      message->msg_name, message->msg_name ? &message->msg_namelen : NULL);
	message->msg_flags = 0;
	return done;
}

ssize_t softrdma_rsend(int socket, const void *from, size_t length, int flags)
{
	return transmit(socket, from, length, flags, NULL, 0);
}

ssize_t softrdma_rsendto(int socket, const void *from, size_t length, int flags,
			 const struct sockaddr *to, socklen_t to_length)
{
	return transmit(socket, from, length, flags, to, to_length);
}

ssize_t softrdma_rwrite(int socket, const void *from, size_t length)
{
	return transmit(socket, from, length, 0, NULL, 0);
}

static ssize_t transmit_pieces(int socket, const struct iovec *pieces, size_t count, int flags,
			       const struct sockaddr *to, socklen_t to_length)
{
	ssize_t done = 0, step;
	size_t i;

	for (i = 0; i < count; i++) {
		if (!pieces[i].iov_len)
			continue;
		step = transmit(socket, pieces[i].iov_base, pieces[i].iov_len, flags, to, to_length);
		if (step < 0)
			return done ? done : step;
		done += step;
		if ((size_t)step < pieces[i].iov_len)
			break;
	}
	return done;
}

ssize_t softrdma_rwritev(int socket, const struct iovec *pieces, int count)
{
	if (count < 0 || (count && !pieces)) {
		errno = EINVAL;
		return -1;
	}
	return transmit_pieces(socket, pieces, count, 0, NULL, 0);
}

ssize_t softrdma_rsendmsg(int socket, const struct msghdr *message, int flags)
{
	if (!message || (message->msg_iovlen && !message->msg_iov)) {
		errno = EINVAL;
		return -1;
	}
	/* pieces of a datagram would be datagrams of their own */
	if ((message->msg_control && message->msg_controllen) ||
	    (message->msg_name && message->msg_iovlen > 1)) {
		errno = EOPNOTSUPP;
		return -1;
	}
	return transmit_pieces(socket, message->msg_iov, message->msg_iovlen, flags,
			       message->msg_name, message->msg_name ? message->msg_namelen : 0);
}

size_t softrdma_riowrite(int socket, const void *from, size_t length, off_t offset, int flags)
{
	const char *bytes = from;
	size_t done = 0;
	ssize_t step;

	do {
		step = softrdma_rs_write_mapped(socket, bytes + done, length - done, offset + done,
						flags);
		if (step == WAIT) {
			if (wait_for(socket, FOR_WRITE))
				continue;
			step = -1;
		}
		if (step <= 0)
			return done ? done : (size_t)step;
		done += step;
	} while (done < length);
	return done;
}

int softrdma_raccept(int socket, struct sockaddr *peer, socklen_t *peer_length)
{
	int accepted;

	while ((accepted = softrdma_rs_accept(socket, peer, peer_length)) == WAIT) {
		if (!wait_for(socket, FOR_READ))
			return -1;
	}
	return accepted;
}

int softrdma_rconnect(int socket, const struct sockaddr *to, socklen_t to_length)
{
	int result = softrdma_rs_connect(socket, to, to_length);

	while (result == WAIT) {
		if (!wait_for(socket, FOR_CONNECT))
			return -1;
		result = softrdma_rs_connected(socket);
	}
	return result;
}

/* Waits until what was sent has arrived, whatever the flags of the rsocket. */
static int drained(int socket)
{
	int result;

	while ((result = softrdma_rs_drain(socket)) == WAIT) {
		if (!wait_for(socket, FOR_DRAIN) && errno != EINTR)
			return -1;
	}
	return result;
}

static int shut_down(int socket, int how)
{
	int result;

	while ((result = softrdma_rs_shutdown(socket, how)) == WAIT) {
		if (!wait_for(socket, FOR_DRAIN) && errno != EINTR)
			return -1;
	}
	return result;
}

int softrdma_rshutdown(int socket, int how)
{
	if (shut_down(socket, how))
		return -1;
	return drained(socket);
}

int softrdma_rclose(int socket)
{
	/* one that is not connected has nothing to say, and closes all the same */
	if (!shut_down(socket, SHUT_RDWR))
		drained(socket);
	return softrdma_rs_close(socket);
}

int softrdma_rfcntl(int socket, int command, ...)
{
	int argument = 0;
	va_list arguments;

	if (command == F_SETFL || command == F_SETFD) {
		va_start(arguments, command);
		argument = va_arg(arguments, int);
		va_end(arguments);
	}
	return softrdma_rs_fcntl(socket, command, argument);
}

#define NS_PER_MS 1000000
#define NS_PER_S 1000000000

/* A deadline in milliseconds would come up to one of them too early. */
static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

/* Descriptors that are no rsockets are polled with those of the rsockets. */
static int poll_all(void *waiter, struct pollfd *fds, nfds_t count, struct pollfd *to_sleep_on,
		    int timeout_ms)
{
	int64_t end = now_ns() + (int64_t)timeout_ms * NS_PER_MS;
	struct timespec rest;
	bool may_sleep;
	int ready, woken;

	do {
		ready = softrdma_rs_watch(waiter, fds, count, to_sleep_on);
		if (ready < 0)
			return -1;
		may_sleep = !ready && timeout_ms;
		if (timeout_ms > 0) {
			int64_t left = end - now_ns();

			may_sleep = may_sleep && left > 0;
			rest.tv_sec = may_sleep ? left / NS_PER_S : 0;
			rest.tv_nsec = may_sleep ? left % NS_PER_S : 0;
		} else {
			rest.tv_sec = rest.tv_nsec = 0;
		}
		woken = ppoll(to_sleep_on, count + 1, may_sleep && timeout_ms < 0 ? NULL : &rest,
			      NULL);
		if (woken < 0)
			return ready ? ready : -1;
		ready += softrdma_rs_collect(fds, count, to_sleep_on);
	} while (!ready && may_sleep && (woken || timeout_ms < 0));
	return ready;
}

int softrdma_rpoll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	struct pollfd *to_sleep_on;
	nfds_t others = 0;
	void *waiter;
	int ready;

	if (count && !fds) {
		errno = EFAULT;
		return -1;
	}
	ready = softrdma_rs_check(fds, count, timeout_ms, &others);
	if (!others && (ready || !timeout_ms))
		return ready;
	to_sleep_on = calloc(count + 1, sizeof(*to_sleep_on));
	if (!to_sleep_on) {
		errno = ENOMEM;
		return -1;
	}
	pthread_cleanup_push(free, to_sleep_on);
	waiter = softrdma_rs_waiter();
	if (waiter) {
		pthread_cleanup_push(softrdma_rs_waiter_free, waiter);
		ready = poll_all(waiter, fds, count, to_sleep_on, timeout_ms);
		pthread_cleanup_pop(1);
	} else {
		ready = -1;
	}
	pthread_cleanup_pop(1);
	return ready;
}

/* What select is told of one descriptor, in the words of poll. */
static void answer(const struct pollfd *fd, fd_set *set, short asked, short answers, int *ready)
{
	if (!set)
		return;
	if ((fd->events & asked) == asked && (fd->revents & answers))
		(*ready)++;
	else
		FD_CLR(fd->fd, set);
}

int softrdma_rselect(int count, fd_set *to_read, fd_set *to_write, fd_set *to_except,
		     struct timeval *timeout)
{
	struct pollfd fds[FD_SETSIZE];
	int timeout_ms = -1, used = 0, ready, polled, fd, i;

	if (count < 0 || count > FD_SETSIZE) {
		errno = EINVAL;
		return -1;
	}
	if (timeout) {
		int64_t ms = (int64_t)timeout->tv_sec * 1000 + (timeout->tv_usec + 999) / 1000;

		timeout_ms = ms > INT32_MAX ? INT32_MAX : (int)ms;
	}
	for (fd = 0; fd < count; fd++) {
		short events = 0;

		if (to_read && FD_ISSET(fd, to_read))
			events |= POLLIN;
		if (to_write && FD_ISSET(fd, to_write))
			events |= POLLOUT;
		if (!events && !(to_except && FD_ISSET(fd, to_except)))
			continue;
		fds[used].fd = fd;
		fds[used].revents = 0;
		fds[used++].events = events;
	}
	polled = softrdma_rpoll(fds, used, timeout_ms);
	if (polled < 0)
		return -1;
	ready = 0;
	for (i = 0; i < used; i++) {
		answer(&fds[i], to_read, POLLIN, POLLIN | POLLHUP | POLLERR, &ready);
		answer(&fds[i], to_write, POLLOUT, POLLOUT | POLLERR, &ready);
		answer(&fds[i], to_except, 0, POLLPRI, &ready);
	}
	return ready;
}
