#include "scip/ends/end_tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "proto/message.h"
#include "scip/object/common.h"
#include "scip/object/socket.h"
#include "scip/object/socket_option.h"
#include "scip/object/tcp_look.h"
#include "scip/object/tcp_socket.h"

#define BUF_LOCK      72 /* SO_BUF_LOCK, Linux 5.14 */
#define LOCKED_RCV    2
#define GROW_AT_ROUND 2

enum { STALL_MS = 500, PAUSE_US = 300, ROUNDS_AT_ONCE = 10 };

void end_tcp_init(struct end_tcp *end)
{
	memset(end, 0, sizeof(*end));
	end->old = end->fresh = -1;
}

bool end_tcp_is_external(struct object_dump *dump, const struct object_source *of, struct end_tcp *end)
{
	const struct tcp_look *look =
		of->hidden || object_dump_console_stream(dump, of) >= 0 ? NULL : tcp_look_of(dump, of);

	if (!look || look->kind != TCP_KIND_CONNECTED)
		return false;
	end->own = look->own;
	end->peer = look->peer;
	return !tcp_find_peer(dump, of);
}

static int refuse_odd(int fd, struct err *err)
{
	struct pollfd urgent = {.fd = fd, .events = POLLPRI};
	int r = tcp_refuse_tls(fd, err);

	if (r < 0)
		return r;
	if (poll(&urgent, 1, 0) > 0 && urgent.revents & POLLPRI)
		return err_set(
			err, -ENOTSUP,
			"a TCP connection with urgent data that was not read, which cannot be moved; let the "
			"program read it");
	return 0;
}

/* Drops the options that a connected socket refuses, or that have no effect on it. */
static void forget_options(Pbeam__SocketOptions *list)
{
	size_t kept = 0;

	for (size_t i = 0; i < list->n_options; i++) {
		Pbeam__SocketOption *option = list->options[i];

		if ((option->level == IPPROTO_IPV6 && option->name == IPV6_V6ONLY) ||
		    (option->level == SOL_SOCKET &&
		     (option->name == SO_REUSEADDR || option->name == SO_REUSEPORT)))
			message_free(option);
		else
			list->options[kept++] = option;
	}
	list->n_options = kept;
}

/* Reads the end's present state. The connection may have ended since it was chosen; the new one then ends in
 * the same way. */
static int look_again(struct end_tcp *end, struct tcp_look *look, struct err *err)
{
	int r = tcp_look(end->old, look, err);

	if (r < 0)
		return r;
	if (!look->peer.len || look->shutdown & TCP_SHUTDOWN_LOST)
		return err_set(err, -EBUSY, "a TCP connection that was reset in this moment; try again");
	end->state = look->state;
	end->shutdown = look->shutdown;
	return 0;
}

int end_tcp_take(struct end_tcp *end, int fd, struct err *err)
{
	struct tcp_look look;
	int r = refuse_odd(fd, err);

	end->old = fd;
	if (r == 0)
		r = look_again(end, &look, err);
	if (r < 0)
		return r;
	end->own = look.own;
	end->peer = look.peer;
	end->family = socket_option(fd, SOL_SOCKET, SO_DOMAIN, AF_INET);
	end->flags = fcntl(fd, F_GETFL);
	end->receive_buffer = socket_option(fd, SOL_SOCKET, SO_RCVBUF, 0);
	end->receive_lock = socket_option(fd, SOL_SOCKET, BUF_LOCK, 0);
	r = socket_options_dump(fd, &end->options, err);
	if (r == 0)
		forget_options(end->options);
	return r;
}

/* A receive queue grows to half of the third number of net.ipv4.tcp_rmem, less overhead. */
static uint64_t most_received(void)
{
	auto_free char *text = NULL;
	unsigned long most = 0;

	if (io_slurp(AT_FDCWD, "/proc/sys/net/ipv4/tcp_rmem", 256, &text, NULL) < 0 ||
	    sscanf(text, "%*u %*u %lu", &most) != 1)
		most = 4u << 20;
	return most / 2 - most / 32;
}

