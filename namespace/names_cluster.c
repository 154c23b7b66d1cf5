/* Which host holds which block of process numbers, and which processes are on other hosts. Read without a
 * lock. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/io.h"
#include "namespace/table.h"

enum { JOIN_WAIT_S = 5, JOIN_LOOK_NS = 2000000 };

static uint32_t cluster_read_state(const struct table *table)
{
	return atomic_load_explicit(&table->cluster.active, memory_order_acquire);
}

static bool cluster_is_active(const struct table *table)
{
	return cluster_read_state(table) == CLUSTER_JOINED;
}

void table_wait_joined(const struct table *table)
{
	const struct timespec moment = {0, JOIN_LOOK_NS};

	while (cluster_read_state(table) == CLUSTER_JOINING &&
	       io_now_ns(CLOCK_MONOTONIC) < atomic_load(&table->cluster.wait_until_ns))
		nanosleep(&moment, NULL);
}

int table_host_index(struct table_cluster *cluster, const char *host)
{
	uint32_t n = atomic_load(&cluster->nhosts);

	if (!host[0] || strlen(host) >= NAME_TEXT_MAX)
		return -EINVAL;
	for (uint32_t i = HOST_OWN; i <= n; i++)
		if (!strcmp(cluster->hosts[i], host))
			return (int)i;
	if (n + 1 >= TABLE_HOSTS)
		return -ENOSPC;
	strcpy(cluster->hosts[n + 1], host);
	atomic_store_explicit(&cluster->nhosts, n + 1, memory_order_release);
	return (int)n + 1;
}

static void host_name(const struct table_cluster *cluster, uint32_t index, char host[NAME_TEXT_MAX])
{
	memcpy(host, cluster->hosts[index < TABLE_HOSTS ? index : 0], NAME_TEXT_MAX);
	host[NAME_TEXT_MAX - 1] = 0;
}

static void cluster_forget(struct table_cluster *cluster)
{
	atomic_store(&cluster->active, CLUSTER_NONE);
	for (uint32_t i = 0; i < NAMES_BLOCKS; i++)
		atomic_store_explicit(&cluster->blocks[i], 0, memory_order_relaxed);
	for (uint32_t i = 0; i < PLACE_SLOTS; i++)
		atomic_store_explicit(&cluster->places[i], MAP_EMPTY, memory_order_relaxed);
	cluster->nplaces = 0;
	memset(cluster->hosts, 0, sizeof(cluster->hosts));
	atomic_store(&cluster->nhosts, 0);
}

int names_cluster_set(struct names *names, const char *host)
{
	struct table_cluster *cluster = &names->table->cluster;
	int r = table_lock(names);

	if (r < 0)
		return r;
	/* the same host again keeps its blocks */
	if (!host || strcmp(cluster->hosts[HOST_OWN], host) != 0)
		cluster_forget(cluster);
	if (host)
		r = table_host_index(cluster, host);
	if (r >= 0 && host && cluster_read_state(names->table) == CLUSTER_NONE) {
		atomic_store(&cluster->wait_until_ns,
			     io_now_ns(CLOCK_MONOTONIC) + JOIN_WAIT_S * 1000000000ull);
		atomic_store_explicit(&cluster->active, CLUSTER_JOINING, memory_order_release);
	}
	table_unlock(names);
	if (!host)
		names_address_clear(names, true);
	return r < 0 ? r : 0;
}

void names_cluster_begin(struct names *names)
{
	atomic_store_explicit(&names->table->cluster.active, CLUSTER_JOINED, memory_order_release);
}

bool names_cluster(struct names *names, char host[NAME_TEXT_MAX])
{
	if (cluster_read_state(names->table) == CLUSTER_NONE)
		return false;
	if (host)
		host_name(&names->table->cluster, HOST_OWN, host);
	return true;
}

/* ---- blocks ---- */

int names_block_set(struct names *names, uint32_t block, const char *host)
{
	struct table_cluster *cluster = &names->table->cluster;
	int r;

	if (block >= NAMES_BLOCKS)
		return -EINVAL;
	r = table_lock(names);
	if (r < 0)
		return r;
	r = host ? table_host_index(cluster, host) : 0;
	if (r >= 0)
		atomic_store_explicit(&cluster->blocks[block], (uint16_t)r, memory_order_release);
	table_unlock(names);
	return r < 0 ? r : 0;
}

