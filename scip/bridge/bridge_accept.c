/*
 * Listening sockets. The anchor accepts at the old address. Each connection is a stream of its own, announced
 * to the float by a record OPEN of the listener's stream; the float connects to the program at its new
 * address.
 *
 * No record of the stream is acknowledged until the program has accepted the connection. If the program moves
 * before that, all of them are sent again.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/bridge/bridge_stream.h"
#include "scip/object/inet.h"
#include "scip/object/socket.h"
#include "scip/object/unix_diag.h"

enum { OPEN_MAX = 128 }; /* streams that the float has not connected yet */

static int accepted_describe(const struct bridge_stream *listener, int fd, Pbeam__BridgeStream *out,
			     struct err *err)
{
	struct inet_address peer;
	char text[INET_TEXT_MAX], words[INET_TEXT_MAX + 64];
	const ProtobufCBinaryData *name = &listener->about->peer;
	int r = listener->about->passing && name->len ? message_bytes(&out->local, name->data, name->len)
						      : socket_name(fd, false, &out->local, err);

	if (r == 0)
		r = socket_name(fd, true, &out->peer, err);
	if (r < 0)
		return r;
	out->family = listener->about->family;
	out->vpid = listener->about->vpid;
	out->reads = out->writes = true;
	out->kind = listener->about->packet ? PBEAM__BRIDGE_STREAM__KIND__MESSAGES
					    : PBEAM__BRIDGE_STREAM__KIND__STREAM;
	if (message_string(&out->program, listener->about->program) < 0)
		return -ENOMEM;
	snprintf(words, sizeof(words), "UNIX connection");
	if (inet_address_parse(&out->peer, &peer))
		snprintf(words, sizeof(words), "TCP connection with %s", inet_text(&peer, text));
	return message_string(&out->text, words);
}

static int accepted_open_stream(struct bridge_stream *listener, int fd)
{
	struct bridge *bridge = listener->bridge;
	Pbeam__BridgeStream *about = message_new(&pbeam__bridge_stream__descriptor);
	struct bridge_stream *stream = NULL;
	struct err err = ERR_INIT;

	if (about && accepted_describe(listener, fd, about, &err) == 0) {
		about->id = bridge->next_id++;
		stream = bridge_stream_new(bridge, about, fd, true);
	}
	if (!stream) {
		message_free(about);
		close(fd);
		return -ENOMEM;
	}
	stream->socket = true;
	stream->channel = listener->channel;
	stream->of = listener;
	stream->opened = listener->next_number;
	if (bridge_watch(bridge, fd, &stream->watch, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) < 0 ||
	    bridge_stream_append(listener, PBEAM__BRIDGE_RECORD__KIND__OPEN, NULL, 0, NULL, 0, about) < 0)
		bridge_stream_reset(stream);
	message_free(about);
	return 0;
}

