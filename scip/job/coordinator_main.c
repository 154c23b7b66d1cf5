/* The coordinator's process: one checkpoint, restore, migration or part of a cut, in blocking code. */
#include <errno.h>
#include <sys/prctl.h>

#include "base/log.h"
#include "image/file_guard.h"
#include "image/file_undo.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/checkpoint/checkpoint.h"
#include "scip/cut/return_part.h"
#include "scip/cut/return_settle.h"
#include "scip/job/coordinator.h"
#include "scip/job/husk.h"
#include "scip/job/links.h"
#include "scip/job/remote_console.h"
#include "scip/job/upgrade.h"
#include "scip/rebuild/rebuild_obstacles.h"
#include "scip/rollback/rollback_look.h"
#include "scip/rollback/rollback_run.h"
#include "scip/supervisor/pool.h"

const char *const coordinator_kind_names[] = {
	[COORDINATOR_CHECKPOINT] = "checkpoint",     [COORDINATOR_RESTORE] = "restore",
	[COORDINATOR_ROLLBACK] = "rollback",	     [COORDINATOR_MIGRATE] = "migration",
	[COORDINATOR_PART] = "checkpoint",	     [COORDINATOR_RECEIVE] = "arrival",
	[COORDINATOR_SETTLE] = "end of a migration", [COORDINATOR_UPGRADE] = "upgrade",
};

/* Of a rollback: an image of the whole job replaces all of it, whichever process was named; else it is the
 * named process with its descendants, and the image must be of that. */
static int choose_replaced(const struct job *job, const struct coordinator_wish *wish,
			   const struct image_reader *image, struct vpid *out, struct err *err)
{
	const Pbeam__Manifest *manifest = image_reader_manifest(image);
	int32_t saved = manifest->n_processes ? manifest->processes[0]->vpid : 0;

	*out = wish->target.n && saved != job->entry.root.n ? wish->target : job->entry.root;
	if (out->n != job->entry.root.n && saved != out->n)
		return err_set(err, -EINVAL, "%s holds vpid %d, not %d; roll that one back", wish->path,
			       saved, out->n);
	return 0;
}

static void take_restored(struct coordinator_outcome *outcome, const struct rebuild_result *result)
{
	outcome->root = result->root;
	outcome->processes = result->processes;
}

/* Overwrites nothing that somebody else has written since the job ended. */
static int restore_guarded(struct job *job, struct image_reader *image, const struct rebuild_options *options,
			   struct rebuild_result *result, struct coordinator_outcome *outcome)
{
	struct rollback_kept kept = {0};
	int r = options->replace.n ? 0 : rollback_guard(job->names, image, options, &kept, &outcome->err);

	if (r < 0)
		return r;
	r = rollback_run(job->names, image, options, result, &outcome->err);
	if (r < 0) {
		file_guard_drop(kept.paths, kept.npaths);
		return r;
	}
	/* The job changes them from now on. After a failure they are as they were recorded. */
	file_guard_forget(options->path);
	outcome->obstacles = kept.notes;
	outcome->nobstacles = kept.nnotes;
	return 0;
}

static int run_restore(struct job *job, const struct coordinator_wish *wish, int keeper_sock,
		       struct coordinator_outcome *outcome)
{
	struct rebuild_result result = {0};
	struct image_reader *image;
	struct rebuild_options options = {
		.path = wish->path,
		.force = wish->force,
		.old_end_first = wish->replace,
		.console = job->console,
		.keeper_socket = keeper_sock,
		.keeper = job->entry.keeper,
		.signs = pool_signs(job->pool),
	};
	int r = file_undo_recover(&outcome->err);

	if (r < 0)
		return r;
	r = image_reader_open(&image, wish->path, &outcome->err);
	if (r < 0)
		return r;
	if (wish->kind == COORDINATOR_ROLLBACK)
		r = choose_replaced(job, wish, image, &options.replace, &outcome->err);
	if (r == 0 && wish->dry_run)
		r = rollback_forecast(job->names, image, &options, &outcome->files, &outcome->nfiles,
				      &outcome->err);
	else if (r == 0)
		r = restore_guarded(job, image, &options, &result, outcome);
	image_reader_close(image);
	take_restored(outcome, &result);
	return r;
}

