/*
 * On the central daemon: the reply to a change of an address waits until every host that is up has the
 * change. Otherwise a host could receive packets from the address before it knows which process has it. Hosts
 * report their revision by PEER_HEARD. A slow host delays a reply by PATIENCE_MS at most.
 */
#include "pbeamd/registry/registry_heard.h"

#include <event2/event.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "namespace/address_entry.h"
#include "pbeamd/registry/registry_copy.h"
#include "pbeamd/transport/cluster.h"

enum { PATIENCE_MS = 250 };

struct heard_wait {
	struct heard_wait *next;
	struct cluster *cluster;
	struct event *patience;
	const struct peer *peer; /* that sent the request; NULL: this host */
	uint64_t revision;
	registry_done_fn done;
	void *arg;
};

static bool heard_has_address(const Pbeam__RegistryRequest *request)
{
	size_t len = strlen(ADDRESS_PREFIX);

	for (size_t i = 0; i < request->n_all; i++)
		if (!strncmp(request->all[i]->key, ADDRESS_PREFIX, len))
			return true;
	return !strncmp(request->key, ADDRESS_PREFIX, len);
}

static bool all_have_heard(const struct cluster *cluster, uint64_t revision)
{
	for (const struct host *host = cluster->hosts; host; host = host->next)
		if (host->peer && host->peer->heard_revision < revision)
			return false;
	return true;
}

static void heard_remove_wait(struct heard_wait *wait)
{
	list_remove(&wait->cluster->unheard, wait);
	if (wait->patience)
		event_free(wait->patience);
}

static void heard_reply(struct heard_wait *wait, const struct err *why)
{
	Pbeam__RegistryReply reply = PBEAM__REGISTRY_REPLY__INIT;

	heard_remove_wait(wait);
	reply.version = wait->revision;
	if (why) {
		reply.code = why->code;
		reply.text = (char *)(uintptr_t)why->text;
	}
	wait->done(wait->arg, &reply);
	free(wait);
}

static void heard_on_timeout(evutil_socket_t fd, short what, void *arg)
{
	heard_reply(arg, NULL);
}

/* False without memory. */
static bool heard_add_wait(struct heard_wait *wait, unsigned patience_ms)
{
	const struct timeval patience = {patience_ms / 1000, patience_ms % 1000 * 1000};
	struct cluster *cluster = wait->cluster;

	wait->patience = event_new(cluster->server->base, -1, 0, heard_on_timeout, wait);
	if (!wait->patience || event_add(wait->patience, &patience) < 0)
		return false;
	wait->next = cluster->unheard;
	cluster->unheard = wait;
	return true;
}

static void heard_on_done(void *arg, const Pbeam__RegistryReply *reply)
{
	struct heard_wait *wait = arg;

	wait->revision = reply->version;
	if (reply->code == 0 && !all_have_heard(wait->cluster, wait->revision) &&
	    heard_add_wait(wait, PATIENCE_MS))
		return;
	if (wait->patience)
		event_free(wait->patience);
	wait->done(wait->arg, reply);
	free(wait);
}

void heard_carry_out(struct cluster *cluster, const Pbeam__RegistryRequest *request, const struct peer *peer,
		     registry_done_fn done, void *arg)
{
	const char *host = peer ? peer->name : cluster->options->name;
	bool wanted = cluster->central && request->operation == PBEAM__REGISTRY_REQUEST__OPERATION__SET &&
		      heard_has_address(request);
	struct heard_wait *wait = wanted ? calloc(1, sizeof(*wait)) : NULL;

	if (!wait) {
		registry_carry_out(&cluster->registry, request, host, done, arg);
		return;
	}
	*wait = (struct heard_wait){.cluster = cluster, .peer = peer, .done = done, .arg = arg};
	registry_carry_out(&cluster->registry, request, host, heard_on_done, wait);
}

void heard_of_all(struct cluster *cluster, unsigned patience_ms, registry_done_fn done, void *arg)
{
	Pbeam__RegistryReply reply = PBEAM__REGISTRY_REPLY__INIT;
	struct heard_wait *wait = calloc(1, sizeof(*wait));
	uint64_t revision = registry_copy_revision(cluster->copy);

	if (wait)
		*wait = (struct heard_wait){
			.cluster = cluster, .revision = revision, .done = done, .arg = arg};
	if (wait && !all_have_heard(cluster, revision) && heard_add_wait(wait, patience_ms))
		return;
	if (wait && wait->patience)
		event_free(wait->patience);
	free(wait);
	reply.version = revision;
	done(arg, &reply);
}

static void heard_check_waits(struct cluster *cluster)
{
	struct heard_wait *next;

	for (struct heard_wait *wait = cluster->unheard; wait; wait = next) {
		next = wait->next;
		if (all_have_heard(cluster, wait->revision))
			heard_reply(wait, NULL);
	}
}

void heard_of(struct peer *peer, uint64_t revision)
{
	peer->heard_revision = revision;
	heard_check_waits(peer->cluster);
}

void heard_lose(struct cluster *cluster, const struct peer *peer)
{
	struct heard_wait *next;

	for (struct heard_wait *wait = cluster->unheard; wait; wait = next) {
		next = wait->next;
		if (wait->peer == peer) {
			heard_remove_wait(wait);
			free(wait->arg);
			free(wait);
		}
	}
	heard_check_waits(cluster);
}

void heard_close(struct cluster *cluster, const struct err *why)
{
	while (cluster->unheard)
		heard_reply(cluster->unheard, why);
}
