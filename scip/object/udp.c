/*
 * UDP sockets: addresses, options, and waiting datagrams.
 *
 * A datagram is put back by sending it again: from its sender's socket if that is in the image, else from a
 * temporary one bound to its source address. A datagram from another host, or from an address that another
 * process has now, cannot be put back: UDP may lose datagrams, and the log reports it. All datagrams of a
 * connected socket came from its peer: any sender will do, and its name is that of the peer
 * (scip/syscall/datagram.c).
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "namespace/address_entry.h"
#include "scip/object/common.h"
#include "scip/object/inet.h"
#include "scip/object/multicast.h"
#include "scip/object/object_end.h"
#include "scip/object/object_restore.h"
#include "scip/object/object_table.h"
#include "scip/object/socket.h"
#include "scip/object/socket_option.h"

#define PATIENCE_NS 4000000000ull

static bool udp_match(struct object_dump *dump, const struct object_source *source)
{
	return (socket_is(source, AF_INET, SOCK_DGRAM) || socket_is(source, AF_INET6, SOCK_DGRAM)) &&
	       socket_option(source->local, SOL_SOCKET, SO_PROTOCOL, 0) == IPPROTO_UDP;
}

static int udp_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *object,
		    struct err *err)
{
	Pbeam__UdpSocket *out = object_message(Pbeam__UdpSocket, pbeam__udp_socket__init);
	struct inet_address local;
	int r;

	object->udp = out;
	if (!out)
		return object_no_memory(err);
	if (socket_option(source->local, IPPROTO_UDP, UDP_ENCAP, 0))
		return err_set(err, -ENOTSUP,
			       "a UDP socket with encapsulation, which cannot be saved; close it");
	out->ino = source->st.st_ino;
	out->family = socket_option(source->local, SOL_SOCKET, SO_DOMAIN, AF_INET);
	out->protocol = IPPROTO_UDP;
	r = socket_name(source->local, false, &out->local, err);
	if (r == 0)
		r = socket_name(source->local, true, &out->peer, err);
	if (r < 0)
		return r;
	out->bound = inet_address_parse(&out->local, &local) && inet_port(&local) != 0;
	out->connected = out->peer.len > 0;
	if (socket_dump_name(object_dump_names(dump), out->ino, &out->name_own, &out->name_peer,
			     &out->name_host) < 0)
		return object_no_memory(err);
	r = socket_options_dump(source->local, &out->options, err);
	if (r == 0)
		r = multicast_dump(source->local, out, err);
	if (r == 0)
		r = socket_queue_dump(dump, source->local, false, &out->n_queue, &out->queue, err);
	return r < 0 ? r : socket_queue_renew(dump, source->local, -1, out->n_queue, out->queue, err);
}

static int udp_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err)
{
	const Pbeam__UdpSocket *saved = object->udp;
	struct inet_address address;

	if ((saved->family != AF_INET && saved->family != AF_INET6) ||
	    (saved->bound && !inet_address_parse(&saved->local, &address)) ||
	    (saved->connected && !inet_address_parse(&saved->peer, &address)))
		return err_set(err, -EBADMSG, "the image's record of a UDP socket is malformed");
	return saved->bound && inet_address_parse(&saved->local, &address)
		       ? inet_check_local(object, &address, err)
		       : 0;
}

static int udp_keep_name(struct names *names, const Pbeam__UdpSocket *saved, int fd, struct err *err)
{
	const ProtobufCBinaryData *sides[] = {saved->name_own.len ? &saved->name_own : &saved->local,
					      saved->name_peer.len ? &saved->name_peer : &saved->peer};
	struct name_socket name = {0};
	struct inet_address at;
	struct stat st;
	int r;

	if (fstat(fd, &st) < 0)
		return 0;
	if (inet_address_parse(sides[0], &at))
		memcpy(&name.own, &at.any, at.len);
	if (inet_address_parse(sides[1], &at))
		memcpy(&name.peer, &at.any, at.len);
	snprintf(name.born, sizeof(name.born), "%s", saved->name_host);
	r = names_socket_set(names, st.st_ino, &name);
	return r < 0 ? err_code(err, r, "keep the address of a socket") : 0;
}

static int udp_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err)
{
	const Pbeam__UdpSocket *saved = object->udp;
	struct inet_address local;
	char text[INET_TEXT_MAX];
	int r;

	*fd = socket(saved->family, SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_UDP);
	if (*fd < 0)
		return err_sys(err, "make a UDP socket");
	r = socket_options_restore(saved->options, *fd, err);
	if (r == 0)
		r = multicast_restore(saved, *fd, err);
	if (r < 0 || !saved->bound || !inet_address_parse(&saved->local, &local))
		return r;
	if (restore->beside) /* until object_restore_take_over() */
		socket_set_option(*fd, SOL_SOCKET, SO_REUSEADDR, 1);
	r = inet_bind(*fd, &local, PATIENCE_NS);
	if (r < 0)
		return err_code(err, r, "bind a UDP socket to %s", inet_text(&local, text));
	if (!saved->name_own.len && !saved->name_peer.len)
		return 0;
	return udp_keep_name(object_restore_names(restore), saved, *fd, err);
}