struct checked {
	struct job *job;
	const struct coordinator_wish *wish;
	int keeper_sock;
};

/* Finds why a rollback to this image, or its restore after the job has ended, would be refused. The processes
 * of the image are here and would be replaced. */
static int check_restorable(void *arg, struct image_reader *image, checkpoint_add_reason *add, void *add_arg,
			    struct err *err)
{
	const struct checked *checked = arg;
	struct job *job = checked->job;
	struct rebuild_options options = {
		.path = checked->wish->path,
		.console = job->console,
		.keeper_socket = checked->keeper_sock,
		.keeper = job->entry.keeper,
		.trusted = true,
		.signs = pool_signs(job->pool),
	};
	struct rebuild_obstacles obstacles = {NULL, 0};
	struct err why = ERR_INIT;
	int r;

	if (choose_replaced(job, checked->wish, image, &options.replace, &why) < 0)
		return add(add_arg, why.text);
	r = rebuild_list_obstacles_saved(job->names, image, &options, &obstacles, err);
	for (size_t i = 0; i < obstacles.n && r == 0; i++)
		r = add(add_arg, obstacles.v[i]);
	rebuild_obstacles_free(&obstacles);
	return r;
}

static int run_checkpoint(struct job *job, const struct coordinator_wish *wish, int keeper_sock,
			  struct coordinator_outcome *outcome)
{
	struct checked checked = {job, wish, keeper_sock};
	/* What the other processes of the job do in a tracked directory is not undone with a part of it. */
	bool is_whole = !wish->alone && (!wish->target.n || wish->target.n == job->entry.root.n);
	struct checkpoint_options options = {
		.target = wish->target.n ? wish->target : job->entry.root,
		.path = wish->path,
		.kill = wish->kill,
		.alone = wish->alone,
		.numbered = wish->numbered,
		.save_files_max = wish->save_files_max,
		.console = job->console,
		.job = &job->entry,
		.track = job->track,
		.ntrack = is_whole ? job->ntrack : 0,
		.check = check_restorable,
		.check_arg = &checked,
	};

	struct capture_result result = {0};
	int r = checkpoint_run(job->names, &options, &result, &outcome->err);

	outcome->bytes = result.bytes;
	outcome->pause_ns = result.pause_ns;
	outcome->total_ns = result.total_ns;
	outcome->processes = result.processes;
	outcome->threads = result.threads;
	outcome->obstacles = result.incomplete;
	outcome->nobstacles = result.nincomplete;
	return r;
}

static int flush_console(void *arg, struct err *err)
{
	remote_console_set_departing(arg, true);
	return remote_console_flush(arg, false, err);
}

static void keep_console(void *arg)
{
	remote_console_set_departing(arg, false);
}

struct arrived {
	const struct job *job;
	struct vpid vpid;
	int keeper_sock;
};

/* Returns the value of the reply, or -1. */
static int coordinator_ask_keeper(int keeper_sock, uint32_t type)
{
	Pbeam__KeeperReply *reply = NULL;
	struct err err = ERR_INIT;
	int value = -1;

	if (rpc_call(keeper_sock, "the keeper", type, NULL, &pbeam__keeper_reply__descriptor, &reply, &err) ==
	    0)
		value = reply->value;
	else
		log_warn("%s", err.text);
	message_free(reply);
	return value;
}

static void coordinator_report_move(int keeper_sock)
{
	if (coordinator_ask_keeper(keeper_sock, PBEAM__KEEPER_REQUEST__KEEPER_MOVED) < 0)
		log_warn("migrate: the keeper does not know that the processes have moved");
}

static void on_moved_away(void *arg)
{
	const int *keeper_sock = arg;

	coordinator_report_move(*keeper_sock);
}

static void on_ours(void *arg)
{
	const struct arrived *arrived = arg;

	coordinator_report_move(arrived->keeper_sock);
	links_end_consoles(arrived->job, arrived->vpid);
}