struct end_tcp_level end_tcp_drain(struct end_tcp *end, unsigned round)
{
	struct end_tcp_level level = {.room = most_received()};
	int n = 0;

	socket_set_option(end->old, IPPROTO_TCP, TCP_QUICKACK, 1);
	if (ioctl(end->old, SIOCOUTQ, &n) == 0 && n > 0)
		level.waiting = (uint64_t)n;
	n = 0;
	if (ioctl(end->old, SIOCINQ, &n) == 0 && n > 0)
		level.queued = (uint64_t)n;
	if (level.waiting && round > 0)
		tcp_push(end->old);
	if (round < GROW_AT_ROUND)
		return level;
	if (end->receive_lock & LOCKED_RCV && !end->enlarged)
		socket_set_option(end->old, SOL_SOCKET, BUF_LOCK, end->receive_lock & ~LOCKED_RCV);
	end->enlarged = true;
	tcp_grow_receive(end->old, 0);
	return level;
}

bool end_tcp_fits(const struct end_tcp_level *sender, const struct end_tcp_level *receiver)
{
	return sender->waiting == 0 || sender->waiting + receiver->queued <= receiver->room;
}

int end_tcp_drain_all(int (*round)(void *arg, unsigned n, uint64_t *waiting, struct err *err), void *arg,
		      struct err *err)
{
	uint64_t last = UINT64_MAX, moved_ns = io_now_ns(CLOCK_MONOTONIC);

	for (unsigned n = 0;; n++) {
		uint64_t waiting = 0;
		int r = round(arg, n, &waiting, err);

		if (r < 0 || !waiting)
			return r;
		if (waiting < last)
			moved_ns = io_now_ns(CLOCK_MONOTONIC);
		last = waiting;
		if (io_now_ns(CLOCK_MONOTONIC) - moved_ns > STALL_MS * 1000000ull)
			return err_set(err, -EBUSY,
				       "%llu bytes of a TCP connection do not arrive at their receiver",
				       (unsigned long long)waiting);
		if (n > ROUNDS_AT_ONCE)
			usleep(PAUSE_US);
	}
}

int end_tcp_look(struct end_tcp *end, struct err *err)
{
	struct tcp_look look;
	int queued = 0, r = look_again(end, &look, err);

	if (r < 0)
		return r;
	free(end->unread);
	end->unread = NULL;
	if (ioctl(end->old, SIOCINQ, &queued) < 0 || queued < 0)
		queued = 0;
	end->unread_len = (size_t)queued;
	return tcp_peek(end->old, end->unread_len, &end->unread, err);
}

/* Sets the file status flags (O_NONBLOCK ...) and the receiver of SIGIO. */
static int put_flags(const struct end_tcp *end, struct err *err)
{
	struct f_owner_ex owner;
	int signal;

	if (end->old >= 0 && fcntl(end->old, F_GETOWN_EX, &owner) == 0 && owner.pid &&
	    fcntl(end->fresh, F_SETOWN_EX, &owner) < 0)
		return err_sys(err, "set the owner of a new connection");
	signal = end->old >= 0 ? fcntl(end->old, F_GETSIG) : 0;
	if (signal > 0 && fcntl(end->fresh, F_SETSIG, signal) < 0)
		return err_sys(err, "set the signal of a new connection");
	if (fcntl(end->fresh, F_SETFL, end->flags) < 0)
		return err_sys(err, "set the flags of a new connection");
	return 0;
}

static void put_buffer(const struct end_tcp *end, int fd)
{
	socket_set_option(fd, SOL_SOCKET, SO_RCVBUF, end->receive_buffer / 2);
	socket_set_option(fd, SOL_SOCKET, BUF_LOCK, end->receive_lock);
}

int end_tcp_fill(struct end_tcp *end, bool connected, struct err *err)
{
	int r = end_tcp_exchange(end, connected, err);

	if (r == 0)
		r = socket_options_restore(end->options, end->fresh, err);
	if (r == 0)
		r = put_flags(end, err);
	if (r < 0)
		return r;
	put_buffer(end, end->fresh);
	if (end->shutdown & 2)
		shutdown(end->fresh, SHUT_WR);
	if (end->shutdown & 1 && !tcp_fin_received(end->state))
		shutdown(end->fresh, SHUT_RD);
	return 0;
}

