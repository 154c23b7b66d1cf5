/*
 * TCP sockets, the dump. tcp_look.c determines their state, tcp_restore.c makes them again.
 *
 * If both ends of a connection are in the group each is drained (tcp_drain.c), then the receive queues are
 * read without being emptied (MSG_PEEK with SO_PEEK_OFF, which TCP has since 6.9). The peer is the socket of
 * the group with the same two addresses. Without one:
 *
 *   it waits in a listener's accept queue     connects again, and sends its bytes again (tcp_pending.c)
 *   it has ended, with a FIN                  a stand-in fills the queue and closes
 *   a process outside has it                  refused, or with `force` saved as a connection that is lost
 *
 * Peers are looked for once all are dumped, in `verify`.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>

#include "proto/message.h"
#include "scip/object/common.h"
#include "scip/object/inet.h"
#include "scip/object/object_end.h"
#include "scip/object/object_table.h"
#include "scip/object/socket.h"
#include "scip/object/tcp_look.h"
#include "scip/object/tcp_socket.h"

static bool tcp_match(struct object_dump *dump, const struct object_source *source)
{
	return tcp_is_socket(source);
}

int tcp_refuse_tls(int fd, struct err *err)
{
	char ulp[32] = "";
	socklen_t len = sizeof(ulp);

	if (getsockopt(fd, IPPROTO_TCP, TCP_ULP, ulp, &len) < 0 || !ulp[0])
		return 0;
	return err_set(err, -ENOTSUP,
		       "a TCP connection with encryption in the kernel (%.31s), whose keys cannot be read; "
		       "run the program without it",
		       ulp);
}

int tcp_dump_name(struct names *names, Pbeam__TcpSocket *out)
{
	return socket_dump_name(names, out->ino, &out->name_own, &out->name_peer, &out->name_host);
}

static int refuse_unread(struct err *err)
{
	return err_set(err, -EIO, "a TCP socket whose state cannot be read");
}

static int record_look(const struct tcp_look *look, Pbeam__TcpSocket *out, struct err *err)
{
	int r = 0;

	out->state = look->state;
	out->shutdown = look->shutdown;
	if (!out->local.len)
		r = object_set_bytes(&out->local, &look->own.any, look->own.len, err);
	if (r == 0 && look->peer.len && !out->peer.len)
		r = object_set_bytes(&out->peer, &look->peer.any, look->peer.len, err);
	return r;
}

/* All of a record but the queue, and what becomes of the peer. */
static int tcp_record(struct object_dump *dump, const struct object_source *source, Pbeam__Object *object,
		      struct tcp_look *look, struct err *err)
{
	const struct tcp_look *known = tcp_look_of(dump, source);
	Pbeam__TcpSocket *out = object_message(Pbeam__TcpSocket, pbeam__tcp_socket__init);
	int r;

	object->kind_case = PBEAM__OBJECT__KIND_TCP;
	object->tcp = out;
	if (!out)
		return object_no_memory(err);
	if (!known)
		return refuse_unread(err);
	*look = *known;
	out->ino = source->st.st_ino;
	out->family = socket_option(source->local, SOL_SOCKET, SO_DOMAIN, AF_INET);
	out->listening = look->kind == TCP_KIND_LISTENS;
	out->backlog = look->backlog;
	out->bound = inet_port(&look->own) != 0;
	r = tcp_refuse_tls(source->local, err);
	if (r == 0)
		r = record_look(look, out, err);
	if (r == 0 && tcp_dump_name(object_dump_names(dump), out) < 0)
		r = object_no_memory(err);
	return r < 0 ? r : socket_options_dump(source->local, &out->options, err);
}

static int tcp_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *object,
		    struct err *err)
{
	const struct object_source *peer;
	struct tcp_look look;
	int queued = 0, fd, r = tcp_record(dump, source, object, &look, err);

	if (r < 0 || look.kind != TCP_KIND_CONNECTED || ioctl(source->local, SIOCOUTQ, &queued) < 0 ||
	    !queued)
		return r;
	peer = tcp_find_peer(dump, source);
	fd = peer ? peer->local : -1;
	if (!peer && tcp_find_other(dump, source).place == TCP_PEER_GONE)
		return 0;
	if (tcp_drain(source->local, fd) < 0 && (peer || !object_dump_lose(dump, source, NULL)))
		return err_set(
			err, -EBUSY,
			"a TCP connection with %d bytes on the way that its receiver has no room for; let "
			"the receiver read, or raise net.ipv4.tcp_rmem",
			queued);
	return 0;
}

static int tcp_record_peer(struct object_dump *dump, const struct object_source *source,
			   Pbeam__TcpSocket *out, struct err *err)
{
	struct tcp_other other = tcp_find_other(dump, source);
	char text[INET_TEXT_MAX] = "?";
	struct inet_address peer;
	int r = 0;

	switch (other.place) {
	case TCP_PEER_IN_GROUP:
		out->peer_ino = other.source->st.st_ino;
		return 0;
	case TCP_PEER_WAITS:
		if (other.queued && !out->sent)
			r = tcp_take_pending(dump, other.source, err);
		out->accept_of = other.source->st.st_ino;
		return r;
	case TCP_PEER_GONE:
		return 0;
	case TCP_PEER_OUTSIDE:
		break;
	}
	if (inet_address_parse(&out->peer, &peer))
		inet_text(&peer, text);
	if (object_dump_lose(dump, source, text)) {
		out->shutdown |= TCP_SHUTDOWN_LOST;
		return 0;
	}
	return err_set(err, -ENOTSUP,
		       "a TCP connection to %s, which is outside the tree; close it first, or checkpoint the "
		       "other side with it",
		       text);
}

