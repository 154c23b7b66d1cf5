/*
 * The queues of a new connection.
 *
 * Bytes that a program has not read can only come into its queue from the other end. So each end sends its
 * unread bytes over the new connection itself, and the other end sends them back (after the cookie:
 * scip/ends/acceptor.h):
 *
 *   connecting end  ReconnectQueue, bytes that its program has not read
 *   accepting end   ReconnectQueue, bytes that its program has not read
 *   both            the other's bytes again: these stay in the queue
 *
 * The receive buffer is as large as the old one, the send buffer as large as it can be. Bytes without room in
 * the one wait in the other, as before the move; otherwise a writer could send more with every move. Only
 * bytes that fit into neither make the receive buffer larger (tcp_grow_receive()).
 */
#include "scip/ends/end_tcp.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/object/socket.h"
#include "scip/object/socket_option.h"
#include "scip/object/tcp_socket.h"

#define BUF_LOCK    72 /* SO_BUF_LOCK, Linux 5.14 */
#define MARGIN	    (64u << 10)
#define PATIENCE_MS 20000
#define STALL_NS    5000000000ull
#define ENOUGH_NS   20000000ull
#define UNREAD_MAX  (1ull << 30)

static int exchange_transfer(int sock, void *buf, size_t len, bool send_it, struct err *err)
{
	size_t done = 0;

	while (done < len) {
		struct pollfd p = {.fd = sock, .events = send_it ? POLLOUT : POLLIN};
		ssize_t n = send_it ? send(sock, (char *)buf + done, len - done, MSG_DONTWAIT | MSG_NOSIGNAL)
				    : recv(sock, (char *)buf + done, len - done, MSG_DONTWAIT);

		if (n > 0) {
			done += (size_t)n;
			socket_set_option(sock, IPPROTO_TCP, TCP_QUICKACK, 1);
			continue;
		}
		if (n == 0)
			return err_set(err, -EPIPE, "the other end of a new connection is closed");
		if (errno != EAGAIN && errno != EINTR)
			return err_sys(err, "fill a new connection");
		if (errno == EAGAIN && poll(&p, 1, PATIENCE_MS) == 0)
			return err_set(err, -ETIMEDOUT, "the other end of a new connection does not answer");
	}
	return 0;
}

enum { QUEUE_MESSAGE_MAX = 32 }; /* bytes of a packed ReconnectQueue: two numbers */

static int send_queue(int sock, const char *data, uint64_t len, struct err *err)
{
	Pbeam__ReconnectQueue queue = PBEAM__RECONNECT_QUEUE__INIT;
	uint8_t bytes[1 + QUEUE_MESSAGE_MAX];
	int r;

	queue.unread = len;
	queue.room = (uint64_t)socket_option(sock, SOL_SOCKET, SO_SNDBUF, 0);
	bytes[0] = (uint8_t)pbeam__reconnect_queue__pack(&queue, bytes + 1);
	r = exchange_transfer(sock, bytes, 1 + (size_t)bytes[0], true, err);
	return r < 0 ? r : exchange_transfer(sock, (void *)(uintptr_t)data, len, true, err);
}

/* *data, to be freed by the caller, gets the *len bytes that the other end's program has not read; *room the
 * size of its send buffer. */
static int receive_queue(int sock, char **data, size_t *len, size_t *room, struct err *err)
{
	Pbeam__ReconnectQueue *queue = NULL;
	uint8_t size, bytes[QUEUE_MESSAGE_MAX];
	int r = exchange_transfer(sock, &size, sizeof(size), false, err);

	if (r < 0)
		return r;
	if (size <= sizeof(bytes)) {
		r = exchange_transfer(sock, bytes, size, false, err);
		if (r < 0)
			return r;
		queue = pbeam__reconnect_queue__unpack(NULL, size, bytes);
	}
	if (!queue || queue->unread > UNREAD_MAX) {
		message_free(queue);
		return err_set(err, -EPROTO, "the other end of a new connection sent a malformed message");
	}
	*len = queue->unread;
	*room = queue->room;
	message_free(queue);
	*data = malloc(*len + 1);
	if (!*data)
		return err_code(err, -ENOMEM, "take what was not read");
	return exchange_transfer(sock, *data, *len, false, err);
}

