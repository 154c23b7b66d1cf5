#include "pbeamd/registry/registry.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/io.h"
#include "base/log.h"
#include "proto/message.h"

/* A local program that waits for its answer. */
struct registry_wait {
	struct registry_wait *next;
	struct cluster *cluster;
	struct connection *connection; /* NULL: it is gone */
	registry_answer_fn answer;
};

/* ---- changes ---- */

static void on_seen(void *arg, const Pbeam__RegistryEntry *entry)
{
	registry_names_seen(arg, entry);
}

static void broadcast(const struct cluster *cluster, const Pbeam__RegistryChanges *changes)
{
	for (struct host *host = cluster->hosts; host; host = host->next)
		if (host->peer && peer_send(host, PBEAM__CHANNEL_MESSAGE__PEER_CHANGES, &changes->base) < 0)
			log_error("host %s misses a change: no memory", host->name);
}

static void on_changed(void *arg, const Pbeam__RegistryChanges *changes)
{
	struct cluster *cluster = arg;
	bool first = !registry_copy_ready(cluster->copy);
	int r = registry_copy_apply(cluster->copy, changes, on_seen, cluster);

	if (r < 0)
		log_error("the copy of the registry is behind: %s", strerror(-r));
	if (r == 0 && first && changes->whole) {
		registry_names_settle(cluster);
		numbers_tick(cluster, io_now_ns(CLOCK_MONOTONIC));
	}
	if (cluster->central)
		broadcast(cluster, changes);
}

int registry_open(struct cluster *cluster, struct err *err)
{
	int r;

	cluster->copy = registry_copy_new();
	if (!cluster->copy)
		return err_code(err, -ENOMEM, "registry");
	r = cluster->central ? registry_store_open(&cluster->registry, err)
			     : registry_remote_open(&cluster->registry, cluster, err);
	if (r == 0)
		cluster->registry.operations->watch(cluster->registry.engine, on_changed, cluster);
	return r;
}

void registry_close(struct cluster *cluster)
{
	heard_close(cluster);
	if (cluster->registry.operations)
		cluster->registry.operations->close(cluster->registry.engine);
	cluster->registry.operations = NULL;
	registry_copy_free(cluster->copy);
	cluster->copy = NULL;
}

void registry_lost(struct cluster *cluster, const struct peer *peer, bool central)
{
	heard_lose(cluster, peer);
	if (central && !cluster->central && cluster->registry.operations)
		registry_remote_lost(&cluster->registry);
}

/* ---- other hosts ---- */

static void ignore(void *arg, const Pbeam__RegistryReply *reply)
{
	if (reply->code < 0 && reply->code != -EEXIST)
		log_warn("%s", reply->text);
}

/* The host is written down, so that all know of it when it is lost and the central daemon starts anew. */
static void record_host(struct cluster *cluster, const struct host *host)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;
	Pbeam__HostInfo info = PBEAM__HOST_INFO__INIT;
	const Pbeam__RegistryEntry *entry;
	char key[CHANNEL_HOST_MAX + 8];
	uint8_t *bytes;

	snprintf(key, sizeof(key), "host/%s", host->name);
	entry = registry_copy_get(cluster->copy, key);
	info.name = host->info->name;
	info.address = host->info->address;
	info.port = host->info->port;
	info.kernel = host->info->kernel;
	info.machine = host->info->machine;
	info.processors = host->info->processors;
	info.memory_total = host->info->memory_total;
	info.instance = host->info->instance;
	info.central = host->info->central;
	request.value.len = pbeam__host_info__get_packed_size(&info);
	bytes = malloc(request.value.len + 1);
	if (!bytes)
		return;
	request.value.data = bytes;
	pbeam__host_info__pack(&info, bytes);
	if (!entry || entry->value.len != request.value.len ||
	    memcmp(entry->value.data, bytes, request.value.len) != 0) {
		request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
		request.key = key;
		request.expected = entry ? entry->version : 0;
		registry_ask(cluster, &request, ignore, NULL);
	}
	free(bytes);
}

void registry_greet(struct peer *peer)
{
	struct cluster *cluster = peer->cluster;
	Pbeam__RegistryChanges *whole;

	if (!cluster->central)
		return;
	whole = registry_copy_whole(cluster->copy);
	if (!whole || peer_send(peer->host, PBEAM__CHANNEL_MESSAGE__PEER_CHANGES, &whole->base) < 0)
		log_error("host %s cannot be told of the registry: no memory", peer->name);
	message_free(whole);
	record_host(cluster, peer->host);
}

struct answer {
	struct peer *peer;
	uint64_t id;
};

