/*
 * Removes the records of migrations, migration/UUID, that no process can ask for any more.
 *
 * The source removes most committed records itself, when the target has reported that it runs. If the source
 * was killed, or got no report, others may still ask: the keepers on both hosts, and `scip reconnect` on the
 * hosts of reconnected sockets. A process that may ask is frozen until it has its reply. So each host's
 * daemon removes its own name from the record when it has no frozen process, and the last one removes the
 * record. A missing record reads as aborted: a prepared one is removed when its leader is gone, an aborted
 * one at once.
 */
#include "pbeamd/registry/registry_settled.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "pbeamd/registry/registry_copy.h"
#include "pbeamd/registry/registry_engine.h"
#include "pbeamd/transport/cluster.h"
#include "proto/message.h"

enum { EVERY_NS = 400000000, AT_ONCE = 64 };

static const char prefix[] = "migration/";

struct look {
	const struct cluster *cluster;
	Pbeam__RegistryRequest *sets[AT_ONCE]; /* one for each record that is to change */
	size_t n;
	uint64_t newest; /* version of any record */
};

/* True if the host belongs to the cluster. */
static bool settled_is_host_known(const struct cluster *cluster, const char *host)
{
	return !strcmp(host, cluster->options->name) || registry_copy_getf(cluster->copy, "host/%s", host);
}

/* True if a process of this host is frozen: for a checkpoint, or until the outcome of its migration is
 * known. */
static bool is_any_frozen(const struct cluster *cluster)
{
	auto_free struct name_process *list = NULL;
	int n = names_snapshot(cluster->server->names, (struct rpid){0}, &list);

	for (int i = 0; i < n; i++)
		if (list[i].state == NAME_STATE_FROZEN)
			return true;
	return n < 0;
}

/* Removes the hosts from a committed record that do not ask any more. True: the record changes. */
static bool settled_remove_host(const struct cluster *cluster, Pbeam__MigrationRecord *record)
{
	size_t kept = 0, before = record->n_hosts;

	for (size_t i = 0; i < before; i++) {
		char *host = record->hosts[i];

		if (!strcmp(host, cluster->options->name) ||
		    (cluster->central && !settled_is_host_known(cluster, host)))
			free(host);
		else
			record->hosts[kept++] = host;
	}
	record->n_hosts = kept;
	return kept < before || (cluster->central && !before);
}

/* True if it will not be committed: its leader has ended, or its host was removed. */
static bool is_left(const struct cluster *cluster, const Pbeam__MigrationRecord *record)
{
	if (!strcmp(record->from, cluster->options->name))
		return record->pid > 0 && kill(record->pid, 0) < 0 && errno == ESRCH;
	return cluster->central && !settled_is_host_known(cluster, record->from);
}

static bool is_to_change(const struct cluster *cluster, Pbeam__MigrationRecord *record, bool *remove)
{
	*remove = true;
	switch ((int)record->state) {
	case PBEAM__MIGRATION_RECORD__STATE__PREPARED:
		return is_left(cluster, record);
	case PBEAM__MIGRATION_RECORD__STATE__ABORTED:
		return cluster->central;
	case PBEAM__MIGRATION_RECORD__STATE__COMMITTED: {
		bool changes = settled_remove_host(cluster, record);

		*remove = !record->n_hosts;
		return changes;
	}
	default:
		return false;
	}
}

/* Requests are collected, since the copy must not change while it is walked. */
static void settled_check_entry(void *arg, const Pbeam__RegistryEntry *entry)
{
	struct look *look = arg;
	uint64_t settled = look->cluster->settled_version;
	Pbeam__MigrationRecord *record;
	Pbeam__RegistryRequest *set;
	bool remove;

	if (entry->version > look->newest)
		look->newest = entry->version;
	if (entry->version > settled || look->n == AT_ONCE)
		return; /* requests for it are under way */
	record = pbeam__migration_record__unpack(NULL, entry->value.len, entry->value.data);
	set = record && is_to_change(look->cluster, record, &remove)
		      ? message_new(&pbeam__registry_request__descriptor)
		      : NULL;
	if (set && message_string(&set->key, entry->key) == 0 &&
	    (remove || message_packed(&set->value, &record->base) == 0)) {
		set->operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
		set->expected = entry->version;
		set->remove = remove;
		look->sets[look->n++] = set;
		set = NULL;
	}
	message_free(set);
	message_free(record);
}

/* Another daemon was faster, or the central one cannot be reached: the next tick tries again. */
static void settled_on_done(void *arg, const Pbeam__RegistryReply *reply)
{
	if (reply->code < 0)
		log_debug("a migration's record stays for now: %s", reply->text);
}

void settled_tick(struct cluster *cluster, uint64_t now_ns)
{
	struct look look = {.cluster = cluster};

	if (!registry_copy_ready(cluster->copy) || now_ns - cluster->settled_ns < EVERY_NS)
		return;
	cluster->settled_ns = now_ns;
	registry_copy_each(cluster->copy, prefix, settled_check_entry, &look);
	if (look.n && is_any_frozen(cluster)) {
		while (look.n)
			message_free(look.sets[--look.n]);
		return;
	}
	cluster->settled_version = look.newest;
	for (size_t i = 0; i < look.n; i++) {
		registry_ask(cluster, look.sets[i], settled_on_done, NULL);
		message_free(look.sets[i]);
	}
}