static size_t unread_here(int sock)
{
	int n = 0;

	return ioctl(sock, SIOCINQ, &n) < 0 || n < 0 ? 0 : (size_t)n;
}

static size_t on_the_way(int sock)
{
	int n = 0;

	return ioctl(sock, SIOCOUTQ, &n) < 0 || n < 0 ? 0 : (size_t)n;
}

/* Sends what stays with the other end, while our own queue fills up to `expected`. Done when everything has
 * been handed to the kernel and has arrived, or nothing moves any more. */
static int send_staying(int sock, const char *data, size_t len, size_t expected, size_t other_room,
			struct err *err)
{
	uint64_t moved_at = io_now_ns(CLOCK_MONOTONIC);
	size_t done = 0, seen = unread_here(sock), left = len;

	for (unsigned round = 0; done < len || unread_here(sock) < expected || on_the_way(sock); round++) {
		ssize_t n = done < len ? send(sock, data + done, len - done, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
		size_t now = unread_here(sock), way = on_the_way(sock);

		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return err_sys(err, "fill a new connection");
		if (n > 0)
			done += (size_t)n;
		if (n > 0 || now != seen || way != left)
			moved_at = io_now_ns(CLOCK_MONOTONIC);
		seen = now;
		left = way;
		socket_set_option(sock, IPPROTO_TCP, TCP_QUICKACK, 1);
		if (round > 2 && expected > now + other_room * 3 / 4) {
			socket_set_option(sock, SOL_SOCKET, BUF_LOCK, 0);
			tcp_grow_receive(sock, expected - other_room * 3 / 4 + MARGIN);
		}
		if (round > 50)
			(void)!poll(NULL, 0, 1);
		if (io_now_ns(CLOCK_MONOTONIC) - moved_at < (done < len ? STALL_NS : ENOUGH_NS))
			continue;
		if (done == len)
			return 0; /* the rest waits in send buffers */
		return err_set(err, -ENOBUFS,
			       "a new connection takes only %zu of %zu bytes that were not read; raise "
			       "net.ipv4.tcp_rmem and tcp_wmem",
			       done, len);
	}
	return 0;
}

int end_tcp_exchange(struct end_tcp *end, bool connected, struct err *err)
{
	auto_free char *theirs = NULL;
	struct socket_room room = socket_room_make(end->fresh);
	size_t their_len = 0, their_room = 0;
	int sock = end->fresh, r = 0;

	/* Locked, so that no larger window than that is ever announced, which could not be taken back. */
	socket_set_option(sock, SOL_SOCKET, SO_RCVBUF, end->receive_buffer / 2);
	socket_set_option(sock, IPPROTO_TCP, TCP_NODELAY, 1);
	if (connected)
		r = send_queue(sock, end->unread, end->unread_len, err);
	if (r == 0)
		r = receive_queue(sock, &theirs, &their_len, &their_room, err);
	if (r == 0 && !connected)
		r = send_queue(sock, end->unread, end->unread_len, err);
	if (r == 0)
		r = send_staying(sock, theirs, their_len, end->unread_len, their_room, err);
	log_debug("reconnect: %zu bytes to be read here, of which %zu have come; %zu sent, %zu on the way; "
		  "buffer "
		  "%d, was %d",
		  end->unread_len, unread_here(sock), (size_t)their_len, on_the_way(sock),
		  socket_option(sock, SOL_SOCKET, SO_RCVBUF, 0), end->receive_buffer);
	socket_set_option(sock, IPPROTO_TCP, TCP_NODELAY, 0);
	socket_room_restore(&room);
	return r;
}
