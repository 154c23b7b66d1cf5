/*
 * The target side of the provider "bridge". The program's end is made as its kind makes an end whose peer is
 * closed: with another end of our own, by which the queue is refilled. That other end becomes the float's.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/bridge/bridge.h"
#include "scip/bridge/bridge_provider.h"
#include "scip/bridge/bridge_terminal_home.h"
#include "scip/ends/end_address.h"
#include "scip/object/common.h"
#include "scip/object/inet.h"
#include "scip/object/socket.h"
#include "scip/object/tcp_socket.h"
#include "scip/object/terminal.h"
#include "scip/object/udp_socket.h"

/* The provider's state in a migration. */
struct arriving {
	struct bridge *bridge;
	struct terminal_home *homes;
};

static struct arriving *arriving(void **state, struct err *err)
{
	if (!*state)
		*state = calloc(1, sizeof(struct arriving));
	if (!*state)
		err_code(err, -ENOMEM, "bridges");
	return *state;
}

static int read_stream(const Pbeam__Object *object, Pbeam__BridgeStream **out, struct err *err)
{
	*out = pbeam__bridge_stream__unpack(NULL, object->external->data.len, object->external->data.data);
	return *out ? 0 : err_set(err, -EBADMSG, "the record of a bridge is malformed");
}

/* ---- making the program's end ---- */

/* Makes a bound socket, at the address that this host gives to its name. */
static int make_bound(struct migrate_target *target, struct object_restore *restore,
		      const Pbeam__Object *object, int *fd, struct err *err)
{
	Pbeam__Object copy = *object;
	Pbeam__TcpSocket tcp;
	Pbeam__UdpSocket udp;
	struct inet_address address;
	ProtobufCBinaryData at;

	address_place(target, object, &address);
	at = (ProtobufCBinaryData){address.len, (uint8_t *)&address.any};
	if (object->kind_case == PBEAM__OBJECT__KIND_TCP) {
		tcp = *object->tcp;
		tcp.local = at;
		copy.tcp = &tcp;
	} else {
		udp = *object->udp;
		udp.local = at;
		copy.udp = &udp;
	}
	return object_ops_of(object)->restore(restore, &copy, fd, err);
}

static int make_tcp(struct migrate_target *target, struct object_restore *restore,
		    const Pbeam__Object *object, int *fd, struct err *err)
{
	int fds[2], r;

	if (object->tcp->listening)
		return make_bound(target, restore, object, fd, err);
	r = tcp_make_pair(object->tcp, fds, err);
	if (r < 0)
		return r;
	*fd = fds[0];
	r = object_restore_keep(restore, PBEAM__OBJECT__KIND_TCP, object->tcp->ino, fds[1], err);
	return r < 0 ? r : tcp_keep_name(object_restore_names(restore), object->tcp, fds[0], err);
}

/* Makes two UDP sockets that are connected to each other. */
static int make_udp(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err)
{
	int family = object->udp->family;
	struct inet_address at = {.len = sizeof(at.v6)};
	auto_close int own = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	auto_close int other = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct inet_address any = {.v4 = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}},
				   .len = sizeof(struct sockaddr_in)};

	if (family == AF_INET6)
		any = (struct inet_address){
			.v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT},
			.len = sizeof(struct sockaddr_in6)};
	if (own < 0 || other < 0 || bind(own, &any.any, any.len) < 0 || bind(other, &any.any, any.len) < 0 ||
	    getsockname(own, &at.any, &at.len) < 0 || connect(other, &at.any, at.len) < 0)
		return err_sys(err, "make a pair of UDP sockets");
	at.len = sizeof(at.v6);
	if (getsockname(other, &at.any, &at.len) < 0 || connect(own, &at.any, at.len) < 0)
		return err_sys(err, "connect a pair of UDP sockets");
	*fd = steal_fd(&own);
	if (udp_keep_name(object_restore_names(restore), object->udp, *fd, err) < 0)
		return err->code;
	return object_restore_keep(restore, PBEAM__OBJECT__KIND_UDP, object->udp->ino, steal_fd(&other), err);
}

/* Removes a socket file left at the listener's path; a socket bound to it belongs to another host. */
static void clear_name(const Pbeam__UnixSocket *saved)
{
	auto_free char *path = saved->bound_file ? object_text(&saved->bound_file->path) : NULL;
	struct stat st;

	if (path && lstat(path, &st) == 0 && S_ISSOCK(st.st_mode) && unlink(path) < 0)
		log_warn("migrate: the socket %s stays where it is: %s", path, strerror(errno));
}

