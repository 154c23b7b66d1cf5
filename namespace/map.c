/* The maps of the name table: see table.h for how they are read without a lock. */
#include <errno.h>

#include "namespace/table.h"

/* Groups of 64 consecutive numbers are adjacent, and the groups are scattered: consecutive numbers are in
 * use at the same time, and each of many short-lived mappings takes a page fault for each page that it
 * touches. */
static uint32_t map_place(uint32_t key, unsigned bits)
{
	enum { TOGETHER_BITS = 6 };
	uint32_t group = (key >> TOGETHER_BITS) * 2654435761u;

	return (group >> (32 - bits + TOGETHER_BITS)) << TOGETHER_BITS | (key & ((1u << TOGETHER_BITS) - 1));
}

/* Returns the place of a key, -1 if it has none, and the word there: one load, since another process may
 * change it. */
static int find_word(const _Atomic uint64_t *slots, unsigned bits, uint32_t key, uint64_t *word)
{
	const uint32_t count = 1u << bits;
	uint32_t at = map_place(key, bits);

	for (uint32_t n = 0; n < count; n++, at = (at + 1) % count) {
		*word = atomic_load_explicit(&slots[at], memory_order_acquire);
		if (*word == MAP_EMPTY)
			return -1;
		if (*word != MAP_TOMBSTONE && map_key(*word) == key)
			return (int)at;
	}
	return -1;
}

int slots_find(const _Atomic uint64_t *slots, unsigned bits, uint32_t key)
{
	uint64_t word;

	return find_word(slots, bits, key, &word);
}

uint32_t slots_get(const _Atomic uint64_t *slots, unsigned bits, uint32_t key)
{
	uint64_t word;

	return find_word(slots, bits, key, &word) < 0 ? 0 : map_value(word);
}

int slots_place(const _Atomic uint64_t *slots, unsigned bits, uint32_t key)
{
	const uint32_t count = 1u << bits;
	int at = slots_find(slots, bits, key);
	uint32_t i = map_place(key, bits), n = 0;

	if (at >= 0)
		return at;
	while (n < count && map_used(atomic_load(&slots[i]))) {
		i = (i + 1) % count;
		n++;
	}
	return n == count ? -ENOSPC : (int)i;
}

int slots_set(_Atomic uint64_t *slots, unsigned bits, uint32_t key, uint32_t value)
{
	int at = slots_place(slots, bits, key);

	if (at >= 0)
		slots_put(slots, at, key, value);
	return at;
}

void slots_remove(_Atomic uint64_t *slots, unsigned bits, uint32_t key)
{
	const uint32_t count = 1u << bits;
	int found = slots_find(slots, bits, key);
	uint32_t at, next;

	if (found < 0)
		return;
	at = (uint32_t)found;
	next = (at + 1) % count;
	atomic_store_explicit(&slots[at], MAP_TOMBSTONE, memory_order_release);
	if (atomic_load(&slots[next]) != MAP_EMPTY)
		return;
	/* Searches end at `next` anyway: the tombstones before it are not needed. */
	while (atomic_load(&slots[at]) == MAP_TOMBSTONE) {
		atomic_store_explicit(&slots[at], MAP_EMPTY, memory_order_release);
		at = (at + count - 1) % count;
	}
}

void map_clear(struct map *map)
{
	for (uint32_t i = 0; i < MAP_SLOTS; i++)
		if (atomic_load_explicit(&map->slots[i], memory_order_relaxed) != MAP_EMPTY)
			atomic_store_explicit(&map->slots[i], MAP_EMPTY, memory_order_relaxed);
}
