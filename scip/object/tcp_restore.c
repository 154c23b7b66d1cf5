/*
 * Restores TCP sockets.
 *
 * A connection is made again between the same addresses: a temporary listener on the server's address, the
 * client bound to its own. Everything is bound with SO_REUSEADDR, so that connections, temporary listeners
 * and the program's listeners can share a port. The program's listeners listen only in finish, when the
 * temporary ones are closed; only then does each socket get its own SO_REUSEADDR.
 *
 * The old connection may still be in TIME_WAIT, unless a rollback killed the program
 * (object_abort_connections()). On the loopback the kernel reuses its addresses after a second (tcp_tw_reuse
 * 2), so binding and connecting are retried for a while.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "scip/object/common.h"
#include "scip/object/inet.h"
#include "scip/object/object_end.h"
#include "scip/object/object_restore.h"
#include "scip/object/socket.h"
#include "scip/object/socket_option.h"
#include "scip/object/tcp_look.h"
#include "scip/object/tcp_socket.h"

#define PATIENCE_NS 4000000000ull
#define AFTER_NS    1000000000ull /* the new processes stand still */
#define REFILL_NS   10000000000ull
#define PORT_RANGE  51 /* IP_LOCAL_PORT_RANGE */

int tcp_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err)
{
	const Pbeam__TcpSocket *saved = object->tcp;
	struct inet_address address;

	if ((saved->family != AF_INET && saved->family != AF_INET6) ||
	    (saved->bound && !inet_address_parse(&saved->local, &address)) ||
	    (saved->listening && !saved->bound) ||
	    (tcp_was_connected(saved) && (!saved->bound || !inet_address_parse(&saved->peer, &address))))
		return err_set(err, -EBADMSG, "the image's record of a TCP socket is malformed");
	if (!saved->bound || (!saved->listening && (saved->state != TCP_CLOSE || saved->shutdown)))
		return 0; /* a connection, also one that is over, can be between any two addresses */
	return inet_address_parse(&saved->local, &address) ? inet_check_local(object, &address, err) : 0;
}

static int tcp_new_socket(const Pbeam__TcpSocket *saved, struct err *err)
{
	int fd = socket(saved->family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);

	if (fd < 0)
		return err_sys(err, "make a TCP socket");
	socket_set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	for (size_t i = 0; saved->options && i < saved->options->n_options; i++) {
		const Pbeam__SocketOption *option = saved->options->options[i];

		/* These two have an effect at bind(). */
		if (((option->level == SOL_SOCKET && option->name == SO_REUSEPORT) ||
		     (option->level == IPPROTO_IPV6 && option->name == IPV6_V6ONLY)) &&
		    option->value.len == sizeof(int))
			(void)!setsockopt(fd, option->level, option->name, option->value.data, sizeof(int));
	}
	return fd;
}

static int bind_to(int fd, const struct inet_address *address, struct err *err)
{
	char text[INET_TEXT_MAX];
	int r = inet_bind(fd, address, PATIENCE_NS);

	return r < 0 ? err_code(err, r,
				"bind a TCP socket to %s (if the program was killed just now, its "
				"connections keep the port for a minute)",
				inet_text(address, text))
		     : 0;
}

/* -EADDRNOTAVAIL: the old connection is still in TIME_WAIT. */
static int connect_to(int fd, const struct inet_address *address, struct err *err)
{
	char text[INET_TEXT_MAX];

	while (connect(fd, &address->any, address->len) < 0) {
		if (errno == EADDRINUSE)
			errno = EADDRNOTAVAIL;
		if (errno != EINTR)
			return err_sys(err, "connect again to %s", inet_text(address, text));
	}
	return 0;
}

typedef int take_port(int fd, const struct inet_address *address);

static int bind_port(int fd, const struct inet_address *address)
{
	return bind(fd, &address->any, address->len) < 0 ? -errno : 0;
}

