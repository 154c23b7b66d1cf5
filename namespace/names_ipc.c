/* Diverged ids of System V shared memory, semaphores and message queues: as in names_number.c, with
 * separate maps for each kind. Ids are stored + 1, because 0 is an id. */
#include <errno.h>

#include "namespace/table.h"

static uint32_t ipc_get(const _Atomic uint64_t *slots, int32_t id)
{
	return id < 0 ? 0 : slots_get(slots, IPC_BITS, (uint32_t)id + 1);
}

static int32_t ipc_look_up(const struct ipc_map *map, const _Atomic uint64_t *slots,
			   const _Atomic uint64_t *other, int32_t id)
{
	uint32_t found;

	if (id < 0 || atomic_load_explicit(&map->generation, memory_order_acquire) == 0)
		return id;
	found = ipc_get(slots, id);
	if (found)
		return (int32_t)(found - 1);
	return ipc_get(other, id) ? -1 : id;
}

int32_t names_ipc_real(struct names *names, enum names_ipc kind, int32_t virtual)
{
	const struct ipc_map *map = &names->table->ipc[kind];

	return ipc_look_up(map, map->forward, map->backward, virtual);
}

int32_t names_ipc_virtual(struct names *names, enum names_ipc kind, int32_t real)
{
	const struct ipc_map *map = &names->table->ipc[kind];

	return ipc_look_up(map, map->backward, map->forward, real);
}

static void ipc_drop(struct ipc_map *map, uint32_t virtual)
{
	uint32_t real = slots_get(map->forward, IPC_BITS, virtual);

	slots_remove(map->forward, IPC_BITS, virtual);
	if (real && slots_get(map->backward, IPC_BITS, real) == virtual)
		slots_remove(map->backward, IPC_BITS, real);
	if (map->n)
		map->n--;
	atomic_fetch_add(&map->generation, 1);
}

static int ipc_insert(struct ipc_map *map, uint32_t virtual, uint32_t real, int32_t keeper)
{
	uint32_t before = slots_get(map->forward, IPC_BITS, virtual);
	uint32_t stale = slots_get(map->backward, IPC_BITS, real);
	int at;

	if (stale && stale != virtual)
		ipc_drop(map, stale); /* that segment was removed, and the kernel has used its id again */
	if (!before && map->n >= IPC_SLOTS / 2)
		return -ENOSPC;
	at = slots_place(map->forward, IPC_BITS, virtual);
	if (at < 0)
		return at;
	map->owner[at] = keeper;
	slots_put(map->forward, at, virtual, real);
	if (before && before != real && slots_get(map->backward, IPC_BITS, before) == virtual)
		slots_remove(map->backward, IPC_BITS, before);
	if (!before)
		map->n++;
	at = slots_set(map->backward, IPC_BITS, real, virtual);
	atomic_fetch_add(&map->generation, 1);
	return at < 0 ? at : 0;
}

int names_ipc_bind(struct names *names, enum names_ipc kind, int32_t virtual, int32_t real,
		   struct rpid keeper)
{
	struct ipc_map *map = &names->table->ipc[kind];
	int r;

	if (virtual < 0 || real < 0)
		return -EINVAL;
	r = table_lock(names);
	if (r < 0)
		return r;
	if (virtual != real)
		r = ipc_insert(map, (uint32_t) virtual + 1, (uint32_t)real + 1, keeper.n);
	else if (ipc_get(map->forward, virtual))
		ipc_drop(map, (uint32_t) virtual + 1);
	table_unlock(names);
	return r;
}

int names_ipc_born(struct names *names, enum names_ipc kind, int32_t real, struct rpid keeper, int32_t *out)
{
	struct ipc_map *map = &names->table->ipc[kind];
	int32_t virtual = names_ipc_virtual(names, kind, real);
	int r = 0;

	if (virtual < 0 && real >= 0) {
		r = table_lock(names);
		if (r < 0)
			return r;
		do {
			virtual = map->next;
			map->next = virtual >= IPC_OWN_LAST ? IPC_OWN_FIRST : virtual + 1;
		} while (ipc_get(map->forward, virtual));
		r = ipc_insert(map, (uint32_t) virtual + 1, (uint32_t)real + 1, keeper.n);
		table_unlock(names);
	}
	*out = virtual;
	return r;
}

void names_ipc_release(struct names *names, enum names_ipc kind, int32_t virtual)
{
	struct ipc_map *map = &names->table->ipc[kind];

	if (virtual < 0 || atomic_load(&map->generation) == 0 || table_lock(names) < 0)
		return;
	if (ipc_get(map->forward, virtual))
		ipc_drop(map, (uint32_t) virtual + 1);
	table_unlock(names);
}

static void drop_kind(struct ipc_map *map, int32_t keeper)
{
	for (uint32_t i = 0; i < IPC_SLOTS && map->n; i++) {
		uint64_t word = atomic_load(&map->forward[i]);

		if (map_used(word) && map->owner[i] == keeper)
			ipc_drop(map, map_key(word));
	}
}

void table_drop_ipc(struct table *table, int32_t keeper)
{
	for (unsigned kind = 0; kind < NAMES_IPC_KINDS; kind++)
		drop_kind(&table->ipc[kind], keeper);
}
