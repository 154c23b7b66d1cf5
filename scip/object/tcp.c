/*
 * TCP sockets, the dump. tcp_restore.c has the way back.
 *
 * Both ends of a connection are in the group: each is drained (tcp_drain.c), then what is in the receive
 * queues is looked at without being taken (MSG_PEEK with SO_PEEK_OFF, which TCP has since 6.9). The peer is
 * the socket of the group with the same two addresses; where there is none sock_diag tells why:
 *
 *   nobody has a descriptor of it     it waits in a listener's accept queue: connects again, and sends what
 * it has sent (tcp_pending.c) it is gone, and so said (FIN)     a stand-in fills the queue and closes
 *   somebody else has it              refused, or with `force` saved as a connection that is lost
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
#include "scip/object/object_table.h"
#include "scip/object/socket.h"
#include "scip/object/tcp_socket.h"

static bool tcp_match(struct object_dump *dump, const struct object_source *source)
{
	return (socket_is(source, AF_INET, SOCK_STREAM) || socket_is(source, AF_INET6, SOCK_STREAM)) &&
	       socket_option(source->local, SOL_SOCKET, SO_PROTOCOL, 0) == IPPROTO_TCP;
}

static bool is_connection(const Pbeam__TcpSocket *socket)
{
	return socket->state != TCP_LISTEN && socket->state != TCP_CLOSE && socket->state != TCP_SYN_SENT;
}

static int dump_addresses(int fd, Pbeam__TcpSocket *out, struct err *err)
{
	struct inet_address local;
	struct tcp_info info = {.tcpi_state = 0};
	socklen_t len = sizeof(info);
	char ulp[32] = "";
	socklen_t ulp_len = sizeof(ulp);
	int r;

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0)
		return err_sys(err, "a TCP socket whose state cannot be read");
	if (getsockopt(fd, IPPROTO_TCP, TCP_ULP, ulp, &ulp_len) == 0 && ulp[0])
		return err_set(
			err, -ENOTSUP,
			"a TCP connection with encryption in the kernel (%.31s), whose keys cannot be read; "
			"run the program without it",
			ulp);
	out->state = info.tcpi_state;
	out->family = socket_option(fd, SOL_SOCKET, SO_DOMAIN, AF_INET);
	out->listening = out->state == TCP_LISTEN;
	if (out->listening)
		out->backlog = info.tcpi_sacked; /* of a listener: its backlog */
	r = socket_name(fd, false, &out->local, err);
	if (r == 0)
		r = socket_name(fd, true, &out->peer, err);
	if (r < 0)
		return r;
	out->bound = inet_address_parse(&out->local, &local) && inet_port(&local) != 0;
	return 0;
}

int tcp_dump_name(struct names *names, Pbeam__TcpSocket *out)
{
	return socket_dump_name(names, out->ino, &out->name_own, &out->name_peer, &out->name_host);
}

/* The descriptor of the other end, while not all are dumped; -1 if it is not in the group. */
static int find_peer_now(struct object_dump *dump, const struct object_source *own,
			 const Pbeam__TcpSocket *out)
{
	const struct object_source *source;
	struct inet_address local, peer;

	if (!inet_address_parse(&out->local, &local) || !inet_address_parse(&out->peer, &peer))
		return -1;
	for (size_t i = 0; (source = object_dump_source(dump, i)) != NULL; i++) {
		struct inet_address theirs, back;

		theirs.len = back.len = sizeof(theirs.v6);
		if (source != own && tcp_match(dump, source) &&
		    getsockname(source->local, &theirs.any, &theirs.len) == 0 && inet_same(&theirs, &peer) &&
		    getpeername(source->local, &back.any, &back.len) == 0 && inet_same(&back, &local))
			return source->local;
	}
	return -1;
}

static int tcp_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *object,
		    struct err *err)
{
	Pbeam__TcpSocket *out = object_message(Pbeam__TcpSocket, pbeam__tcp_socket__init);
	int queued = 0, peer, r;

	object->tcp = out;
	if (!out)
		return object_no_memory(err);
	out->ino = source->st.st_ino;
	r = dump_addresses(source->local, out, err);
	if (r == 0 && tcp_dump_name(object_dump_names(dump), out) < 0)
		r = object_no_memory(err);
	if (r == 0)
		r = socket_options_dump(source->local, &out->options, err);
	if (r < 0 || !is_connection(out))
		return r;
	if (ioctl(source->local, SIOCOUTQ, &queued) < 0 || !queued)
		return 0;
	peer = find_peer_now(dump, source, out);
	if (tcp_drain(source->local, peer) < 0 && (peer >= 0 || !object_dump_lose(dump, source, NULL)))
		return err_set(
			err, -EBUSY,
			"a TCP connection with %d bytes on the way that its receiver has no room for; let "
			"the receiver read, or raise net.ipv4.tcp_rmem",
			queued);
	return 0;
}

