
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/list.h"
#include "base/log.h"
#include "pbeamd/registry/registry_copy.h"
#include "pbeamd/registry/registry_engine.h"
#include "pbeamd/registry/registry_heard.h"
#include "pbeamd/registry/registry_names.h"
#include "pbeamd/registry/registry_remote.h"
#include "pbeamd/registry/registry_store.h"
#include "pbeamd/registry/stale_jobs.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/connection.h"
#include "pbeamd/transport/peer.h"
#include "pbeamd/transport/server.h"
#include "proto/message.h"
#include "proto/stream.h"

/* A local program that waits for its answer. */
struct registry_wait {
	struct registry_wait *next;
	struct cluster *cluster;
	struct connection *connection; /* NULL: it has ended */
	registry_answer_fn answer;
};

/* ---- hosts ---- */

static void registry_ignore_reply(void *arg, const Pbeam__RegistryReply *reply)
{
	if (reply->code < 0 && reply->code != -EEXIST)
		log_warn("%s", reply->text);
}

/* Records the host, so that all know it if it is lost and the central daemon starts again. */
static void record_host(struct cluster *cluster, const Pbeam__HostInfo *said)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;
	Pbeam__HostInfo info = PBEAM__HOST_INFO__INIT;
	const Pbeam__RegistryEntry *entry;
	char key[CHANNEL_HOST_MAX + 8];
	uint8_t *bytes;

	snprintf(key, sizeof(key), "host/%s", said->name);
	entry = registry_copy_get(cluster->copy, key);
	info.name = said->name;
	info.address = said->address;
	info.port = said->port;
	info.kernel = said->kernel;
	info.machine = said->machine;
	info.version = said->version;
	info.processors = said->processors;
	info.memory_total = said->memory_total;
	info.instance = said->instance;
	request.value.len = pbeam__host_info__get_packed_size(&info);
	bytes = malloc(request.value.len + 1);
	if (!bytes)
		return;
	request.value.data = bytes;
	pbeam__host_info__pack(&info, bytes);
	if (!entry || entry->value.len != request.value.len ||
	    !bytes_equal(entry->value.data, bytes, request.value.len)) {
		request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
		request.key = key;
		request.expected = entry ? entry->version : 0;
		registry_ask(cluster, &request, registry_ignore_reply, NULL);
	}
	free(bytes);
}

/* ---- changes ---- */

static void on_seen(void *arg, const Pbeam__RegistryEntry *entry)
{
	registry_names_seen(arg, entry);
}

static void registry_broadcast(const struct cluster *cluster, const Pbeam__RegistryChanges *changes)
{
	Pbeam__RegistryChanges said = *changes;

	said.term = cluster->state.term;
	for (struct host *host = cluster->hosts; host; host = host->next)
		if (host->peer && peer_send(host, PBEAM__CHANNEL_MESSAGE__PEER_CHANGES, &said.base) < 0)
			log_error("cannot send a change to host %s: no memory", host->name);
}

/* On the disk as well: this host may be the next central one. */
static void registry_keep_changes(struct cluster *cluster, const Pbeam__RegistryChanges *changes)
{
	bool all = changes->whole || !cluster->kept;
	struct err err = ERR_INIT;
	int r = registry_store_keep(&cluster->store, changes, all ? cluster->copy : NULL, &err);

	if (r < 0 && cluster->kept)
		log_error("cannot store the registry on this host: %s", err.text);
	cluster->kept = r == 0;
}

static int registry_take_changes(struct cluster *cluster, const Pbeam__RegistryChanges *changes)
{
	bool first = !registry_copy_ready(cluster->copy);
	int r = registry_copy_apply(cluster->copy, changes, on_seen, cluster);

	if (r < 0) {
		log_error("the copy of the registry is behind: %s", strerror(-r));
		cluster->kept = false;
	} else if (!cluster->central) {
		registry_keep_changes(cluster, changes);
	}
	if (r == 0 && first && changes->whole) {
		registry_names_settle(cluster);
		cluster->calls->ready(cluster);
	}
	if (r == 0 && changes->whole && !cluster->central)
		stale_jobs_look(cluster);
	return r;
}

