/*
 * Between a stream's descriptor and its logs.
 *
 * Descriptors are watched edge-triggered: `readable` and `writable` hold until a call fails with EAGAIN.
 * Sockets are used with MSG_DONTWAIT, for their descriptions may be the program's own and have its flags;
 * pipes are opened again with O_NONBLOCK when the stream is added.
 *
 * The end of a writer is END: the other side shuts its descriptor down for writing, or closes a pipe. An end
 * that is gone for good (a pipe without readers, a UNIX socket whose peer has closed) is CLOSE; one that was
 * reset is RESET. A close of a TCP socket looks to its peer like a shutdown, an end of file:
 * bridge_stream_look() checks whether the program still has its socket.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/bridge/bridge_stream.h"

enum { CONTROL_MAX = 4096 };
#define PASSING_NS 5000000000ull

static bool is_byte_stream(const struct bridge_stream *stream)
{
	return stream->about->kind == PBEAM__BRIDGE_STREAM__KIND__STREAM || bridge_stream_is_terminal(stream);
}

/* Sends END: no record follows, and the other side closes its end. */
static void say_gone(struct bridge_stream *stream, Pbeam__BridgeRecord__Kind kind)
{
	if (stream->closing)
		return;
	stream->closing = true;
	if (bridge_stream_append(stream, kind, NULL, 0, NULL, 0, NULL) < 0)
		log_warn("bridge: out of memory: %s is lost", stream->about->text);
	bridge_stream_drop_arrivals(stream);
	stream->delivered = stream->expected;
	bridge_stream_reset(stream);
}

/* ---- from the descriptor ---- */

/* Descriptors cannot go along. */
static void drop_passed(struct msghdr *message)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			close(fd);
		}
		log_warn(
			"bridge: %zu descriptors passed to a program that has moved to another host are lost",
			n);
	}
}

struct piece {
	uint8_t *data;
	size_t room;
	struct sockaddr_storage from;
	socklen_t from_len;
};

/* Reads once. Returns the number of bytes, 0 at the end of file (or for an empty message: *message), or
 * -errno. */