static bool is_guest(void *arg, struct vpid vpid)
{
	return links_stub_host(arg, vpid)[0];
}

static void send_progress(void *arg, const struct migrate_progress *progress)
{
	const int *keeper_sock = arg;
	Pbeam__Progress message = PBEAM__PROGRESS__INIT;

	message.done = progress->done;
	message.total = progress->total;
	message.phase = (char *)(uintptr_t)progress->phase;
	message.detail = (char *)(uintptr_t)progress->detail;
	message.note = (char *)(uintptr_t)progress->note;
	if (frame_send(*keeper_sock, PBEAM__RPC__RPC_PROGRESS, &message.base, NULL, 0, NULL) < 0)
		log_debug("migrate: the keeper is gone");
}

static int run_migrate(struct job *job, const struct coordinator_wish *wish, int keeper_sock,
		       struct coordinator_outcome *outcome)
{
	struct migrate_options options = *wish->migrate;
	struct migrate_result result = {0};
	int r;

	options.console = job->console;
	options.job = &job->entry;
	options.incarnation = job->incarnation;
	options.flush = flush_console;
	options.stay = keep_console;
	options.flush_arg = job;
	options.gone = on_moved_away;
	options.gone_arg = &keeper_sock;
	options.progress = send_progress;
	options.progress_arg = &keeper_sock;
	options.stays = is_guest;
	options.stays_arg = job;
	r = migrate_source_run(job->names, &options, &result, &outcome->err);
	outcome->bytes = result.bytes;
	outcome->pause_ns = result.pause_ns;
	outcome->total_ns = result.total_ns;
	outcome->processes = result.processes;
	outcome->rounds = result.rounds;
	outcome->obstacles = result.obstacles;
	outcome->nobstacles = result.nobstacles;
	return r;
}

static int run_receive(struct job *job, const struct coordinator_wish *wish, int keeper_sock,
		       struct coordinator_outcome *outcome)
{
	const struct vpid replace = {wish->begin->cut && job->root > 0 ? wish->begin->root : 0};
	/* With several parts all remote consoles end; those that are still remote connect again. */
	struct arrived arrived = {
		job, {wish->begin->cut && wish->begin->cut->n_with ? 0 : wish->begin->root}, keeper_sock};
	const struct arrival_options arrival = {.channel = wish->channel,
						.begin = wish->begin,
						.console = job->console,
						.keeper_socket = keeper_sock,
						.keeper = job->entry.keeper,
						.replace = replace,
						.joins = job->root > 0 && !wish->begin->cut,
						.ours = on_ours,
						.ours_arg = &arrived,
						.signs = pool_signs(job->pool)};

	struct rebuild_result result = {0};
	int r = file_undo_recover(&outcome->err);

	if (r < 0)
		return r;
	if (remote_console_moves_here(job, wish->begin) && remote_console_cut_pipes(job, &outcome->err) < 0)
		return outcome->err.code;
	r = wish->begin->cut ? return_part_run(job->names, &arrival, &result, &outcome->err)
			     : migrate_target_run(job->names, &arrival, &result, &outcome->err);
	take_restored(outcome, &result);
	return r;
}

static int settle_part(struct job *job, const struct migrate_settling *settling, int keeper_sock)
{
	const struct return_settling part = {.uuid = settling->uuid,
					     .known = settling->known,
					     .ends = settling->ends,
					     .keeper = job->entry.keeper,
					     .keeper_socket = keeper_sock,
					     .signs = pool_signs(job->pool)};

	return return_settle(job->names, &part);
}

static int run_settle(struct job *job, const struct coordinator_wish *wish, int keeper_sock,
		      struct coordinator_outcome *outcome)
{
	struct migrate_settling settling = *wish->settling;
	int r;

