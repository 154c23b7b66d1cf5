/*
 * The numbers of a rollback, whose new processes are complete before the old ones end.
 *
 * Both have the same virtual numbers. While both exist a number of the old ones is in the table with a bit
 * that no number has (NUMBER_ASIDE), in the maps and in the process's entry, and the number itself is free
 * for the new ones. Nothing that runs looks for the old ones by number: they are frozen. The bit alone says
 * what belongs to the old ones, and a negative owner what was bound since, so that any process can end the
 * exchange after the one that began it was killed. Each step leaves the forward map and the entries correct,
 * from which the rest is rebuilt (table.h).
 */
#include <errno.h>

#include "namespace/record.h"
#include "namespace/table.h"

/* Gives an entry another number. */
static int rename_process(struct table *table, struct table_process *entry, uint32_t number)
{
	uint32_t slot = (uint32_t)(entry - table->processes), before = (uint32_t)entry->p.vpid.n;
	int r;

	entry->p.vpid.n = (int32_t)number;
	r = table_link_process(table, entry);
	if (map_get(&table->by_vpid, before) == slot + 1)
		map_remove(&table->by_vpid, before);
	return r;
}

/* Moves what is known of a number to another one, `to`. `real`: of a number that has not diverged. */
static int move_number(struct table *table, uint32_t from, uint32_t to, uint32_t real, int32_t keeper)
{
	int old = map_find(&table->forward, from), new;
	uint32_t released = old < 0 ? 0 : table->released[old];

	new = map_set(&table->forward, to, real);
	if (new < 0)
		return new;
	table->owner[new] = keeper;
	table->released[new] = released;
	table->nnumbers++;
	if (map_set(&table->backward, real, to) < 0)
		return -ENOSPC;
	if (old >= 0) {
		map_remove(&table->forward, from);
		table->nnumbers--;
	}
	return 0;
}

static int set_number_aside(struct table *table, const struct name_number *number, int32_t keeper)
{
	struct table_process *entry = table_find_process(table, number->vpid.n, number->rpid.n);
	uint32_t virtual = (uint32_t)number->vpid.n, real = (uint32_t)number->rpid.n;
	uint32_t bound = map_get(&table->forward, virtual);
	int r = 0;

	if (entry && !number_is_aside((uint32_t)entry->p.vpid.n))
		r = rename_process(table, entry, virtual | NUMBER_ASIDE);
	if (r < 0 || map_get(&table->forward, virtual | NUMBER_ASIDE) ||
	    (bound ? bound != real : virtual != real))
		return r; /* it has another number, or is known already */
	if (!bound && table->nnumbers >= TABLE_NUMBERS)
		return -ENOSPC;
	return move_number(table, virtual, virtual | NUMBER_ASIDE, real, keeper);
}

static int set_others_aside(struct table *table, int32_t keeper)
{
	int r = 0;

	for (uint32_t i = 0; i < MAP_SLOTS && r == 0; i++) {
		uint64_t word = atomic_load(&table->forward.slots[i]);

		if (map_used(word) && table->owner[i] == keeper && !number_is_aside(map_key(word)) &&
		    map_value(word) != (uint32_t)keeper)
			r = move_number(table, map_key(word), map_key(word) | NUMBER_ASIDE, map_value(word),
					keeper);
	}
	return r;
}

/* A number that had not diverged is in the map only while it is set aside. */
static void give_back_number(struct table *table, uint32_t aside, uint32_t real, int32_t keeper)
{
	uint32_t virtual = number_plain(aside), taken = map_get(&table->forward, virtual);

	if (taken)
		table_number_drop(table, virtual, taken);
	if (virtual == real || move_number(table, aside, virtual, real, keeper) < 0)
		table_number_drop(table, aside, real);
}

static void give_numbers_back(struct table *table, int32_t keeper)
{
	for (uint32_t i = 0; i < MAP_SLOTS; i++) {
		uint64_t word = atomic_load(&table->forward.slots[i]);

		if (!map_used(word))
			continue;
		if (table->owner[i] == keeper && number_is_aside(map_key(word)))
			give_back_number(table, map_key(word), map_value(word), keeper);
		else if (table->owner[i] == -keeper)
			table_number_drop(table, map_key(word), map_value(word));
	}
}

static void give_processes_back(struct table *table, int32_t keeper)
{
	for (unsigned i = 0; i < TABLE_PROCESSES; i++) {
		struct table_process *entry = &table->processes[i];
		uint32_t number = (uint32_t)entry->p.vpid.n, other;

		if (!table_used(&entry->used) || entry->p.keeper.n != keeper || !number_is_aside(number))
			continue;
		other = map_get(&table->by_vpid, number_plain(number));
		if (other)
			table_unlink_process(table, &table->processes[other - 1]);
		if (rename_process(table, entry, number_plain(number)) < 0)
			table_unlink_process(table, entry);
	}
}

static void forget_old(struct table *table, int32_t keeper)
{
	for (uint32_t i = 0; i < MAP_SLOTS; i++) {
		uint64_t word = atomic_load(&table->forward.slots[i]);

		if (!map_used(word))
			continue;
		if (table->owner[i] == keeper && number_is_aside(map_key(word)))
			table_number_drop(table, map_key(word), map_value(word));
		else if (table->owner[i] == -keeper)
			table->owner[i] = keeper;
	}
	for (unsigned i = 0; i < TABLE_PROCESSES; i++) {
		struct table_process *entry = &table->processes[i];

		if (table_used(&entry->used) && entry->p.keeper.n == keeper &&
		    number_is_aside((uint32_t)entry->p.vpid.n))
			table_unlink_process(table, entry);
	}
}

static void end_replace(struct table *table, struct table_job *job, bool committed)
{
	const int32_t keeper = job->j.keeper.n;

	if (committed) {
		forget_old(table, keeper);
	} else {
		give_numbers_back(table, keeper);
		give_processes_back(table, keeper);
	}
	job->replacing = 0;
	atomic_fetch_add(&table->generation, 1);
}

int names_replace_begin(struct names *names, struct rpid keeper, const struct name_number *numbers, size_t n,
			bool whole)
{
	struct table *table = names->table;
	struct table_job *job;
	int r = table_lock(names);

	if (r < 0)
		return r;
	job = table_find_job(table, keeper.n);
	r = job ? 0 : -ESRCH;
	if (job)
		job->replacing = 1;
	for (size_t i = 0; i < n && r == 0; i++)
		r = numbers[i].vpid.n > 0 && numbers[i].vpid.n <= NUMBER_OWN_LAST
			    ? set_number_aside(table, &numbers[i], keeper.n)
			    : -EINVAL;
	if (r == 0 && whole)
		r = set_others_aside(table, keeper.n);
	atomic_fetch_add(&table->generation, 1);
	if (r < 0 && job)
		end_replace(table, job, false);
	table_unlock(names);
	return r;
}

void names_replace_end(struct names *names, struct rpid keeper, bool committed)
{
	struct table_job *job;
	bool replacing;

	if (table_lock(names) < 0)
		return;
	job = table_find_job(names->table, keeper.n);
	replacing = job && job->replacing;
	if (replacing)
		end_replace(names->table, job, committed);
	table_unlock(names);
	if (replacing)
		record_filter_settle(keeper, committed);
}