/* True for a port that the kernel may choose (ip(7), ip_local_port_range). */
static bool is_chosen_by_kernel(unsigned port)
{
	auto_free char *text = NULL;
	unsigned low, high;

	return io_slurp(AT_FDCWD, "/proc/sys/net/ipv4/ip_local_port_range", 64, &text, NULL) >= 0 &&
	       sscanf(text, "%u %u", &low, &high) == 2 && low <= port && port <= high;
}

/* Limits the kernel's choice to this port (IP_LOCAL_PORT_RANGE, Linux 6.3). Unlike a port from bind(), it is
 * shared with connections in TIME_WAIT, but not with one whose socket was bound to it. */
static int choose_port(int fd, const struct inet_address *address)
{
	uint32_t port = inet_port(address), range = port << 16 | port;
	struct inet_address any_port = *address;

	if (!is_chosen_by_kernel(port))
		return -EADDRINUSE;
	inet_set_port(&any_port, 0);
	socket_set_option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
	if (setsockopt(fd, IPPROTO_IP, PORT_RANGE, &range, sizeof(range)) < 0)
		return -EADDRINUSE;
	return bind_port(fd, &any_port);
}

/* Returns a connected socket; -EADDRNOTAVAIL if it cannot have its port in this way now. */
static int try_call(const Pbeam__TcpSocket *saved, take_port *take, const struct inet_address *own,
		    const struct inet_address *to, struct err *err)
{
	auto_close int fd = tcp_new_socket(saved, err);
	char text[INET_TEXT_MAX];
	int r;

	if (fd < 0)
		return fd;
	r = take ? take(fd, own) : 0;
	if (r < 0)
		return err_code(err, r == -EADDRINUSE ? -EADDRNOTAVAIL : r, "bind a TCP socket to %s",
				inet_text(own, text));
	r = connect_to(fd, to, err);
	if (r < 0)
		return r;
	socket_set_option(fd, IPPROTO_IP, PORT_RANGE, 0);
	socket_set_option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 0);
	return steal_fd(&fd);
}

/* Makes the client's socket, with its old port as soon as that is free. If it does not become free, the port
 * is any, and the program keeps the old one as a name (tcp_keep_name()). */
static int tcp_connect(const Pbeam__TcpSocket *saved, const struct inet_address *own,
		       const struct inet_address *to, struct err *err)
{
	uint64_t end = io_now_ns(CLOCK_MONOTONIC) + PATIENCE_NS;
	char text[INET_TEXT_MAX];

	while (own && io_now_ns(CLOCK_MONOTONIC) < end) {
		int fd = try_call(saved, choose_port, own, to, err);

		if (fd == -EADDRNOTAVAIL) {
			err_clear(err);
			fd = try_call(saved, bind_port, own, to, err);
		}
		if (fd != -EADDRNOTAVAIL)
			return fd;
		err_clear(err);
		usleep(20000);
	}
	if (own)
		log_warn("the connection of %s has another port: another process has taken the old one",
			 inet_text(own, text));
	return try_call(saved, NULL, NULL, to, err);
}

/* Connects two addresses: fds[0] is the accepted end, at `server`, fds[1] the client's. */
static int tcp_connect_pair(const Pbeam__TcpSocket *server, const struct inet_address *server_at,
			    const Pbeam__TcpSocket *client, const struct inet_address *client_at, int fds[2],
			    struct err *err)
{
	auto_close int listener = tcp_new_socket(server, err), caller = -1;
	struct inet_address bound;
	int r;

	if (listener < 0)
		return listener;
	r = bind_to(listener, server_at, err);
	if (r == 0 && listen(listener, 1) < 0)
		r = err_sys(err, "listen on a port for a moment");
	if (r < 0)
		return r;
	bound.len = sizeof(bound.v6);
	if (getsockname(listener, &bound.any, &bound.len) < 0)
		return err_sys(err, "read a socket's address");
	bound = inet_in_family(&bound, client->family);
	caller = tcp_connect(client, client_at, &bound, err);
	if (caller < 0)
		return caller;
	fds[0] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (fds[0] < 0)
		return err_sys(err, "accept a connection");
	fds[1] = steal_fd(&caller);
	return 0;
}

