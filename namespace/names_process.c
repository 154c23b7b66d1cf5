/* Jobs and processes of the name table. All under its lock; see table.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "namespace/record.h"
#include "namespace/table.h"

/* ---- jobs ---- */

void table_unlink_process(struct table *table, struct table_process *entry)
{
	uint32_t slot = (uint32_t)(entry - table->processes);

	atomic_store_explicit(&entry->used, 0, memory_order_release);
	if (map_get(&table->by_vpid, (uint32_t)entry->p.vpid.n) == slot + 1)
		map_remove(&table->by_vpid, (uint32_t)entry->p.vpid.n);
	if (map_get(&table->by_rpid, (uint32_t)entry->p.rpid.n) == slot + 1)
		map_remove(&table->by_rpid, (uint32_t)entry->p.rpid.n);
	table->free_process = slot;
	if (table->nprocesses)
		table->nprocesses--;
}

static void drop_job(struct table *table, struct table_job *job)
{
	int32_t keeper = job->j.keeper.n;

	for (unsigned i = 0; i < TABLE_PROCESSES; i++)
		if (table_used(&table->processes[i].used) && table->processes[i].p.keeper.n == keeper)
			table_unlink_process(table, &table->processes[i]);
	table_drop_numbers(table, keeper);
	table_drop_ipc(table, keeper);
	atomic_store_explicit(&job->used, 0, memory_order_release);
}

/* True if the process has ended: its keeper's job was removed before, or neither the process nor a scip
 * that would report its end exists. */
static bool is_gone(const struct table_process *entry)
{
	const struct name_process *p = &entry->p;

	if (p->scip.n > 0 && table_alive(p->scip.n, 0))
		return false;
	return !table_alive(p->rpid.n, entry->start_ticks);
}

/* Removes the entries whose process, or whose keeper, has ended. */
static void table_sweep(struct table *table)
{
	for (unsigned i = 0; i < TABLE_JOBS; i++) {
		struct table_job *job = &table->jobs[i];

		if (table_used(&job->used) && !table_runs(job->j.keeper.n, job->start_ticks))
			drop_job(table, job);
	}
	for (unsigned i = 0; i < TABLE_PROCESSES && table->nprocesses; i++)
		if (table_used(&table->processes[i].used) && is_gone(&table->processes[i]))
			table_unlink_process(table, &table->processes[i]);
}

static int names_add_job(struct table *table, const struct name_job *job, uint64_t ticks, struct err *err)
{
	struct table_job *place = NULL;
	unsigned nfree = 0;

	for (unsigned i = 0; i < TABLE_JOBS; i++) {
		struct table_job *at = &table->jobs[i];

		if (!table_used(&at->used)) {
			nfree++;
			if (!place)
				place = at;
			continue;
		}
		if (at->j.keeper.n == job->keeper.n && at->start_ticks != ticks) {
			drop_job(table, at); /* an older keeper had this number */
			nfree++;
			place = place ? place : at;
			continue;
		}
		if (at->j.keeper.n == job->keeper.n)
			return err_set(err, -EEXIST, "job %d is registered already", job->keeper.n);
		if (!job->name[0] || strncmp(at->j.name, job->name, NAME_TEXT_MAX) != 0)
			continue;
		if (table_runs(at->j.keeper.n, at->start_ticks))
			return err_set(err, -EEXIST, "the name %s is in use by job %d; choose another",
				       job->name, at->j.root.n ? at->j.root.n : at->j.keeper.n);
		drop_job(table, at);
		nfree++;
		place = place ? place : at;
	}
	if (nfree < 2) /* one for replace_job() */
		return err_set(err, -ENOSPC, "the name table holds %u jobs already", TABLE_JOBS - 1);
	place->j = *job;
	place->j.name[NAME_TEXT_MAX - 1] = 0;
	place->replacing = 0;
	place->start_ticks = ticks;
	atomic_store_explicit(&place->used, 1, memory_order_release);
	return 0;
}

