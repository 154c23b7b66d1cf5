#include "scip/job/link_peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "proto/message.h"
#include "scip/job/link_work.h"

struct dial {
	struct link_peer *peer; /* peers are never freed */
	int sock;		/* or -errno */
	struct err err;
};

bool link_peer_is_connected(const struct link_peer *peer)
{
	return peer->stream.fd >= 0;
}

void link_peer_send(struct link_peer *peer, uint32_t type, const ProtobufCMessage *message)
{
	if (link_peer_is_connected(peer) && stream_send(&peer->stream, type, message, NULL, 0) < 0)
		log_error("a message for %s is lost", peer->host);
}

void link_peer_drop(struct link_peer *peer)
{
	stream_close(&peer->stream);
	peer->process->calls->unconnected(peer->process, peer, 0);
}

static void on_peer_end(struct stream *stream, const struct err *err)
{
	struct link_peer *peer = stream->owner;

	if (err->code)
		log_info("the job's links to %s: %s", peer->host, err->text);
	link_peer_drop(peer);
}

static void on_peer_frame(struct stream *stream, struct frame *frame)
{
	struct link_peer *peer = stream->owner;
	const bool console = frame->type >= PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_HELLO &&
			     frame->type <= PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_REFUSED;
	ProtobufCMessage *message = frame_unpack(
		frame, console ? &pbeam__remote_console__descriptor : &pbeam__stub_link__descriptor, NULL);

	if (!message)
		link_peer_drop(peer);
	else if (console)
		peer->process->calls->console_frame(peer->process, frame->type, (void *)message);
	else
		peer->process->calls->link_frame(peer->process, frame->type, (void *)message);
	message_free(message);
}

static void connect_to_host(void *arg)
{
	struct dial *dial = arg;

	dial->sock = channel_open(dial->peer->host, PBEAM__CHANNEL_KIND__CHANNEL_SESSION,
				  dial->peer->process->cookie, &dial->err);
}

static void on_dialed(void *arg)
{
	static const struct stream_calls calls = {.frame = on_peer_frame, .end = on_peer_end};
	struct dial *dial = arg;
	struct link_peer *peer = dial->peer;
	int r = dial->sock;

	peer->dialing = false;
	if (r >= 0)
		r = stream_open(&peer->stream, peer->process->base, r, &calls, peer);
	if (r < 0) {
		peer->stream.fd = -1;
		if (r != -EADDRNOTAVAIL)
			log_info("the job's keeper on %s cannot be reached: %s", peer->host, dial->err.text);
		peer->process->calls->unconnected(peer->process, peer, r);
	} else {
		peer->process->calls->connected(peer->process, peer);
	}
	free(dial);
}

struct link_peer *link_peer_want(struct link_process *process, const char *host)
{
	struct link_peer *peer = process->peers;
	struct dial *dial;

	while (peer && strcmp(peer->host, host) != 0)
		peer = peer->next;
	if (!peer) {
		peer = calloc(1, sizeof(*peer));
		if (!peer)
			return NULL;
		peer->process = process;
		peer->stream.fd = -1;
		snprintf(peer->host, sizeof(peer->host), "%s", host);
		peer->next = process->peers;
		process->peers = peer;
	}
	if (link_peer_is_connected(peer) || peer->dialing)
		return peer;
	dial = calloc(1, sizeof(*dial));
	if (!dial)
		return NULL;
	dial->peer = peer;
	peer->dialing = true;
	link_work_start(connect_to_host, on_dialed, dial);
	return peer;
}
