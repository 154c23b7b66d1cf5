/*
 * Pre-copied processes become those of the final image.
 *
 * Between the skeleton and the freeze, processes have been born and have ended. A process that still exists
 * continues in the husk that holds its memory. Husks of processes that have ended are killed, and their
 * parents made to wait for them. The plan (plan.h) makes new processes beside the others. The source
 * decides which processes are the same; the plan refuses impossible trees.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "scip/rebuild/precopied_parts.h"
#include "scip/tracee/remote.h"

/* Sentinel: a mapping put together from pieces of different protection. */
#define PROT_MIXED (1u << 30)

/* ---- memory ---- */

/* The end of the process's mapping that contains `at`, or 0 with *next set to the beginning of the next
 * mapping before `end`. */
static uint64_t find_mapped_end(const Pbeam__Memory *memory, uint64_t at, uint64_t end, uint64_t *next)
{
	*next = end;
	for (size_t i = 0; i < memory->n_mappings; i++) {
		const Pbeam__Mapping *there = memory->mappings[i];

		if (there->start <= at && there->end > at)
			return there->end;
		if (there->start > at && there->start < *next)
			*next = there->start;
	}
	return 0;
}

static int map_gap(struct rebuild *rebuild, int node, const Pbeam__Mapping *map, uint64_t start, uint64_t end)
{
	int64_t ret = rebuild_husk_call(
		rebuild, node, SYS_mmap,
		remote_args(start, end - start, map->prot | PROT_READ | PROT_WRITE,
			    (map->flags & (MAP_PRIVATE | MAP_GROWSDOWN | MAP_NORESERVE | MAP_STACK)) |
				    MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
			    (uint64_t)-1, 0));

	return ret < 0 ? err_wrap(rebuild->err, (int)ret, "map memory at %#lx", (unsigned long)start) : 0;
}

static bool has_sent(const Pbeam__Mapping *map)
{
	for (size_t i = 0; i < map->n_pages; i++)
		if (map->pages[i]->offset == 0)
			return true;
	return false;
}

/* The mapping has grown since the skeleton: the existing pieces are extended, and are one mapping from then
 * on. */
static int extend_mapping(struct rebuild *rebuild, struct precopied_process *process, size_t node,
			  const Pbeam__Mapping *map)
{
	Pbeam__Memory *memory = &process->memory;
	Pbeam__Mapping *whole = malloc(sizeof(*whole)), **more;
	uint64_t at = map->start, next;
	size_t n = 0;
	int r = 0;

	more = reallocarray(process->more, process->nmore + 1, sizeof(*more));
	process->more = more ? more : process->more;
	if (!whole || !more) {
		free(whole);
		return -ENOMEM;
	}
	process->more[process->nmore++] = whole;
	*whole = *map;
	whole->n_pages = whole->n_guards = 0;
	whole->prot = PROT_MIXED;
	whole->advice = 0; /* replaced by the advice of `map`, which has some if the pieces do */
	while (at < map->end && r == 0) {
		uint64_t end = find_mapped_end(memory, at, map->end, &next);

		if (!end)
			r = map_gap(rebuild, node, map, at, next);
		at = end ? end : next;
	}
	for (size_t i = 0; i < memory->n_mappings; i++) {
		Pbeam__Mapping *there = memory->mappings[i];

		if (there->start < map->end && there->end > map->start) {
			whole->start = there->start < whole->start ? there->start : whole->start;
			whole->end = there->end > whole->end ? there->end : whole->end;
		} else {
			memory->mappings[n++] = there;
		}
	}
	if (n == memory->n_mappings)
		return err_set(rebuild->err, -EPROTO, "memory at %#lx was never sent",
			       (unsigned long)map->start);
	memory->n_mappings = n;
	/* Inserted in the order of addresses. There is room: one mapping less than before. */
	for (; n > 0 && memory->mappings[n - 1]->start > whole->start; n--)
		memory->mappings[n] = memory->mappings[n - 1];
	memory->mappings[n] = whole;
	memory->n_mappings++;
	return r;
}