static const Pbeam__TcpSocket *find_peer(const Pbeam__Manifest *manifest, const Pbeam__TcpSocket *own,
					 const struct inet_address *local, const struct inet_address *peer)
{
	for (size_t i = 0; i < manifest->n_objects; i++) {
		const Pbeam__Object *object = manifest->objects[i];
		struct inet_address theirs, back;

		if (object->kind_case == PBEAM__OBJECT__KIND_TCP && object->tcp != own &&
		    inet_address_parse(&object->tcp->local, &theirs) && inet_same(&theirs, peer) &&
		    inet_address_parse(&object->tcp->peer, &back) && inet_same(&back, local))
			return object->tcp;
	}
	return NULL;
}

static const Pbeam__TcpSocket *find_listener(const Pbeam__Manifest *manifest, const struct inet_address *at)
{
	for (size_t i = 0; i < manifest->n_objects; i++) {
		const Pbeam__Object *object = manifest->objects[i];
		struct inet_address bound;

		if (object->kind_case == PBEAM__OBJECT__KIND_TCP && object->tcp->listening &&
		    inet_address_parse(&object->tcp->local, &bound) && inet_covers(&bound, at))
			return object->tcp;
	}
	return NULL;
}

/* The other end is not in the group. */
static int explain_peer(struct object_dump *dump, const struct object_source *source, Pbeam__TcpSocket *out,
			const struct inet_address *local, const struct inet_address *peer, struct err *err)
{
	const Pbeam__TcpSocket *listener = find_listener(object_dump_manifest(dump), peer);
	bool closed = out->state == TCP_CLOSE_WAIT || out->state == TCP_LAST_ACK || out->state == TCP_CLOSING;
	bool here = inet_is_local(peer);
	struct inet_diag_answer answer;
	char text[INET_TEXT_MAX];
	int r = here ? inet_diag_tcp(peer, local, &answer) : -EHOSTUNREACH;

	if (r == 0 && answer.ino == 0 && listener &&
	    (answer.state == TCP_ESTABLISHED || answer.state == TCP_CLOSE_WAIT)) {
		if (answer.receive_queue > (answer.state == TCP_CLOSE_WAIT) && !out->sent) {
			r = tcp_take_pending(dump, listener, err);
			if (r < 0)
				return r;
		}
		out->accept_of = listener->ino;
		return 0;
	}
	if (here && closed && (r == -ENOENT || (r == 0 && answer.ino == 0)))
		return 0;
	/* It has shut down its side and the other end is closed for good: nothing comes any more. */
	if (here && out->state == TCP_FIN_WAIT2 && r == -ENOENT)
		return 0;
	inet_text(peer, text);
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

/* Where the urgent byte is: SIOCINQ counts up to it, unless it is to be read in line, which it is for us from
 * now on. */
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

/* Of a socket without connection: 0 new, 3 both sides have closed, or an error that was not read yet. A read
 * would take that, so poll is asked first. */
static uint32_t closed_how(int fd)
{
	struct pollfd poll_fd = {.fd = fd, .events = 0};
	char byte;

	if (poll(&poll_fd, 1, 0) > 0 && poll_fd.revents & POLLERR)
		return TCP_SHUTDOWN_LOST;
	return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 ? 3 : 0;
}

static int tcp_verify(struct object_dump *dump, const struct object_source *source, Pbeam__Object *object,
		      struct err *err)
{
	Pbeam__TcpSocket *out = object->tcp;
	const Pbeam__TcpSocket *other;
	struct inet_diag_answer answer;
	struct inet_address local, peer;
	int r = 0;

	if (out->state == TCP_CLOSE) {
		out->shutdown = closed_how(source->local);
		return out->shutdown ? dump_queue(dump, source, out, err) : 0;
	}
	if (!is_connection(out) || !inet_address_parse(&out->local, &local) ||
	    !inet_address_parse(&out->peer, &peer))
		return 0;
	if (inet_diag_tcp(&local, &peer, &answer) == 0)
		out->shutdown = answer.shutdown;
	other = find_peer(object_dump_manifest(dump), out, &local, &peer);
	if (other)
		out->peer_ino = other->ino;
	else
		r = explain_peer(dump, source, out, &local, &peer, err);
	return r < 0 ? r : dump_queue(dump, source, out, err);
}

int tcp_dump_end(struct object_dump *dump, const struct object_source *source, Pbeam__Object *object,
		 struct err *err)
{
	Pbeam__TcpSocket *out = object_message(Pbeam__TcpSocket, pbeam__tcp_socket__init);
	struct inet_address local, peer;
	struct inet_diag_answer answer;
	int r;

	object->kind_case = PBEAM__OBJECT__KIND_TCP;
	object->tcp = out;
	if (!out)
		return object_no_memory(err);
	out->ino = source->st.st_ino;
	r = dump_addresses(source->local, out, err);
	if (r == 0 && tcp_dump_name(object_dump_names(dump), out) < 0)
		r = object_no_memory(err);
	if (r == 0)
		r = socket_options_dump(source->local, &out->options, err);
	if (r == 0 && is_connection(out))
		r = dump_queue(dump, source, out, err);
	if (r == 0 && inet_address_parse(&out->local, &local) && inet_address_parse(&out->peer, &peer) &&
	    inet_diag_tcp(&local, &peer, &answer) == 0)
		out->shutdown = answer.shutdown;
	return r;
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
};
