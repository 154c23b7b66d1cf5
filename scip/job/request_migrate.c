/*
 * Processes of the job leave for another host, or arrive from one: a coordinator does it, the request waits
 * for it.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/job/coordinator.h"
#include "scip/job/links.h"
#include "scip/job/recall.h"
#include "scip/job/remote_console.h"
#include "scip/job/request_migrate.h"
#include "scip/job/requests.h"

/* A coordinator at work for a request. */
struct moving {
	struct request *request; /* NULL: without a reply */
	struct job *job;
	struct vpid target;
	char host[64], uuid[40];
	bool stub;
};

static void moving_forget_request(struct request *request)
{
	struct moving *moving = request->saving;

	moving->request = NULL;
	request->saving = NULL;
}

/* The job's processes are on more than one host then, or it has a keeper that knows of no directory. */
static void add_track_notes(const struct job *job, bool moved, Pbeam__MigrateReply *done)
{
	for (size_t i = 0; i < job->ntrack; i++) {
		auto_free char *note = NULL;

		if (asprintf(&note, "%s of the job of vpid %d includes the directory %s (scip run --track)",
			     moved ? "from now on no checkpoint" : "after the migration no checkpoint",
			     done->vpid, job->track[i]) < 0)
			note = NULL;
		else if (message_append_string(&done->notes, &done->n_notes, note) < 0)
			log_warn("no memory to say: %s", note);
	}
}

static void moving_reply(const struct moving *moving, const struct coordinator_outcome *outcome)
{
	Pbeam__MigrateReply done = PBEAM__MIGRATE_REPLY__INIT;

	done.vpid = moving->target.n;
	done.host = (char *)(uintptr_t)moving->host;
	done.total_ns = outcome->total_ns;
	done.pause_ns = outcome->pause_ns;
	done.bytes = outcome->bytes;
	done.rounds = outcome->rounds;
	done.processes = outcome->processes;
	done.n_obstacles = outcome->nobstacles;
	done.obstacles = outcome->obstacles;
	add_track_notes(moving->job, outcome->processes > 0, &done);
	request_reply(moving->request, PBEAM__RPC__RPC_REPLY, &done.base, NULL, 0);
	for (size_t i = 0; i < done.n_notes; i++)
		free(done.notes[i]);
	free(done.notes);
}

static void on_gone(void *arg, const struct coordinator_outcome *outcome);

static void on_progress(void *arg, const Pbeam__Progress *progress)
{
	const struct moving *moving = arg;

	if (moving->request && moving->request->fd >= 0)
		request_reply(moving->request, PBEAM__RPC__RPC_PROGRESS, &progress->base, NULL, 0);
}

/* The coordinator was killed: another one asks the registry whether the processes have moved. False: it
 * cannot be started. */
static bool moving_settle(struct moving *moving, const struct coordinator_outcome *killed,
			  coordinator_done_fn done)
{
	const struct migrate_settling settling = {
		.uuid = moving->uuid, .stub = moving->stub, .target = moving->target, .known = killed->moved};
	const struct coordinator_wish wish = {
		.kind = COORDINATOR_SETTLE, .settling = &settling, .progress = on_progress};
	struct err err = ERR_INIT;
	int r = coordinator_start(moving->job, &wish, done, moving, &err);

	if (r < 0)
		log_error("vpid %d: %s", moving->target.n, err.text);
	return r == 0;
}

static void on_settled(void *arg, const struct coordinator_outcome *outcome)
{
	struct moving *moving = arg;
	struct coordinator_outcome known = {0};

	if (outcome->killed && moving_settle(moving, outcome, on_settled))
		return;
	if (outcome->moved)
		known.processes = 1;
	else
		err_set(&known.err, -EIO, "the migration's coordinator was killed; the program goes on here");
	on_gone(moving, &known);
}

static void on_gone(void *arg, const struct coordinator_outcome *outcome)
{
	struct moving *moving = arg;
	struct request *request = moving->request;

	if (outcome->killed && moving_settle(moving, outcome, on_settled))
		return;
	if (!outcome->err.code && outcome->processes)
		links_settle(moving->job, moving->target);
	if (!request || request->fd < 0) {
		if (outcome->err.code)
			log_error("vpid %d: %s", moving->target.n, outcome->err.text);
	} else if (outcome->err.code) {
		request_refuse(request, &outcome->err);
	} else {
		moving_reply(moving, outcome);
	}
	free(moving);
	if (request) {
		request->saving = NULL;
		request->cancels = false;
		request_idle(request);
	}
}