int end_tcp_record(struct object_dump *dump, struct end_tcp *end, Pbeam__Object *out, struct err *err)
{
	Pbeam__TcpSocket *tcp = object_message(Pbeam__TcpSocket, pbeam__tcp_socket__init);
	int r;

	out->kind_case = PBEAM__OBJECT__KIND_TCP;
	out->tcp = tcp;
	if (!tcp)
		return err_code(err, -ENOMEM, "record a connection");
	tcp->ino = end->ino;
	tcp->state = end->state;
	tcp->shutdown = end->shutdown;
	tcp->family = end->family;
	tcp->bound = true;
	tcp->options = end->options;
	end->options = NULL;
	r = tcp_dump_name(object_dump_names(dump), tcp);
	if (r == 0)
		r = message_bytes(&tcp->local, &end->own.any, end->own.len);
	if (r == 0)
		r = message_bytes(&tcp->peer, &end->peer.any, end->peer.len);
	if (r < 0)
		return err_code(err, r, "record a connection");
	return object_put_extent(dump, end->unread, end->unread_len, &tcp->receive_queue, err);
}

Pbeam__ReconnectTicket *end_tcp_ticket(const Pbeam__Object *object, struct err *err)
{
	const ProtobufCBinaryData *data = &object->external->data;
	Pbeam__ReconnectTicket *ticket =
		object->kind_case == PBEAM__OBJECT__KIND_TCP
			? pbeam__reconnect_ticket__unpack(NULL, data->len, data->data)
			: NULL;

	if (!ticket)
		err_set(err, -EBADMSG, "the record of a TCP connection is malformed");
	return ticket;
}

int end_tcp_connect(int sock, const ProtobufCBinaryData *address, const uint8_t cookie[ACCEPTOR_COOKIE_SIZE],
		    struct err *err)
{
	struct inet_address to;

	if (!inet_address_parse(address, &to))
		return err_set(err, -EPROTO, "no address to connect to");
	to = inet_in_family(&to, socket_option(sock, SOL_SOCKET, SO_DOMAIN, AF_INET));
	return acceptor_connect(sock, &to, cookie, ACCEPTOR_CONNECT_MS, err);
}

int end_tcp_restore(struct names *names, struct object_restore *restore, const Pbeam__Object *object,
		    const Pbeam__ReconnectTicket *ticket, int fd, bool connected, struct err *err)
{
	const Pbeam__TcpSocket *saved = object->tcp;
	struct end_tcp end;
	int r;

	end_tcp_init(&end);
	end.fresh = fd;
	end.family = saved->family;
	end.flags = (int)object->flags;
	end.state = (uint8_t)saved->state;
	end.shutdown = (uint8_t)saved->shutdown;
	end.options = saved->options;
	end.receive_buffer = (int)ticket->receive_buffer;
	end.receive_lock = (int)ticket->receive_lock;
	r = object_get_extent(restore, saved->receive_queue, &end.unread, &end.unread_len, err);
	if (r == 0)
		r = end_tcp_fill(&end, connected, err);
	if (r == 0)
		r = tcp_keep_name(names, saved, fd, err);
	/* Borrowed from the manifest and the caller. */
	end.options = NULL;
	end.fresh = -1;
	end_tcp_free(&end);
	return r;
}

void end_tcp_drop_old(struct end_tcp *end)
{
	const struct linger reset = {.l_onoff = 1, .l_linger = 0};

	if (end->old < 0)
		return;
	(void)!setsockopt(end->old, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	close(steal_fd(&end->old));
}

void end_tcp_free(struct end_tcp *end)
{
	if (end->old >= 0 && end->enlarged)
		put_buffer(end, end->old);
	if (end->old >= 0)
		close(end->old);
	if (end->fresh >= 0)
		close(end->fresh);
	message_free(end->options);
	free(end->unread);
	end_tcp_init(end);
}