	settling.job = &job->entry;
	settling.progress = send_progress;
	settling.progress_arg = &keeper_sock;
	r = settling.part ? settle_part(job, &settling, keeper_sock)
			  : migrate_settle(job->names, &settling, &outcome->err);
	outcome->moved = r > 0;
	if (r == 0 && settling.arrival)
		return err_set(&outcome->err, -ECANCELED, "%s was given up",
			       settling.part ? "the rollback" : "the migration");
	if (r > 0 && settling.arrival)
		links_end_consoles(job, (struct vpid){0});
	return r < 0 ? r : 0;
}

struct saved_part {
	const struct job *job;
	int keeper_sock;
};

static const char *stub_host(void *arg, struct vpid vpid)
{
	const struct saved_part *part = arg;

	return links_stub_host(part->job, vpid);
}

static bool under_way(void *arg)
{
	const struct saved_part *part = arg;

	return coordinator_ask_keeper(part->keeper_sock, PBEAM__KEEPER_REQUEST__KEEPER_UNDER_WAY) != 0;
}

static int run_part(struct job *job, const struct coordinator_wish *wish, int keeper_sock,
		    struct coordinator_outcome *outcome)
{
	struct saved_part saved = {job, keeper_sock};
	const struct cut_part part = {.channel = wish->channel,
				      .save = wish->save,
				      .job = &job->entry,
				      .save_files_max = wish->save_files_max,
				      .console = job->console,
				      .stub_host = stub_host,
				      .under_way = under_way,
				      .arg = &saved};

	return cut_part_save(job->names, &part, &outcome->err);
}

static int coordinator_run(struct job *job, const struct coordinator_wish *wish, int keeper_sock,
			   struct coordinator_outcome *outcome)
{
	switch (wish->kind) {
	case COORDINATOR_CHECKPOINT:
		return run_checkpoint(job, wish, keeper_sock, outcome);
	case COORDINATOR_MIGRATE:
		return run_migrate(job, wish, keeper_sock, outcome);
	case COORDINATOR_RECEIVE:
		return run_receive(job, wish, keeper_sock, outcome);
	case COORDINATOR_SETTLE:
		return run_settle(job, wish, keeper_sock, outcome);
	case COORDINATOR_PART:
		return run_part(job, wish, keeper_sock, outcome);
	case COORDINATOR_UPGRADE:
		return upgrade_scips(job, &outcome->processes, &outcome->err);
	case COORDINATOR_RESTORE:
	case COORDINATOR_ROLLBACK:
		break;
	}
	return run_restore(job, wish, keeper_sock, outcome);
}

static int send_outcome(int keeper_sock, const struct coordinator_outcome *outcome)
{
	Pbeam__CoordinatorOutcome message = PBEAM__COORDINATOR_OUTCOME__INIT;
	Pbeam__Failed failed = rpc_failed(&outcome->err);

	message.failed = outcome->err.code ? &failed : NULL;
	message.moved = outcome->moved;
	message.root = outcome->root.n;
	message.processes = outcome->processes;
	message.threads = outcome->threads;
	message.bytes = outcome->bytes;
	message.pause_ns = outcome->pause_ns;
	message.total_ns = outcome->total_ns;
	message.rounds = outcome->rounds;
	message.n_obstacles = outcome->nobstacles;
	message.obstacles = outcome->obstacles;
	message.n_files = outcome->nfiles;
	message.files = outcome->files;
	return frame_send(keeper_sock, PBEAM__KEEPER_REQUEST__KEEPER_OUTCOME, &message.base, NULL, 0, NULL);
}

void coordinator_main(struct job *job, const struct coordinator_wish *wish, int keeper_sock)
{
	struct coordinator_outcome outcome = {0};
	sigset_t none;
	int r;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != job->entry.keeper.n)
		_exit(1);
	prctl(PR_SET_NAME, "scip-coordinate");
	pool_set_coordinator(job->pool, getpid());
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGTTOU, SIG_IGN); /* it sets the job's terminal from the background */
	r = coordinator_run(job, wish, keeper_sock, &outcome);
	if (r < 0 && !outcome.err.code)
		err_code(&outcome.err, r, "%s %s", coordinator_kind_names[wish->kind],
			 wish->path ? wish->path : "");
	_exit(send_outcome(keeper_sock, &outcome) < 0);
}
