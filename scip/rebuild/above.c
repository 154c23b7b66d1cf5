/*
 * Rolls back a part of a job under its living parent, which does not notice.
 *
 * The parent's scip keeps the parent frozen as long as the coordinator's connection lasts: it cannot wait for
 * the old child, which stands still or, in the old order, is a zombie. The parent forks the new
 * child by a call made in it. So the kernel knows it as the parent's child: wait, SIGCHLD, getppid, group
 * and session are right. Last of all, when the old child has been killed, the parent is made to forget it
 * (supervisor/adopt.c). If anything fails before the commit, or the coordinator is killed, the end of the
 * connection undoes the birth. In the old order the old child is killed first, and the parent then finds it
 * killed.
 *
 * The keeper takes the parent's place when the parent has ended, belongs to another job by now or is no
 * longer the process's parent; also where a child of it could not become the process, because it has
 * seccomp filters of its own or has left the session that the process was born in.
 *
 * The session's terminal is in use. Its settings and its foreground group are restored only if the replaced
 * processes are in the foreground.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "namespace/record.h"
#include "scip/object/object_end.h"
#include "scip/rebuild/rebuild_parts.h"
#include "scip/tracee/procfs.h"

enum { FREEZE_MS = 10000 };

/* ---- the process and its parent ---- */

static bool has_filters(const struct name_process *process)
{
	auto_free void *filter = NULL;
	size_t bytes;

	return record_filter_get(process->keeper, process->vpid, 0, &filter, &bytes) > 0;
}

/* True if the process's present incarnation, if there is one, is the parent's child. A child whose scip was
 * killed may have left the table and still be a zombie that its parent has not waited for. */
static bool find_old_child(struct rebuild *rebuild)
{
	struct above *above = &rebuild->above;
	struct vpid vpid = {rebuild->manifest->processes[0]->vpid};
	bool known;
	struct name_process child = {.rpid = names_real(rebuild->names, vpid)};
	struct procfs_stat stat;

	above->replaces = 0;
	known = names_process_get(rebuild->names, vpid, &child) == 0;
	if (procfs_stat_read(child.rpid.n, 0, &stat, NULL) < 0)
		return true;
	if (stat.ppid == above->process.rpid.n)
		above->replaces = child.rpid.n;
	return above->replaces || !known;
}

static int list_job(struct rebuild *rebuild, struct name_process **out)
{
	int n = names_snapshot(rebuild->names, rebuild->options->keeper, out);

	return n < 0 ? err_code(rebuild->err, n, "list the processes") : n;
}

/* Finds the groups that stay in the session of `parent` (real number), and the terminal's foreground group.
 */
static int survey_session(struct rebuild *rebuild, pid_t number)
{
	struct above *above = &rebuild->above;
	auto_free struct name_process *list = NULL;
	int n = list_job(rebuild, &list);
	struct procfs_stat parent, stat;

	if (n < 0)
		return n;
	if (procfs_stat_read(number, 0, &parent, rebuild->err) < 0)
		return err_wrap(rebuild->err, -ESRCH, "its parent");
	above->groups = calloc((size_t)n + 1, sizeof(*above->groups));
	if (!above->groups)
		return err_code(rebuild->err, -ENOMEM, "list of groups");
	above->plan.groups = above->groups;
	above->plan.session = names_virtual(rebuild->names, (struct rpid){parent.session}).n;
	above->plan.group = names_virtual(rebuild->names, (struct rpid){parent.pgrp}).n;
	above->foreground = names_virtual(rebuild->names, (struct rpid){parent.tpgid}).n;
	for (int i = 0; i < n; i++) {
		if (procfs_stat_read(list[i].rpid.n, 0, &stat, NULL) < 0 || stat.session != parent.session)
			continue;
		if (!replaced_includes(rebuild, &list[i]))
			above->groups[above->plan.ngroups++] =
				names_virtual(rebuild->names, (struct rpid){stat.pgrp}).n;
		else if (stat.pgrp == parent.tpgid)
			above->in_foreground = true;
	}
	return 0;
}

static bool parent_lives(struct rebuild *rebuild, const Pbeam__Process *root)
{
	struct name_process *parent = &rebuild->above.process;

	if (names_process_get(rebuild->names, (struct vpid){root->vppid}, parent) < 0 ||
	    parent->keeper.n != rebuild->options->keeper.n || parent->state != NAME_STATE_RUNNING ||
	    replaced_includes(rebuild, parent) || !find_old_child(rebuild))
		return false;
	if (has_filters(parent)) {
		log_info("vpid %d: its parent has seccomp filters of its own, which a child could not drop "
			 "of",
			 root->vpid);
		return false;
	}
	return true;
}

int above_find(struct rebuild *rebuild)
{
	struct above *above = &rebuild->above;
	struct name_process stub;
	int r;

	if (rebuild->whole)
		return 0;
	if (rebuild_stub_find(rebuild, &stub)) { /* it is its parent's child already */
		r = survey_session(rebuild, stub.rpid.n);
		above->found = r == 0;
		return r;
	}
	above->lives = parent_lives(rebuild, rebuild->manifest->processes[0]);
	r = survey_session(rebuild, above->lives ? above->process.rpid.n : rebuild->options->keeper.n);
	above->found = r == 0;
	return r;
}

