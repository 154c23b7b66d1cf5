/*
 * Between a line's descriptor and its logs.
 *
 * Descriptors are watched edge-triggered: `readable` and `writable` hold until a call says EAGAIN. Sockets
 * are used with MSG_DONTWAIT, for their descriptions may be the program's own and have its flags; pipes are
 * opened again with O_NONBLOCK by whoever adds the line.
 *
 * The end of a writer is END: the other side shuts its descriptor down for writing, or closes a pipe. An end
 * that is gone for good (a pipe without readers, a UNIX socket whose peer has closed) is CLOSE; one that was
 * reset is RESET. Of TCP one sees a close only as an end of file like that of a shutdown: line_look() asks
 * whether the program still has its socket.
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
#include "scip/bridge/bridge_line.h"

enum { CONTROL_MAX = 4096 };
#define PASSING_NS 5000000000ull

static bool is_stream(const struct line *line)
{
	return line->about->kind == PBEAM__BRIDGE_LINE__KIND__STREAM || line_is_terminal(line);
}

/* Nothing of ours follows: the other side closes its end. */
static void say_gone(struct line *line, Pbeam__BridgeRecord__Kind kind)
{
	if (line->closing)
		return;
	line->closing = true;
	if (line_append(line, kind, NULL, 0, NULL, 0, NULL) < 0)
		log_warn("bridge: out of memory: %s is lost", line->about->text);
	line_drop_arrivals(line);
	line->delivered = line->expected;
	line_reset(line);
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

/* One read. The bytes, 0 at the end of file (or of an empty message: *message), or -errno. */
static ssize_t take(struct line *line, struct piece *piece, bool *message)
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
	if (line_is_port(line)) {
		n = port_take(line, piece->data, piece->room, &piece->from, &piece->from_len);
		*message = n >= 0;
		return n;
	}
	if (!line->socket) {
		n = read(line->fd, piece->data, piece->room);
		return n < 0 ? -errno : n;
	}
	header.msg_control = &control;
	header.msg_controllen = sizeof(control);
	header.msg_name = &piece->from;
	header.msg_namelen = sizeof(piece->from);
	n = recvmsg(line->fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return -errno;
	drop_passed(&header);
	if (!is_stream(line)) {
		struct pollfd hung = {.fd = line->fd, .events = POLLRDHUP};

		piece->from_len = header.msg_namelen;
		*message = n > 0 || poll(&hung, 1, 0) == 0;
	}
	return n;
}

/* The room for the next message. When none is there yet, the largest one may come before it is read: a
 * smaller room would cut it off. */
static size_t next_size(struct line *line)
{
	ssize_t n;

	if (is_stream(line) || !line->socket || line_is_port(line))
		return BRIDGE_PIECE;
	n = recv(line->fd, NULL, 0, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
	if (n < 0)
		return BRIDGE_MESSAGE;
	return n <= BRIDGE_PIECE ? BRIDGE_PIECE : n < BRIDGE_MESSAGE ? (size_t)n : BRIDGE_MESSAGE;
}

static void reading_ended(struct line *line, ssize_t result)
{
	/* what a datagram of ours has met on its way is no end */
	bool passing = result == -EINTR || (result < 0 && result != -EAGAIN && !is_stream(line) &&
					    line->about->family != AF_UNIX && line->socket);

	line->readable = passing;
	if (result == -EAGAIN || passing)
		return;
	if (line_is_terminal(line)) {
		if (terminal_ended(line, result))
			say_gone(line, PBEAM__BRIDGE_RECORD__KIND__CLOSE);
		return;
	}
	if (result < 0) {
		say_gone(line, PBEAM__BRIDGE_RECORD__KIND__RESET);
		return;
	}
	line->reads = false;
	if (!line->ended && line_append(line, PBEAM__BRIDGE_RECORD__KIND__END, NULL, 0, NULL, 0, NULL) < 0)
		say_gone(line, PBEAM__BRIDGE_RECORD__KIND__RESET);
	line->ended = true;
}

/* What went with the program is not sent after it. */
static bool skipped(struct line *line, struct piece *piece, size_t *n)
{
	if (line->skip == 0)
		return false;
	if (!is_stream(line)) {
		line->skip--;
		return true;
	}
	if (*n <= line->skip) {
		line->skip -= *n;
		return true;
	}
	*n -= line->skip;
	memmove(piece->data, piece->data + line->skip, *n);
	line->skip = 0;
	return false;
}

static void read_some(struct line *line, size_t window)
{
	while (line->fd >= 0 && line->reads && line->readable && line->weight < window) {
		size_t room = next_size(line), len;
		auto_free uint8_t *data = malloc(room);
		struct piece piece = {.data = data, .room = room};
		bool message;
		ssize_t n;

		if (!data) {
			say_gone(line, PBEAM__BRIDGE_RECORD__KIND__RESET);
			return;
		}
		n = take(line, &piece, &message);
		if (n < 0 || (n == 0 && !message)) {
			reading_ended(line, n);
			continue;
		}
		len = (size_t)n;
		(void)listener_accepted(line); /* it has said something */
		if (!skipped(line, &piece, &len) &&
		    line_append(line, PBEAM__BRIDGE_RECORD__KIND__DATA, data, len,
				(struct sockaddr *)&piece.from, piece.from_len, NULL) < 0)
			say_gone(line, PBEAM__BRIDGE_RECORD__KIND__RESET);
	}
}

/* ---- to the descriptor ---- */

static ssize_t put(struct line *line, const uint8_t *data, size_t len, const ProtobufCBinaryData *to)
{
	struct iovec iov = {(void *)(uintptr_t)data, len};
	struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	if (line_is_port(line))
		return port_send(line, data, len, to);
	if (line->socket) {
		if (line->about->kind == PBEAM__BRIDGE_LINE__KIND__PORT) {
			header.msg_name = to->data;
			header.msg_namelen = (socklen_t)to->len;
		}
		n = sendmsg(line->fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL | (is_stream(line) ? 0 : MSG_EOR));
	} else {
		n = write(line->fd, data, len); /* SIGPIPE is ignored */
	}
	return n < 0 ? -errno : n;
}

/* Writes what is left of a data record. 1 when it is all in. */
static int deliver_data(struct line *line, const Pbeam__BridgeRecord *record)
{
	uint64_t done = line->partial < record->data.len ? line->partial : record->data.len;
	ssize_t n = 0;

	if (!line->writes || line->fd < 0)
		return 1; /* there is no reader any more */
	if (done == record->data.len && (is_stream(line) || done))
		return 1;
	n = put(line, record->data.data + done, record->data.len - done, &record->address);
	if (n == -EINTR)
		return 0;
	if (n == -EAGAIN || n == -ENOBUFS) {
		line->writable = false;
		return 0;
	}
	if (n < 0 && !is_stream(line) && n != -EPIPE && n != -ECONNRESET && n != -ENOTCONN)
		return 1; /* a datagram may be lost: too large here, or without a receiver */
	if (n < 0) {
		say_gone(line, line->socket ? PBEAM__BRIDGE_RECORD__KIND__RESET
					    : PBEAM__BRIDGE_RECORD__KIND__CLOSE);
		return 0;
	}
	line->partial = done + (uint64_t)n;
	return line->partial >= record->data.len || !is_stream(line);
}

static void close_quietly(struct line *line)
{
	terminal_end(line);
	if (line->fd >= 0)
		close(line->fd);
	line->fd = -1;
	line->reads = line->writes = false;
	line->over = true;
	line->bridge->changed = true;
}

/* The other side's writer has ended. */
static void deliver_end(struct line *line)
{
	line->writes = false;
	if (line->fd < 0)
		return;
	if (!line->socket)
		close_quietly(line);
	else
		shutdown(line->fd, SHUT_WR);
}

/* 1 when the record is dealt with. */
static int deliver(struct line *line, const Pbeam__BridgeRecord *record)
{
	switch (record->kind) {
	case PBEAM__BRIDGE_RECORD__KIND__DATA:
		return deliver_data(line, record);
	case PBEAM__BRIDGE_RECORD__KIND__END:
		deliver_end(line);
		return 1;
	case PBEAM__BRIDGE_RECORD__KIND__CLOSE:
		close_quietly(line);
		return 1;
	case PBEAM__BRIDGE_RECORD__KIND__RESET:
		line_reset(line);
		return 1;
	case PBEAM__BRIDGE_RECORD__KIND__OPEN:
		if (record->opened && line->about->kind == PBEAM__BRIDGE_LINE__KIND__LISTENER &&
		    !line->anchor)
			line->writable = listener_connect(line, record->opened);
		return line->writable;
	case PBEAM__BRIDGE_RECORD__KIND__TERMIOS:
	case PBEAM__BRIDGE_RECORD__KIND__WINSIZE:
		terminal_apply(line, record);
		return 1;
	case _PBEAM__BRIDGE_RECORD__KIND_IS_INT_SIZE:
	default:
		return 1;
	}
}

static void write_some(struct line *line)
{
	while (line->first && line->writable && !line->closing) {
		struct arrival *arrival = line->first;

		if (!deliver(line, arrival->record))
			continue;
		if (line->first != arrival)
			return; /* it was given up */
		line->first = arrival->next;
		if (!line->first)
			line->last = NULL;
		line->waiting -= arrival->record->data.len + 64;
		pbeam__bridge_record__free_unpacked(arrival->record, NULL);
		free(arrival);
		line->partial = 0;
		line->delivered++;
	}
}

/* ---- */

/* The end that the program (or its peer) has closed while we had nothing to read or to write. */
static void notice_hangup(struct line *line)
{
	struct pollfd poll_fd = {.fd = line->fd, .events = 0};

	if (line->fd < 0 || line->closing || line->about->kind == PBEAM__BRIDGE_LINE__KIND__LISTENER ||
	    poll(&poll_fd, 1, 0) <= 0)
		return;
	if (poll_fd.revents & POLLERR && line->writes && !line->socket)
		say_gone(line, PBEAM__BRIDGE_RECORD__KIND__CLOSE);
	else if (poll_fd.revents & POLLERR && line->socket && !line->reads && is_stream(line))
		say_gone(line, PBEAM__BRIDGE_RECORD__KIND__RESET);
	else if (poll_fd.revents & POLLHUP && line->socket && !line->reads)
		say_gone(line, PBEAM__BRIDGE_RECORD__KIND__CLOSE);
}

static void settle(struct line *line)
{
	/* Both directions have ended, each in its order. */
	if (line->fd >= 0 && !line->reads && !line->writes && !line->first &&
	    line->about->kind != PBEAM__BRIDGE_LINE__KIND__LISTENER)
		close_quietly(line);
}

void line_pump(struct line *line)
{
	if (line->held)
		return;
	if (line->anchor && line->about->kind == PBEAM__BRIDGE_LINE__KIND__LISTENER)
		listener_accept(line);
	else if (line->fd >= 0) {
		(void)terminal_look(line);
		read_some(line, BRIDGE_WINDOW);
	}
	write_some(line);
	notice_hangup(line);
	settle(line);
	if (line->channel)
		channel_acknowledge(line);
	if (line->channel)
		channel_output(line->channel);
	control_settled(line);
}

void line_drain(struct line *line)
{
	if (line->fd < 0 || !line->reads)
		return;
	line->readable = true;
	(void)terminal_look(line);
	read_some(line, SIZE_MAX);
}

/* ---- what can only be asked ---- */

static bool listed(const char *table, uint64_t ino)
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

static bool program_has_it(const struct line *line)
{
	switch (line->about->family) {
	case AF_INET:
	case AF_INET6:
		return listed("tcp", line->ino) || listed("tcp6", line->ino) || listed("udp", line->ino) ||
		       listed("udp6", line->ino);
	case AF_UNIX:
		return listed("unix", line->ino);
	default:
		return true;
	}
}

/* A listener's anchor where its name is not: those who know its address by heart are few. */
static bool is_passing(const struct line *line)
{
	return line->anchor && line->about->passing && !line->over && !line->closing && line->fd >= 0;
}

/* A listener, a datagram socket, or a TCP connection of which the program has said that it sends no more. */
bool line_wants_look(const struct line *line)
{
	if (is_passing(line))
		return true;
	if (line->anchor || line->over || line->held || line->closing || !line->ino)
		return false;
	return !is_stream(line) || (line->ended && line->socket);
}

void line_look(struct line *line)
{
	bool over = is_passing(line) ? line->channel && !line->weight &&
					       io_now_ns(CLOCK_MONOTONIC) - line->called_ns > PASSING_NS
				     : line_wants_look(line) && !program_has_it(line);

	if (over) {
		say_gone(line, PBEAM__BRIDGE_RECORD__KIND__CLOSE);
		line_pump(line);
	}
}
