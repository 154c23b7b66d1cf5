/*
 * The channel to another daemon. It becomes the channel of a host once the first message has described that
 * host. It replaces an old channel of the same instance (a daemon that was killed and started again); another
 * host with the same name is turned away.
 */
#include "pbeamd/transport/peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "base/list.h"
#include "base/log.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/host.h"
#include "pbeamd/transport/host_info.h"
#include "pbeamd/transport/remote_request.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "proto/stream.h"

enum {
	SILENT_MS = 4000,    /* a peer that is silent for so long is given up */
	STALLED_MS = 2000,   /* this daemon has not run: it could not receive anything */
	QUEUE_MAX = 64 << 20 /* waiting to be sent: it takes nothing any more */
};

void peer_close(struct peer *peer)
{
	struct cluster *cluster = peer->cluster;

	list_remove(&cluster->peers, peer);
	remote_lost(peer);
	if (peer->host) {
		peer->host->peer = NULL;
		peer->host->quiet_ns = io_now_ns(CLOCK_MONOTONIC);
		cluster->calls->lost(cluster, peer);
	}
	stream_close(&peer->stream);
	free(peer);
}

static void peer_lose_channel(struct peer *peer, const char *why)
{
	struct host *host = peer->host;

	if (host && !host->said_lost) {
		log_warn("host %s is lost: %s", peer->name, why);
		host->said_lost = true;
		host->heard_ns = 0;
	} else if (!host) {
		log_warn("%s (%s): %s", peer->address, peer->name, why);
	}
	peer_close(peer);
}

static void turn_away(struct peer *peer, const struct err *why)
{
	log_warn("%s (%s) is turned away: %s", peer->address, peer->name, why->text);
	/* the message is small and the channel is new: this does not block for long */
	rpc_refuse(peer->stream.fd, why);
	host_dial_later(peer->cluster, peer->name);
	peer_close(peer);
}

/* Makes a new channel that of the host that it describes. */
static int peer_adopt_channel(struct peer *peer, const Pbeam__HostInfo *info, struct err *err)
{
	struct cluster *cluster = peer->cluster;
	struct host *host;

	if (strcmp(info->name, peer->name) != 0)
		return err_set(err, -EPROTO, "it gave the name %s and then another", peer->name);
	if (cluster->calls->check(peer, info, err) < 0)
		return err->code;
	host = host_get(cluster, peer->name);
	if (!host)
		return err_code(err, -ENOMEM, "host %s", peer->name);
	if (host->info && host->info->instance.len &&
	    !message_same_bytes(&host->info->instance, &info->instance))
		return err_set(
			err, -EADDRINUSE,
			"another host is called %s; give it another --host-name, or let go of the old one "
			"with `pbeamctl hosts --remove %s`",
			peer->name, peer->name);
	if (host->peer)
		peer_close(host->peer);
	host->peer = peer;
	peer->host = host;
	log_info("host %s is up (%s)", peer->name, peer->address);
	return 0;
}

/* A host that listens on all its addresses is reached by the address that it connects from. */
static int complete_address(const struct peer *peer, Pbeam__HostInfo *info)
{
	const char *end = strrchr(peer->address, ':');
	const char *start = peer->address;
	char text[CLUSTER_ADDRESS_MAX];

	if (info->address[0] || !info->port || !end)
		return 0;
	if (*start == '[') {
		start++;
		end--;
	}
	snprintf(text, sizeof(text), "%.*s", (int)(end - start), start);
	return message_string(&info->address, text);
}

static bool peer_is_valid(const Pbeam__HostInfo *info)
{
	return channel_host_ok(info->name) && info->port <= 65535 && strlen(info->address) < 256 &&
	       info->n_addresses < 256 && info->n_depends < 4096 && info->instance.len <= 64 &&
	       info->vdso_digest.len <= 64 && info->term <= UINT32_MAX &&
	       (!info->central_host[0] || channel_host_ok(info->central_host)) &&
	       strlen(info->central_address) < CLUSTER_ADDRESS_MAX &&
	       (!info->cluster.len || info->cluster.len == CLUSTER_INSTANCE_SIZE);
}

/* The central daemon's description of another host counts where this host has no channel to it. */
static void take_word(struct peer *peer, Pbeam__HostInfo *info)
{
	struct cluster *cluster = peer->cluster;
	struct host *host;

	if (cluster->central || !cluster_is_central(cluster, peer->name) ||
	    !strcmp(info->name, cluster->options->name)) {
		message_free(info);
		return;
	}
	host = host_get(cluster, info->name);
	if (!host || host->peer)
		message_free(info);
	else if (info->state == PBEAM__HOST_INFO__STATE__UP)
		host_heard(host, info);
	else {
		message_free(host->info);
		host->info = info;
	}
}