/* True for the accepted end: its port has a listener. Without a listener either end may be it. */
static bool tcp_is_server(struct object_restore *restore, const struct inet_address *at)
{
	const Pbeam__Manifest *manifest = object_restore_manifest(restore);

	for (size_t i = 0; i < manifest->n_objects; i++) {
		struct inet_address bound;

		if (manifest->objects[i]->kind_case == PBEAM__OBJECT__KIND_TCP &&
		    manifest->objects[i]->tcp->listening &&
		    inet_address_parse(&manifest->objects[i]->tcp->local, &bound) && inet_covers(&bound, at))
			return true;
	}
	return false;
}

static const Pbeam__Object *tcp_peer_of(struct object_restore *restore, const Pbeam__Object *object)
{
	const Pbeam__Object *peer = object_restore_find_inode(restore, object->tcp->peer_ino, object);

	return peer && peer->kind_case == PBEAM__OBJECT__KIND_TCP && peer->tcp->peer_ino == object->tcp->ino
		       ? peer
		       : NULL;
}

/* The addresses that the program knows: the original connection's, if it was made again since. */
static bool tcp_name_of(const Pbeam__TcpSocket *saved, struct name_socket *name)
{
	const ProtobufCBinaryData *own = saved->name_own.len ? &saved->name_own : &saved->local;
	const ProtobufCBinaryData *peer = saved->name_peer.len ? &saved->name_peer : &saved->peer;
	struct inet_address one, other;

	if (!inet_address_parse(own, &one) || !inet_address_parse(peer, &other))
		return false;
	memset(name, 0, sizeof(*name));
	memcpy(&name->own, &one.any, one.len);
	memcpy(&name->peer, &other.any, other.len);
	return true;
}

int tcp_keep_name(struct names *names, const Pbeam__TcpSocket *saved, int fd, struct err *err)
{
	struct inet_address own = {.len = sizeof(own.v6)}, peer, named[2];
	struct name_socket name;
	struct stat st;
	int r;

	if (!tcp_name_of(saved, &name) || fstat(fd, &st) < 0 || getsockname(fd, &own.any, &own.len) < 0)
		return 0;
	snprintf(name.born, sizeof(name.born), "%s", saved->name_host);
	if (!inet_peer_of(fd, &own, &peer)) {
		r = name.born[0] ? names_socket_set(names, st.st_ino, &name) : 0;
		return r < 0 ? err_code(err, r, "keep the address of a socket") : 0;
	}
	memcpy(&named[0].v6, &name.own.in6, sizeof(named[0].v6));
	memcpy(&named[1].v6, &name.peer.in6, sizeof(named[1].v6));
	if (inet_same(&named[0], &own) && inet_same(&named[1], &peer))
		return 0;
	r = names_socket_set(names, st.st_ino, &name);
	return r < 0 ? err_code(err, r, "keep the addresses of a connection") : 0;
}

