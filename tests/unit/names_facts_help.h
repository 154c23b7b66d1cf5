/*
 * What a name table says, as facts, and the invariants that hold whenever its lock is free and nobody has
 * died with it. docs/TESTING.md lists them.
 */
#ifndef TESTS_UNIT_NAMES_FACTS_HELP_H
#define TESTS_UNIT_NAMES_FACTS_HELP_H

#include <stdbool.h>
#include <string.h>

#include "namespace/table.h"
#include "tests/unit/unit.h"

enum fact_kind {
	FACT_NUMBER, /* virtual -> real */
	FACT_NUMBER_OWNER,
	FACT_NUMBER_RELEASED,
	FACT_JOB,     /* keeper -> digest of the entry */
	FACT_PROCESS, /* vpid -> digest of the entry */
	FACT_SOCKET,  /* inode -> digest of the entry */
	FACT_ADDRESS, /* digest of the name -> digest of the entry */
	FACT_ID,      /* + kind of ids: virtual -> real */
	FACT_ID_OWNER = FACT_ID + NAMES_IPC_KINDS,
};

#define FACT_OWNER (1ull << 32) /* so that the owner 0 is one */

enum { FACTS_MAX = 1024 };

struct fact {
	int kind;
	uint64_t key, value;
};

struct facts {
	struct fact v[FACTS_MAX];
	size_t n;
};

static uint64_t facts_digest(const void *data, size_t len)
{
	const uint8_t *bytes = data;
	uint64_t h = 14695981039346656037ull;

	for (size_t i = 0; i < len; i++)
		h = (h ^ bytes[i]) * 1099511628211ull;
	return h | 1; /* 0: no such fact */
}

static uint64_t facts_value(const struct facts *facts, int kind, uint64_t key)
{
	for (size_t i = 0; i < facts->n; i++)
		if (facts->v[i].kind == kind && facts->v[i].key == key)
			return facts->v[i].value;
	return 0;
}

/* No name is there twice. */
static void facts_add(struct facts *facts, int kind, uint64_t key, uint64_t value)
{
	assert_int_equal(facts_value(facts, kind, key), 0);
	assert_true(facts->n < FACTS_MAX);
	facts->v[facts->n++] = (struct fact){kind, key, value};
}

/* The maps of a pair agree in both directions. */
static uint32_t facts_check_pair(const _Atomic uint64_t *forward, const _Atomic uint64_t *backward,
				 unsigned bits)
{
	uint32_t there = 0, back = 0;

	for (uint32_t i = 0; i < 1u << bits; i++) {
		const uint64_t one = atomic_load(&forward[i]), other = atomic_load(&backward[i]);

		if (map_used(one)) {
			assert_int_equal(slots_get(backward, bits, map_value(one)), map_key(one));
			assert_int_equal(slots_find(forward, bits, map_key(one)), i);
			there++;
		}
		if (map_used(other)) {
			assert_int_equal(slots_get(forward, bits, map_value(other)), map_key(other));
			back++;
		}
	}
	assert_int_equal(there, back);
	return there;
}

static void facts_of_numbers(const struct table *table, struct facts *facts)
{
	uint32_t released = 0;

	assert_int_equal(facts_check_pair(table->forward.slots, table->backward.slots, MAP_BITS),
			 table->nnumbers);
	for (uint32_t i = 0; i < MAP_SLOTS; i++) {
		const uint64_t word = atomic_load(&table->forward.slots[i]);

		if (!map_used(word))
			continue;
		facts_add(facts, FACT_NUMBER, map_key(word), map_value(word));
		facts_add(facts, FACT_NUMBER_OWNER, map_key(word), FACT_OWNER | (uint32_t)table->owner[i]);
		if (table->released[i])
			facts_add(facts, FACT_NUMBER_RELEASED, map_key(word), 1);
		released += table->released[i] != 0;
	}
	assert_true(table->nreleased >= released); /* it is counted anew when they are removed */
}