static void on_host(struct peer *peer, const struct frame *frame)
{
	bool known = peer->host != NULL;
	struct err err = ERR_INIT;
	Pbeam__HostInfo *info = (Pbeam__HostInfo *)frame_unpack(frame, &pbeam__host_info__descriptor, &err);

	if (!info || !peer_is_valid(info)) {
		message_free(info);
		peer_lose_channel(peer, "it describes no host");
		return;
	}
	if (!peer->host && peer_adopt_channel(peer, info, &err) < 0) {
		message_free(info);
		turn_away(peer, &err);
		return;
	}
	if (strcmp(info->name, peer->name) != 0) {
		take_word(peer, info);
	} else if (complete_address(peer, info) < 0) {
		message_free(info);
	} else {
		info->state = PBEAM__HOST_INFO__STATE__UP;
		host_heard(peer->host, info);
		peer->cluster->calls->described(peer, info, !known);
	}
}

static void on_refused(struct peer *peer, const struct frame *frame)
{
	Pbeam__Failed *refused = (Pbeam__Failed *)frame_unpack(frame, &pbeam__failed__descriptor, NULL);

	log_error("host %s refuses this one: %s", peer->name, refused ? refused->text : "no reason given");
	message_free(refused);
	host_dial_later(peer->cluster, peer->name);
	peer_close(peer);
}

static void peer_on_frame(struct stream *stream, struct frame *frame)
{
	struct peer *peer = stream->owner;

	peer->heard_ns = io_now_ns(CLOCK_MONOTONIC);
	if (frame->type == PBEAM__CHANNEL_MESSAGE__PEER_HOST) {
		on_host(peer, frame);
	} else if (frame->type == PBEAM__RPC__RPC_FAILED) {
		on_refused(peer, frame);
	} else if (frame->type >= PBEAM__CHANNEL_MESSAGE__PEER_REQUEST &&
		   frame->type <= PBEAM__CHANNEL_MESSAGE__PEER_REPLY) {
		if (!remote_frame(peer, frame))
			peer_lose_channel(peer, "it sent a malformed request or reply");
	} else if (frame->type >= PBEAM__CHANNEL_MESSAGE__PEER_REGISTRY &&
		   frame->type <= PBEAM__CHANNEL_MESSAGE__PEER_HEARD) {
		if (!peer->cluster->calls->frame(peer, frame))
			peer_lose_channel(peer, "invalid message about the registry");
	} else {
		char text[64];

		snprintf(text, sizeof(text), "it sent message %u, which is not allowed now", frame->type);
		peer_lose_channel(peer, text);
	}
}

static void peer_on_end(struct stream *stream, const struct err *err)
{
	peer_lose_channel(stream->owner, err->code ? err->text : "its channel ended");
}

static void peer_log_state(struct peer *peer, const Pbeam__HostInfo *info)
{
	if (stream_send(&peer->stream, PBEAM__CHANNEL_MESSAGE__PEER_HOST, &info->base, NULL, 0) < 0)
		log_error("cannot send to host %s: no memory", peer->name);
}

void peer_open(struct cluster *cluster, int fd, const char *name, const char *address)
{
	static const struct stream_calls calls = {peer_on_frame, peer_on_end, NULL};
	struct peer *peer = calloc(1, sizeof(*peer));

	if (!peer) {
		close(fd);
		return;
	}
	if (stream_open(&peer->stream, cluster->server->base, fd, &calls, peer) < 0) {
		free(peer);
		return;
	}
	peer->cluster = cluster;
	snprintf(peer->name, sizeof(peer->name), "%s", name);
	snprintf(peer->address, sizeof(peer->address), "%s", address);
	peer->heard_ns = io_now_ns(CLOCK_MONOTONIC);
	peer->next = cluster->peers;
	cluster->peers = peer;
	peer_log_state(peer, cluster->self);
}

/* The central daemon forwards the descriptions of all hosts. */
static void tell_of_others(struct peer *peer)
{
	for (const struct host *host = peer->cluster->hosts; host; host = host->next)
		if (host->info && host != peer->host) {
			host->info->state = host_is_up(host) ? PBEAM__HOST_INFO__STATE__UP
							     : PBEAM__HOST_INFO__STATE__LOST;
			peer_log_state(peer, host->info);
		}
}

void peers_say(struct cluster *cluster)
{
	for (struct peer *peer = cluster->peers; peer; peer = peer->next)
		peer_log_state(peer, cluster->self);
}

void peers_tick(struct cluster *cluster, uint64_t now_ns)
{
	bool stalled = now_ns - cluster->ticked_ns > STALLED_MS * 1000000ull;
	struct peer *next;

	host_info_refresh(cluster, cluster->self);
	for (struct peer *peer = cluster->peers; peer; peer = next) {
		next = peer->next;
		if (stalled)
			peer->heard_ns = now_ns;
		if (now_ns > peer->heard_ns + SILENT_MS * 1000000ull) {
			peer_lose_channel(peer, "it has been silent");
			continue;
		}
		if (peer->stream.queued > QUEUE_MAX) {
			peer_lose_channel(peer, "it does not read any more");
			continue;
		}
		peer_log_state(peer, cluster->self);
		if (cluster->central && peer->host)
			tell_of_others(peer);
	}
}

int peer_send(struct host *host, uint32_t type, const ProtobufCMessage *message)
{
	if (!host->peer)
		return -EHOSTUNREACH;
	return stream_send(&host->peer->stream, type, message, NULL, 0);
}