/* True if no program listens there, only perhaps the bridge of a program that comes back. */
static bool can_listen(const struct inet_address *at)
{
	auto_close int probe = socket(at->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (probe < 0)
		return false;
	socket_set_option(probe, SOL_SOCKET, SO_REUSEADDR, 1);
	return bind(probe, &at->any, at->len) == 0 && listen(probe, 1) == 0;
}

/* Chooses an address of this host: the socket's first one if possible, which needs no translation. On another
 * host than its last it may be in use, mostly by a bridge. 1 if there is one, else 0, or a negative error. */
static int tcp_choose_name(const struct object_restore *restore, const ProtobufCBinaryData *name,
			   const ProtobufCBinaryData *last, int family, struct inet_address *out)
{
	int here = name->len && inet_address_parse(name, out) ? inet_is_local(out) : 0;

	if (here < 0)
		return here;
	if (here) {
		*out = inet_in_family(out, family);
		if (can_listen(out))
			return 1;
	}
	here = inet_address_parse(last, out) ? inet_is_local(out) : 0;
	if (here <= 0)
		return here;
	*out = inet_in_family(out, family);
	return !restore->external || can_listen(out);
}

static int make_connection(struct object_restore *restore, const Pbeam__Object *object, int *fd,
			   struct err *err)
{
	const Pbeam__TcpSocket *saved = object->tcp;
	const Pbeam__Object *peer = tcp_peer_of(restore, object);
	const Pbeam__TcpSocket *other = peer ? peer->tcp : saved;
	struct inet_address local, remote;
	int here = tcp_choose_name(restore, &saved->name_own, &saved->local, saved->family, &local);
	int fds[2], r;

	if (here > 0)
		here = tcp_choose_name(restore, &saved->name_peer, &saved->peer, other->family, &remote);
	if (here < 0)
		return err_code(err, here, "find whether this host has the connection's addresses");
	if (here && (object_restore_is_taken(restore, &local) || object_restore_is_taken(restore, &remote)))
		here = 0;
	if (!here || saved->shutdown & TCP_SHUTDOWN_LOST) {
		/* The addresses are another host's, or those of the connection that this one replaces, or
		 * the other end is not in the image: any will do, also for a connection that is reset. */
		remote = inet_in_family(&(struct inet_address){.v4 = {.sin_family = AF_INET,
								      .sin_addr = {htonl(INADDR_LOOPBACK)}},
							       .len = sizeof(struct sockaddr_in)},
					saved->family);
		r = tcp_connect_pair(other, &remote, saved, NULL, fds, err);
	} else if (tcp_is_server(restore, &local)) {
		r = tcp_connect_pair(saved, &local, other, &remote, fds, err);
		if (r == 0) {
			int swap = fds[0];

			fds[0] = fds[1];
			fds[1] = swap;
		}
	} else {
		r = tcp_connect_pair(other, &remote, saved, &local, fds, err);
	}
	if (r < 0)
		return r;
	*fd = fds[1];
	r = tcp_keep_name(object_restore_names(restore), saved, fds[1], err);
	if (peer) {
		if (r == 0)
			r = tcp_keep_name(object_restore_names(restore), other, fds[0], err);
		object_restore_put(restore, peer->id, fds[0]);
		return r;
	}
	if (r < 0)
		return r;
	return object_restore_keep(restore, PBEAM__OBJECT__KIND_TCP, saved->ino, fds[0], err);
}

/* True if both ends have sent a FIN: the connection has ended, or waits for the last acknowledgement from
 * outside. */
static bool is_over(struct object_restore *restore, const Pbeam__Object *object)
{
	const Pbeam__TcpSocket *saved = object->tcp;

	if (saved->state == TCP_CLOSE)
		return saved->shutdown != 0;
	return (saved->state == TCP_LAST_ACK || saved->state == TCP_CLOSING) && !tcp_peer_of(restore, object);
}

/* Its other end is a stand-in on the loopback. */
static int make_apart(struct object_restore *restore, const Pbeam__TcpSocket *saved, int *fd, struct err *err)
{
	struct inet_address any = {.v4 = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}},
				   .len = sizeof(struct sockaddr_in)};
	int fds[2], r;

	any = inet_in_family(&any, saved->family);
	r = tcp_connect_pair(saved, &any, saved, NULL, fds, err);
	if (r < 0)
		return r;
	*fd = fds[1];
	r = object_restore_keep(restore, PBEAM__OBJECT__KIND_TCP, saved->ino, fds[0], err);
	return r < 0 ? r : tcp_keep_name(object_restore_names(restore), saved, *fd, err);
}

/* True for a client that waits to be accepted, or for the answer to its SYN. Until the commit of a rollback
 * the processes to be replaced have its port, and the listener, whose waiting clients are reset then. */
static bool calls_later(const struct object_restore *restore, const Pbeam__TcpSocket *saved)
{
	return restore->beside && (saved->accept_of || saved->state == TCP_SYN_SENT);
}

