/*
 * Settles a migration whose coordinator was killed after SCIP_KEEP: the processes are frozen, or held, and
 * only the registry knows which host has them. If a coordinator is killed before SCIP_KEEP its end undoes
 * everything.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "scip/capture/group.h"
#include "scip/migrate/migrate.h"

enum { FREEZE_MS = 10000 };

/* Adds the processes that wait, in the order of their birth: parents first. */
static int find_waiting(struct group *group, const struct name_job *job, struct err *err)
{
	auto_free struct name_process *all = NULL;
	int n = names_snapshot(group->names, job->keeper, &all), r = 0;

	for (int i = 0; i < n && r == 0; i++)
		if (all[i].state == NAME_STATE_FROZEN)
			r = group_add(group, &all[i], err);
	return n < 0 ? n : r;
}

static void tell_all(struct group *group, uint32_t type, const ProtobufCMessage *message,
		     const ProtobufCMessageDescriptor *answer)
{
	struct err err = ERR_INIT;

	for (size_t i = 0; i < group->n; i++)
		group_ask(group->v[i], type, message, NULL, 0);
	if (group_gather(group, answer, FREEZE_MS, &err) < 0 || group_problem(group, &err) < 0)
		log_warn("migrate: %s", err.text);
}

static void settle_source(struct group *group, bool gone, bool stub)
{
	Pbeam__ScipFreeze freeze = PBEAM__SCIP_FREEZE__INIT;
	struct err err = ERR_INIT;

	freeze.timeout_ms = FREEZE_MS;
	tell_all(group, PBEAM__SCIP_REQUEST__SCIP_FREEZE, &freeze.base, &pbeam__scip_frozen__descriptor);
	for (size_t i = 0; i < group->n; i++)
		group->v[i]->frozen = true;
	if (!gone)
		group_thaw(group);
	else if (migrate_withdraw(group, stub, &err) < 0)
		log_error("migrate: %s", err.text);
}

static void settle_target(struct group *group, bool come)
{
	tell_all(group, come ? PBEAM__SCIP_REQUEST__SCIP_RESTORE_RUN : PBEAM__SCIP_REQUEST__SCIP_GIVE_UP,
		 NULL, &pbeam__scip_done__descriptor);
}

void migrate_tell_undecided(void (*progress)(void *arg, const struct migrate_progress *progress), void *arg,
			    struct vpid target)
{
	struct migrate_progress now = {.phase = "asking"};

	snprintf(now.note, sizeof(now.note),
		 "whether vpid %d has moved is known to the central host alone, which does not answer; the "
		 "program stands still until it does (`pbeamctl hosts`)",
		 target.n);
	if (progress)
		progress(arg, &now);
}

struct settling {
	const struct migrate_settling *options;
	const struct group *group;
};

static void mark_settling_undecided(void *arg, bool undecided)
{
	const struct settling *settling = arg;
	const struct migrate_settling *options = settling->options;

	record_mark_undecided(settling->group, undecided);
	if (undecided)
		migrate_tell_undecided(options->progress, options->progress_arg, options->target);
}

int migrate_settle(struct names *names, const struct migrate_settling *settling, struct err *err)
{
	struct group group = {.names = names, .keeper = settling->job->keeper, .cancel = -1};
	struct settling asking = {settling, &group};
	struct record record;
	int moved, r = find_waiting(&group, settling->job, err);

	record_init(&record, settling->uuid);
	record.undecided = mark_settling_undecided;
	record.undecided_arg = &asking;
	moved = settling->known ? 1 : record_abort(&record);
	log_info("migrate: a coordinator was killed; %s that the processes %s",
		 settling->known ? "it had reported" : "the registry records",
		 moved ? "have moved" : "have not moved");
	if (r == 0 && settling->arrival)
		settle_target(&group, moved);
	else if (r == 0)
		settle_source(&group, moved, settling->stub);
	/* A record that is missing counts as aborted. A committed record stays until all sides have settled,
	 * which the daemons notice: the target, its keeper and the peers of moved connections have lost the
	 * same coordinator, and may read the record later. */
	if (!settling->arrival && !moved)
		record_remove(&record);
	record_close(&record);
	group_free(&group);
	return r < 0 ? r : moved;
}