int names_job_add(struct names *names, const struct name_job *job, struct err *err)
{
	uint64_t ticks;
	int r = table_start_ticks(job->keeper.n, &ticks);

	if (r == -ENOENT || r == -ESRCH)
		return err_set(err, -ESRCH, "keeper %d of the job is not there", job->keeper.n);
	if (r < 0)
		return err_code(err, r, "read /proc/%d/stat of the job's keeper", job->keeper.n);
	r = others_check_name(names, job->name, err);
	if (r < 0)
		return r;
	r = table_lock(names);
	if (r < 0)
		return names_explain(names, r, err);
	r = names_is_found(names) ? names_add_job(names->table, job, ticks, err)
				  : err_set(err, -ESTALE, "the name table was removed");
	table_unlock(names);
	if (r == 0)
		record_forget_job(job->keeper); /* left by an older keeper with this number */
	return r;
}

/* Writes the whole entry to another slot, then clears the old one: a writer that dies in between leaves
 * one or both, never half of one. names_add_job() leaves a slot for it. */
static int replace_job(struct table *table, struct table_job *old, const struct name_job *job)
{
	struct table_job *place = NULL;

	for (unsigned i = 0; i < TABLE_JOBS && !place; i++)
		if (!table_used(&table->jobs[i].used))
			place = &table->jobs[i];
	if (!place)
		return -ENOSPC;
	place->j = *job;
	place->start_ticks = old->start_ticks;
	place->replacing = old->replacing;
	atomic_store_explicit(&place->used, 1, memory_order_release);
	atomic_store_explicit(&old->used, 0, memory_order_release);
	return 0;
}

int names_job_update(struct names *names, const struct name_job *job)
{
	struct table_job *found;
	int r = table_lock(names);

	if (r < 0)
		return r;
	found = table_find_job(names->table, job->keeper.n);
	r = found ? replace_job(names->table, found, job) : -ENOENT;
	table_unlock(names);
	return r;
}

void names_job_remove(struct names *names, struct rpid keeper)
{
	struct table_job *found;

	if (table_lock(names) < 0)
		return;
	found = table_find_job(names->table, keeper.n);
	if (found)
		drop_job(names->table, found);
	table_unlock(names);
	record_forget_job(keeper);
}

int names_job_get(struct names *names, struct rpid keeper, struct name_job *out)
{
	struct table_job *found;
	int r = table_lock(names);

	if (r < 0)
		return r;
	found = table_find_job(names->table, keeper.n);
	if (found)
		*out = found->j;
	table_unlock(names);
	if (!found && names->others)
		return others_find_job(names, keeper, out);
	return found ? 0 : -ENOENT;
}

bool names_job_of_other(struct names *names, struct rpid keeper)
{
	bool ours;

	if (table_lock(names) < 0)
		return false;
	ours = table_find_job(names->table, keeper.n) != NULL;
	table_unlock(names);
	return !ours;
}

int names_jobs_snapshot(struct names *names, struct name_job **out)
{
	struct name_job *jobs = malloc(TABLE_JOBS * sizeof(*jobs));
	int n = 0, r = jobs ? table_lock(names) : -ENOMEM;

	*out = NULL;
	if (r < 0) {
		free(jobs);
		return r;
	}
	table_sweep(names->table);
	for (unsigned i = 0; i < TABLE_JOBS; i++)
		if (table_used(&names->table->jobs[i].used))
			jobs[n++] = names->table->jobs[i].j;
	table_unlock(names);
	if (names->others)
		n = others_append_jobs(names, &jobs, n);
	if (n < 0)
		free(steal_ptr(&jobs));
	*out = jobs;
	return n;
}

int names_job_count(struct names *names)
{
	int n = 0, r = table_lock(names);

	if (r < 0)
		return r;
	table_sweep(names->table);
	for (unsigned i = 0; i < TABLE_JOBS; i++)
		n += table_used(&names->table->jobs[i].used);
	table_unlock(names);
	if (n == 0 && names->others) {
		auto_free struct name_job *jobs = NULL;

		n = others_append_jobs(names, &jobs, 0);
	}
	return n;
}

/* ---- processes ---- */

static struct table_process *names_lookup_process(struct table *table, const struct map *map, int32_t number)
{
	uint32_t slot = number > 0 ? map_get(map, (uint32_t)number) : 0;

	return slot ? &table->processes[slot - 1] : NULL;
}