int above_miss(struct rebuild *rebuild)
{
	struct above *above = &rebuild->above;

	free(above->groups);
	above->groups = NULL;
	above->plan = (struct plan_above){0};
	above->found = false;
	if (!above->lives)
		return -EXDEV;
	above->lives = false;
	above->found = survey_session(rebuild, rebuild->options->keeper.n) == 0;
	return above->found ? 0 : -EXDEV;
}

/* ---- the steps ---- */

/* Other processes of the job may refer to the process by number too. */
static bool is_seen_to(void *arg, const struct name_process *process)
{
	struct rebuild *rebuild = arg;

	return (rebuild->above.lives && process->vpid.n == rebuild->above.process.vpid.n) ||
	       replaced_includes(rebuild, process);
}

/* The image in memory belongs to this rebuild: the state of the session's terminal is adapted to the present.
 */
static void settle_terminals(struct rebuild *rebuild)
{
	const struct above *above = &rebuild->above;

	for (size_t i = 0; i < rebuild->manifest->n_objects; i++) {
		const Pbeam__Object *object = rebuild->manifest->objects[i];
		Pbeam__Tty *tty = object_tty_of(object);

		/* No other process used a terminal that is restored over a bridge. */
		if (!tty || object->external || tty->session_vsid != above->plan.session)
			continue;
		tty->foreground_vpgid = above->in_foreground ? above->foreground : 0;
		if (!above->in_foreground) {
			free(tty->termios.data);
			tty->termios = (ProtobufCBinaryData){0};
		}
	}
}

/* Children whose SIGCHLD the parent has taken or has pending already. */
static int note_ended(struct rebuild *rebuild)
{
	struct above *above = &rebuild->above;
	auto_free pid_t *children = NULL;
	struct procfs_stat stat;
	int n = procfs_children(above->process.rpid.n, &children, rebuild->err);

	if (n < 0)
		return n;
	above->ended = calloc((size_t)n + 1, sizeof(*above->ended));
	if (!above->ended)
		return err_code(rebuild->err, -ENOMEM, "list of children");
	for (int i = 0; i < n; i++)
		if (procfs_stat_read(children[i], 0, &stat, NULL) == 0 && stat.state == 'Z')
			above->ended[above->nended++] = children[i];
	return 0;
}

int above_hold(struct rebuild *rebuild)
{
	struct above *above = &rebuild->above;
	Pbeam__ScipTrapDatagrams trap = PBEAM__SCIP_TRAP_DATAGRAMS__INIT;
	int r = 0;

	if (rebuild->whole)
		return 0;
	if (above->lives)
		above->sock = rebuild_diverge_hold(&above->process, FREEZE_MS, rebuild->err);
	/* the parent gets its child's filters, which a move may have extended */
	trap.send = true;
	if (above->lives && above->sock >= 0 && names_cluster(rebuild->names, NULL) &&
	    scip_link_call(above->sock, PBEAM__SCIP_REQUEST__SCIP_TRAP_DATAGRAMS, &trap.base,
			   &pbeam__scip_done__descriptor, NULL, rebuild->err) < 0)
		return err_wrap(rebuild->err, rebuild->err->code, "its parent, vpid %d",
				above->process.vpid.n);
	if (above->lives && above->sock < 0)
		return err_wrap(rebuild->err, above->sock, "its parent, vpid %d", above->process.vpid.n);
	/* The parent may have waited for it until now. */
	if (above->lives && !find_old_child(rebuild))
		return err_set(rebuild->err, -ECHILD, "vpid %d is no longer a child of vpid %d",
			       rebuild->manifest->processes[0]->vpid, above->process.vpid.n);
	if (above->lives && rebuild->options->replace.n > 0 && above->replaces <= 0)
		return err_set(rebuild->err, -ESRCH, "vpid %d has ended, and its parent, vpid %d, knows it",
			       rebuild->manifest->processes[0]->vpid, above->process.vpid.n);
	if (above->lives)
		r = note_ended(rebuild);
	if (above->found)
		settle_terminals(rebuild);
	return r < 0 ? r : rebuild_diverge(rebuild->names, rebuild->options->keeper, is_seen_to, rebuild);
}

int above_commit(struct rebuild *rebuild)
{
	struct above *above = &rebuild->above;
	Pbeam__ScipAdopt request = PBEAM__SCIP_ADOPT__INIT;

	if (above->sock < 0)
		return 0;
	request.n_gone = above->ngone;
	request.gone = above->gone;
	request.n_ended = above->nended;
	request.ended = above->ended;
	return scip_link_call(above->sock, PBEAM__SCIP_REQUEST__SCIP_ADOPT, &request.base,
			      &pbeam__scip_done__descriptor, NULL, rebuild->err);
}

void above_close(struct rebuild *rebuild)
{
	struct above *above = &rebuild->above;

	if (above->sock >= 0)
		close(above->sock);
	above->sock = -1;
	free(above->groups);
	free(above->gone);
	free(above->ended);
	above->groups = above->gone = above->ended = NULL;
}
