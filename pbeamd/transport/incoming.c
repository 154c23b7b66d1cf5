/*
 * Connections without a greeting yet. Which are taken at all says admission.h. A connection is at first a
 * descriptor only, and closed if it stays silent. When the first message of TLS is there a process is started
 * that speaks TLS, and ends by itself without a handshake in time; then the greeting has to come in time.
 */
#include "pbeamd/transport/incoming.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "base/list.h"
#include "base/log.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/host.h"
#include "pbeamd/transport/route.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "proto/stream.h"

enum { SILENCE_S = 5, GREETING_S = 15, REFUSALS_LOGGED_S = 10 };

struct incoming {
	struct incoming *next;
	struct cluster *cluster;
	int tcp;	     /* until there is a stream */
	struct event *first; /* its first message */
	bool streaming;
	struct stream stream;
	struct event *silence, *patience;
	bool known; /* from the address of a host */
	struct origin origin;
	char address[CLUSTER_ADDRESS_MAX];
};

static void incoming_free(struct incoming *incoming)
{
	struct event *all[] = {incoming->first, incoming->silence, incoming->patience};

	list_remove(&incoming->cluster->incoming, incoming);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i])
			event_free(all[i]);
	if (incoming->streaming)
		stream_close(&incoming->stream);
	if (incoming->tcp >= 0)
		close(incoming->tcp);
	free(incoming);
}

static void incoming_on_timeout(evutil_socket_t fd, short what, void *arg)
{
	struct incoming *incoming = arg;

	log_warn("%s is turned away: it sent no greeting", incoming->address);
	incoming_free(incoming);
}

