/*
 * Repairs the name table after a writer died with its lock (table.h explains which part is correct), and has
 * the look-ups that it shares with the writers.
 */
#include "namespace/address_index.h"
#include "namespace/table.h"

struct table_job *table_find_job(struct table *table, int32_t keeper)
{
	for (unsigned i = 0; i < TABLE_JOBS; i++)
		if (table_used(&table->jobs[i].used) && table->jobs[i].j.keeper.n == keeper)
			return &table->jobs[i];
	return NULL;
}

bool table_has_jobs(const struct table *table)
{
	for (unsigned i = 0; i < TABLE_JOBS; i++)
		if (table_used(&table->jobs[i].used))
			return true;
	return false;
}

int table_link_process(struct table *table, struct table_process *entry)
{
	uint32_t slot = (uint32_t)(entry - table->processes);
	int r = map_set(&table->by_vpid, (uint32_t)entry->p.vpid.n, slot + 1);

	if (r >= 0 && entry->p.rpid.n > 0)
		r = map_set(&table->by_rpid, (uint32_t)entry->p.rpid.n, slot + 1);
	return r < 0 ? r : 0;
}

static void repair_processes(struct table *table)
{
	map_clear(&table->by_vpid);
	map_clear(&table->by_rpid);
	table->nprocesses = 0;
	for (unsigned i = 0; i < TABLE_JOBS; i++) {
		struct table_job *job = &table->jobs[i];

		if (table_used(&job->used) && table_find_job(table, job->j.keeper.n) != job)
			atomic_store(&job->used, 0); /* twice there: its writer died replacing it */
	}
	for (unsigned i = 0; i < TABLE_PROCESSES; i++) {
		struct table_process *entry = &table->processes[i];

		if (!table_used(&entry->used))
			continue;
		/* twice there: its writer died replacing it */
		if (map_find(&table->by_vpid, (uint32_t)entry->p.vpid.n) >= 0 ||
		    table_link_process(table, entry) < 0)
			atomic_store(&entry->used, 0);
		else
			table->nprocesses++;
	}
}

static void repair_numbers(struct table *table)
{
	uint32_t n = 0, released = 0;

	for (uint32_t i = 0; i < MAP_SLOTS; i++) {
		uint64_t word = atomic_load(&table->forward.slots[i]);

		if (!map_used(word))
			continue;
		n++;
		released += table->released[i] != 0;
		if (map_get(&table->backward, map_value(word)) != map_key(word) &&
		    map_set(&table->backward, map_value(word), map_key(word)) < 0)
			map_remove(&table->forward, map_key(word));
	}
	for (uint32_t i = 0; i < MAP_SLOTS; i++) {
		uint64_t word = atomic_load(&table->backward.slots[i]);

		if (map_used(word) && map_get(&table->forward, map_value(word)) != map_key(word))
			map_remove(&table->backward, map_key(word));
	}
	table->nnumbers = n;
	table->nreleased = released;
}

/* The forward map is correct; the backward one is rebuilt. */
static void repair_kind(struct ipc_map *map)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < IPC_SLOTS; i++) {
		uint64_t word = atomic_load(&map->forward[i]);

		if (!map_used(word))
			continue;
		n++;
		if (slots_get(map->backward, IPC_BITS, map_value(word)) != map_key(word) &&
		    slots_set(map->backward, IPC_BITS, map_value(word), map_key(word)) < 0)
			slots_remove(map->forward, IPC_BITS, map_key(word));
	}
	for (uint32_t i = 0; i < IPC_SLOTS; i++) {
		uint64_t word = atomic_load(&map->backward[i]);

		if (map_used(word) && slots_get(map->forward, IPC_BITS, map_value(word)) != map_key(word))
			slots_remove(map->backward, IPC_BITS, map_key(word));
	}
	map->n = n;
}

static void repair_ipc(struct table *table)
{
	for (unsigned kind = 0; kind < NAMES_IPC_KINDS; kind++)
		repair_kind(&table->ipc[kind]);
}
static void repair_cluster(struct table *table)
{
	struct table_cluster *cluster = &table->cluster;
	uint32_t n = 0;

	for (uint32_t i = 0; i < PLACE_SLOTS; i++)
		n += map_used(atomic_load(&cluster->places[i]));
	cluster->nplaces = n;
	if (!(atomic_load(&cluster->sequence) & 1))
		address_index_begin(cluster);
	address_index_rebuild(cluster);
	address_index_end(cluster);
}
void table_repair(struct table *table)
{
	table->repairs++;
	repair_processes(table);
	repair_numbers(table);
	repair_ipc(table);
	repair_cluster(table);
	atomic_fetch_add(&table->generation, 1);
}
