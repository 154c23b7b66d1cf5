/*
 * Transport addresses that are on another host than their names say. Entries are in two chains
 * (address_index.h), changed under the table's lock and read under a sequence number.
 */
#include <errno.h>
#include <string.h>

#include "namespace/address_index.h"
#include "namespace/table.h"

enum { TRIES = 10000 };

static void host_text(const struct table_cluster *cluster, uint32_t index, char out[NAME_TEXT_MAX])
{
	memcpy(out, cluster->hosts[index < TABLE_HOSTS ? index : 0], NAME_TEXT_MAX);
	out[NAME_TEXT_MAX - 1] = 0;
}

static void take_entry(const struct table_cluster *cluster, uint32_t at, struct name_address *out)
{
	const struct table_address *entry = &cluster->addresses[at - 1];

	*out = entry->a;
	out->name = entry->alias;
	host_text(cluster, entry->host, out->host);
	host_text(cluster, entry->born, out->born);
}

static int address_find(struct names *names, const struct address_key *key, bool real,
			struct name_address *out)
{
	struct table_cluster *cluster = &names->table->cluster;
	uint32_t at = 0, before;

	for (int i = 0; i < TRIES; i++) {
		before = atomic_load_explicit(&cluster->sequence, memory_order_acquire);
		if (before & 1) {
			/* long enough for any change: the writer has died, and taking the lock repairs the
			 * table */
			if (i == TRIES / 2 && table_lock(names) == 0)
				table_unlock(names);
			continue;
		}
		at = address_index_find(cluster, key, real);
		if (at)
			take_entry(cluster, at, out);
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load_explicit(&cluster->sequence, memory_order_relaxed) == before)
			break;
		at = 0;
	}
	return at ? 0 : -ENOENT;
}

bool names_address_any(struct names *names)
{
	return atomic_load_explicit(&names->table->cluster.naddresses, memory_order_acquire) != 0;
}

int names_address_find(struct names *names, int protocol, const struct sockaddr *name, const char *born,
		       struct name_address *out)
{
	const struct table_cluster *cluster = &names->table->cluster;
	uint32_t host = HOST_OWN, n = atomic_load(&cluster->nhosts);
	struct address_key key;

	if (!names_address_any(names))
		return -ENOENT;
	if (born)
		for (host = HOST_OWN; host <= n && strcmp(cluster->hosts[host], born) != 0;)
			host++;
	return address_key_make(protocol, name, host, &key) < 0 ? -ENOENT
								: address_find(names, &key, false, out);
}

int names_address_find_caller(struct names *names, const struct sockaddr *name, uint16_t scope,
			      struct name_address *out)
{
	struct address_key key;

	if (!names_address_any(names) || address_key_make(IPPROTO_UDP, name, HOST_OWN, &key) < 0)
		return -ENOENT;
	key.scope = scope;
	return address_find(names, &key, false, out);
}

int names_address_find_real(struct names *names, int protocol, const struct sockaddr *real,
			    struct name_address *out)
{
	struct address_key key;

	if (!names_address_any(names) || address_key_make(protocol, real, HOST_OWN, &key) < 0)
		return -ENOENT;
	return address_find(names, &key, true, out);
}

/* ---- changing, under the lock ---- */

/* Removes all names of the address. True if there was one. */
static bool address_remove(struct table_cluster *cluster, const struct name_address *address, uint32_t born)
{
	size_t len = address->name.sa.sa_family == AF_INET ? sizeof(struct sockaddr_in)
							   : sizeof(struct sockaddr_in6);
	bool found = false;

	for (uint32_t i = 0; i < TABLE_ADDRESSES; i++) {
		struct table_address *entry = &cluster->addresses[i];

		if (!entry->used || entry->a.protocol != address->protocol || entry->born != born ||
		    entry->a.caller != address->caller || entry->a.scope != address->scope ||
		    memcmp(&entry->a.name, &address->name, len) != 0)
			continue;
		entry->used = 0;
		found = true;
	}
	return found;
}

static int address_add(struct table_cluster *cluster, const struct name_address *address, uint32_t host,
		       uint32_t born, const union name_sockaddr *aliases, size_t n)
{
	uint32_t at = 0;

	for (size_t i = 0; i < n; i++) {
		struct table_address *entry;

		while (at < TABLE_ADDRESSES && cluster->addresses[at].used)
			at++;
		if (at == TABLE_ADDRESSES)
			return -ENOSPC;
		entry = &cluster->addresses[at];
		entry->a = *address;
		entry->host = host;
		entry->born = born;
		entry->alias = aliases[i];
		entry->first = i == 0;
		entry->used = 1;
	}
	return 0;
}

static int index_of(struct table_cluster *cluster, const char *host)
{
	return host[0] ? table_host_index(cluster, host) : (int)HOST_OWN;
}

int names_address_set(struct names *names, const struct name_address *address,
		      const union name_sockaddr *aliases, size_t n)
{
	struct table_cluster *cluster = &names->table->cluster;
	struct address_key key;
	int host, born, r;

	if (address_key_make(address->protocol, &address->name.sa, 0, &key) < 0 ||
	    address_key_make(address->protocol, &address->real.sa, 0, &key) < 0)
		return -EAFNOSUPPORT;
	r = table_lock(names);
	if (r < 0)
		return r;
	host = index_of(cluster, address->host);
	born = index_of(cluster, address->born);
	if (host < 0 || born < 0) {
		r = host < 0 ? host : born;
	} else {
		address_index_begin(cluster);
		(void)address_remove(cluster, address, (uint32_t)born);
		r = address_add(cluster, address, (uint32_t)host, (uint32_t)born,
				n ? aliases : &address->name, n ? n : 1);
		address_index_rebuild(cluster);
		address_index_end(cluster);
	}
	table_unlock(names);
	return r;
}

void names_address_remove(struct names *names, const struct name_address *address)
{
	struct table_cluster *cluster = &names->table->cluster;
	int family = address->name.sa.sa_family, born;

	if (!names_address_any(names) || (family != AF_INET && family != AF_INET6) || table_lock(names) < 0)
		return;
	born = index_of(cluster, address->born);
	address_index_begin(cluster);
	if (born >= 0 && address_remove(cluster, address, (uint32_t)born))
		address_index_rebuild(cluster);
	address_index_end(cluster);
	table_unlock(names);
}

void names_address_clear(struct names *names, bool callers)
{
	struct table_cluster *cluster = &names->table->cluster;

	if (!names_address_any(names) || table_lock(names) < 0)
		return;
	address_index_begin(cluster);
	for (uint32_t i = 0; i < TABLE_ADDRESSES; i++)
		if (callers || !cluster->addresses[i].a.caller)
			cluster->addresses[i].used = 0;
	address_index_rebuild(cluster);
	address_index_end(cluster);
	table_unlock(names);
}