static bool is_inside_one(const Pbeam__Memory *memory, const Pbeam__Mapping *map)
{
	for (size_t i = 0; i < memory->n_mappings; i++)
		if (memory->mappings[i]->start <= map->start && memory->mappings[i]->end >= map->end)
			return true;
	return false;
}

static int settle_memory(struct rebuild *rebuild, struct precopied_process *process, size_t node,
			 size_t index, Pbeam__Memory *wanted)
{
	int r = 0;

	for (size_t i = 0; i < wanted->n_mappings && r == 0; i++) {
		Pbeam__Mapping *map = wanted->mappings[i];

		if (!has_sent(map))
			continue;
		if (!precopied_is_tracked(map))
			return err_set(rebuild->err, -EPROTO, "memory at %#lx was never sent",
				       (unsigned long)map->start);
		if (!is_inside_one(&process->memory, map))
			r = extend_mapping(rebuild, process, node, map);
		for (size_t p = 0; p < map->n_pages; p++)
			if (map->pages[p]->offset == 0)
				map->pages[p]->offset =
					map->pages[p]->address + (uint64_t)precopied_shift(index);
	}
	/* The list of protections follows the list of mappings. */
	free(process->state->prot);
	process->state->prot = calloc(process->memory.n_mappings + 1, sizeof(*process->state->prot));
	if (!process->state->prot)
		return -ENOMEM;
	for (size_t i = 0; i < process->memory.n_mappings; i++)
		process->state->prot[i] = process->memory.mappings[i]->prot;
	extents_settle(&process->state->pages);
	return r;
}

/* ---- processes that remain ---- */

static const Pbeam__Process *precopied_at(const struct precopied *p, size_t i)
{
	return p->rebuild.manifest->processes[i];
}

/* Finds the processes of the final manifest that exist, and their indices; index[] is -1 for the others. */
static int match_mapping(const struct rebuild *rebuild, const struct precopied *p, bool *there, int *index)
{
	const struct rebuild_options *options = rebuild->options;
	const Pbeam__Manifest *manifest = rebuild->manifest;
	size_t found = 0;

	for (size_t i = 0; i < manifest->n_processes; i++) {
		const Pbeam__Process *process = manifest->processes[i], *old;

		index[i] = -1;
		for (size_t j = 0; j < options->nprecopied && !there[i]; j++)
			there[i] = options->precopied_vpids[j] == process->vpid;
		if (!there[i])
			continue;
		index[i] = precopied_find(p, process->vpid, 0);
		old = index[i] < 0 ? NULL : precopied_at(p, (size_t)index[i]);
		if (!old || old->vppid != process->vppid || old->vsid != process->vsid ||
		    old->vpgid != process->vpgid || (process->memory && !old->memory) /* a zombie has none */)
			return err_set(rebuild->err, -EPROTO, "vpid %d was not pre-copied", process->vpid);
		found++;
	}
	if (found != options->nprecopied || !there[0])
		return err_set(rebuild->err, -EPROTO, "the processes are not those that were pre-copied");
	return 0;
}

/* True if an existing process is in the group or session of this number, whose leader is gone. */
static bool number_is_named(const Pbeam__Manifest *manifest, const int *index, int32_t number)
{
	for (size_t i = 0; i < manifest->n_processes; i++)
		if (index[i] >= 0 &&
		    (manifest->processes[i]->vpgid == number || manifest->processes[i]->vsid == number))
			return true;
	return false;
}

/* Makes the parent, a husk, wait for the child. */
static int reap_for_husk(struct rebuild *rebuild, int parent, struct vpid vpid, struct rpid rpid)
{
	int64_t ret =
		rebuild_husk_call(rebuild, parent, SYS_wait4, remote_args((uint64_t)rpid.n, 0, __WALL, 0));

	if (ret < 0)
		return err_wrap(rebuild->err, (int)ret, "end vpid %d", vpid.n);
	names_process_remove(rebuild->names, vpid, rpid);
	names_number_release(rebuild->names, vpid, rpid);
	return 0;
}