/* No stub is left here when the parent is remote. The children must move too: to them the process would seem
 * to have ended. */
static int keep_children(const struct job *job, const Pbeam__MigrateRequest *wish, struct err *err)
{
	struct vpid target = request_target(job, wish->target);
	auto_free struct name_process *all = NULL;
	int n = names_snapshot(job->names, job->entry.keeper, &all);

	for (int i = 0; i < n; i++)
		if (all[i].parent.n == target.n && all[i].state != NAME_STATE_DEAD)
			return err_set(
				err, -ENOTSUP,
				"vpid %d, its child, would be left here without a parent; move it with "
				"its descendants",
				all[i].vpid.n);
	return n < 0 ? err_code(err, n, "look for children") : 0;
}

/* No coordinator is at work. */
static int moving_start(struct request *request, const Pbeam__MigrateRequest *wish, struct err *err)
{
	struct job *job = request->job;
	struct moving *moving = calloc(1, sizeof(*moving));
	const struct migrate_options options = {
		.uuid = moving ? moving->uuid : "",
		.target = request_target(job, wish->target),
		.host = wish->host,
		.home = job->home,
		.alone = wish->alone,
		.dry_run = wish->dry_run,
		.send_files = wish->send_files,
		.leave_shared = wish->leave_shared,
		.maps = wish->maps,
		.nmaps = wish->n_maps,
		.max_pause_ns = wish->max_pause_ns,
		.bandwidth = wish->bandwidth,
		.save_files_max = job->options->save_files_max,
		.stub_host = links_stub_host(job, request_target(job, wish->target)),
		.stub = job_wants_stub(job, request_target(job, wish->target)),
	};
	const struct coordinator_wish what = {
		.kind = COORDINATOR_MIGRATE, .migrate = &options, .progress = on_progress};
	int r = moving ? 0 : err_code(err, -ENOMEM, "take the request");

	if (r == 0 && wish->alone && !options.stub)
		r = keep_children(job, wish, err);
	if (r == 0)
		r = recall_begin(request, wish, err);
	if (r != 0) {
		free(moving);
		return r < 0 ? r : 0;
	}
	*moving = (struct moving){.request = request, .job = job, .target = options.target};
	snprintf(moving->host, sizeof(moving->host), "%s", wish->host);
	moving->stub = options.stub;
	r = io_make_uuid(moving->uuid);
	if (r < 0) {
		free(moving);
		return err_code(err, r, "make a name for the migration");
	}
	r = options.dry_run ? 0 : job_spreads(job);
	if (r < 0)
		err_code(err, r, "note that the job goes to other hosts");
	if (r == 0 && options.stub && !options.dry_run)
		r = links_expect(job, err);
	if (r == 0)
		r = coordinator_start(job, &what, on_gone, moving, err);
	if (r < 0) {
		free(moving);
		return r;
	}
	request->saving = moving;
	request->forget = moving_forget_request;
	request->cancels = true;
	return 0;
}

int request_migrate(struct request *request, const ProtobufCMessage *message, struct err *err)
{
	/* Comes first: a process that has just arrived may be moved on before it has its link, and must take
	 * along where its stub is. */
	int r = coordinator_idle(request->job, err);

	return r < 0 ? r : moving_start(request, (const Pbeam__MigrateRequest *)message, err);
}

/* ---- arriving ---- */

struct arriving {
	struct job *job;
	Pbeam__MigrateBegin *begin;
};

int arrival_settle(struct job *job, const Pbeam__MigrateBegin *begin, struct err *err)
{
	struct vpid vpid = {begin->root};

	if (begin->cut)
		links_reset(job, begin->uuid, begin->cut);
	else if (begin->job->incarnation[0]) /* the console's keeper may have had no part in the rollback */
		snprintf(job->incarnation, sizeof(job->incarnation), "%s", begin->job->incarnation);
	if (!begin->stub_host[0] || begin->came_back)
		return 0;
	return links_to_stub(job, vpid, names_real(job->names, vpid).n, begin->stub_host, err);
}

