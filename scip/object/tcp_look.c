/*
 * A frozen program does nothing to its sockets, but segments of the other host and timers do. They take a
 * connection towards its end:
 *
 *   SYN_SENT     ► ESTABLISHED                               the answer
 *   ESTABLISHED  ► CLOSE_WAIT                                FIN
 *   FIN_WAIT1    ► FIN_WAIT2, CLOSING, CLOSE                 acknowledgement, FIN, both
 *   FIN_WAIT2, CLOSING, LAST_ACK ► CLOSE                     FIN, acknowledgement
 *   any          ► CLOSE                                     RST, or too many retries
 *
 * It never goes back. (TIME_WAIT is missing: the kernel keeps it in a small socket of its own, and the
 * program's socket is in CLOSE at once.) So a dump decides once of which kind a socket is, and expects at
 * each later look that a connection may have ended meanwhile.
 *
 * CLOSE is also the state of a socket that was never connected, which may be bound. A read distinguishes the
 * two: a connection that has ended gives an end of file (RCV_SHUTDOWN, which poll shows as POLLRDHUP) or an
 * error, a socket that was never connected ENOTCONN. Neither is in a table of the kernel: sock_diag does not
 * find it, and getpeername() fails; SO_PEERNAME does not (inet_getname(), net/ipv4/af_inet.c).
 *
 * The directions follow from the state: a socket that has shut down its sending is in one of the states after
 * FIN was sent from that moment on (tcp_close_state()). Receiving is shut by a FIN or by the program itself.
 */
#include "scip/object/tcp_look.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>

#include "scip/object/common.h"
#include "scip/object/object_dump.h"
#include "scip/object/socket.h"

struct tcp_known {
	const struct object_source *source;
	struct tcp_look look;
};

static enum tcp_kind kind_of(unsigned state, short events)
{
	switch (state) {
	case TCP_LISTEN:
		return TCP_KIND_LISTENS;
	case TCP_SYN_SENT:
		return TCP_KIND_CALLS;
	case TCP_CLOSE:
		return events & (POLLRDHUP | POLLERR) ? TCP_KIND_ENDED : TCP_KIND_IDLE;
	default:
		return TCP_KIND_CONNECTED;
	}
}

bool tcp_fin_received(unsigned state)
{
	return state == TCP_CLOSE_WAIT || state == TCP_LAST_ACK || state == TCP_CLOSING || state == TCP_CLOSE;
}

bool tcp_was_connected(const Pbeam__TcpSocket *saved)
{
	return kind_of(saved->state, 0) == TCP_KIND_CONNECTED;
}

static uint8_t shutdown_of(enum tcp_kind kind, unsigned state, short events)
{
	bool sends = state == TCP_ESTABLISHED || state == TCP_CLOSE_WAIT || state == TCP_SYN_RECV;

	if (kind == TCP_KIND_ENDED)
		return events & POLLERR ? TCP_SHUTDOWN_LOST : 3;
	return kind != TCP_KIND_CONNECTED ? 0 : (uint8_t)((events & POLLRDHUP ? 1 : 0) | (sends ? 0 : 2));
}

static int read_info(int fd, struct tcp_info *info, struct err *err)
{
	socklen_t len = sizeof(*info);

	*info = (struct tcp_info){.tcpi_state = 0};
	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len) < 0
		       ? err_sys(err, "a TCP socket whose state cannot be read")
		       : 0;
}

static int look_once(int fd, struct tcp_look *look, struct err *err)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLRDHUP};
	struct tcp_info info;
	int r = read_info(fd, &info, err);

	memset(look, 0, sizeof(*look));
	look->own.len = sizeof(look->own.v6);
	if (r < 0)
		return r;
	if (getsockname(fd, &look->own.any, &look->own.len) < 0)
		return err_sys(err, "a TCP socket whose address cannot be read");
	if (!inet_peer_of(fd, &look->own, &look->peer))
		look->peer.len = 0;
	if (poll(&poll_fd, 1, 0) < 0)
		return err_sys(err, "a TCP socket that cannot be looked at");
	look->state = info.tcpi_state;
	look->kind = kind_of(look->state, poll_fd.revents);
	look->shutdown = shutdown_of(look->kind, look->state, poll_fd.revents);
	if (look->kind == TCP_KIND_IDLE || look->kind == TCP_KIND_LISTENS)
		look->peer.len = 0;
	if (look->kind == TCP_KIND_LISTENS)
		look->backlog = info.tcpi_sacked; /* of a listener: its backlog */
	return 0;
}

int tcp_look(int fd, struct tcp_look *look, struct err *err)
{
	struct tcp_info after;
	int r;

	do {
		r = look_once(fd, look, err);
		if (r == 0)
			r = read_info(fd, &after, err);
	} while (r == 0 && after.tcpi_state != look->state);
	return r;
}

/* ---- the sockets of a group ---- */

