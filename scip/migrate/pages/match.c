#include "scip/migrate/pages/match.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "scip/restore/plan.h"
#include "scip/tracee/procfs.h"

/* What a plan wants to know of a process. */
struct place {
	Pbeam__Process process;
	pid_t parent, group, session;
};

static void look(const struct group *group, const struct member *member, struct place *place)
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

/* Not one of them, or one that is ahead. */
static bool is_no_obstacle(const struct group *group, pid_t rpid)
{
	const struct member *member = group_find(group, (struct rpid){rpid});

	return !member || member->ahead;
}

/* Who is ahead without his parent or leaders is not. */
static void close_set(struct group *group, const struct place *places)
{
	for (bool changed = true; changed;) {
		changed = false;
		for (size_t i = 0; i < group->n; i++) {
			struct member *member = group->v[i];

			if (!member->ahead || (is_no_obstacle(group, places[i].parent) &&
					       is_no_obstacle(group, places[i].group) &&
					       is_no_obstacle(group, places[i].session)))
				continue;
			member->ahead = false;
			changed = true;
		}
	}
}

/* The other side will find an order in which the others are made. */
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
		there[i] = group->v[i]->ahead;
	}
	r = plan_make(&plan, list, group->n, there, NULL, &why);
	plan_free(&plan);
	if (r < 0)
		log_info("migrate: those that have come cannot be made beside the others: %s", why.text);
	return r == 0;
}

/* Those that are ahead must be able to go on without the others: else fewer are, or none. */
static bool settle(struct group *group)
{
	auto_free struct place *places = calloc(group->n + 1, sizeof(*places));

	for (size_t i = 0; i < group->n && places; i++)
		look(group, group->v[i], &places[i]);
	if (places)
		close_set(group, places);
	return places && group->v[0]->ahead && can_be_made(group, places);
}

static size_t count_ahead(const struct group *group)
{
	size_t ahead = 0;

	for (size_t i = 0; i < group->n; i++)
		ahead += group->v[i]->ahead;
	return ahead;
}

size_t match_members(const struct tracked *v, size_t n, struct group *group)
{
	for (size_t i = 0; i < group->n; i++) {
		group->v[i]->ahead = false;
		for (size_t j = 0; j < n && !group->v[i]->ahead; j++)
			group->v[i]->ahead = track_is(&v[j], group->v[i]);
	}
	/* Mostly all are: they stand still, and nothing else is looked at. */
	if (count_ahead(group) < group->n && !settle(group))
		for (size_t i = 0; i < group->n; i++)
			group->v[i]->ahead = false;
	return count_ahead(group);
}