static int udp_find_sender(struct object_restore *restore, const struct inet_address *from)
{
	const Pbeam__Manifest *manifest = object_restore_manifest(restore);

	for (size_t i = 0; i < manifest->n_objects; i++) {
		struct inet_address local;

		if (manifest->objects[i]->kind_case == PBEAM__OBJECT__KIND_UDP &&
		    inet_address_parse(&manifest->objects[i]->udp->local, &local) &&
		    inet_covers(&local, from))
			return object_restore_peek(restore, manifest->objects[i]->id);
	}
	return -1;
}

/* The address at which the socket is reached: its own, or the loopback if it is bound to the wildcard. */
static struct inet_address udp_destination(const struct inet_address *local, int family)
{
	struct inet_address to = *local;

	if (!inet_is_wildcard(local))
		return to;
	if (family == AF_INET6 && local->any.sa_family == AF_INET6)
		to.v6.sin6_addr = in6addr_loopback;
	else
		to.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return to;
}

static int udp_resend(struct object_restore *restore, const Pbeam__UdpSocket *saved,
		      const Pbeam__Datagram *piece, const struct inet_address *local, struct err *err)
{
	struct inet_address from, to = udp_destination(local, saved->family);
	auto_close int temporary = -1;
	int sender;

	if (!inet_address_parse(&piece->source, &from))
		return -EADDRNOTAVAIL;
	/* A v4 sender reaches a dual-stack socket at a v4 address. */
	if (inet_is_wildcard(local) && from.any.sa_family == AF_INET6 &&
	    IN6_IS_ADDR_V4MAPPED(&from.v6.sin6_addr)) {
		static const uint8_t loopback[4] = {127, 0, 0, 1};

		memset(&to.v6.sin6_addr, 0, 10);
		to.v6.sin6_addr.s6_addr[10] = to.v6.sin6_addr.s6_addr[11] = 0xff;
		memcpy(to.v6.sin6_addr.s6_addr + 12, loopback, 4);
	}
	sender = udp_find_sender(restore, &from);
	if (sender < 0) {
		int on = 1;

		temporary = sender = socket(saved->family, SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_UDP);
		if (sender < 0)
			return -errno;
		(void)!setsockopt(sender, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
		/* a connected socket's datagrams have its peer's name, whatever their source */
		if (bind(sender, &from.any, from.len) < 0 && !saved->connected)
			return -errno;
	}
	return socket_queue_send(restore, piece, sender, false, &to.any, to.len, err);
}

static union name_sockaddr as_name(const struct inet_address *address)
{
	union name_sockaddr name;

	memset(&name, 0, sizeof(name));
	memcpy(&name, &address->any, address->len);
	return name;
}

/* Finds the present address of the peer of a socket that is rolled back: the peer may have moved since. A
 * peer on the loopback is a bridge, or of this host. */
static void udp_find_peer(struct object_restore *restore, const Pbeam__Object *object,
			  struct inet_address *peer)
{
	const Pbeam__UdpSocket *saved = object->udp;
	union name_sockaddr real = as_name(peer), at;
	struct inet_address name = *peer;
	struct name_address found;

	if (object->external || (saved->name_peer.len && !inet_address_parse(&saved->name_peer, &name)))
		return;
	at = as_name(&name);
	if (address_is_loopback(&real) || address_is_loopback(&at))
		return;
	if (names_address_find(object_restore_names(restore), IPPROTO_UDP, &at.sa, NULL, &found) == 0 &&
	    !found.caller)
		at = found.real;
	if (!address_in_family(&at, saved->family))
		return;
	peer->len = address_size(&at);
	memcpy(&peer->any, &at, peer->len);
}

static int udp_finish(struct object_restore *restore, const Pbeam__Object *object, int fd, struct err *err)
{
	const Pbeam__UdpSocket *saved = object->udp;
	struct inet_address local = {.len = sizeof(local.v6)}, peer;
	size_t lost = 0;
	char text[INET_TEXT_MAX];

	if (!restore->beside) /* else in object_restore_take_over() */
		object_renew_address(restore, object, fd);
	/* Not saved->local: the socket may have another address here. */
	if (saved->bound && getsockname(fd, &local.any, &local.len) == 0)
		for (size_t i = 0; i < saved->n_queue; i++) {
			int r = udp_resend(restore, saved, saved->queue[i], &local, err);

			if (r == -ENOMEM || r == -EBADMSG)
				return r;
			lost += r < 0;
			err_clear(err);
		}
	if (lost)
		log_warn("restore: %zu datagrams that waited at UDP %s are lost: their senders are not here",
			 lost, inet_text(&local, text));
	if (!saved->connected || !inet_address_parse(&saved->peer, &peer))
		return 0;
	udp_find_peer(restore, object, &peer);
	if (connect(fd, &peer.any, peer.len) < 0)
		return err_sys(err, "connect a UDP socket to %s", inet_text(&peer, text));
	return 0;
}

static void udp_shift(Pbeam__Object *object, const struct object_shift *shift)
{
	object->udp->ino += shift->ino;
}

/* ---- the other end is not in the image ---- */

static uint64_t udp_ino(const Pbeam__Object *object)
{
	return object->udp->ino;
}

static struct object_address udp_address(const Pbeam__Object *object)
{
	Pbeam__UdpSocket *udp = object->udp;

	return (struct object_address){.protocol = IPPROTO_UDP,
				       .family = udp->family,
				       .ino = udp->ino,
				       .local = &udp->local,
				       .name = &udp->name_own,
				       .called = &udp->name_peer,
				       .host = &udp->name_host,
				       .options = udp->options,
				       .connected = udp->connected,
				       .named = udp->bound && !udp->connected};
}

static int udp_restore_at(struct object_restore *restore, const Pbeam__Object *object,
			  const struct inet_address *local, int *fd, struct err *err)
{
	Pbeam__Object copy = *object;
	Pbeam__UdpSocket udp = *object->udp;

	copy.udp = &udp;
	udp.local = (ProtobufCBinaryData){local->len, (uint8_t *)(uintptr_t)&local->any};
	return udp_restore(restore, &copy, fd, err);
}

/* Makes two UDP sockets that are connected to each other. */
static int udp_end_make(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err)
{
	int family = object->udp->family, r;
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
	r = udp_keep_name(object_restore_names(restore), object->udp, *fd, err);
	if (r < 0)
		return r;
	return object_restore_keep(restore, PBEAM__OBJECT__KIND_UDP, object->udp->ino, steal_fd(&other), err);
}

/* A port has no other end: its datagrams come from many. */
static int udp_end_refill(struct object_restore *restore, const Pbeam__Object *object, int fd, int *other,
			  struct err *err)
{
	const Pbeam__UdpSocket *saved = object->udp;

	*other = object_restore_kept(restore, PBEAM__OBJECT__KIND_UDP, saved->ino);
	for (size_t i = 0; *other >= 0 && i < saved->n_queue; i++) {
		int r = socket_queue_send(restore, saved->queue[i], *other, false, NULL, 0, err);

		if (r == -ENOMEM || r == -EBADMSG)
			return r;
	}
	err_clear(err);
	return 0;
}

static const struct object_end_ops udp_end = {.ino = udp_ino,
					      .address = udp_address,
					      .restore_at = udp_restore_at,
					      .make = udp_end_make,
					      .refill = udp_end_refill};

const struct object_ops object_udp = {
	.name = "UDP socket",
	.kind = PBEAM__OBJECT__KIND_UDP,
	.phase = 1,
	.match = udp_match,
	.dump = udp_dump,
	.check = udp_check,
	.restore = udp_restore,
	.finish = udp_finish,
	.shift = udp_shift,
	.end = &udp_end,
};