int tcp_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err)
{
	const Pbeam__TcpSocket *saved = object->tcp;
	struct inet_address local;
	int r;

	if (is_over(restore, object))
		return make_apart(restore, saved, fd, err);
	if (tcp_was_connected(saved) && !saved->accept_of)
		return make_connection(restore, object, fd, err);
	*fd = tcp_new_socket(saved, err);
	if (*fd < 0)
		return *fd;
	if (!saved->bound || calls_later(restore, saved) || !inet_address_parse(&saved->local, &local))
		return 0;
	if (saved->state == TCP_SYN_SENT && inet_is_local(&local) == 0)
		return 0; /* it connects from another host now */
	local = inet_in_family(&local, saved->family);
	r = bind_to(*fd, &local, err);
	return r < 0 ? r : tcp_keep_name(object_restore_names(restore), saved, *fd, err);
}

/* ---- finish ---- */

static int set_options(const Pbeam__TcpSocket *saved, int fd, struct err *err)
{
	/* Cleared only where the program has cleared it: if the restore is killed in between, closed
	 * connections keep a port that may not be used again for a minute. */
	if (!socket_options_include(saved->options, SOL_SOCKET, SO_REUSEADDR))
		socket_set_option(fd, SOL_SOCKET, SO_REUSEADDR, 0);
	return socket_options_restore(saved->options, fd, err);
}

static int tcp_send_all(int sender, int receiver, const char *data, size_t len, struct err *err)
{
	uint64_t end = io_now_ns(CLOCK_MONOTONIC) + REFILL_NS;
	size_t done = 0;

	while (done < len) {
		ssize_t n = send(sender, data + done, len - done, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n > 0) {
			done += (size_t)n;
			continue;
		}
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return err_sys(err, "refill a TCP connection");
		if (io_now_ns(CLOCK_MONOTONIC) > end)
			return err_set(err, -ENOBUFS,
				       "refill a TCP connection: only %zu of %zu bytes fit; raise "
				       "net.ipv4.tcp_rmem and tcp_wmem",
				       done, len);
		if (receiver >= 0)
			tcp_grow_receive(receiver, 0);
		usleep(1000);
	}
	return 0;
}

/* Sends the queue in the order of its arrival, with the urgent byte at its place. */
static int send_marked(const Pbeam__TcpSocket *saved, int sender, int receiver, const char *data, size_t len,
		       struct err *err)
{
	size_t before = saved->has_mark ? saved->mark : len;
	char byte;
	int r;

	if (before > len || (saved->has_mark && before == len))
		return err_set(err, -EBADMSG, "the image's urgent byte is outside the queue");
	r = tcp_send_all(sender, receiver, data, before, err);
	if (r < 0 || !saved->has_mark)
		return r;
	if (send(sender, data + before, 1, MSG_OOB | MSG_NOSIGNAL) != 1)
		return err_sys(err, "send an urgent byte again");
	r = tcp_send_all(sender, receiver, data + before + 1, len - before - 1, err);
	if (r < 0 || !saved->mark_read)
		return r;
	(void)!tcp_drain(sender, receiver);
	return recv(receiver, &byte, 1, MSG_OOB | MSG_DONTWAIT) == 1
		       ? 0
		       : err_sys(err, "take an urgent byte that was taken before");
}

static int tcp_refill_queue(struct object_restore *restore, const Pbeam__TcpSocket *saved, int receiver,
			    int sender, struct err *err)
{
	auto_free char *data = NULL;
	struct socket_room room;
	size_t len;
	int r = object_get_extent(restore, saved->receive_queue, &data, &len, err);

	if (r < 0 || len == 0)
		return r;
	tcp_grow_receive(receiver, 0);
	room = socket_room_make(sender);
	socket_set_option(sender, IPPROTO_TCP, TCP_NODELAY, 1);
	r = send_marked(saved, sender, receiver, data, len, err);
	if (r == 0)
		(void)!tcp_drain(sender, receiver);
	socket_set_option(sender, IPPROTO_TCP, TCP_NODELAY, 0);
	socket_room_restore(&room);
	return r;
}

/* Shuts the directions that this end has shut. The peer's FIN shuts the others. */
static void tcp_shut_down(const Pbeam__TcpSocket *saved, int fd)
{
	if (saved->shutdown & 2)
		shutdown(fd, SHUT_WR);
	if (saved->shutdown & 1 && !tcp_fin_received(saved->state))
		shutdown(fd, SHUT_RD);
}