static void on_changed(void *arg, const Pbeam__RegistryChanges *changes)
{
	struct cluster *cluster = arg;

	if (registry_take_changes(cluster, changes) < 0)
		return;
	if (cluster->central)
		registry_broadcast(cluster, changes);
}

int registry_take_whole(struct cluster *cluster, const Pbeam__RegistryChanges *whole)
{
	return registry_take_changes(cluster, whole);
}

Pbeam__RegistryChanges *registry_whole(struct cluster *cluster, struct err *err)
{
	Pbeam__RegistryChanges *whole;

	if (!registry_copy_ready(cluster->copy))
		return registry_store_whole(&cluster->store, err);
	whole = registry_copy_whole(cluster->copy);
	if (!whole)
		err_code(err, -ENOMEM, "registry");
	return whole;
}

static void registry_watch(struct cluster *cluster, const struct registry *registry)
{
	cluster->registry = *registry;
	registry->operations->watch(registry->engine, on_changed, cluster);
}

/* The other hosts must be known before the central one is found: perhaps another host has become central. */
static void recall_hosts(struct cluster *cluster)
{
	struct err err = ERR_INIT;
	Pbeam__RegistryChanges *whole = registry_store_whole(&cluster->store, &err);

	for (size_t i = 0; whole && i < whole->n_entries; i++)
		if (!strncmp(whole->entries[i]->key, "host/", 5))
			registry_names_seen(cluster, whole->entries[i]);
	if (!whole)
		log_error("%s", err.text);
	message_free(whole);
}

int registry_open(struct cluster *cluster, struct err *err)
{
	int r = registry_remote_open(&cluster->remote, cluster, err);

	cluster->copy = registry_copy_new();
	if (r == 0 && !cluster->copy)
		r = err_code(err, -ENOMEM, "registry");
	if (r < 0)
		return r;
	stale_jobs_away(cluster);
	registry_watch(cluster, cluster->central ? &cluster->store : &cluster->remote);
	if (cluster->central)
		record_host(cluster, cluster->self);
	else if (cluster->state.host[0])
		recall_hosts(cluster);
	return 0;
}

static void close_engine(struct registry *registry)
{
	if (registry->operations)
		registry->operations->close(registry->engine);
	registry->operations = NULL;
}

void registry_close(struct cluster *cluster)
{
	heard_close(cluster, NULL);
	stale_jobs_forget(cluster);
	cluster->registry.operations = NULL;
	close_engine(&cluster->remote);
	close_engine(&cluster->store);
	registry_copy_free(cluster->copy);
	cluster->copy = NULL;
}

void registry_lost(struct cluster *cluster, const struct peer *peer, bool central)
{
	heard_lose(cluster, peer);
	if (central && !cluster->central && cluster->registry.operations) {
		registry_remote_lost(&cluster->remote);
		stale_jobs_away(cluster);
	}
}

void registry_serve(struct cluster *cluster)
{
	registry_remote_lost(&cluster->remote);
	registry_watch(cluster, &cluster->store);
	for (const struct host *host = cluster->hosts; host; host = host->next)
		if (host->info)
			record_host(cluster, host->info);
}

void registry_follow(struct cluster *cluster)
{
	struct err err = ERR_INIT;

	err_set(&err, -ECONNRESET,
		"another host is the central one now; the request may or may not have been carried out");
	heard_close(cluster, &err);
	registry_remote_lost(&cluster->remote);
	stale_jobs_away(cluster);
	registry_watch(cluster, &cluster->remote);
}

/* ---- other hosts ---- */

void registry_greet(struct peer *peer)
{
	struct cluster *cluster = peer->cluster;
	Pbeam__RegistryChanges *whole;

	if (!cluster->central)
		return;
	whole = registry_copy_whole(cluster->copy);
	if (whole)
		whole->term = cluster->state.term;
	if (!whole || peer_send(peer->host, PBEAM__CHANNEL_MESSAGE__PEER_CHANGES, &whole->base) < 0)
		log_error("cannot send the registry to host %s: no memory", peer->name);
	message_free(whole);
	record_host(cluster, peer->host->info);
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
		log_error("cannot reply to host %s: no memory", answer->peer->name);
	free(answer);
}