static void incoming_on_silence(evutil_socket_t fd, short what, void *arg)
{
	struct incoming *incoming = arg;

	if (incoming->streaming)
		return;
	log_warn("%s is turned away: it sent no message within %d s", incoming->address, SILENCE_S);
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
		admission_remember(&cluster->known, &incoming->origin);
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

/* ---- which are taken ---- */

/* True for a source that is a host of the cluster: it has greeted, or its address is known as a number. */
static bool is_known(const struct cluster *cluster, const struct origin *origin)
{
	struct origin other;

	if (origin->family == ORIGIN_UNKNOWN)
		return false;
	other = origin_of_text(cluster_central_address(cluster));
	if (admission_knows(&cluster->known, origin) || origin_is_same_source(&other, origin))
		return true;
	for (const struct host *host = cluster->hosts; host; host = host->next) {
		char address[CLUSTER_ADDRESS_MAX];

		if (!host->info || !host_listens(host->info, address))
			continue;
		other = origin_of_text(address);
		if (origin_is_same_source(&other, origin))
			return true;
	}
	return false;
}

static enum admission decide_about_known(const struct cluster *cluster, const struct origin *origin)
{
	int n = 0;

	for (const struct incoming *i = cluster->incoming; i; i = i->next)
		n += i->known && origin_is_same_source(&i->origin, origin);
	return n >= ADMISSION_OF_KNOWN_MAX ? ADMISSION_SOURCE_FULL : ADMISSION_TAKEN;
}

static enum admission decide_about_stranger(const struct cluster *cluster, const struct origin *origin)
{
	struct admission_count pending = {.all = 0};
	uint32_t chance = 0;

	for (const struct incoming *i = cluster->incoming; i; i = i->next) {
		if (i->known)
			continue;
		pending.all++;
		pending.network += origin_is_same_network(&i->origin, origin);
		pending.source += origin_is_same_source(&i->origin, origin);
	}
	if (getrandom(&chance, sizeof(chance), GRND_NONBLOCK) < 0)
		chance = 0; /* before the kernel has entropy: rather drop */
	return admission_decide(&cluster->options->startups, &pending, chance % 100);
}

/* One line in some seconds: a stranger shall not fill the log. */
static void incoming_log_refusal(struct cluster *cluster, const char *address, enum admission why)
{
	static const char *const reasons[] = {
		[ADMISSION_SOURCE_FULL] = "from its address",
		[ADMISSION_NETWORK_FULL] = "from its network",
		[ADMISSION_DROPPED] = "in all, of which some are dropped at random",
	};
	const uint64_t now_ns = io_now_ns(CLOCK_MONOTONIC);

	if (cluster->turned_away_ns && now_ns - cluster->turned_away_ns < REFUSALS_LOGGED_S * 1000000000ull) {
		cluster->turned_away++;
		return;
	}
	if (cluster->turned_away)
		log_warn("%lu more connections were turned away for the same reason", cluster->turned_away);
	log_warn("%s is turned away: too many connections without a greeting %s (max-startups)", address,
		 reasons[why]);
	cluster->turned_away = 0;
	cluster->turned_away_ns = now_ns;
}

/* ---- the first message ---- */

/* The client speaks TLS: from here on a process does. */
static int incoming_start_channel(struct incoming *incoming, struct err *err)
{
	static const struct stream_calls calls = {incoming_on_frame, incoming_on_end, NULL};
	struct cluster *cluster = incoming->cluster;
	int tcp = incoming->tcp, fd;

	event_free(incoming->first);
	incoming->first = NULL;
	incoming->tcp = -1;
	fd = channel_accept(tcp, &cluster->key, err);
	if (fd < 0)
		return fd;
	if (stream_open(&incoming->stream, cluster->server->base, fd, &calls, incoming) < 0)
		return err_set(err, -ENOMEM, "no memory");
	incoming->streaming = true;
	return 0;
}

static void incoming_on_first(evutil_socket_t tcp, short what, void *arg)
{
	struct incoming *incoming = arg;
	struct err err = ERR_INIT;
	int r = channel_look_first(tcp, &err);

	if (r > 0)
		r = incoming_start_channel(incoming, &err);
	if (r < 0) {
		log_warn("%s is turned away: %s", incoming->address, err.text);
		incoming_free(incoming);
	}
}

/* NULL without memory. Takes ownership of `tcp` then only. */
static struct incoming *incoming_add(struct cluster *cluster, int tcp)
{
	const struct timeval patience = {GREETING_S, 0}, silence = {SILENCE_S, 0};
	struct event_base *base = cluster->server->base;
	struct incoming *incoming = calloc(1, sizeof(*incoming));

	if (!incoming)
		return NULL;
	incoming->cluster = cluster;
	incoming->tcp = -1;
	incoming->next = cluster->incoming;
	cluster->incoming = incoming;
	incoming->patience = event_new(base, -1, 0, incoming_on_timeout, incoming);
	incoming->silence = event_new(base, -1, 0, incoming_on_silence, incoming);
	/* Edge-triggered: a part of the message stays in the socket until the rest comes. */
	incoming->first = event_new(base, tcp, EV_READ | EV_PERSIST | EV_ET, incoming_on_first, incoming);
	if (!incoming->patience || !incoming->silence || !incoming->first ||
	    event_add(incoming->patience, &patience) < 0 || event_add(incoming->silence, &silence) < 0 ||
	    event_add(incoming->first, NULL) < 0) {
		incoming_free(incoming);
		return NULL;
	}
	incoming->tcp = tcp;
	return incoming;
}

void incoming_accept(struct cluster *cluster, int tcp)
{
	const struct origin origin = origin_of_socket(tcp);
	const bool known = is_known(cluster, &origin);
	enum admission admission =
		known ? decide_about_known(cluster, &origin) : decide_about_stranger(cluster, &origin);
	char address[CLUSTER_ADDRESS_MAX];
	struct incoming *incoming;

	channel_peer_name(tcp, address, sizeof(address));
	if (admission != ADMISSION_TAKEN) {
		incoming_log_refusal(cluster, address, admission);
		channel_turn_away(tcp);
		close(tcp);
		return;
	}
	incoming = incoming_add(cluster, tcp);
	if (!incoming) {
		log_error("%s is turned away: no memory", address);
		close(tcp);
		return;
	}
	incoming->known = known;
	incoming->origin = origin;
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
		close(i->streaming ? i->stream.fd : i->tcp);
}