static int finish_pair(struct object_restore *restore, const Pbeam__Object *object, const Pbeam__Object *peer,
		       int fd, struct err *err)
{
	int other = object_restore_peek(restore, peer->id), r;

	if (peer->id > object->id)
		return 0; /* done by the second of the two */
	r = tcp_refill_queue(restore, object->tcp, fd, other, err);
	if (r == 0)
		r = tcp_refill_queue(restore, peer->tcp, other, fd, err);
	if (r == 0)
		r = set_options(object->tcp, fd, err);
	if (r == 0)
		r = set_options(peer->tcp, other, err);
	if (r < 0)
		return r;
	tcp_shut_down(object->tcp, fd);
	tcp_shut_down(peer->tcp, other);
	return 0;
}

/* The stand-in for a peer that is gone fills the queue. It is closed when everything is finished. */
static int finish_alone(struct object_restore *restore, const Pbeam__TcpSocket *saved, int fd,
			struct err *err)
{
	int stand_in = object_restore_kept(restore, PBEAM__OBJECT__KIND_TCP, saved->ino);
	struct pollfd poll_fd = {.fd = fd, .events = POLLRDHUP};
	struct linger reset = {.l_onoff = 1, .l_linger = 0};
	int r = stand_in >= 0 ? tcp_refill_queue(restore, saved, fd, stand_in, err) : -EBADMSG;

	if (r == 0)
		r = set_options(saved, fd, err);
	if (r < 0)
		return r;
	if (saved->shutdown & TCP_SHUTDOWN_LOST) {
		if (setsockopt(stand_in, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)) < 0)
			return err_sys(err, "reset a connection");
		return 0;
	}
	shutdown(stand_in, SHUT_WR);
	poll(&poll_fd, 1, 1000);
	tcp_shut_down(saved, fd);
	return 0;
}

static int start_listening(const Pbeam__TcpSocket *saved, int fd, struct err *err)
{
	uint64_t end = io_now_ns(CLOCK_MONOTONIC) + PATIENCE_NS;

	if (socket_option(fd, SOL_SOCKET, SO_ACCEPTCONN, 0))
		return 0;
	while (listen(fd, (int)saved->backlog) < 0) {
		if (errno != EADDRINUSE || io_now_ns(CLOCK_MONOTONIC) > end)
			return err_sys(err, "listen again");
		usleep(20000);
	}
	return set_options(saved, fd, err);
}

static int send_early(struct object_restore *restore, const Pbeam__TcpSocket *saved, int fd, struct err *err)
{
	auto_free char *data = NULL;
	size_t len;
	int r = object_get_extent(restore, saved->sent, &data, &len, err);

	return r < 0 ? r : tcp_send_all(fd, -1, data, len, err);
}

/* Connects a client that waits to be accepted, or whose SYN has no reply. */
static int call_again(struct object_restore *restore, const Pbeam__Object *object, int fd, struct err *err)
{
	const Pbeam__TcpSocket *saved = object->tcp;
	const Pbeam__Object *listener = object_restore_find_inode(restore, saved->accept_of, object);
	struct inet_address peer;
	int r = 0, blocking;

	if (listener && listener->kind_case == PBEAM__OBJECT__KIND_TCP && listener->tcp->listening)
		r = start_listening(listener->tcp, object_restore_peek(restore, listener->id), err);
	if (r < 0)
		return r;
	if (!inet_address_parse(&saved->peer, &peer))
		return saved->state == TCP_SYN_SENT ? 0 : err_set(err, -EBADMSG, "no peer");
	peer = inet_in_family(&peer, saved->family);
	if (saved->state != TCP_SYN_SENT) {
		r = connect_to(fd, &peer, err);
		if (r == 0)
			r = send_early(restore, saved, fd, err);
		if (r == 0)
			tcp_shut_down(saved, fd);
	} else {
		blocking = object_set_nonblock(fd, true);
		/* On the loopback a refusal comes at once, in this call. */
		if (connect(fd, &peer.any, peer.len) < 0 && errno != EINPROGRESS && errno != ECONNREFUSED)
			r = err_sys(err, "call again");
		if (blocking == 0)
			(void)!object_set_nonblock(fd, false);
	}
	return r < 0 ? r : set_options(saved, fd, err);
}

