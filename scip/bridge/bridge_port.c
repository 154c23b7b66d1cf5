/*
 * UDP ports that have moved, for senders that still send to the old place. The anchor passes on each datagram
 * with its sender's address. On the float's side each sender has a socket of its own, the stand-in, connected
 * to the program's. So the program's kernel queue has the datagram with the stand-in's address, which the
 * name table translates: recvfrom() returns the sender's, and a reply to that goes to the stand-in. What the
 * program sends to a stand-in goes to the anchor, and from there, from the old address, to the sender.
 *
 * A sender that knows where the port is (scip/reconnect/reconnect_callers.h) sends there, and receives
 * nothing from the old address any more. What it had sent before gets a direct reply too: its stand-in is
 * found by its own address only. After PASSING_NS a datagram from such an address is another socket's.
 *
 * Stand-ins are made on demand, STAND_INS_MAX for a port; then the least recently used one goes.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "namespace/address_entry.h"
#include "scip/bridge/bridge_stream.h"
#include "scip/object/inet.h"

enum { STAND_INS_MAX = 512 };
#define PASSING_NS 5000000000ull

bool bridge_stream_is_port(const struct bridge_stream *stream)
{
	return stream->about->kind == PBEAM__BRIDGE_STREAM__KIND__PORT && !stream->anchor;
}

static struct name_address stand_in_name(const struct bridge_stream *stream,
					 const union name_sockaddr *called)
{
	struct name_address name = {.protocol = IPPROTO_UDP, .name = *called, .caller = true};
	struct inet_address at;

	name.vpid.n = stream->about->vpid;
	if (inet_address_parse(&stream->about->local, &at))
		name.scope = (uint16_t)inet_port(&at);
	return name;
}

static void stand_in_drop(struct bridge_stream *stream, struct stand_in **at)
{
	struct stand_in *gone = *at;
	struct name_address name = stand_in_name(stream, &gone->called);

	*at = gone->next;
	/* in a coordinator that has started the bridge the name belongs to the bridge */
	if (gone->named && !stream->bridge->started)
		names_address_remove(stream->bridge->names, &name);
	close(gone->fd);
	free(gone);
}

void port_free(struct bridge_stream *stream)
{
	while (stream->stand_ins)
		stand_in_drop(stream, &stream->stand_ins);
}

static void drop_oldest(struct bridge_stream *stream)
{
	struct stand_in **oldest = &stream->stand_ins;
	size_t n = 0;

	for (struct stand_in **at = &stream->stand_ins; *at; at = &(*at)->next) {
		if ((*at)->used < (*oldest)->used)
			oldest = at;
		n++;
	}
	if (n >= STAND_INS_MAX)
		stand_in_drop(stream, oldest);
}