/* Kills the husk of a process that has ended. Groups and sessions that it led keep its number. */
static int remove_one(struct precopied *p, size_t gone, const Pbeam__Manifest *manifest, const int *index)
{
	struct rebuild *rebuild = &p->rebuild;
	struct made *made = &rebuild->made[gone];
	const struct vpid vpid = {precopied_at(p, gone)->vpid};
	const struct rpid rpid = {made->rpid};
	int parent = precopied_find(p, precopied_at(p, gone)->vppid, 0), r = 0;

	if (made->sock >= 0)
		close(made->sock);
	made->sock = -1;
	made->rpid = 0;
	kill(rpid.n, SIGKILL);
	if (parent >= 0)
		r = reap_for_husk(rebuild, parent, vpid, rpid);
	else
		precopied_await_gone(rebuild->names, vpid); /* the keeper waits for its own children */
	if (r == 0 && number_is_named(manifest, index, vpid.n) &&
	    names_number_bind(rebuild->names, vpid, rpid, rebuild->options->keeper) < 0)
		log_debug("number %d of a group is bound already", vpid.n);
	return r;
}

/* Kills children before their parents. */
static int remove_gone(struct precopied *p, const Pbeam__Manifest *manifest, const int *index)
{
	auto_free bool *stays = calloc(p->n + 1, sizeof(*stays));
	int r = stays ? 0 : -ENOMEM;

	for (size_t i = 0; i < manifest->n_processes && stays; i++)
		if (index[i] >= 0)
			stays[index[i]] = true;
	for (size_t i = p->n; i-- > 0 && r == 0;)
		if (!stays[i])
			r = remove_one(p, i, manifest, index);
	return r;
}

/* Moves the state of the pre-copied processes into the rebuild. */
static int move_state(struct rebuild *rebuild, struct precopied *p, const int *index)
{
	struct rebuild *old = &p->rebuild;
	int r = rebuild_begin_made(rebuild);

	if (r < 0)
		return r;
	for (size_t i = 0; i < rebuild->manifest->n_processes; i++)
		if (index[i] >= 0)
			rebuild->made[i] = old->made[index[i]];
	rebuild->states = old->states;
	rebuild->above = old->above;
	rebuild->plan.above = old->plan.above ? &rebuild->above.plan : NULL;
	rebuild->precopied = p;
	plan_free(&old->plan);
	free(old->made);
	old->made = NULL;
	return 0;
}

static int take_over_process(struct rebuild *rebuild, struct precopied *p, bool *there, int *index)
{
	const Pbeam__Manifest *manifest = rebuild->manifest;
	int r = match_mapping(rebuild, p, there, index);

	if (r == 0)
		r = plan_make(&rebuild->plan, manifest->processes, manifest->n_processes, there,
			      p->rebuild.plan.above, rebuild->err);
	p->rebuild.err = rebuild->err;
	if (r == 0)
		r = remove_gone(p, manifest, index);
	p->rebuild.err = &p->err;
	if (r == 0)
		r = move_state(rebuild, p, index);
	if (r < 0) {
		plan_free(&rebuild->plan);
		precopied_abandon(p);
		return r;
	}
	/* No other process reads the image. */
	for (size_t i = 0; i < manifest->n_processes && r == 0; i++)
		if (index[i] >= 0 && manifest->processes[i]->memory)
			r = settle_memory(rebuild, &p->processes[index[i]], i, (size_t)index[i],
					  manifest->processes[i]->memory);
	return r;
}

int precopied_take(struct rebuild *rebuild, struct precopied *p)
{
	auto_free bool *there = calloc(rebuild->manifest->n_processes + 1, sizeof(*there));
	auto_free int *index = calloc(rebuild->manifest->n_processes + 1, sizeof(*index));

	if (!there || !index || !rebuild->manifest->n_processes) {
		precopied_abandon(p);
		return err_code(rebuild->err, -ENOMEM, "take the processes");
	}
	return take_over_process(rebuild, p, there, index);
}