struct table_process *table_find_process(struct table *table, int32_t virtual, int32_t real)
{
	struct table_process *entry = names_lookup_process(table, &table->by_vpid, virtual);

	if (!entry || entry->p.rpid.n != real)
		entry = names_lookup_process(table, &table->by_vpid, virtual | NUMBER_ASIDE);
	return entry && entry->p.rpid.n == real ? entry : NULL;
}

/* What a caller gets of an entry. */
static struct name_process copy_process(const struct table_process *entry)
{
	struct name_process copy = entry->p;

	copy.aside = number_is_aside((uint32_t)copy.vpid.n);
	copy.vpid.n = (int32_t)number_plain((uint32_t)copy.vpid.n);
	return copy;
}

/* The slot released last, which all mappings have touched; else the next one. */
static struct table_process *names_free_slot(struct table *table)
{
	struct table_process *entry = &table->processes[table->free_process % TABLE_PROCESSES];

	for (unsigned n = 0; n < TABLE_PROCESSES && table_used(&entry->used); n++)
		entry = &table->processes[table->next_process++ % TABLE_PROCESSES];
	return table_used(&entry->used) ? NULL : entry;
}

static int add_process(struct table *table, const struct name_process *process, uint64_t ticks)
{
	struct table_process *old = names_lookup_process(table, &table->by_vpid, process->vpid.n);
	struct table_process *entry;

	if (old && old->p.state != NAME_STATE_DEAD && !is_gone(old) &&
	    (old->p.rpid.n != process->rpid.n || old->start_ticks == ticks))
		return -EEXIST;
	if (old)
		table_unlink_process(table, old);
	old = names_lookup_process(table, &table->by_rpid, process->rpid.n);
	if (old)
		table_unlink_process(table, old); /* its number was given to a new process: it has ended */
	/* One is left for replace_process(). */
	if (table->nprocesses >= TABLE_PROCESSES - 1)
		table_sweep(table);
	entry = table->nprocesses < TABLE_PROCESSES - 1 ? names_free_slot(table) : NULL;
	if (!entry)
		return -ENOSPC;
	entry->p = *process;
	entry->start_ticks = ticks;
	atomic_store_explicit(&entry->used, 1, memory_order_release);
	table->nprocesses++;
	return table_link_process(table, entry);
}

int names_process_add(struct names *names, const struct name_process *process)
{
	/* Reading /proc is too expensive for every fork, and the scip of a newborn removes its entry. So 0
	 * matches any process with the number. */
	bool born = process->state == NAME_STATE_BORN;
	uint64_t ticks = 0;
	int r;

	if (process->vpid.n <= 0)
		return -EINVAL;
	if (process->rpid.n > 0 && !born && table_start_ticks(process->rpid.n, &ticks) < 0)
		ticks = 0;
	r = table_lock(names);
	if (r < 0)
		return r;
	r = add_process(names->table, process, ticks);
	table_unlock(names);
	return r;
}

/* Writes the new entry before it clears the old one, as for jobs. add_process() leaves a slot for it. */
static int replace_process(struct table *table, struct table_process *old, const struct name_process *process)
{
	struct table_process *entry = names_free_slot(table);
	struct name_process now = *process;

	now.vpid = old->p.vpid;
	now.aside = false;
	if (!entry)
		return -ENOSPC;
	entry->p = now;
	entry->start_ticks = old->start_ticks;
	atomic_store_explicit(&entry->used, 1, memory_order_release);
	atomic_store_explicit(&old->used, 0, memory_order_release);
	table->free_process = (uint32_t)(old - table->processes);
	return table_link_process(table, entry);
}

int names_process_update(struct names *names, const struct name_process *process)
{
	struct table_process *entry;
	int r = table_lock(names);

	if (r < 0)
		return r;
	entry = process->vpid.n > 0 ? table_find_process(names->table, process->vpid.n, process->rpid.n)
				    : NULL;
	r = entry ? replace_process(names->table, entry, process) : -ENOENT;
	table_unlock(names);
	return r;
}

void names_process_mark(struct names *names, struct vpid vpid, bool undecided)
{
	struct table_process *entry;

	if (table_lock(names) < 0)
		return;
	entry = names_lookup_process(names->table, &names->table->by_vpid, vpid.n);
	if (entry)
		entry->p.undecided = undecided;
	table_unlock(names);
}

