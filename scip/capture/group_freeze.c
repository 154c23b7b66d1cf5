/*
 * Freezes a tree of processes.
 *
 * A frozen process makes no children. So the tree is frozen level by level, parents first, and children are
 * listed when their parent is frozen. A child that was born just before may have no scip yet; its parent is
 * listed again a little later. A process that ends before it is frozen is removed, and its parent listed
 * again, because the process may be a zombie now. At the end all members are listed once more; the tree is
 * complete when that finds no new process.
 */
#include "scip/capture/group.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "scip/tracee/procfs.h"

enum { FREEZE_MS = 20000, BIRTH_MS = 5000, LOOK_AGAIN_US = 500 };

/* What listing the tree has found. */
struct look {
	unsigned added;	  /* new members */
	unsigned waiting; /* processes that have no scip yet */
	pid_t who;	  /* one of those */
};

/* Adds a live process, if it is of this job and has a scip already. */
static int meet_process(struct group *group, const struct name_process *process, struct look *look,
			struct err *err)
{
	if (process->keeper.n != group->keeper.n)
		return 0;
	if (!process->scip.n || process->state == NAME_STATE_BORN) {
		look->waiting++;
		look->who = process->rpid.n;
		return 0;
	}
	look->added++;
	return group_add(group, process, err);
}

static int meet_child(struct group *group, pid_t pid, struct look *look, struct err *err)
{
	struct name_process process;
	struct procfs_stat stat;

	if (group_find(group, (struct rpid){pid}))
		return 0;
	if (names_process_find_real(group->names, (struct rpid){pid}, &process) == 0 &&
	    process.state != NAME_STATE_DEAD)
		return meet_process(group, &process, look, err);
	if (procfs_stat_read(pid, 0, &stat, NULL) < 0)
		return 0; /* reaped meanwhile */
	if (stat.state == 'Z') {
		look->added++;
		return group_add_zombie(group, (struct rpid){pid});
	}
	if (stat.state == 'X')
		return 0;
	look->waiting++; /* its parent's scip has not entered it in the table yet */
	look->who = pid;
	return 0;
}

static int list_children(struct group *group, struct member *member, struct look *look, struct err *err)
{
	auto_free pid_t *children = NULL;
	int n = procfs_children(member->rpid.n, &children, err);

	if (n < 0)
		return err_wrap(err, n, "children of vpid %d", member->vpid.n);
	for (int i = 0; i < n; i++) {
		int r = meet_child(group, children[i], look, err);

		if (r < 0)
			return r;
	}
	return 0;
}

/* True if the process's parent is one of the `n` processes and is not in the group yet. */
static bool parent_comes_later(struct group *group, struct rpid rpid, const struct name_process *all, int n)
{
	struct procfs_stat stat;

	if (procfs_stat_read(rpid.n, 0, &stat, NULL) < 0 || group_find(group, (struct rpid){stat.ppid}))
		return false;
	for (int i = 0; i < n; i++)
		if (all[i].rpid.n == stat.ppid && all[i].state != NAME_STATE_DEAD)
			return true;
	return false;
}

/* Adds the processes of the job whose parent has ended; the keeper is their parent now. The table has no
 * order, but the group lists parents first: children of the orphans are found when these are listed. */