/* A host that does not know yet that another one is central sends its request there. */
static void check_term(const struct cluster *cluster, const Pbeam__RegistryRequest *request, struct err *err)
{
	if (!cluster->central || request->term != cluster->state.term)
		err_set(err, -EHOSTUNREACH, "host %s is not the central one of term %llu",
			cluster->options->name, (unsigned long long)request->term);
}

static bool registry_on_request(struct peer *peer, const struct frame *frame)
{
	struct cluster *cluster = peer->cluster;
	struct err err = ERR_INIT;
	Pbeam__RegistryRequest *request =
		(Pbeam__RegistryRequest *)frame_unpack(frame, &pbeam__registry_request__descriptor, NULL);
	struct answer *answer = request ? malloc(sizeof(*answer)) : NULL;

	if (answer) {
		*answer = (struct answer){peer, request->id};
		check_term(cluster, request, &err);
		if (err.code)
			registry_refuse(&err, on_done_for_peer, answer);
		else
			heard_carry_out(cluster, request, peer, on_done_for_peer, answer);
	}
	message_free(request);
	return answer != NULL;
}

/* Reports the revision up to which this host has the changes. */
static void say_heard(struct peer *peer, uint64_t revision)
{
	Pbeam__RegistryChanges heard = PBEAM__REGISTRY_CHANGES__INIT;

	heard.revision = revision;
	if (stream_send(&peer->stream, PBEAM__CHANNEL_MESSAGE__PEER_HEARD, &heard.base, NULL, 0) < 0)
		log_error("cannot send the known revision to host %s: no memory", peer->name);
}

static bool registry_on_heard(struct peer *peer, const struct frame *frame)
{
	Pbeam__RegistryChanges *heard =
		(Pbeam__RegistryChanges *)frame_unpack(frame, &pbeam__registry_changes__descriptor, NULL);

	if (heard)
		heard_of(peer, heard->revision);
	message_free(heard);
	return heard != NULL;
}

static bool on_changes(struct peer *peer, const struct frame *frame)
{
	struct cluster *cluster = peer->cluster;
	Pbeam__RegistryChanges *changes =
		(Pbeam__RegistryChanges *)frame_unpack(frame, &pbeam__registry_changes__descriptor, NULL);
	bool good = changes != NULL;

	if (good && changes->term == cluster->state.term && cluster_is_central(cluster, peer->name)) {
		registry_remote_changes(&cluster->remote, changes);
		say_heard(peer, changes->revision);
	}
	message_free(changes);
	return good;
}

/* True if the peer may send the frames of a central host: it considers itself central, or did so until a
 * moment ago. Until it learns of a later term its frames are ignored. */
static bool is_or_was_central(const struct peer *peer)
{
	const struct cluster *cluster = peer->cluster;
	const Pbeam__HostInfo *info = peer->host ? peer->host->info : NULL;

	return info && (info->central || cluster->state.term > 0 || cluster_is_central(cluster, peer->name));
}

bool registry_frame(struct peer *peer, const struct frame *frame)
{
	struct cluster *cluster = peer->cluster;
	bool may_ask = peer->host && (cluster->central || cluster->deposed);

	switch (frame->type) {
	case PBEAM__CHANNEL_MESSAGE__PEER_REGISTRY:
		return may_ask && registry_on_request(peer, frame);
	case PBEAM__CHANNEL_MESSAGE__PEER_HEARD:
		return may_ask && registry_on_heard(peer, frame);
	case PBEAM__CHANNEL_MESSAGE__PEER_REGISTRY_REPLY:
		if (!is_or_was_central(peer))
			return false;
		return cluster->central || !cluster_is_central(cluster, peer->name) ||
		       registry_remote_reply(&cluster->remote, frame);
	case PBEAM__CHANNEL_MESSAGE__PEER_CHANGES:
		if (!is_or_was_central(peer))
			return false;
		return cluster->central || on_changes(peer, frame);
	default:
		return false;
	}
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
	list_remove(&wait->cluster->waits, wait);
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
		return err_code(err, -ENOMEM, "send a request to the registry");
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
