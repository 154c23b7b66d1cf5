#include "scip/precopy/match.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "scip/rebuild/plan.h"
#include "scip/tracee/procfs.h"

/* What a plan needs to know about a process. */
struct place {
	Pbeam__Process process;
	pid_t parent, group, session;
};

static void read_place(const struct group *group, const struct member *member, struct place *place)
{
	struct procfs_stat stat = {0};

	pbeam__process__init(&place->process);
	if (procfs_stat_read(member->rpid.n, 0, &stat, NULL) < 0)
		log_debug("vpid %d has no state", member->vpid.n);
	place->parent = stat.ppid;
	place->group = stat.pgrp;
	place->session = stat.session;
	place->process.vpid = member->vpid.n;
	place->process.vppid = names_parent(group->names, member->rpid, (struct rpid){stat.ppid}).n;
	place->process.vpgid = names_virtual(group->names, (struct rpid){stat.pgrp}).n;
	place->process.vsid = names_virtual(group->names, (struct rpid){stat.session}).n;
	place->process.state = member->zombie ? PBEAM__PROCESS__STATE__ZOMBIE
			       : member->stub ? PBEAM__PROCESS__STATE__STUB
					      : PBEAM__PROCESS__STATE__RUNNING;
}

/* True for a process that is no member, or a pre-copied one. */
static bool is_outside_or_precopied(const struct group *group, pid_t rpid)
{
	const struct member *member = group_find(group, (struct rpid){rpid});

	return !member || member->precopied;
}

/* A process counts as pre-copied only if its parent and leaders do too. */
static void drop_dependents(struct group *group, const struct place *places)
{
	for (bool changed = true; changed;) {
		changed = false;
		for (size_t i = 0; i < group->n; i++) {
			struct member *member = group->v[i];

			if (!member->precopied || (is_outside_or_precopied(group, places[i].parent) &&
						   is_outside_or_precopied(group, places[i].group) &&
						   is_outside_or_precopied(group, places[i].session)))
				continue;
			member->precopied = false;
			changed = true;
		}
	}
}

/* True if the target will find an order in which to make the other processes. */
static bool can_be_made(const struct group *group, struct place *places)
{
	auto_free Pbeam__Process **list = calloc(group->n + 1, sizeof(Pbeam__Process *));
	auto_free bool *there = calloc(group->n + 1, sizeof(*there));
	struct err why = ERR_INIT;
	struct plan plan;
	int r;

	if (!list || !there)
		return false;
	for (size_t i = 0; i < group->n; i++) {
		list[i] = &places[i].process;
		there[i] = group->v[i]->precopied;
	}
	r = plan_make(&plan, list, group->n, there, NULL, &why);
	plan_free(&plan);
	if (r < 0)
		log_info("migrate: new processes cannot be made beside the pre-copied ones: %s", why.text);
	return r == 0;
}

/* Leaves those pre-copied that can continue without the others. False: none can. */
static bool reduce_to_usable(struct group *group)
{
	auto_free struct place *places = calloc(group->n + 1, sizeof(*places));

	for (size_t i = 0; i < group->n && places; i++)
		read_place(group, group->v[i], &places[i]);
	if (places)
		drop_dependents(group, places);
	return places && group->v[0]->precopied && can_be_made(group, places);
}

static size_t count_precopied(const struct group *group)
{
	size_t n = 0;

	for (size_t i = 0; i < group->n; i++)
		n += group->v[i]->precopied;
	return n;
}

size_t match_members(const struct tracked *v, size_t n, struct group *group)
{
	for (size_t i = 0; i < group->n; i++) {
		group->v[i]->precopied = false;
		for (size_t j = 0; j < n && !group->v[i]->precopied; j++)
			group->v[i]->precopied = track_matches(&v[j], group->v[i]);
	}
	/* Usually all members match, and nothing else needs to be read while they are frozen. */
	if (count_precopied(group) < group->n && !reduce_to_usable(group))
		for (size_t i = 0; i < group->n; i++)
			group->v[i]->precopied = false;
	return count_precopied(group);
}