static int list_orphans(struct group *group, struct look *look, struct err *err)
{
	auto_free struct name_process *all = NULL;
	int n = names_snapshot(group->names, group->keeper, &all);

	if (n < 0)
		return n;
	for (int i = 0; i < n; i++) {
		int r;

		if (all[i].state == NAME_STATE_DEAD || group_find(group, all[i].rpid) ||
		    parent_comes_later(group, all[i].rpid, all, n) ||
		    (group->stays && group->stays(group->stays_arg, all[i].vpid)))
			continue;
		r = meet_process(group, &all[i], look, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Freezes the members that are not frozen yet. Members that have ended are marked. */
static int freeze_members(struct group *group, struct err *err)
{
	Pbeam__ScipFreeze request = PBEAM__SCIP_FREEZE__INIT;
	int r;

	request.timeout_ms = FREEZE_MS;
	for (size_t i = 0; i < group->n; i++) {
		struct member *m = group->v[i];

		if (!m->frozen && !m->zombie && !m->gone)
			group_ask(m, PBEAM__SCIP_REQUEST__SCIP_FREEZE, &request.base, NULL, 0);
	}
	r = group_gather(group, &pbeam__scip_frozen__descriptor, FREEZE_MS + 1000, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < group->n; i++) {
		struct member *m = group->v[i];

		if (m->frozen || m->zombie || m->gone)
			continue;
		if (m->reply) {
			const Pbeam__ScipFrozen *reply = (const void *)m->reply;

			m->frozen = true;
			m->threads = m->stub ? 0 : reply->threads;
			m->stopped = reply->stub_stopped;
		} else if (m->problem.code == -ESRCH)
			group_lose(m);
		else
			return group_problem(group, err);
	}
	return 0;
}

/* Lists the children of the members that have not been listed (or of all), and the orphans. */
static int look_around(struct group *group, bool all, struct look *look, struct err *err)
{
	for (size_t i = 0; i < group->n; i++) {
		struct member *m = group->v[i];
		unsigned waiting = look->waiting;
		int r;

		if (!m->frozen || (m->listed && !all))
			continue;
		r = list_children(group, m, look, err);
		if (r < 0)
			return r;
		m->listed = look->waiting == waiting;
	}
	return group->whole_job && (all || look->added == 0) ? list_orphans(group, look, err) : 0;
}

static int freeze_tree(struct group *group, struct err *err)
{
	uint64_t end = io_now_ns(CLOCK_MONOTONIC) + (uint64_t)BIRTH_MS * 1000000u;
	bool all = false;

	for (;;) {
		struct look look = {0};
		int r = freeze_members(group, err);

		if (r < 0)
			return r;
		r = group_forget_gone(group);
		if (r < 0)
			return r;
		r = look_around(group, all, &look, err);
		if (r < 0)
			return r;
		if (look.added) {
			all = false;
			continue;
		}
		if (!look.waiting && all)
			return 0;
		all = !look.waiting;
		if (!look.waiting)
			continue;
		if (io_now_ns(CLOCK_MONOTONIC) > end)
			return err_set(err, -ETIMEDOUT,
				       "process %d does not come under supervision; try again", look.who);
		r = group_cancelled(group, err);
		if (r < 0)
			return r;
		nanosleep(&(struct timespec){0, LOOK_AGAIN_US * 1000}, NULL);
	}
}

/* A process that is being born has no scip yet. */
static int find_target(struct group *group, struct vpid target, struct name_process *out, struct err *err)
{
	uint64_t end = io_now_ns(CLOCK_MONOTONIC) + (uint64_t)BIRTH_MS * 1000000u;

	for (;;) {
		int r = names_process_get(group->names, target, out);

		if (r < 0 || out->state == NAME_STATE_DEAD)
			return err_set(err, -ESRCH, "vpid %d: there is no such process", target.n);
		if (out->scip.n && out->state != NAME_STATE_BORN)
			return 0;
		if (io_now_ns(CLOCK_MONOTONIC) > end)
			return err_set(err, -ETIMEDOUT, "vpid %d does not come under supervision; try again",
				       target.n);
		r = group_cancelled(group, err);
		if (r < 0)
			return r;
		nanosleep(&(struct timespec){0, LOOK_AGAIN_US * 1000}, NULL);
	}
}

int group_freeze(struct group *group, struct vpid target, bool alone, struct err *err)
{
	struct name_process process;
	int r = find_target(group, target, &process, err);

	if (r < 0)
		return r;
	r = group_add(group, &process, err);
	if (r < 0)
		return r;
	r = alone ? freeze_members(group, err) : freeze_tree(group, err);
	if (r < 0)
		return r;
	if (!group->n || group->v[0]->gone || group->v[0]->vpid.n != target.n)
		return err_set(err, -ESRCH, "vpid %d ended before it could be saved", target.n);
	return 0;
}