static ssize_t stream_read_piece(struct bridge_stream *stream, struct piece *piece, bool *message)
{
	union {
		struct cmsghdr align;
		char bytes[CONTROL_MAX];
	} control;
	struct iovec iov = {piece->data, piece->room};
	struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	*message = false;
	piece->from_len = 0;
	if (bridge_stream_is_port(stream)) {
		n = port_take(stream, piece->data, piece->room, &piece->from, &piece->from_len);
		*message = n >= 0;
		return n;
	}
	if (!stream->socket) {
		n = read(stream->fd, piece->data, piece->room);
		return n < 0 ? -errno : n;
	}
	header.msg_control = &control;
	header.msg_controllen = sizeof(control);
	header.msg_name = &piece->from;
	header.msg_namelen = sizeof(piece->from);
	n = recvmsg(stream->fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return -errno;
	drop_passed(&header);
	if (!is_byte_stream(stream)) {
		struct pollfd hung = {.fd = stream->fd, .events = POLLRDHUP};

		piece->from_len = header.msg_namelen;
		*message = n > 0 || poll(&hung, 1, 0) == 0;
	}
	return n;
}

/* Returns the room for the next message. If none is there yet, one of the largest size may come before the
 * read, which would truncate it. */
static size_t next_size(struct bridge_stream *stream)
{
	ssize_t n;

	if (is_byte_stream(stream) || !stream->socket || bridge_stream_is_port(stream))
		return BRIDGE_PIECE;
	n = recv(stream->fd, NULL, 0, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
	if (n < 0)
		return BRIDGE_MESSAGE;
	return n <= BRIDGE_PIECE ? BRIDGE_PIECE : n < BRIDGE_MESSAGE ? (size_t)n : BRIDGE_MESSAGE;
}

static void reading_ended(struct bridge_stream *stream, ssize_t result)
{
	/* an error of an earlier datagram is not the stream's end */
	bool passing = result == -EINTR || (result < 0 && result != -EAGAIN && !is_byte_stream(stream) &&
					    stream->about->family != AF_UNIX && stream->socket);

	stream->readable = passing;
	if (result == -EAGAIN || passing)
		return;
	if (bridge_stream_is_terminal(stream)) {
		if (terminal_ended(stream, result))
			say_gone(stream, PBEAM__BRIDGE_RECORD__KIND__CLOSE);
		return;
	}
	if (result < 0) {
		say_gone(stream, PBEAM__BRIDGE_RECORD__KIND__RESET);
		return;
	}
	stream->reads = false;
	if (!stream->ended &&
	    bridge_stream_append(stream, PBEAM__BRIDGE_RECORD__KIND__END, NULL, 0, NULL, 0, NULL) < 0)
		say_gone(stream, PBEAM__BRIDGE_RECORD__KIND__RESET);
	stream->ended = true;
}

/* Skips data that the program took along. */
static bool stream_skip(struct bridge_stream *stream, struct piece *piece, size_t *n)
{
	if (stream->skip == 0)
		return false;
	if (!is_byte_stream(stream)) {
		stream->skip--;
		return true;
	}
	if (*n <= stream->skip) {
		stream->skip -= *n;
		return true;
	}
	*n -= stream->skip;
	memmove(piece->data, piece->data + stream->skip, *n);
	stream->skip = 0;
	return false;
}

static void read_some(struct bridge_stream *stream, size_t window)
{
	while (stream->fd >= 0 && stream->reads && stream->readable && stream->weight < window) {
		size_t room = next_size(stream), len;
		auto_free uint8_t *data = malloc(room);
		struct piece piece = {.data = data, .room = room};
		bool message;
		ssize_t n;

		if (!data) {
			say_gone(stream, PBEAM__BRIDGE_RECORD__KIND__RESET);
			return;
		}
		n = stream_read_piece(stream, &piece, &message);
		if (n < 0 || (n == 0 && !message)) {
			reading_ended(stream, n);
			continue;
		}
		len = (size_t)n;
		(void)listener_accepted(stream); /* it has said something */
		if (!stream_skip(stream, &piece, &len) &&
		    bridge_stream_append(stream, PBEAM__BRIDGE_RECORD__KIND__DATA, data, len,
					 (struct sockaddr *)&piece.from, piece.from_len, NULL) < 0)
			say_gone(stream, PBEAM__BRIDGE_RECORD__KIND__RESET);
	}
}

/* ---- to the descriptor ---- */

static ssize_t stream_write(struct bridge_stream *stream, const uint8_t *data, size_t len,
			    const ProtobufCBinaryData *to)
{
	struct iovec iov = {(void *)(uintptr_t)data, len};
	struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	if (bridge_stream_is_port(stream))
		return port_send(stream, data, len, to);
	if (stream->socket) {
		if (stream->about->kind == PBEAM__BRIDGE_STREAM__KIND__PORT) {
			header.msg_name = to->data;
			header.msg_namelen = (socklen_t)to->len;
		}
		n = sendmsg(stream->fd, &header,
			    MSG_DONTWAIT | MSG_NOSIGNAL | (is_byte_stream(stream) ? 0 : MSG_EOR));
	} else {
		n = write(stream->fd, data, len); /* SIGPIPE is ignored */
	}
	return n < 0 ? -errno : n;
}

/* Writes the rest of a data record. Returns 1 when all of it is written. */
static int deliver_data(struct bridge_stream *stream, const Pbeam__BridgeRecord *record)
{
	uint64_t done = stream->partial < record->data.len ? stream->partial : record->data.len;
	ssize_t n = 0;

	if (!stream->writes || stream->fd < 0)
		return 1; /* the last reader has ended */
	if (done == record->data.len && (is_byte_stream(stream) || done))
		return 1;
	n = stream_write(stream, record->data.len ? record->data.data + done : NULL, record->data.len - done,
			 &record->address);
	if (n == -EINTR)
		return 0;
	if (n == -EAGAIN || n == -ENOBUFS) {
		stream->writable = false;
		return 0;
	}
	if (n < 0 && !is_byte_stream(stream) && n != -EPIPE && n != -ECONNRESET && n != -ENOTCONN)
		return 1; /* a datagram may be lost: it is too large here, or has no receiver */
	if (n < 0) {
		say_gone(stream, stream->socket ? PBEAM__BRIDGE_RECORD__KIND__RESET
						: PBEAM__BRIDGE_RECORD__KIND__CLOSE);
		return 0;
	}
	stream->partial = done + (uint64_t)n;
	return stream->partial >= record->data.len || !is_byte_stream(stream);
}

static void close_quietly(struct bridge_stream *stream)
{
	terminal_end(stream);
	if (stream->fd >= 0)
		close(stream->fd);
	stream->fd = -1;
	stream->reads = stream->writes = false;
	stream->over = true;
	stream->bridge->changed = true;
}

/* Applies END: the other side's writer has ended. */
static void deliver_end(struct bridge_stream *stream)
{
	stream->writes = false;
	if (stream->fd < 0)
		return;
	if (!stream->socket)
		close_quietly(stream);
	else
		shutdown(stream->fd, SHUT_WR);
}

/* Returns 1 when the record has been handled. */
static int stream_deliver(struct bridge_stream *stream, const Pbeam__BridgeRecord *record)
{
	switch (record->kind) {
	case PBEAM__BRIDGE_RECORD__KIND__DATA:
		return deliver_data(stream, record);
	case PBEAM__BRIDGE_RECORD__KIND__END:
		deliver_end(stream);
		return 1;
	case PBEAM__BRIDGE_RECORD__KIND__CLOSE:
		close_quietly(stream);
		return 1;
	case PBEAM__BRIDGE_RECORD__KIND__RESET:
		bridge_stream_reset(stream);
		return 1;
	case PBEAM__BRIDGE_RECORD__KIND__OPEN:
		if (record->opened && stream->about->kind == PBEAM__BRIDGE_STREAM__KIND__LISTENER &&
		    !stream->anchor)
			stream->writable = listener_connect(stream, record->opened);
		return stream->writable;
	case PBEAM__BRIDGE_RECORD__KIND__TERMIOS:
	case PBEAM__BRIDGE_RECORD__KIND__WINSIZE:
		terminal_apply(stream, record);
		return 1;
	case _PBEAM__BRIDGE_RECORD__KIND_IS_INT_SIZE:
	default:
		return 1;
	}
}

static void write_some(struct bridge_stream *stream)
{
	while (stream->first && stream->writable && !stream->closing) {
		struct arrival *arrival = stream->first;

		if (!stream_deliver(stream, arrival->record))
			continue;
		if (stream->first != arrival)
			return; /* it was given up */
		stream->first = arrival->next;
		if (!stream->first)
			stream->last = NULL;
		stream->waiting -= arrival->record->data.len + 64;
		pbeam__bridge_record__free_unpacked(arrival->record, NULL);
		free(arrival);
		stream->partial = 0;
		stream->delivered++;
	}
}

/* ---- */

/* Detects that the program (or its peer) has closed its end while nothing was read or written. */
static void notice_hangup(struct bridge_stream *stream)
{
	struct pollfd poll_fd = {.fd = stream->fd, .events = 0};

	if (stream->fd < 0 || stream->closing ||
	    stream->about->kind == PBEAM__BRIDGE_STREAM__KIND__LISTENER || poll(&poll_fd, 1, 0) <= 0)
		return;
	if (poll_fd.revents & POLLERR && stream->writes && !stream->socket)
		say_gone(stream, PBEAM__BRIDGE_RECORD__KIND__CLOSE);
	else if (poll_fd.revents & POLLERR && stream->socket && !stream->reads && is_byte_stream(stream))
		say_gone(stream, PBEAM__BRIDGE_RECORD__KIND__RESET);
	else if (poll_fd.revents & POLLHUP && stream->socket && !stream->reads)
		say_gone(stream, PBEAM__BRIDGE_RECORD__KIND__CLOSE);
}

static void stream_settle(struct bridge_stream *stream)
{
	/* Ends the stream when both directions have ended. */
	if (stream->fd >= 0 && !stream->reads && !stream->writes && !stream->first &&
	    stream->about->kind != PBEAM__BRIDGE_STREAM__KIND__LISTENER)
		close_quietly(stream);
}

void bridge_stream_pump(struct bridge_stream *stream)
{
	if (stream->held)
		return;
	if (stream->anchor && stream->about->kind == PBEAM__BRIDGE_STREAM__KIND__LISTENER)
		listener_accept(stream);
	else if (stream->fd >= 0) {
		(void)terminal_look(stream);
		read_some(stream, BRIDGE_WINDOW);
	}
	write_some(stream);
	notice_hangup(stream);
	stream_settle(stream);
	if (stream->channel)
		channel_acknowledge(stream);
	if (stream->channel)
		channel_output(stream->channel);
	control_settled(stream);
}

void bridge_stream_drain(struct bridge_stream *stream)
{
	if (stream->fd < 0 || !stream->reads)
		return;
	stream->readable = true;
	(void)terminal_look(stream);
	read_some(stream, SIZE_MAX);
}

/* ---- states that no event reports ---- */

static bool socket_is_listed(const char *table, uint64_t ino)
{
	char path[64], text[512], word[32];
	auto_fclose FILE *f = NULL;

	snprintf(path, sizeof(path), "/proc/self/net/%s", table);
	snprintf(word, sizeof(word), " %lu ", (unsigned long)ino);
	f = fopen(path, "re");
	if (!f)
		return true;
	while (fgets(text, sizeof(text), f)) {
		text[strcspn(text, "\n")] = ' ';
		if (strstr(text, word))
			return true;
	}
	return false;
}

static bool program_has_it(const struct bridge_stream *stream)
{
	switch (stream->about->family) {
	case AF_INET:
	case AF_INET6:
		return socket_is_listed("tcp", stream->ino) || socket_is_listed("tcp6", stream->ino) ||
		       socket_is_listed("udp", stream->ino) || socket_is_listed("udp6", stream->ino);
	case AF_UNIX:
		return socket_is_listed("unix", stream->ino);
	default:
		return true;
	}
}

/* True for an anchor of a listener whose name is on another host: few callers use the old address. */
static bool is_passing(const struct bridge_stream *stream)
{
	return stream->anchor && stream->about->passing && !stream->over && !stream->closing &&
	       stream->fd >= 0;
}

/* True for a listener, a datagram socket, or a TCP connection that the program has shut down for writing. */
bool bridge_stream_wants_look(const struct bridge_stream *stream)
{
	if (is_passing(stream))
		return true;
	if (stream->anchor || stream->over || stream->held || stream->closing || !stream->ino)
		return false;
	return !is_byte_stream(stream) || (stream->ended && stream->socket);
}

void bridge_stream_look(struct bridge_stream *stream)
{
	bool over = is_passing(stream) ? stream->channel && !stream->weight &&
						 io_now_ns(CLOCK_MONOTONIC) - stream->called_ns > PASSING_NS
				       : bridge_stream_wants_look(stream) && !program_has_it(stream);

	if (over) {
		say_gone(stream, PBEAM__BRIDGE_RECORD__KIND__CLOSE);
		bridge_stream_pump(stream);
	}
}