/* On the terminal's own host takes the terminal back, elsewhere makes another one. */
static int make_terminal(struct migrate_target *target, void **state, struct object_restore *restore,
			 const Pbeam__Object *object, int *fd, struct err *err)
{
	struct arriving *own = arriving(state, err);
	Pbeam__BridgeStream *stream;
	int r = own ? read_stream(object, &stream, err) : -ENOMEM;

	if (r < 0)
		return r;
	r = terminal_home_make(&own->homes, target, restore, object, stream, fd, err);
	message_free(stream);
	if (r == 0)
		r = object_ops_of(object)->restore(restore, object, fd, err);
	return r < 0 ? r : 0;
}

int bridge_make(struct migrate_target *target, void **state, struct object_restore *restore,
		const Pbeam__Object *object, int *fd, struct err *err)
{
	const struct object_ops *ops = object_ops_of(object);
	int r = ops->check ? ops->check(restore, object, err) : 0;

	if (r < 0)
		return r;
	if (object->kind_case == PBEAM__OBJECT__KIND_TCP)
		return make_tcp(target, restore, object, fd, err);
	if (object->kind_case == PBEAM__OBJECT__KIND_UDP && !object->udp->connected)
		return make_bound(target, restore, object, fd, err);
	if (object->kind_case == PBEAM__OBJECT__KIND_UDP)
		return make_udp(restore, object, fd, err);
	if (object->kind_case == PBEAM__OBJECT__KIND_TTY)
		return make_terminal(target, state, restore, object, fd, err);
	if (object->kind_case == PBEAM__OBJECT__KIND_UNIX_SOCKET && object->unix_socket->listening)
		clear_name(object->unix_socket);
	return ops->restore(restore, object, fd, err);
}

/* ---- adding it to the float ---- */

/* Stores the address at which the float connects to the program. */
static int listener_address(int fd, Pbeam__BridgeStream *stream, struct err *err)
{
	struct inet_address at;
	int r = socket_name(fd, false, &stream->local, err);

	if (r < 0 || !inet_address_parse(&stream->local, &at) || !inet_is_wildcard(&at))
		return r;
	if (at.any.sa_family == AF_INET)
		at.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else
		at.v6.sin6_addr = in6addr_loopback;
	return message_bytes(&stream->local, &at.any, at.len) < 0 ? err_code(err, -ENOMEM, "bridges") : 0;
}

static int refill_udp(struct object_restore *restore, const Pbeam__UdpSocket *saved, int other,
		      struct err *err)
{
	for (size_t i = 0; i < saved->n_queue; i++) {
		int r = socket_queue_send(restore, saved->queue[i], other, false, NULL, 0, err);

		if (r == -ENOMEM || r == -EBADMSG)
			return r;
	}
	err_clear(err);
	return 0;
}

/* Refills a port's queue; each datagram comes from the stand-in of its sender. */
static int refill_port(struct bridge *bridge, struct object_restore *restore, const Pbeam__UdpSocket *saved,
		       uint64_t ino, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < saved->n_queue && r == 0; i++) {
		auto_free char *data = NULL;
		size_t len;

		r = object_get_extent(restore, saved->queue[i]->data, &data, &len, err);
		if (r == 0)
			bridge_refill(bridge, ino, data, len, &saved->queue[i]->source);
	}
	return r;
}

static bool is_port(const Pbeam__Object *object)
{
	return object->kind_case == PBEAM__OBJECT__KIND_UDP && !object->udp->connected;
}

int bridge_fill(struct object_restore *restore, const Pbeam__Object *object, int fd, int *other,
		struct err *err)
{
	const struct object_ops *ops = object_ops_of(object);
	uint64_t ino = 0;
	int r = 0, kept;

	*other = -1;
	if (object->kind_case == PBEAM__OBJECT__KIND_TTY) {
		r = terminal_fill_apart(restore, object->tty, err);
		*other = r < 0 ? -1 : fcntl(r, F_DUPFD_CLOEXEC, 3);
		return r < 0 ? r : *other < 0 ? err_sys(err, "keep the other end") : 0;
	}
	if (object->kind_case == PBEAM__OBJECT__KIND_PIPE)
		ino = object->pipe->ino;
	else if (object->kind_case == PBEAM__OBJECT__KIND_UNIX_SOCKET)
		ino = object->unix_socket->ino;
	else if (object->kind_case == PBEAM__OBJECT__KIND_TCP)
		ino = object->tcp->ino;
	else if (object->kind_case == PBEAM__OBJECT__KIND_UDP)
		ino = object->udp->ino;
	kept = object_restore_kept(restore, object->kind_case, ino);
	if (object->kind_case == PBEAM__OBJECT__KIND_TCP && kept >= 0)
		r = tcp_fill_end(restore, object->tcp, fd, kept, err);
	else if (object->kind_case == PBEAM__OBJECT__KIND_UDP && kept >= 0)
		r = refill_udp(restore, object->udp, kept, err);
	else if (is_port(object))
		*other = socket(object->udp->family, SOCK_DGRAM | SOCK_CLOEXEC, 0); /* a stream has one */
	else if (ops->finish)
		r = ops->finish(restore, object, fd, err);
	if (r == 0 && object->kind_case == PBEAM__OBJECT__KIND_UNIX_SOCKET &&
	    object->unix_socket->shutdown & 2 && object->unix_socket->connected)
		shutdown(fd, SHUT_WR);
	if (r == 0 && kept >= 0)
		*other = fcntl(kept, F_DUPFD_CLOEXEC, 3);
	return r < 0 ? r : kept >= 0 && *other < 0 ? err_sys(err, "keep the other end") : 0;
}

