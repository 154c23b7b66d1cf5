#include "base/u64_map.h"

#include <errno.h>
#include <stdlib.h>

enum { ROOM_FIRST = 64 };

uint64_t u64_map_mix(uint64_t a, uint64_t b)
{
	uint64_t mixed = (a ^ (b << 32 | b >> 32)) * 0x9e3779b97f4a7c15u;

	mixed ^= mixed >> 29;
	return mixed * 0xbf58476d1ce4e5b9u ^ mixed >> 32;
}

/* The place of the key, or the free one where it goes. At least a quarter of the places is free. */
static struct u64_map_entry *u64_map_place(const struct u64_map *map, uint64_t key)
{
	size_t mask = map->room - 1, at = (size_t)u64_map_mix(key, 0) & mask;

	while (map->v[at].value && map->v[at].key != key)
		at = (at + 1) & mask;
	return &map->v[at];
}

size_t u64_map_find(const struct u64_map *map, uint64_t key)
{
	return map->n ? u64_map_place(map, key)->value - 1 : U64_MAP_NONE;
}

static int u64_map_grow(struct u64_map *map)
{
	struct u64_map bigger = {.room = map->room ? 2 * map->room : ROOM_FIRST};

	bigger.v = calloc(bigger.room, sizeof(*bigger.v));
	if (!bigger.v)
		return -ENOMEM;
	for (size_t i = 0; i < map->room; i++)
		if (map->v[i].value)
			*u64_map_place(&bigger, map->v[i].key) = map->v[i];
	bigger.n = map->n;
	free(map->v);
	*map = bigger;
	return 0;
}

int u64_map_set(struct u64_map *map, uint64_t key, size_t position)
{
	struct u64_map_entry *place;
	int r = map->n >= map->room / 4 * 3 ? u64_map_grow(map) : 0;

	if (r < 0)
		return r;
	place = u64_map_place(map, key);
	map->n += place->value == 0;
	*place = (struct u64_map_entry){key, position + 1};
	return 0;
}

void u64_map_free(struct u64_map *map)
{
	free(map->v);
	*map = (struct u64_map){0};
}
