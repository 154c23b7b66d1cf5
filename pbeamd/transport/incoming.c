/*
 * Connections without a greeting yet. Each has a process that speaks TLS and ends by itself without a
 * handshake in time; after the handshake the greeting has to come in time. Their number is limited, in all
 * and for each address: a stranger that opens connections cannot fill the table for others.
 */
#include "pbeamd/transport/incoming.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/list.h"
#include "base/log.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/route.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "proto/stream.h"

enum { PENDING_MAX = 64, PENDING_OF_ONE_MAX = 16, GREETING_S = 15 };

struct incoming {
	struct incoming *next;
	struct cluster *cluster;
	struct stream stream;
	struct event *patience;
	char address[CLUSTER_ADDRESS_MAX];
};

static void incoming_free(struct incoming *incoming)
{
	list_remove(&incoming->cluster->incoming, incoming);
	if (incoming->patience)
		event_free(incoming->patience);
	stream_close(&incoming->stream);
	free(incoming);
}

static void incoming_on_timeout(evutil_socket_t fd, short what, void *arg)
{
	struct incoming *incoming = arg;

	log_warn("%s is turned away: it sent no greeting", incoming->address);
	incoming_free(incoming);
}

static void incoming_on_frame(struct stream *stream, struct frame *frame)
{
	struct incoming *incoming = stream->owner;
	struct cluster *cluster = incoming->cluster;
	Pbeam__ChannelHello *hello;
	struct err err = ERR_INIT;
	int fd, r = channel_check_hello(frame, cluster->options->name, &hello, &err);

	if (r == 0) {
		fd = dup(stream->fd); /* the stream's own is closed with it */
		r = fd < 0 ? err_sys(&err, "take the channel")
			   : route_channel(cluster, fd, hello, incoming->address, &err);
		message_free(hello);
	}
	if (r < 0) {
		log_warn("%s is turned away: %s", incoming->address, err.text);
		rpc_refuse(stream->fd, &err);
	}
	incoming_free(incoming);
}

static void incoming_on_end(struct stream *stream, const struct err *err)
{
	struct incoming *incoming = stream->owner;

	log_warn("%s is turned away: %s", incoming->address,
		 err->code ? err->text : "it ended the connection without a greeting");
	incoming_free(incoming);
}

/* The address without the port. */
static size_t host_len(const char *address)
{
	const char *colon = strrchr(address, ':');

	return colon ? (size_t)(colon - address) : strlen(address);
}

static bool is_too_many(const struct cluster *cluster, const char *address)
{
	size_t len = host_len(address);
	int all = 0, of_one = 0;

	for (const struct incoming *i = cluster->incoming; i; i = i->next) {
		all++;
		if (host_len(i->address) == len && !strncmp(i->address, address, len))
			of_one++;
	}
	return all >= PENDING_MAX || of_one >= PENDING_OF_ONE_MAX;
}

static struct incoming *incoming_add(struct cluster *cluster, int fd)
{
	static const struct stream_calls calls = {incoming_on_frame, incoming_on_end, NULL};
	const struct timeval patience = {GREETING_S, 0};
	struct incoming *incoming = calloc(1, sizeof(*incoming));

	if (!incoming) {
		close(fd);
		return NULL;
	}
	incoming->cluster = cluster;
	incoming->next = cluster->incoming;
	cluster->incoming = incoming;
	incoming->patience = event_new(cluster->server->base, -1, 0, incoming_on_timeout, incoming);
	if (stream_open(&incoming->stream, cluster->server->base, fd, &calls, incoming) < 0)
		incoming->stream.fd = -1;
	if (incoming->stream.fd < 0 || !incoming->patience || event_add(incoming->patience, &patience) < 0) {
		incoming_free(incoming);
		return NULL;
	}
	return incoming;
}

void incoming_accept(struct cluster *cluster, int tcp)
{
	char address[CLUSTER_ADDRESS_MAX];
	struct incoming *incoming;
	struct err err = ERR_INIT;
	int fd;

	channel_peer_name(tcp, address, sizeof(address));
	if (is_too_many(cluster, address)) {
		log_warn("%s is turned away: too many connections without a greeting", address);
		close(tcp);
		return;
	}
	fd = channel_accept(tcp, &cluster->key, &err);
	incoming = fd < 0 ? NULL : incoming_add(cluster, fd);
	if (!incoming)
		log_error("%s is turned away: %s", address, fd < 0 ? err.text : "no memory");
	else
		strcpy(incoming->address, address);
}

void incoming_close_all(struct cluster *cluster)
{
	while (cluster->incoming)
		incoming_free(cluster->incoming);
}

void incoming_leave_child(const struct cluster *cluster)
{
	for (const struct incoming *i = cluster->incoming; i; i = i->next)
		close(i->stream.fd);
}