/* Returns a socket connected to the program's; *own is its address. */
static int connect_to_program(const struct bridge_stream *stream, struct inet_address *own)
{
	struct inet_address at;
	auto_close int fd = -1;

	if (!inet_address_parse(&stream->about->local, &at))
		return -EBADMSG;
	fd = socket(at.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	*own = at;
	inet_set_port(own, 0);
	if (fd < 0 || bind(fd, &own->any, own->len) < 0 || connect(fd, &at.any, at.len) < 0)
		return -errno;
	own->len = sizeof(own->v6);
	return getsockname(fd, &own->any, &own->len) < 0 ? -errno : steal_fd(&fd);
}

static bool is_young(const struct bridge_stream *stream)
{
	return io_now_ns(CLOCK_MONOTONIC) - stream->made_ns < PASSING_NS;
}

/* A sender that has itself moved is found by its name on every host. */
static bool is_told(const struct bridge_stream *stream, const union name_sockaddr *source,
		    const union name_sockaddr *called)
{
	struct name_address found;
	struct inet_address told, address = {.len = address_size(source)};

	memcpy(&address.any, source, address.len);
	if (stream->bridge->names &&
	    names_address_find(stream->bridge->names, IPPROTO_UDP, &called->sa, NULL, &found) == 0)
		return true;
	for (size_t i = 0; i < stream->about->n_direct; i++)
		if (inet_address_parse(&stream->about->direct[i], &told) && inet_same(&told, &address))
			return true;
	return false;
}

/* a sender that has itself moved is known by its name */
static union name_sockaddr stand_in_destination(const struct bridge_stream *stream,
						const union name_sockaddr *source)
{
	struct name_address found;

	if (stream->bridge->names &&
	    names_address_find_real(stream->bridge->names, IPPROTO_UDP, &source->sa, &found) == 0 &&
	    !found.caller && address_in_family(&found.name, source->sa.sa_family))
		return found.name;
	return *source;
}

static struct stand_in *stand_in_make(struct bridge_stream *stream, const union name_sockaddr *source)
{
	union name_sockaddr called = stand_in_destination(stream, source);
	struct name_address name = stand_in_name(stream, &called);
	struct stand_in *fresh = calloc(1, sizeof(*fresh));
	struct inet_address own;
	int fd = fresh ? connect_to_program(stream, &own) : -ENOMEM;

	if (fd < 0) {
		log_info("bridge: %s: no stand-in for a sender: %s", stream->about->text, strerror(-fd));
		free(fresh);
		return NULL;
	}
	drop_oldest(stream);
	*fresh = (struct stand_in){.next = stream->stand_ins,
				   .fd = fd,
				   .source = *source,
				   .called = called,
				   .passing = is_told(stream, source, &called) && is_young(stream)};
	name.passing = fresh->passing;
	memcpy(&name.real, &own.any, own.len);
	if (stream->bridge->names) {
		(void)names_cluster(stream->bridge->names, name.host);
		fresh->named = names_address_set(stream->bridge->names, &name, NULL, 0) == 0;
	}
	stream->stand_ins = fresh;
	if (bridge_watch(stream->bridge, fd, &stream->watch, EPOLLIN | EPOLLOUT | EPOLLET) < 0)
		log_info("bridge: %s: what is sent to a caller is not seen", stream->about->text);
	return fresh;
}

static struct stand_in *stand_in_find(struct bridge_stream *stream, const union name_sockaddr *source)
{
	for (struct stand_in **at = &stream->stand_ins; *at; at = &(*at)->next) {
		if (memcmp(&(*at)->source, source, sizeof(*source)) != 0)
			continue;
		if (!(*at)->passing || is_young(stream))
			return *at;
		stand_in_drop(stream, at);
		break;
	}
	return stand_in_make(stream, source);
}

/* It has been led to the port itself meanwhile (scip/reconnect/reconnect_callers.c), and calls the old
 * address all the same: another socket. */
static void stand_in_keep_name(const struct bridge_stream *stream, struct stand_in *at)
{
	struct name_address name = stand_in_name(stream, &at->called), found;
	struct inet_address own = {.len = sizeof(own.v6)};

	if (at->passing || !at->named ||
	    names_address_find_caller(stream->bridge->names, &at->called.sa, name.scope, &found) == 0 ||
	    getsockname(at->fd, &own.any, &own.len) < 0)
		return;
	memcpy(&name.real, &own.any, own.len);
	(void)names_cluster(stream->bridge->names, name.host);
	at->named = names_address_set(stream->bridge->names, &name, NULL, 0) == 0;
}

ssize_t port_send(struct bridge_stream *stream, const void *data, size_t len, const ProtobufCBinaryData *from)
{
	union name_sockaddr source = {0};
	struct inet_address address;
	struct stand_in *at;
	ssize_t n;

	if (!inet_address_parse(from, &address))
		return -EBADMSG;
	memcpy(&source, &address.any, address.len);
	at = stand_in_find(stream, &source);
	if (!at)
		return -EHOSTUNREACH;
	at->used = ++stream->stand_ins_used;
	stand_in_keep_name(stream, at);
	n = send(at->fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0 && errno == ECONNREFUSED) /* an error of an earlier datagram */
		n = send(at->fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
	return n < 0 ? -errno : n;
}

ssize_t port_take(struct bridge_stream *stream, void *data, size_t room, struct sockaddr_storage *to,
		  socklen_t *to_len)
{
	for (struct stand_in *at = stream->stand_ins; at; at = at->next) {
		ssize_t n;

		do
			n = recv(at->fd, data, room, MSG_DONTWAIT);
		while (n < 0 && (errno == EINTR || errno == ECONNREFUSED));
		if (n < 0)
			continue;
		at->used = ++stream->stand_ins_used;
		*to_len = address_size(&at->source);
		memcpy(to, &at->source, *to_len);
		return n;
	}
	return -EAGAIN;
}

int port_watch(struct bridge_stream *stream)
{
	int r = 0;

	for (struct stand_in *at = stream->stand_ins; at && r == 0; at = at->next)
		r = bridge_watch(stream->bridge, at->fd, &stream->watch, EPOLLIN | EPOLLOUT | EPOLLET);
	return r;
}

bool port_has(const struct bridge_stream *stream, int fd)
{
	for (const struct stand_in *at = stream->stand_ins; at; at = at->next)
		if (at->fd == fd)
			return true;
	return false;
}

void bridge_refill(struct bridge *bridge, uint64_t ino, const void *data, size_t len,
		   const ProtobufCBinaryData *from)
{
	for (struct bridge_stream *stream = bridge->streams; stream; stream = stream->next)
		if (stream->ino == ino && bridge_stream_is_port(stream) &&
		    port_send(stream, data, len, from) < 0)
			log_warn("bridge: %s: a datagram that waited is lost", stream->about->text);
}