bool arrival_ask(struct job *job, const Pbeam__MigrateBegin *begin, const struct coordinator_outcome *killed,
		 coordinator_done_fn done, void *arg)
{
	const struct migrate_settling settling = {.uuid = begin->uuid,
						  .arrival = true,
						  .known = killed->moved,
						  .part = begin->cut != NULL,
						  .ends = begin->cut && begin->cut->ends};
	const struct coordinator_wish wish = {.kind = COORDINATOR_SETTLE, .settling = &settling};
	struct err err = ERR_INIT;
	int r = coordinator_start(job, &wish, done, arg, &err);

	if (r < 0)
		log_error("vpid %d: %s", begin->root, err.text);
	return r == 0;
}

static void on_arrived(void *arg, const struct coordinator_outcome *outcome)
{
	struct arriving *arriving = arg;
	struct job *job = arriving->job;
	const struct vpid root = {arriving->begin->root};
	struct err err = ERR_INIT;

	if (outcome->killed && arrival_ask(job, arriving->begin, outcome, on_arrived, arriving))
		return;
	if (outcome->err.code)
		log_error("job %d: nothing arrived: %s", job->entry.root.n, outcome->err.text);
	else if (arrival_settle(job, arriving->begin, &err) < 0)
		log_error("vpid %d: %s", arriving->begin->root, err.text);
	if (!outcome->err.code && arriving->begin->cut) {
		links_renew(job, root, names_real(job->names, root).n);
		if (remote_console_moves_here(job, arriving->begin))
			remote_console_become_home(job, arriving->begin);
		else
			remote_console_set_home(job, arriving->begin->home);
	}
	message_free(arriving->begin);
	free(arriving);
}

/* Keeps the message: later steps need it. */
static struct arriving *arriving_new(struct job *job, const struct frame *frame, struct err *err)
{
	struct arriving *arriving = calloc(1, sizeof(*arriving));
	struct name_process process;

	if (!arriving)
		return NULL;
	arriving->job = job;
	arriving->begin = (void *)frame_unpack(frame, &pbeam__migrate_begin__descriptor, err);
	if (!arriving->begin) {
		free(arriving);
		return NULL;
	}
	arriving->begin->came_back =
		names_process_get(job->names, (struct vpid){arriving->begin->root}, &process) == 0 &&
		process.state == NAME_STATE_STUB;
	return arriving;
}

int request_receive(struct request *request, const ProtobufCMessage *message, struct err *err)
{
	struct coordinator_wish what = {.kind = COORDINATOR_RECEIVE};
	Pbeam__Done done = PBEAM__DONE__INIT;
	struct job *job = request->job;
	struct arriving *arriving;
	auto_close int channel = -1;
	int r;

	if (request->frame->nfds != 1)
		return err_set(err, -EPROTO, "the request to receive processes has no channel");
	channel = steal_fd(&request->frame->fds[0]);
	arriving = arriving_new(job, request->frame, err);
	if (!arriving)
		return -EPROTO;
	what.begin = arriving->begin;
	what.channel = channel;
	r = arriving->begin->stubs ? links_expect(job, err) : 0;
	if (r == 0)
		r = coordinator_start(job, &what, on_arrived, arriving, err);
	if (r < 0) {
		message_free(arriving->begin);
		free(arriving);
		return r;
	}
	request_reply(request, PBEAM__RPC__RPC_REPLY, &done.base, NULL, 0);
	return 0;
}

/* A stub got a signal. There is no reply. */
int request_signal(struct request *request, const ProtobufCMessage *message, struct err *err)
{
	links_signal(request->job, (const Pbeam__RemoteSignal *)message);
	return 0;
}

/* Likewise. */
int request_orphan(struct request *request, const ProtobufCMessage *message, struct err *err)
{
	links_orphan(request->job, (struct vpid){((const Pbeam__Target *)message)->vpid});
	return 0;
}

/* Cancels a migration until it is committed. */
int request_cancel(struct request *request, const ProtobufCMessage *message, struct err *err)
{
	Pbeam__Done done = PBEAM__DONE__INIT;

	if (coordinator_cancel(request->job) < 0)
		return err_set(err, -ESRCH, "it is not being migrated");
	request_reply(request, PBEAM__RPC__RPC_REPLY, &done.base, NULL, 0);
	return 0;
}
