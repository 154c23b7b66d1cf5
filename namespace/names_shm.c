/* Diverged ids of System V shared memory. As names_number.c, in maps of their own; ids are stored + 1,
 * because 0 is one. */
#include <errno.h>

#include "namespace/table.h"

static uint32_t get(const _Atomic uint64_t *slots, int32_t id)
{
	return id < 0 ? 0 : slots_get(slots, SHM_BITS, (uint32_t)id + 1);
}

static int32_t look(struct names *names, const _Atomic uint64_t *slots, const _Atomic uint64_t *other,
		    int32_t id)
{
	uint32_t found;

	if (id < 0 || atomic_load_explicit(&names->table->shm_generation, memory_order_acquire) == 0)
		return id;
	found = get(slots, id);
	if (found)
		return (int32_t)(found - 1);
	return get(other, id) ? -1 : id;
}

int32_t names_shm_real(struct names *names, int32_t virtual)
{
	return look(names, names->table->shm_forward, names->table->shm_backward, virtual);
}

int32_t names_shm_virtual(struct names *names, int32_t real)
{
	return look(names, names->table->shm_backward, names->table->shm_forward, real);
}

static void drop(struct table *table, uint32_t virtual)
{
	uint32_t real = slots_get(table->shm_forward, SHM_BITS, virtual);

	slots_remove(table->shm_forward, SHM_BITS, virtual);
	if (real && slots_get(table->shm_backward, SHM_BITS, real) == virtual)
		slots_remove(table->shm_backward, SHM_BITS, real);
	if (table->nshm)
		table->nshm--;
	atomic_fetch_add(&table->shm_generation, 1);
}

static int insert(struct table *table, uint32_t virtual, uint32_t real, int32_t keeper)
{
	uint32_t before = slots_get(table->shm_backward, SHM_BITS, real);
	int at;

	if (slots_get(table->shm_forward, SHM_BITS, virtual))
		drop(table, virtual);
	if (before && before != virtual)
		drop(table, before); /* that segment is gone: its id was given again */
	if (table->nshm >= SHM_SLOTS / 2)
		return -ENOSPC;
	at = slots_set(table->shm_forward, SHM_BITS, virtual, real);
	if (at < 0)
		return at;
	table->shm_owner[at] = keeper;
	table->nshm++;
	at = slots_set(table->shm_backward, SHM_BITS, real, virtual);
	atomic_fetch_add(&table->shm_generation, 1);
	return at < 0 ? at : 0;
}

int names_shm_bind(struct names *names, int32_t virtual, int32_t real, struct rpid keeper)
{
	int r;

	if (virtual < 0 || real < 0)
		return -EINVAL;
	r = table_lock(names);
	if (r < 0)
		return r;
	if (virtual != real)
		r = insert(names->table, (uint32_t) virtual + 1, (uint32_t)real + 1, keeper.n);
	else if (get(names->table->shm_forward, virtual))
		drop(names->table, (uint32_t) virtual + 1);
	table_unlock(names);
	return r;
}

int names_shm_born(struct names *names, int32_t real, struct rpid keeper, int32_t *out)
{
	struct table *table = names->table;
	int32_t virtual = names_shm_virtual(names, real);
	int r = 0;

	if (virtual < 0 && real >= 0) {
		r = table_lock(names);
		if (r < 0)
			return r;
		do {
			virtual = table->next_shm;
			table->next_shm = virtual >= SHM_OWN_LAST ? SHM_OWN_FIRST : virtual + 1;
		} while (get(table->shm_forward, virtual));
		r = insert(table, (uint32_t) virtual + 1, (uint32_t)real + 1, keeper.n);
		table_unlock(names);
	}
	*out = virtual;
	return r;
}

void names_shm_release(struct names *names, int32_t virtual)
{
	if (virtual < 0 || atomic_load(&names->table->shm_generation) == 0 || table_lock(names) < 0)
		return;
	if (get(names->table->shm_forward, virtual))
		drop(names->table, (uint32_t) virtual + 1);
	table_unlock(names);
}

void table_drop_shm(struct table *table, int32_t keeper)
{
	for (uint32_t i = 0; i < SHM_SLOTS && table->nshm; i++) {
		uint64_t word = atomic_load(&table->shm_forward[i]);

		if (map_used(word) && table->shm_owner[i] == keeper)
			drop(table, map_key(word));
	}
}

/* The forward map is the truth. */
void table_repair_shm(struct table *table)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < SHM_SLOTS; i++) {
		uint64_t word = atomic_load(&table->shm_forward[i]);

		if (!map_used(word))
			continue;
		n++;
		if (slots_get(table->shm_backward, SHM_BITS, map_value(word)) != map_key(word) &&
		    slots_set(table->shm_backward, SHM_BITS, map_value(word), map_key(word)) < 0)
			slots_remove(table->shm_forward, SHM_BITS, map_key(word));
	}
	for (uint32_t i = 0; i < SHM_SLOTS; i++) {
		uint64_t word = atomic_load(&table->shm_backward[i]);

		if (map_used(word) &&
		    slots_get(table->shm_forward, SHM_BITS, map_value(word)) != map_key(word))
			slots_remove(table->shm_backward, SHM_BITS, map_key(word));
	}
	table->nshm = n;
}