static uint32_t block_holder(const struct table *table, uint32_t n)
{
	uint32_t block = n >> NAMES_BLOCK_BITS;

	return block < NAMES_BLOCKS
		       ? atomic_load_explicit(&table->cluster.blocks[block], memory_order_acquire)
		       : 0;
}

int names_block_find(struct names *names, struct vpid vpid, char host[NAME_TEXT_MAX])
{
	uint32_t holder = cluster_is_active(names->table) && vpid.n > 0
				  ? block_holder(names->table, (uint32_t)vpid.n)
				  : 0;

	if (!holder)
		return -ENOENT;
	host_name(&names->table->cluster, holder, host);
	return 0;
}

void names_block_usage(struct names *names, uint32_t *used, uint32_t *held)
{
	struct table *table = names->table;

	*used = *held = 0;
	if (table_lock(names) < 0)
		return;
	for (uint32_t i = NUMBER_OWN_FIRST >> NAMES_BLOCK_BITS; i < NAMES_BLOCKS; i++)
		if (atomic_load(&table->cluster.blocks[i]) == HOST_OWN)
			*held += 1u << NAMES_BLOCK_BITS;
	for (uint32_t i = 0; i < MAP_SLOTS; i++) {
		uint64_t word = atomic_load_explicit(&table->forward.slots[i], memory_order_relaxed);

		if (map_used(word) && map_key(word) >= NUMBER_OWN_FIRST &&
		    block_holder(table, map_key(word)) == HOST_OWN)
			(*used)++;
	}
	table_unlock(names);
}

/* ---- places ---- */

int names_place_set(struct names *names, struct vpid vpid, const char *host)
{
	struct table_cluster *cluster = &names->table->cluster;
	bool known;
	int index, r;

	if (vpid.n <= 0 || vpid.n > NUMBER_OWN_LAST)
		return -EINVAL;
	r = table_lock(names);
	if (r < 0)
		return r;
	known = slots_get(cluster->places, PLACE_BITS, (uint32_t)vpid.n) != 0;
	index = table_host_index(cluster, host);
	if (index < 0)
		r = index;
	else if (!known && cluster->nplaces >= PLACE_SLOTS / 2)
		r = -ENOSPC;
	else
		r = slots_set(cluster->places, PLACE_BITS, (uint32_t)vpid.n, (uint32_t)index);
	if (r >= 0 && !known)
		cluster->nplaces++;
	table_unlock(names);
	return r < 0 ? r : 0;
}

void names_place_remove(struct names *names, struct vpid vpid)
{
	struct table_cluster *cluster = &names->table->cluster;

	if (vpid.n <= 0 || table_lock(names) < 0)
		return;
	if (slots_get(cluster->places, PLACE_BITS, (uint32_t)vpid.n)) {
		slots_remove(cluster->places, PLACE_BITS, (uint32_t)vpid.n);
		cluster->nplaces--;
	}
	table_unlock(names);
}

void names_place_sweep(struct names *names, bool (*keep)(void *arg, struct vpid vpid), void *arg)
{
	for (uint32_t i = 0; i < PLACE_SLOTS; i++) {
		uint64_t word = atomic_load(&names->table->cluster.places[i]);
		struct vpid vpid = {(int32_t)map_key(word)};

		if (map_used(word) && !keep(arg, vpid))
			names_place_remove(names, vpid);
	}
}

int names_place_find(struct names *names, struct vpid vpid, char host[NAME_TEXT_MAX])
{
	const struct table *table = names->table;
	uint32_t n = vpid.n < 0 ? -(uint32_t)vpid.n : (uint32_t)vpid.n, index;

	if (!cluster_is_active(table) || vpid.n == 0 || vpid.n == -1)
		return -ENOENT;
	index = slots_get(table->cluster.places, PLACE_BITS, n);
	if (!index)
		index = block_holder(table, n);
	if (!index || index == HOST_OWN)
		return -ENOENT;
	host_name(&table->cluster, index, host);
	return 0;
}

bool table_block_ours(const struct table *table, uint32_t n)
{
	return !cluster_is_active(table) || block_holder(table, n) == HOST_OWN;
}

bool table_number_ours(const struct table *table, uint32_t n)
{
	if (!cluster_is_active(table))
		return true;
	return block_holder(table, n) == HOST_OWN && !slots_get(table->cluster.places, PLACE_BITS, n);
}

bool names_cluster_begun(struct names *names)
{
	return cluster_is_active(names->table);
}