void names_process_remove(struct names *names, struct vpid vpid, struct rpid rpid)
{
	struct table_process *entry;

	if (vpid.n <= 0 || table_lock(names) < 0)
		return;
	entry = table_find_process(names->table, vpid.n, rpid.n);
	if (entry)
		table_unlink_process(names->table, entry);
	table_unlock(names);
}

static int names_get_process(struct names *names, const struct map *map, int32_t number,
			     struct name_process *out)
{
	struct table_process *entry;
	int r = table_lock(names);

	if (r < 0)
		return r;
	entry = names_lookup_process(names->table, map, number);
	if (entry)
		*out = copy_process(entry);
	table_unlock(names);
	return entry ? 0 : -ENOENT;
}

int names_process_get_real(struct names *names, struct vpid vpid, struct rpid rpid, struct name_process *out)
{
	struct table_process *entry;
	int r = vpid.n > 0 ? table_lock(names) : -EINVAL;

	if (r < 0)
		return r;
	entry = table_find_process(names->table, vpid.n, rpid.n);
	if (entry)
		*out = copy_process(entry);
	table_unlock(names);
	return entry ? 0 : -ENOENT;
}

int names_process_get(struct names *names, struct vpid vpid, struct name_process *out)
{
	int r = names_get_process(names, &names->table->by_vpid, vpid.n, out);

	return r == -ENOENT && names->others ? others_find_process(names, vpid, out) : r;
}

int names_process_find_real(struct names *names, struct rpid rpid, struct name_process *out)
{
	return names_get_process(names, &names->table->by_rpid, rpid.n, out);
}

void names_process_waited(struct names *names, struct vpid vpid, struct rpid rpid)
{
	struct name_process entry;

	names_number_release(names, vpid, rpid);
	if (names_process_get_real(names, vpid, rpid, &entry) == 0 && entry.state == NAME_STATE_DEAD)
		names_process_remove(names, vpid, rpid);
}

struct vpid names_parent(struct names *names, struct rpid rpid, struct rpid ppid)
{
	struct name_process process;

	if (ppid.n > 0 && names_process_find_real(names, rpid, &process) == 0 && process.remote_parent &&
	    process.keeper.n == ppid.n)
		return process.parent;
	return names_virtual(names, ppid);
}

/* With the table locked: copies the keeper's processes (keeper 0: all) to `out`, NULL to count them. */
static int table_collect(struct table *table, struct rpid keeper, struct name_process *out)
{
	uint32_t seen = 0;
	int n = 0;

	for (unsigned i = 0; i < TABLE_PROCESSES && seen < table->nprocesses; i++) {
		const struct table_process *entry = &table->processes[i];
		uint32_t aside;

		if (!table_used(&entry->used))
			continue;
		seen++;
		aside = map_get(&table->by_vpid, (uint32_t)entry->p.vpid.n | NUMBER_ASIDE);
		/* It has the number of one that is set aside. */
		if ((keeper.n && entry->p.keeper.n != keeper.n) || (aside && aside != i + 1))
			continue;
		if (out)
			out[n] = copy_process(entry);
		n++;
	}
	return n;
}

int names_snapshot(struct names *names, struct rpid keeper, struct name_process **out)
{
	struct name_process *all = NULL;
	int n, r = table_lock(names);

	*out = NULL;
	if (r < 0)
		return r;
	table_sweep(names->table);
	n = table_collect(names->table, keeper, NULL);
	all = calloc((size_t)n + 1, sizeof(*all));
	if (all)
		table_collect(names->table, keeper, all);
	table_unlock(names);
	if (all && names->others)
		n = others_append_processes(names, keeper, &all, n);
	if (n < 0)
		free(steal_ptr(&all));
	*out = all;
	return all ? n : n < 0 ? n : -ENOMEM;
}

int names_process_count(struct names *names, struct rpid keeper)
{
	int n, r = table_lock(names);

	if (r < 0)
		return r;
	table_sweep(names->table);
	n = table_collect(names->table, keeper, NULL);
	table_unlock(names);
	return n;
}