static void facts_of_ids(const struct table *table, struct facts *facts)
{
	for (int kind = 0; kind < NAMES_IPC_KINDS; kind++) {
		const struct ipc_map *map = &table->ipc[kind];

		assert_int_equal(facts_check_pair(map->forward, map->backward, IPC_BITS), map->n);
		for (uint32_t i = 0; i < IPC_SLOTS; i++) {
			const uint64_t word = atomic_load(&map->forward[i]);

			if (!map_used(word))
				continue;
			facts_add(facts, FACT_ID + kind, map_key(word), map_value(word));
			facts_add(facts, FACT_ID_OWNER + kind, map_key(word),
				  FACT_OWNER | (uint32_t)map->owner[i]);
		}
	}
}

static void facts_of_entries(const struct table *table, struct facts *facts)
{
	uint32_t n = 0, by_vpid = 0, by_rpid = 0;

	for (uint32_t i = 0; i < TABLE_JOBS; i++)
		if (table_used(&table->jobs[i].used))
			facts_add(facts, FACT_JOB, (uint32_t)table->jobs[i].j.keeper.n,
				  facts_digest(&table->jobs[i].j, sizeof(table->jobs[i].j)));
	for (uint32_t i = 0; i < TABLE_PROCESSES; i++) {
		const struct table_process *entry = &table->processes[i];

		if (!table_used(&entry->used))
			continue;
		n++;
		facts_add(facts, FACT_PROCESS, (uint32_t)entry->p.vpid.n,
			  facts_digest(&entry->p, sizeof(entry->p)));
		assert_int_equal(map_get(&table->by_vpid, (uint32_t)entry->p.vpid.n), i + 1);
		if (entry->p.rpid.n > 0)
			assert_int_equal(map_get(&table->by_rpid, (uint32_t)entry->p.rpid.n), i + 1);
	}
	assert_int_equal(table->nprocesses, n);
	for (uint32_t i = 0; i < MAP_SLOTS; i++) {
		by_vpid += map_used(atomic_load(&table->by_vpid.slots[i]));
		by_rpid += map_used(atomic_load(&table->by_rpid.slots[i]));
	}
	assert_int_equal(by_vpid, n);
	assert_true(by_rpid <= n);
}

static void facts_of_network(struct names *names, struct facts *facts)
{
	const struct table *table = names->table;
	uint32_t n = 0;

	for (uint32_t i = 0; i < TABLE_SOCKETS; i++)
		if (table->sockets[i].ino)
			facts_add(facts, FACT_SOCKET, table->sockets[i].ino,
				  facts_digest(&table->sockets[i].name, sizeof(table->sockets[i].name)));
	for (uint32_t i = 0; i < TABLE_ADDRESSES; i++) {
		const struct table_address *entry = &table->cluster.addresses[i];
		struct name_address found;

		if (!entry->used)
			continue;
		n++;
		facts_add(facts, FACT_ADDRESS, facts_digest(&entry->alias, sizeof(entry->alias)),
			  facts_digest(&entry->a.real, sizeof(entry->a.real)));
		assert_int_equal(names_address_find(names, entry->a.protocol, &entry->alias.sa, NULL, &found),
				 0);
		assert_memory_equal(&found.real, &entry->a.real, sizeof(found.real));
	}
	assert_int_equal(table->cluster.naddresses, n);
	assert_int_equal(table->cluster.sequence & 1, 0);
}

/* Takes the lock, which repairs the table if somebody has died with it. */
static void facts_collect(struct names *names, struct facts *facts)
{
	facts->n = 0;
	assert_int_equal(table_lock(names), 0);
	facts_of_numbers(names->table, facts);
	facts_of_ids(names->table, facts);
	facts_of_entries(names->table, facts);
	table_unlock(names);
	facts_of_network(names, facts);
}

#endif