void tcp_table_free(struct tcp_table *table)
{
	free(table->v);
	*table = (struct tcp_table){NULL, 0, 0};
}

bool tcp_is_socket(const struct object_source *source)
{
	return (socket_is(source, AF_INET, SOCK_STREAM) || socket_is(source, AF_INET6, SOCK_STREAM)) &&
	       socket_option(source->local, SOL_SOCKET, SO_PROTOCOL, 0) == IPPROTO_TCP;
}

/* There are more while sockets are dumped, that were in queues of others. */
static struct tcp_table *table_of(struct object_dump *dump)
{
	struct tcp_table *table = &dump->tcp;
	const struct object_source *source;

	for (; (source = object_dump_source(dump, table->sources)) != NULL; table->sources++) {
		struct tcp_known known = {.source = source};

		if (tcp_is_socket(source) && tcp_look(source->local, &known.look, NULL) == 0 &&
		    object_append(table->v, table->n, known) < 0)
			break;
	}
	return table;
}

const struct tcp_look *tcp_look_of(struct object_dump *dump, const struct object_source *source)
{
	const struct tcp_table *table = table_of(dump);

	for (size_t i = 0; i < table->n; i++) {
		struct tcp_look *look = &table->v[i].look;

		if (table->v[i].source != source)
			continue;
		if (look->kind == TCP_KIND_CONNECTED && tcp_look(source->local, look, NULL) < 0)
			return NULL;
		return look;
	}
	return NULL;
}

static const struct tcp_known *tcp_find_known_peer(struct object_dump *dump, const struct object_source *own,
						   const struct tcp_look *look)
{
	const struct tcp_table *table = table_of(dump);

	for (size_t i = 0; i < table->n; i++) {
		const struct tcp_look *other = &table->v[i].look;

		if (table->v[i].source != own && other->kind == TCP_KIND_CONNECTED &&
		    inet_same(&other->own, &look->peer) && inet_same(&other->peer, &look->own))
			return &table->v[i];
	}
	return NULL;
}

const struct object_source *tcp_find_peer(struct object_dump *dump, const struct object_source *own)
{
	const struct tcp_look *look = tcp_look_of(dump, own);
	const struct tcp_known *peer = look && look->peer.len ? tcp_find_known_peer(dump, own, look) : NULL;

	return peer ? peer->source : NULL;
}

const struct object_source *tcp_find_listener(struct object_dump *dump, const struct inet_address *at)
{
	const struct tcp_table *table = table_of(dump);

	for (size_t i = 0; i < table->n; i++)
		if (table->v[i].look.kind == TCP_KIND_LISTENS && inet_covers(&table->v[i].look.own, at))
			return table->v[i].source;
	return NULL;
}

/* No process of the group has the other end. On this host sock_diag reports whether another process has. */
static enum tcp_place tcp_place_of(const struct tcp_look *look, int found,
				   const struct inet_diag_answer *answer,
				   const struct object_source *listener)
{
	bool nobodys = found == -ENOENT || (found == 0 && answer->ino == 0);

	/* Both ends have sent all their data. The kernel delivers what is still in flight, as after a
	 * close. */
	if (look->kind == TCP_KIND_ENDED || look->state == TCP_LAST_ACK || look->state == TCP_CLOSING)
		return TCP_PEER_GONE;
	if (listener && found == 0 && answer->ino == 0 &&
	    (answer->state == TCP_ESTABLISHED || answer->state == TCP_CLOSE_WAIT))
		return TCP_PEER_WAITS;
	if (nobodys && tcp_fin_received(look->state))
		return TCP_PEER_GONE;
	/* It has shut down its side and the other end is closed for good: nothing comes any more. */
	return found == -ENOENT && look->state == TCP_FIN_WAIT2 ? TCP_PEER_GONE : TCP_PEER_OUTSIDE;
}

struct tcp_other tcp_find_other(struct object_dump *dump, const struct object_source *own)
{
	struct tcp_other other = {.place = TCP_PEER_IN_GROUP, .source = tcp_find_peer(dump, own)};
	const struct tcp_look *look = tcp_look_of(dump, own);
	struct inet_diag_answer answer = {.ino = 0};
	int found;

	if (other.source)
		return other;
	other.place = TCP_PEER_GONE;
	if (!look || !look->peer.len)
		return other;
	found = inet_is_local(&look->peer);
	if (found >= 0)
		found = found ? inet_diag_tcp(&look->peer, &look->own, &answer) : -EHOSTUNREACH;
	other.source = tcp_find_listener(dump, &look->peer);
	other.place = tcp_place_of(look, found, &answer, other.source);
	other.queued = answer.receive_queue - (answer.receive_queue && answer.state == TCP_CLOSE_WAIT);
	/* It may have ended between the two. */
	if (other.place == TCP_PEER_OUTSIDE) {
		look = tcp_look_of(dump, own);
		if (look)
			other.place = tcp_place_of(look, found, &answer, other.source);
	}
	return other;
}
