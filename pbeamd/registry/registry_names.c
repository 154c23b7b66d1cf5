/* Enters the registry in the name table, where the programs of this host look it up without a request. */
#include "pbeamd/registry/registry_names.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/parse.h"
#include "namespace/address_entry.h"
#include "pbeamd/registry/registry_copy.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/host.h"
#include "proto/message.h"

static void names_log_failure(const Pbeam__RegistryEntry *entry, int r)
{
	log_error("registry: %s cannot go into the name table: %s", entry->key, strerror(-r));
}

static void seen_block(struct cluster *cluster, const Pbeam__RegistryEntry *entry, const char *number)
{
	char host[CHANNEL_HOST_MAX];
	uint64_t block;
	int r;

	if (parse_number(number, 0, NAMES_BLOCKS - 1, &block, NULL) < 0 || entry->value.len >= sizeof(host))
		return;
	snprintf(host, sizeof(host), "%.*s", (int)entry->value.len,
		 entry->value.len ? (const char *)entry->value.data : "");
	r = names_block_set(cluster->server->names, (uint32_t)block, entry->removed ? NULL : host);
	if (r < 0)
		names_log_failure(entry, r);
}

static void seen_place(struct cluster *cluster, const Pbeam__RegistryEntry *entry, const char *number)
{
	struct names *names = cluster->server->names;
	Pbeam__Place *place;
	uint64_t vpid;
	int r;

	if (parse_number(number, 1, INT32_MAX, &vpid, NULL) < 0)
		return;
	if (entry->removed) {
		names_place_remove(names, (struct vpid){(int32_t)vpid});
		return;
	}
	place = pbeam__place__unpack(NULL, entry->value.len, entry->value.data);
	r = place && channel_host_ok(place->host)
		    ? names_place_set(names, (struct vpid){(int32_t)vpid}, place->host)
		    : -EINVAL;
	if (r < 0)
		names_log_failure(entry, r);
	message_free(place);
}

static void seen_address(struct cluster *cluster, const Pbeam__RegistryEntry *entry, const char *text)
{
	struct names *names = cluster->server->names;
	struct address_entry *address = calloc(1, sizeof(*address));
	int r = address ? address_entry_parse(entry, address) : -ENOMEM;

	if (r == 0 && entry->removed)
		names_address_remove(names, &address->address);
	else if (r == 0)
		r = channel_host_ok(address->address.host)
			    ? names_address_set(names, &address->address, address->aliases, address->n)
			    : -EINVAL;
	if (r < 0)
		names_log_failure(entry, r);
	free(address);
}

/* A host that has been here once is known until it is removed. */
static void seen_host(struct cluster *cluster, const Pbeam__RegistryEntry *entry, const char *name)
{
	struct host *host = host_find(cluster, name);
	Pbeam__HostInfo *info;

	if (entry->removed) {
		if (host && !host->peer)
			host_forget(cluster, host);
		return;
	}
	if (host || !channel_host_ok(name) || !strcmp(name, cluster->options->name))
		return;
	info = pbeam__host_info__unpack(NULL, entry->value.len, entry->value.data);
	host = info && !strcmp(info->name, name) ? host_get(cluster, name) : NULL;
	if (!host) {
		message_free(info);
		return;
	}
	info->state = PBEAM__HOST_INFO__STATE__LOST;
	host->info = info;
	host->said_lost = true;
}

void registry_names_seen(struct cluster *cluster, const Pbeam__RegistryEntry *entry)
{
	static const struct {
		const char *prefix;
		void (*seen)(struct cluster *cluster, const Pbeam__RegistryEntry *entry, const char *rest);
	} kinds[] = {
		{"block/", seen_block},
		{"vpid/", seen_place},
		{"address/", seen_address},
		{"host/", seen_host},
	};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		size_t len = strlen(kinds[i].prefix);

		if (!strncmp(entry->key, kinds[i].prefix, len))
			kinds[i].seen(cluster, entry, entry->key + len);
	}
}

static bool is_place_known(void *arg, struct vpid vpid)
{
	const struct cluster *cluster = arg;

	return registry_copy_getf(cluster->copy, "vpid/%d", vpid.n) != NULL;
}

static void see_address(void *arg, const Pbeam__RegistryEntry *entry)
{
	registry_names_seen(arg, entry);
}

/* Forgets hosts that were known before and have been removed since. */
static void forget_hosts(struct cluster *cluster)
{
	struct host *next;

	for (struct host *host = cluster->hosts; host; host = next) {
		next = host->next;
		if (!host->peer && !cluster_is_central(cluster, host->name) &&
		    !registry_copy_getf(cluster->copy, "host/%s", host->name))
			host_forget(cluster, host);
	}
}

void registry_names_settle(struct cluster *cluster)
{
	struct names *names = cluster->server->names;
	char host[NAME_TEXT_MAX];

	for (uint32_t block = 0; block < NAMES_BLOCKS; block++) {
		int32_t first = (int32_t)(block << NAMES_BLOCK_BITS);

		if (!registry_copy_getf(cluster->copy, "block/%u", block) &&
		    names_block_find(names, (struct vpid){first + 1}, host) == 0 &&
		    names_block_set(names, block, NULL) < 0)
			log_error("registry: block %u stays in the name table", block);
	}
	forget_hosts(cluster);
	names_place_sweep(names, is_place_known, cluster);
	names_address_clear(names, false);
	registry_copy_each(cluster->copy, "address/", see_address, cluster);
}
