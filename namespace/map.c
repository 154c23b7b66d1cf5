/* The maps of the name table: see table.h for how they are read without a lock. */
#include <errno.h>

#include "namespace/table.h"

static uint32_t place(uint32_t key)
{
	return (key * 2654435761u) >> (32 - 17);
}

_Static_assert(MAP_SLOTS == 1u << 17, "place() gives a slot number");

int map_find(const struct map *map, uint32_t key)
{
	uint32_t at = place(key);

	for (uint32_t n = 0; n < MAP_SLOTS; n++, at = (at + 1) % MAP_SLOTS) {
		uint64_t word = atomic_load_explicit(&map->slots[at], memory_order_acquire);

		if (word == MAP_EMPTY)
			return -1;
		if (word != MAP_TOMBSTONE && map_key(word) == key)
			return (int)at;
	}
	return -1;
}

uint32_t map_get(const struct map *map, uint32_t key)
{
	uint32_t at = place(key);

	for (uint32_t n = 0; n < MAP_SLOTS; n++, at = (at + 1) % MAP_SLOTS) {
		uint64_t word = atomic_load_explicit(&map->slots[at], memory_order_acquire);

		if (word == MAP_EMPTY)
			return 0;
		if (word != MAP_TOMBSTONE && map_key(word) == key)
			return map_value(word);
	}
	return 0;
}

int map_set(struct map *map, uint32_t key, uint32_t value)
{
	uint64_t word = (uint64_t)value << 32 | key;
	int at = map_find(map, key);

	if (at < 0) {
		uint32_t i = place(key), n = 0;

		while (n < MAP_SLOTS && map_used(atomic_load(&map->slots[i]))) {
			i = (i + 1) % MAP_SLOTS;
			n++;
		}
		if (n == MAP_SLOTS)
			return -ENOSPC;
		at = (int)i;
	}
	atomic_store_explicit(&map->slots[at], word, memory_order_release);
	return at;
}

void map_remove(struct map *map, uint32_t key)
{
	int found = map_find(map, key);
	uint32_t at, next;

	if (found < 0)
		return;
	at = (uint32_t)found;
	next = (at + 1) % MAP_SLOTS;
	atomic_store_explicit(&map->slots[at], MAP_TOMBSTONE, memory_order_release);
	if (atomic_load(&map->slots[next]) != MAP_EMPTY)
		return;
	/* Walks end at `next` anyway: the tombstones before it are not needed. */
	while (atomic_load(&map->slots[at]) == MAP_TOMBSTONE) {
		atomic_store_explicit(&map->slots[at], MAP_EMPTY, memory_order_release);
		at = (at + MAP_SLOTS - 1) % MAP_SLOTS;
	}
}

void map_clear(struct map *map)
{
	for (uint32_t i = 0; i < MAP_SLOTS; i++)
		if (atomic_load_explicit(&map->slots[i], memory_order_relaxed) != MAP_EMPTY)
			atomic_store_explicit(&map->slots[i], MAP_EMPTY, memory_order_relaxed);
}