static void on_done_for_peer(void *arg, const Pbeam__RegistryReply *reply)
{
	struct answer *answer = arg;
	Pbeam__RegistryReply out = *reply;

	out.id = answer->id;
	if (stream_send(&answer->peer->stream, PBEAM__CHANNEL_MESSAGE__PEER_REGISTRY_REPLY, &out.base, NULL,
			0) < 0)
		log_error("host %s gets no answer: no memory", answer->peer->name);
	free(answer);
}

static bool on_request(struct peer *peer, const struct frame *frame)
{
	Pbeam__RegistryRequest *request =
		(Pbeam__RegistryRequest *)frame_unpack(frame, &pbeam__registry_request__descriptor, NULL);
	struct answer *answer = request ? malloc(sizeof(*answer)) : NULL;

	if (answer) {
		*answer = (struct answer){peer, request->id};
		heard_carry_out(peer->cluster, request, peer, on_done_for_peer, answer);
	}
	message_free(request);
	return answer != NULL;
}

/* As far as the central daemon has told us. */
static void say_heard(struct peer *peer, uint64_t revision)
{
	Pbeam__RegistryChanges heard = PBEAM__REGISTRY_CHANGES__INIT;

	heard.revision = revision;
	if (stream_send(&peer->stream, PBEAM__CHANNEL_MESSAGE__PEER_HEARD, &heard.base, NULL, 0) < 0)
		log_error("host %s is not told what is known here: no memory", peer->name);
}

static bool on_heard(struct peer *peer, const struct frame *frame)
{
	Pbeam__RegistryChanges *heard =
		(Pbeam__RegistryChanges *)frame_unpack(frame, &pbeam__registry_changes__descriptor, NULL);

	if (heard)
		heard_of(peer, heard->revision);
	message_free(heard);
	return heard != NULL;
}

bool registry_frame(struct peer *peer, const struct frame *frame)
{
	struct cluster *cluster = peer->cluster;
	bool from_central = peer->host && peer->host->info && peer->host->info->central;
	uint64_t revision;

	if (frame->type == PBEAM__CHANNEL_MESSAGE__PEER_REGISTRY)
		return peer->host && cluster->central && on_request(peer, frame);
	if (frame->type == PBEAM__CHANNEL_MESSAGE__PEER_HEARD)
		return peer->host && cluster->central && on_heard(peer, frame);
	if (!from_central || cluster->central)
		return false;
	if (frame->type == PBEAM__CHANNEL_MESSAGE__PEER_REGISTRY_REPLY)
		return registry_remote_reply(&cluster->registry, frame);
	if (frame->type != PBEAM__CHANNEL_MESSAGE__PEER_CHANGES ||
	    !registry_remote_changes(&cluster->registry, frame, &revision))
		return false;
	say_heard(peer, revision);
	return true;
}

/* ---- this host ---- */

void registry_ask(struct cluster *cluster, const Pbeam__RegistryRequest *request, registry_done_fn done,
		  void *arg)
{
	heard_carry_out(cluster, request, NULL, done, arg);
}

static void on_done_here(void *arg, const Pbeam__RegistryReply *reply)
{
	struct registry_wait *wait = arg;

	if (wait->connection)
		wait->answer(wait->connection, reply);
	for (struct registry_wait **p = &wait->cluster->waits; *p; p = &(*p)->next)
		if (*p == wait) {
			*p = wait->next;
			break;
		}
	free(wait);
}

void registry_forget_connection(struct connection *connection)
{
	struct cluster *cluster = connection->server->cluster;

	for (struct registry_wait *wait = cluster ? cluster->waits : NULL; wait; wait = wait->next)
		if (wait->connection == connection)
			wait->connection = NULL;
}

int registry_ask_for(struct connection *connection, const Pbeam__RegistryRequest *request,
		     registry_answer_fn answer, struct err *err)
{
	struct cluster *cluster = connection->server->cluster;
	struct registry_wait *wait = calloc(1, sizeof(*wait));

	if (!wait)
		return err_code(err, -ENOMEM, "ask the registry");
	*wait = (struct registry_wait){cluster->waits, cluster, connection, answer};
	cluster->waits = wait;
	connection->phase = CONNECTION_BUSY;
	registry_ask(cluster, request, on_done_here, wait);
	return 0;
}

static void relay_reply(struct connection *connection, const Pbeam__RegistryReply *reply)
{
	connection_reply(connection, &reply->base);
}

int handle_registry(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	int r = cluster_need(connection->server, err);

	return r < 0 ? r
		     : registry_ask_for(connection, (const Pbeam__RegistryRequest *)message, relay_reply,
					err);
}