static int peek_all(int fd, char *buf, int len)
{
	int used = 0;

	/* a read stops before the urgent byte */
	while (used < len) {
		ssize_t n = recv(fd, buf + used, (size_t)(len - used), MSG_PEEK | MSG_DONTWAIT);

		if (n > 0)
			used += (int)n;
		else if (n == 0 || errno != EINTR)
			break;
	}
	return used;
}

/* Finds the urgent byte: SIOCINQ counts up to it, unless SO_OOBINLINE is set, as it is from now on. */
static void find_mark(int fd, int in_line, int *queued, Pbeam__TcpSocket *out)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLPRI};
	int before = 0, one = 1, zero = 0;

	if (in_line && setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &zero, sizeof(zero)) < 0)
		return;
	if (ioctl(fd, SIOCINQ, &before) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &one, sizeof(one)) < 0 || ioctl(fd, SIOCINQ, queued) < 0)
		return;
	out->has_mark = before < *queued;
	out->mark = (uint64_t)before;
	out->mark_read = out->has_mark && !(poll(&poll_fd, 1, 0) > 0 && poll_fd.revents & POLLPRI);
}

int tcp_peek(int fd, size_t len, char **data, struct err *err)
{
	int old = socket_option(fd, SOL_SOCKET, SO_PEEK_OFF, -1), zero = 0, used = 0, r = 0;

	*data = malloc(len + 1);
	if (!*data)
		return object_no_memory(err);
	if (len && setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &zero, sizeof(zero)) < 0)
		r = err_sys(err, "a TCP connection whose queue cannot be looked at (SO_PEEK_OFF)");
	else
		used = peek_all(fd, *data, (int)len);
	(void)!setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &old, sizeof(old));
	if (r == 0 && (size_t)used < len)
		r = err_set(err, -EIO, "a TCP connection of which only %d of %zu bytes could be read", used,
			    len);
	return r;
}

static int dump_queue(struct object_dump *dump, const struct object_source *source, Pbeam__TcpSocket *out,
		      struct err *err)
{
	auto_free char *data = NULL;
	int in_line = socket_option(source->local, SOL_SOCKET, SO_OOBINLINE, 0), queued = 0, r;

	find_mark(source->local, in_line, &queued, out);
	r = tcp_peek(source->local, (size_t)queued, &data, err);
	(void)!setsockopt(source->local, SOL_SOCKET, SO_OOBINLINE, &in_line, sizeof(in_line));
	return r < 0 || queued == 0 ? r
				    : object_put_extent(dump, data, (size_t)queued, &out->receive_queue, err);
}

/* A connection may have changed state since it was dumped, or ended: updates the record to the state in which
 * its queue is read. */
static int tcp_verify(struct object_dump *dump, const struct object_source *source, Pbeam__Object *object,
		      struct err *err)
{
	const struct tcp_look *look = tcp_look_of(dump, source);
	const struct object_source *listener;
	Pbeam__TcpSocket *out = object->tcp;
	int r;

	if (!look)
		return refuse_unread(err);
	if (look->kind == TCP_KIND_CALLS && (listener = tcp_find_listener(dump, &look->peer)) != NULL)
		out->accept_of = listener->st.st_ino;
	if (look->kind != TCP_KIND_CONNECTED && look->kind != TCP_KIND_ENDED)
		return 0;
	r = record_look(look, out, err);
	if (r == 0 && look->kind == TCP_KIND_CONNECTED)
		r = tcp_record_peer(dump, source, out, err);
	return r < 0 ? r : dump_queue(dump, source, out, err);
}

int tcp_dump_end(struct object_dump *dump, const struct object_source *source, Pbeam__Object *object,
		 struct err *err)
{
	struct tcp_look look;
	int r = tcp_record(dump, source, object, &look, err);

	return r < 0 ? r : dump_queue(dump, source, object->tcp, err);
}

static void tcp_shift(Pbeam__Object *object, const struct object_shift *shift)
{
	Pbeam__TcpSocket *socket = object->tcp;
	uint64_t *const inos[] = {&socket->ino, &socket->peer_ino, &socket->accept_of};

	for (size_t i = 0; i < sizeof(inos) / sizeof(inos[0]); i++)
		*inos[i] += *inos[i] ? shift->ino : 0;
}

const struct object_ops object_tcp = {
	.name = "TCP socket",
	.kind = PBEAM__OBJECT__KIND_TCP,
	.phase = 1,
	.match = tcp_match,
	.dump = tcp_dump,
	.verify = tcp_verify,
	.check = tcp_check,
	.restore = tcp_restore,
	.finish = tcp_finish,
	.take_over = tcp_take_over,
	.shift = tcp_shift,
	.end = &tcp_end,
};