/* Adds a listener's streams to the hosts between its first host and this one. */
static int add_more(struct migrate_target *target, struct bridge *bridge, const Pbeam__BridgeStream *stream,
		    uint64_t ino, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < stream->n_more && r == 0; i++) {
		Pbeam__BridgeStream *more = stream->more[i];

		if (more->kind != PBEAM__BRIDGE_STREAM__KIND__LISTENER)
			return err_set(err, -EBADMSG, "the record of a bridge is malformed");
		if (message_bytes(&more->local, stream->local.data, stream->local.len) < 0 ||
		    (!more->host[0] && message_string(&more->host, target->from) < 0))
			return err_code(err, -ENOMEM, "bridges");
		r = bridge_add_float(bridge, more, -1, ino, err);
	}
	return r;
}

/* Returns the number by which bridges find the program's end. */
static int name_of(int fd, uint64_t *ino, struct err *err)
{
	struct stat st;
	int number;

	if (fstat(fd, &st) < 0)
		return err_sys(err, "look at what was made");
	number = S_ISCHR(st.st_mode) ? terminal_pts_number(fd, st.st_rdev) : -1;
	*ino = number >= 0 ? bridge_terminal_ino(number) : st.st_ino;
	return 0;
}

/* Gives the other end to the float. */
static int tie(struct migrate_target *target, struct arriving *own, struct object_restore *restore,
	       const Pbeam__Object *object, Pbeam__BridgeStream *stream, int fd, struct err *err)
{
	uint64_t ino = 0;
	int other, r = bridge_fill(restore, object, fd, &other, err);

	if (r == 0 &&
	    (is_port(object) || (object->kind_case == PBEAM__OBJECT__KIND_TCP && object->tcp->listening)))
		r = address_arrived(target, object, fd, err);
	if (r == 0 && !own->bridge) {
		own->bridge = bridge_new(NULL);
		r = own->bridge ? 0 : err_code(err, -ENOMEM, "bridges");
		if (own->bridge)
			bridge_set_names(own->bridge, target->names);
	}
	if (r == 0)
		r = name_of(fd, &ino, err);
	if (r == 0 && !stream->host[0] && message_string(&stream->host, target->from) < 0)
		r = err_code(err, -ENOMEM, "bridges");
	if (r == 0 && (stream->kind == PBEAM__BRIDGE_STREAM__KIND__LISTENER || is_port(object)))
		r = listener_address(fd, stream, err);
	/* Another description of a pipe that already has its stream. */
	if (r == 0 && stream->cookie.len) {
		r = bridge_add_float(own->bridge, stream, other, ino, err);
		other = -1;
		if (r == 0)
			r = add_more(target, own->bridge, stream, ino, err);
		if (r == 0 && is_port(object))
			r = refill_port(own->bridge, restore, object->udp, ino, err);
	}
	if (other >= 0)
		close(other);
	return r;
}

int bridge_finish(struct migrate_target *target, void **state, struct object_restore *restore,
		  const Pbeam__Object *object, int fd, struct err *err)
{
	struct arriving *own = arriving(state, err);
	Pbeam__BridgeStream *stream;
	int r = own ? read_stream(object, &stream, err) : -ENOMEM;

	if (r < 0)
		return r;
	if (object->kind_case == PBEAM__OBJECT__KIND_TTY)
		r = terminal_home_finish(own->homes, restore, object, stream, err);
	if (r == 0 && !stream->another)
		r = tie(target, own, restore, object, stream, fd, err);
	message_free(stream);
	return r < 0 ? r : 0;
}

void bridge_committed(struct migrate_target *target, void **state)
{
	struct arriving *own = *state;
	struct err err = ERR_INIT;

	if (!own)
		return;
	if (own->bridge && bridge_streams(own->bridge) && bridge_start(own->bridge, &err) < 0)
		log_error("migrate: what vpid %d was connected with is lost: %s", target->begin->root,
			  err.text);
	terminal_home_committed(own->homes);
}

void bridge_close(struct migrate_target *target, void **state)
{
	struct arriving *own = *state;

	if (!own)
		return;
	bridge_free(own->bridge);
	terminal_home_free(own->homes);
	free(own);
	*state = NULL;
}
