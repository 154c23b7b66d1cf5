/* A hash table from numbers to positions: inodes, ids and the like to the index of what they belong to. */
#ifndef BASE_U64_MAP_H
#define BASE_U64_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Zeroed to begin with. */
struct u64_map {
	struct u64_map_entry {
		uint64_t key;
		size_t value; /* position + 1; 0: the place is free */
	} * v;
	size_t n, room; /* room: a power of 2, or 0 */
};

#define U64_MAP_NONE ((size_t)-1)

/* The position of the key, or U64_MAP_NONE. */
size_t u64_map_find(const struct u64_map *map, uint64_t key);
/* Adds the key, or replaces its position. 0 or -ENOMEM. */
must_check int u64_map_set(struct u64_map *map, uint64_t key, size_t position);
void u64_map_free(struct u64_map *map);
/* One key of two. */
uint64_t u64_map_mix(uint64_t a, uint64_t b);

#endif
