/*
 * Chooses the checkpoint to roll back to, from those of all hosts that `pbeamctl log` lists. The list of
 * checkpoints and the list of running processes are requested once.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "image/store.h"
#include "scip/arrival/arrival.h"
#include "scip/cut/cut.h"
#include "scip/cut/return.h"

/* ---- what runs of it ---- */

static bool is_target(const Pbeam__ProcessInfo *info, const char *name, int32_t vpid)
{
	return vpid > 0 ? info->vpid == vpid : info->vpid == info->job && !strcmp(info->job_name, name);
}

static void take_live(struct lead *lead, const Pbeam__ProcessInfo *info)
{
	lead->vpid = info->vpid;
	snprintf(lead->uuid, sizeof(lead->uuid), "%s", info->job_uuid);
	snprintf(lead->at, sizeof(lead->at), "%s", info->host);
}

/* Each host that has a part of the job has a first process; only the first one of the whole job has no
 * parent. */
static void find_first(struct lead *lead)
{
	for (size_t i = 0; i < lead->processes->n_processes; i++) {
		const Pbeam__ProcessInfo *info = lead->processes->processes[i];

		if (!strcmp(info->job_uuid, lead->uuid) && info->vpid == info->job && info->vppid <= 0) {
			take_live(lead, info);
			return;
		}
	}
}

static void find_live(struct lead *lead, const char *name, int32_t vpid)
{
	bool group = false;

	for (size_t i = 0; i < lead->processes->n_processes; i++) {
		const Pbeam__ProcessInfo *info = lead->processes->processes[i];

		group = group || !strcmp(info->group, name);
		if (lead->vpid || !is_target(info, name, vpid))
			continue;
		take_live(lead, info);
		lead->inner = info->vpid != info->job;
	}
	lead->group = group && !lead->vpid && vpid <= 0;
	if (lead->vpid && !lead->inner)
		find_first(lead);
}

/* ---- which ---- */

bool return_has_copy(const Pbeam__LogEntry *entry, const char *host)
{
	for (size_t i = 0; i < entry->n_copies; i++)
		if (!strcmp(entry->copies[i]->host, host))
			return true;
	return false;
}

static bool is_of_run(const struct lead *lead, const Pbeam__LogEntry *entry)
{
	return lead->uuid[0] && !strcmp(entry->job, lead->uuid);
}

/* For a running job, checkpoints of earlier runs do not count. For a group, only cuts count. A damaged
 * checkpoint counts, because it might have been the right one. */
static bool entry_counts(const struct lead *lead, const Pbeam__LogEntry *entry)
{
	if (entry->problem[0])
		return true;
	return lead->vpid ? is_of_run(lead, entry) : !lead->group || entry->cut;
}

static bool is_newer(const struct lead *lead, const Pbeam__LogEntry *a, const Pbeam__LogEntry *b)
{
	return lead->vpid || lead->group ? a->number > b->number : a->created_ns > b->created_ns;
}

static const Pbeam__LogEntry *find_newest(const struct lead *lead, struct err *err)
{
	const Pbeam__LogEntry *found = NULL;

	for (size_t i = 0; i < lead->log->n_entries; i++) {
		const Pbeam__LogEntry *entry = lead->log->entries[i];

		if (entry_counts(lead, entry) && (!found || is_newer(lead, entry, found)))
			found = entry;
	}
	if (!found && lead->log->n_entries)
		err_set(err, -ENOENT,
			"there is no checkpoint of this run; `pbeamctl log %s` lists those of earlier ones, "
			"for --to",
			lead->name);
	else if (!found)
		err_set(err, -ENOENT,
			"there is no checkpoint of it on any host; make one with `pbeamctl checkpoint`");
	return found;
}

static const Pbeam__LogEntry *find_number(const struct lead *lead, const Pbeam__RollbackRequest *wish,
					  struct err *err)
{
	const Pbeam__LogEntry *found = NULL;
	char to[16];

	snprintf(to, sizeof(to), "%u", wish->number);
	for (size_t i = 0; i < lead->log->n_entries; i++) {
		const Pbeam__LogEntry *entry = lead->log->entries[i];

		if (entry->number != wish->number)
			continue;
		if (wish->host[0] ? return_has_copy(entry, wish->host) : !found || !strcmp(entry->to, to))
			found = entry;
	}
	if (!found)
		err_set(err, -ENOENT, "there is no checkpoint %u of it on %s%s; `pbeamctl log %s` lists them",
			wish->number, wish->host[0] ? "host " : "any host", wish->host, lead->name);
	return found;
}

/* Refuses checkpoints that `pbeamctl log` puts in parentheses, and damaged ones. */
static int check_chosen(const struct lead *lead, const Pbeam__LogEntry *entry, struct err *err)
{
	const char *host = entry->copies[0]->host;

	if (entry->problem[0])
		return err_set(err, -EBADMSG, "host %s: %s; --to takes an older one", host, entry->problem);
	if (lead->vpid && entry->cut && !is_of_run(lead, entry))
		return err_set(err, -EBUSY,
			       "checkpoint %u is a cut over several hosts of an earlier run; end this one "
			       "first: pbeamctl kill -s KILL %d",
			       entry->number, lead->vpid);
	if (lead->inner && !return_has_copy(entry, lead->at))
		return err_set(err, -EXDEV,
			       "checkpoint %u of vpid %d is on host %s and the process on %s; move it there "
			       "first, or roll its whole job back",
			       entry->number, lead->vpid, host, lead->at);
	return 0;
}

int return_choose(struct lead *lead, const Pbeam__RollbackRequest *wish, struct err *err)
{
	Pbeam__Target target = PBEAM__TARGET__INIT;
	uint64_t vpid;
	int r;

	target.name = wish->target->name;
	if (parse_number(target.name, 1, INT32_MAX, &vpid, NULL) == 0)
		target.vpid = (int32_t)vpid;
	lead->processes = lead_list(err);
	lead->log = lead->processes ? lead_ask(PBEAM__DAEMON_REQUEST__DAEMON_LOG, &target.base,
					       &pbeam__checkpoint_log__descriptor, err)
				    : NULL;
	if (!lead->log)
		return err->code;
	find_live(lead, target.name, wish->target->vpid > 0 ? wish->target->vpid : target.vpid);
	snprintf(lead->name, sizeof(lead->name), "%s", lead->log->store);
	r = cut_check_name(lead->name, err);
	if (r == 0)
		lead->chosen = wish->number ? find_number(lead, wish, err) : find_newest(lead, err);
	if (r == 0)
		r = lead->chosen ? check_chosen(lead, lead->chosen, err) : err->code;
	if (r == 0)
		lead->number = lead->chosen->number;
	if (r == 0 && !lead->vpid)
		snprintf(lead->uuid, sizeof(lead->uuid), "%s", lead->chosen->job);
	return r;
}
