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
#include "scip/object/object_end.h"
#include "scip/object/socket.h"
#include "scip/object/terminal.h"

/* The provider's state in a migration. */
struct arriving {
	struct bridge *bridge;
	struct terminal_home *homes;
};

static struct arriving *arriving_of(void **state, struct err *err)
{
	if (!*state)
		*state = calloc(1, sizeof(struct arriving));
	if (!*state)
		err_code(err, -ENOMEM, "bridges");
	return *state;
}

static int read_stream(const Pbeam__Object *object, Pbeam__BridgeStream **out, struct err *err)
{
	*out = (void *)message_unpack(&pbeam__bridge_stream__descriptor, object->external->data.len,
				      object->external->data.data);
	return *out ? 0 : err_set(err, -EBADMSG, "the record of a bridge is malformed");
}

/* ---- making the program's end ---- */

/* On the terminal's own host takes the terminal back, elsewhere makes another one. */
static int make_terminal(struct migrate_target *target, void **state, struct object_restore *restore,
			 const Pbeam__Object *object, int *fd, struct err *err)
{
	struct arriving *own = arriving_of(state, err);
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

/* True for a socket whose callers find it by its address. */
static bool is_bound_here(const Pbeam__Object *object)
{
	struct object_address address;

	return object_is_port(object) || (object_address(object, &address) && address.listening);
}

int bridge_make(struct migrate_target *target, void **state, struct object_restore *restore,
		const Pbeam__Object *object, int *fd, struct err *err)
{
	const struct object_ops *ops = object_ops_of(object);
	int r = ops->check ? ops->check(restore, object, err) : 0;

	if (r < 0)
		return r;
	if (object_tty_of(object))
		return make_terminal(target, state, restore, object, fd, err);
	return is_bound_here(object) ? address_restore(target, restore, object, fd, err)
				     : object_end_make(restore, object, fd, err);
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
static int socket_inode(int fd, uint64_t *ino, struct err *err)
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
static int arriving_tie(struct migrate_target *target, struct arriving *own, struct object_restore *restore,
			const Pbeam__Object *object, Pbeam__BridgeStream *stream, int fd, struct err *err)
{
	uint64_t ino = 0;
	int other, r = object_end_refill(restore, object, fd, &other, err);

	/* A port's datagrams are sent by this socket. */
	if (r == 0 && object_is_port(object)) {
		other = socket(object->udp->family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		r = other < 0 ? err_sys(err, "make a UDP socket") : 0;
	}
	if (r == 0 && is_bound_here(object))
		r = address_arrived(target, object, fd, err);
	if (r == 0 && !own->bridge) {
		own->bridge = bridge_new(NULL);
		r = own->bridge ? 0 : err_code(err, -ENOMEM, "bridges");
		if (own->bridge)
			bridge_set_names(own->bridge, target->names);
	}
	if (r == 0)
		r = socket_inode(fd, &ino, err);
	if (r == 0 && !stream->host[0] && message_string(&stream->host, target->from) < 0)
		r = err_code(err, -ENOMEM, "bridges");
	if (r == 0 && (stream->kind == PBEAM__BRIDGE_STREAM__KIND__LISTENER || object_is_port(object)))
		r = listener_address(fd, stream, err);
	/* Another description of a pipe that already has its stream. */
	if (r == 0 && stream->cookie.len) {
		r = bridge_add_float(own->bridge, stream, other, ino, err);
		other = -1;
		if (r == 0)
			r = add_more(target, own->bridge, stream, ino, err);
		if (r == 0 && object_is_port(object))
			r = refill_port(own->bridge, restore, object->udp, ino, err);
	}
	if (other >= 0)
		close(other);
	return r;
}

int bridge_finish(struct migrate_target *target, void **state, struct object_restore *restore,
		  const Pbeam__Object *object, int fd, struct err *err)
{
	struct arriving *own = arriving_of(state, err);
	Pbeam__BridgeStream *stream;
	int r = own ? read_stream(object, &stream, err) : -ENOMEM;

	if (r < 0)
		return r;
	if (object_tty_of(object))
		r = terminal_home_finish(own->homes, restore, object, stream, err);
	if (r == 0 && !stream->another)
		r = arriving_tie(target, own, restore, object, stream, fd, err);
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
