/*
 * The commit of a rollback whose new processes are complete while the old ones still exist.
 *
 * Of one job it is one store into memory that the job's keeper and scips share (fill_signs.h, `condemned`).
 * Before it the end of the coordinator, for whatever reason, kills the new processes and thaws the old ones.
 * After it the same event kills the old ones and lets the new ones run. Everything after it is done here, or
 * by the keeper if the coordinator has been killed (scip/job/coordinator.c), and is not allowed to fail.
 *
 * Of several parts it is an entry of the registry (scip/cut/lead_rollback.c). A part votes by the report that
 * it is held: from then on (fill_signs.h, `voted`) the end of its coordinator changes nothing, until another
 * one has read the entry (rebuild_settle.c).
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "base/fault.h"
#include "base/log.h"
#include "namespace/record.h"
#include "proto/keeper.pb-c.h"
#include "scip/rebuild/rebuild_parts.h"

/* True if the connection has ended, or something came that was not asked for. */
static bool connection_has_ended(int sock)
{
	struct pollfd poll_fd = {.fd = sock, .events = POLLIN};

	return sock < 0 || poll(&poll_fd, 1, 0) != 0;
}

/* A process may have been killed from outside, with its scip or alone. */
static int check_all_there(struct rebuild *rebuild)
{
	for (size_t i = 0; i < rebuild->nstill; i++)
		if (connection_has_ended(rebuild->still[i].sock))
			return err_set(rebuild->err, -ESRCH,
				       "vpid %d, which would be replaced, was killed meanwhile",
				       rebuild->still[i].vpid.n);
	for (int i = 0; i < rebuild->plan.nnodes; i++)
		if (rebuild_is_filled(rebuild, i) && connection_has_ended(rebuild->made[i].sock))
			return err_set(rebuild->err, -ESRCH, "vpid %d was killed before it could run",
				       rebuild->plan.nodes[i].vpid);
	if (rebuild->above.sock >= 0 && connection_has_ended(rebuild->above.sock))
		return err_set(rebuild->err, -ESRCH, "vpid %d, the parent, was killed meanwhile",
			       rebuild->above.process.vpid.n);
	return 0;
}

/* Errors are logged: the new processes run in any case. */
static void note_failure(struct rebuild *rebuild, int r)
{
	if (r < 0 && rebuild->err->code)
		log_error("restore: %s", rebuild->err->text);
	err_clear(rebuild->err);
}

static void end_old(struct rebuild *rebuild)
{
	if (rebuild->ends) {
		note_failure(rebuild, replaced_kill(rebuild));
		return;
	}
	note_failure(rebuild,
		     rebuild_ask_keeper(rebuild, PBEAM__KEEPER_REQUEST__KEEPER_REPLACED, NULL, NULL));
	note_failure(rebuild, replaced_kill(rebuild));
	rebuild_beside_end(rebuild, true);
	if (rebuild->whole) {
		record_peer_forget(rebuild->options->keeper);
		note_failure(rebuild, rebuild_sysv_clear(rebuild));
	}
	rebuild_sysv_take_over(rebuild);
	note_failure(rebuild, object_restore_take_over(rebuild->objects, rebuild->err));
	note_failure(rebuild, rebuild_fill_take(rebuild));
	note_failure(rebuild,
		     object_restore_record(rebuild->objects, rebuild->options->keeper, rebuild->err));
	rebuild_beside_set_terminals(rebuild);
}

static void commit_now(struct rebuild *rebuild)
{
	atomic_store(&rebuild->options->signs->condemned, true);
	rebuild->committed = true;
	end_old(rebuild);
}

int rebuild_commit(struct rebuild *rebuild)
{
	int r;

	if (!rebuild->beside)
		return 0;
	r = rebuild_fill_decide(rebuild);
	if (r < 0)
		return r;
	r = object_restore_hold(rebuild->objects, rebuild->err);
	if (r < 0)
		return r;
	r = fault_point("restore-before-commit", rebuild->err);
	if (r < 0)
		return r;
	r = object_locks_check(rebuild->objects, rebuild->err);
	if (r < 0)
		return r;
	r = check_all_there(rebuild);
	if (r < 0)
		return r;
	commit_now(rebuild);
	return 0;
}

/* The processes stay held whatever happens to the coordinator. */
static int hold_made(struct rebuild *rebuild)
{
	int r = object_restore_hold(rebuild->objects, rebuild->err);

	if (r == 0)
		r = object_locks_check(rebuild->objects, rebuild->err);
	if (r < 0)
		return r;
	return rebuild->beside ? rebuild_fill_decide(rebuild) : rebuild_fill_keep(rebuild);
}

int rebuild_hold(struct rebuild *rebuild)
{
	int r = rebuild->ends ? 0 : hold_made(rebuild);

	if (r < 0 || !rebuild->options->part)
		return r;
	r = rebuild->beside || rebuild->ends ? check_all_there(rebuild) : 0;
	if (r == 0)
		atomic_store(&rebuild->options->signs->voted, true);
	return r;
}

void rebuild_commit_part(struct rebuild *rebuild)
{
	if (rebuild->beside || rebuild->ends)
		commit_now(rebuild);
}