int tcp_finish(struct object_restore *restore, const Pbeam__Object *object, int fd, struct err *err)
{
	const Pbeam__TcpSocket *saved = object->tcp;
	const Pbeam__Object *peer = tcp_peer_of(restore, object);

	if (calls_later(restore, saved))
		return 0;
	if (saved->listening && !restore->beside) /* else in object_restore_take_over() */
		object_renew_address(restore, object, fd);
	if (saved->listening)
		return start_listening(saved, fd, err);
	if (saved->accept_of || saved->state == TCP_SYN_SENT)
		return call_again(restore, object, fd, err);
	if (tcp_was_connected(saved) || is_over(restore, object))
		return peer ? finish_pair(restore, object, peer, fd, err)
			    : finish_alone(restore, saved, fd, err);
	return set_options(saved, fd, err);
}

int tcp_take_over(struct object_restore *restore, const Pbeam__Object *object, int fd, struct err *err)
{
	const Pbeam__TcpSocket *saved = object->tcp;
	struct inet_address local;
	int r;

	if (!calls_later(restore, saved))
		return 0;
	if (saved->bound && inet_address_parse(&saved->local, &local) && inet_is_local(&local) > 0 &&
	    (local = inet_in_family(&local, saved->family), inet_bind(fd, &local, AFTER_NS)) < 0)
		log_warn("restore: a TCP client has another port: its own is still in use");
	r = call_again(restore, object, fd, err);
	return r < 0 ? r : tcp_keep_name(object_restore_names(restore), saved, fd, err);
}

/* ---- the other end is not in the image ---- */

static uint64_t tcp_ino(const Pbeam__Object *object)
{
	return object->tcp->ino;
}

static struct object_address tcp_address(const Pbeam__Object *object)
{
	Pbeam__TcpSocket *tcp = object->tcp;
	const bool idle = tcp->state == TCP_CLOSE && !tcp->shutdown;

	return (struct object_address){.protocol = IPPROTO_TCP,
				       .family = tcp->family,
				       .ino = tcp->ino,
				       .local = &tcp->local,
				       .name = &tcp->name_own,
				       .called = &tcp->name_peer,
				       .host = &tcp->name_host,
				       .options = tcp->options,
				       .listening = tcp->listening,
				       .named = tcp->bound && (tcp->listening || idle)};
}

static int tcp_restore_at(struct object_restore *restore, const Pbeam__Object *object,
			  const struct inet_address *local, int *fd, struct err *err)
{
	Pbeam__Object copy = *object;
	Pbeam__TcpSocket tcp = *object->tcp;

	copy.tcp = &tcp;
	tcp.local = (ProtobufCBinaryData){local->len, (uint8_t *)(uintptr_t)&local->any};
	return tcp_restore(restore, &copy, fd, err);
}

static int tcp_end_make(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err)
{
	return make_apart(restore, object->tcp, fd, err);
}

static int tcp_end_refill(struct object_restore *restore, const Pbeam__Object *object, int fd, int *other,
			  struct err *err)
{
	const Pbeam__TcpSocket *saved = object->tcp;
	int r;

	*other = object_restore_kept(restore, PBEAM__OBJECT__KIND_TCP, saved->ino);
	if (*other < 0) /* a listener */
		return tcp_finish(restore, object, fd, err);
	r = tcp_refill_queue(restore, saved, fd, *other, err);
	if (r == 0)
		r = set_options(saved, fd, err);
	if (r < 0)
		return r;
	socket_set_option(*other, IPPROTO_TCP, TCP_NODELAY, 1);
	if (saved->shutdown & 2)
		shutdown(fd, SHUT_WR);
	return 0;
}

const struct object_end_ops tcp_end = {.ino = tcp_ino,
				       .address = tcp_address,
				       .restore_at = tcp_restore_at,
				       .make = tcp_end_make,
				       .refill = tcp_end_refill};