void listener_accept(struct bridge_stream *stream)
{
	while (stream->fd >= 0 && stream->readable && stream->channel &&
	       stream->weight < (size_t)OPEN_MAX * 64) {
		int fd = accept4(stream->fd, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
			continue;
		if (fd < 0) {
			stream->readable = false;
			return;
		}
		stream->called_ns = io_now_ns(CLOCK_MONOTONIC);
		if (accepted_open_stream(stream, fd) < 0)
			return;
	}
}

/* Enters the caller in the name table before the program can accept the connection. The connection comes from
 * a socket of the bridge; the table translates its address to the caller's. */
static void name_caller(struct bridge *bridge, int fd, const ProtobufCBinaryData *at,
			const Pbeam__BridgeStream *opened, bool *named)
{
	struct name_address name = {.protocol = IPPROTO_TCP, .vpid = {opened->vpid}, .caller = true};
	struct inet_address own, real = {.len = sizeof(real.v6)}, peer;

	if (!bridge->names || !inet_address_parse(at, &own) || !inet_address_parse(&opened->peer, &peer))
		return;
	inet_set_port(&own, 0);
	if (bind(fd, &own.any, own.len) < 0 || getsockname(fd, &real.any, &real.len) < 0)
		return;
	memcpy(&name.name, &peer.any, peer.len);
	memcpy(&name.real, &real.any, real.len);
	(void)names_cluster(bridge->names, name.host);
	*named = names_address_set(bridge->names, &name, NULL, 0) == 0;
}

/* Lets the table find the caller by the program's socket. */
static void name_accepted(const struct bridge_stream *stream)
{
	struct inet_address own, peer;
	struct name_socket name = {0};

	if (!stream->bridge->names || !inet_address_parse(&stream->about->local, &own) ||
	    !inet_address_parse(&stream->about->peer, &peer))
		return;
	memcpy(&name.own, &own.any, own.len);
	memcpy(&name.peer, &peer.any, peer.len);
	if (names_socket_set(stream->bridge->names, stream->ino, &name) < 0)
		log_debug("bridge: the addresses of %s are those of the bridge", stream->about->text);
}

void listener_forget(struct bridge_stream *stream)
{
	struct name_address name = {.protocol = IPPROTO_TCP, .caller = true};
	struct inet_address peer;

	/* in a coordinator that has started the bridge the name belongs to the bridge */
	if (stream->named && !stream->bridge->started && inet_address_parse(&stream->about->peer, &peer)) {
		memcpy(&name.name, &peer.any, peer.len);
		names_address_remove(stream->bridge->names, &name);
	}
	stream->named = false;
}

/* Connects to the program. Returns the socket, or -errno; -EAGAIN: try again later. */
static int accepted_announce(const struct bridge_stream *listener, const Pbeam__BridgeStream *opened,
			     bool *named)
{
	const ProtobufCBinaryData *at = &listener->about->local;
	bool packet = opened->kind == PBEAM__BRIDGE_STREAM__KIND__MESSAGES;
	auto_close int fd = -1;
	int one = 1;

	if (at->len < sizeof(sa_family_t) || at->len > sizeof(struct sockaddr_storage))
		return -EBADMSG;
	fd = socket(listener->about->family,
		    (packet ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (listener->about->family != AF_UNIX)
		name_caller(listener->bridge, fd, at, opened, named);
	if (listener->about->family != AF_UNIX)
		(void)!setsockopt(fd, IPPROTO_TCP, 1 /* TCP_NODELAY */, &one, sizeof(one));
	if (connect(fd, (const struct sockaddr *)(const void *)at->data, (socklen_t)at->len) < 0 &&
	    errno != EINPROGRESS)
		return -errno;
	return steal_fd(&fd);
}

bool listener_connect(struct bridge_stream *listener, const Pbeam__BridgeStream *opened)
{
	struct bridge *bridge = listener->bridge;
	struct bridge_stream *stream;
	bool named = false;
	int fd;

	if (bridge_stream_find(bridge, listener->channel, opened->id))
		return true; /* the caller moved here with the program */
	fd = accepted_announce(listener, opened, &named);
	if (fd == -EAGAIN)
		return false;
	stream = bridge_stream_new(bridge, opened, fd, false);
	if (!stream) {
		if (fd >= 0)
			close(fd);
		return true;
	}
	stream->socket = true;
	stream->named = named;
	stream->fresh = true;
	stream->of = listener;
	stream->channel = listener->channel;
	stream->attaching = listener->attaching;
	if (message_bytes(&stream->about->cookie, listener->about->cookie.data, listener->about->cookie.len) <
		    0 ||
	    message_string(&stream->about->host, listener->about->host) < 0 || fd < 0 ||
	    bridge_watch(bridge, fd, &stream->watch, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) < 0) {
		if (bridge_stream_append(stream, PBEAM__BRIDGE_RECORD__KIND__RESET, NULL, 0, NULL, 0, NULL) <
		    0)
			log_warn("bridge: %s is lost", opened->text);
		bridge_stream_reset(stream);
	}
	return true;
}

/* True if a UNIX connection was accepted: one that waits has no peer yet. */
static bool unix_accepted(struct bridge_stream *stream)
{
	struct unix_diag_table table = {0};
	const struct unix_diag *own;

	if (unix_diag_read(&table, NULL) == 0) {
		own = unix_diag_find(&table, bridge_stream_socket_ino(stream->fd));
		stream->ino = own ? own->peer : 0;
	}
	unix_diag_free(&table);
	return stream->ino != 0;
}

bool listener_accepted(struct bridge_stream *stream)
{
	struct inet_address own, peer;
	struct inet_diag_answer answer;

	if (!stream->fresh)
		return true;
	own.len = peer.len = sizeof(own.v6);
	if (stream->fd < 0) {
		stream->fresh = false;
	} else if (stream->about->family == AF_UNIX) {
		stream->fresh = !unix_accepted(stream);
	} else if (getsockname(stream->fd, &own.any, &own.len) == 0 &&
		   getpeername(stream->fd, &peer.any, &peer.len) == 0 &&
		   inet_diag_tcp(&peer, &own, &answer) == 0 && answer.ino) {
		stream->fresh = false;
		stream->ino = answer.ino;
		name_accepted(stream);
	}
	return !stream->fresh;
}
