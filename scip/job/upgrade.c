#include "scip/job/upgrade.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/log.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/job/interval.h"
#include "scip/job/requests.h"
#include "scip/job/viewer.h"
#include "scip/supervisor/pool.h"

enum { FDS = 16 };

/* ---- the old keeper ---- */

static int save_job(struct job *job, Pbeam__KeeperState *out)
{
	const pid_t *scips;
	size_t n = pool_scips(job->pool, &scips);

	out->root = job->root;
	out->root_gone = job->root_gone;
	out->root_status = job->root_status;
	out->pty_master = job->pty_master;
	out->save_files_max = job->options->save_files_max;
	memcpy(&out->saved_mask, &job->saved_mask, sizeof(out->saved_mask));
	for (size_t i = 0; i < n; i++)
		if (message_append_i32(&out->scips, &out->n_scips, scips[i]) < 0)
			return -ENOMEM;
	for (int i = 0; i < 3; i++)
		if (message_append_i32(&out->console, &out->n_console, job->console[i]) < 0)
			return -ENOMEM;
	if (message_string(&out->incarnation, job->incarnation) < 0 ||
	    message_string(&out->path, requests_path(job)) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < job->ntrack; i++)
		if (message_append_string(&out->track, &out->n_track, job->track[i]) < 0)
			return -ENOMEM;
	return viewer_save(job, &out->viewer, &out->backlog);
}

static int check_job(struct job *job, const char *program, struct err *err)
{
	int r = coordinator_idle(job, err);

	if (r < 0)
		return r;
	if (job->entry.spread || job->links_sock >= 0 || job->home || job->remote_console)
		return err_set(
			err, -EOPNOTSUPP,
			"it has, or had, processes on other hosts; bring them home, `pbeamctl checkpoint "
			"--kill` and `pbeamctl rollback` move it to the new version");
	if (program[0] != '/' || access(program, X_OK) < 0)
		return err_set(err, -EINVAL, "%s is no program that can be executed", program);
	return successor_check(program, pool_seat(job->pool), err);
}

static int exec_keeper(struct job *job, const char *program, int connection, struct err *err)
{
	const struct seat *seat = pool_seat(job->pool);
	Pbeam__KeeperState *state = message_new(&pbeam__keeper_state__descriptor);
	Pbeam__SeatState seat_state;
	int fds[FDS], n = 0, r = state ? save_job(job, state) : -ENOMEM;

	if (r < 0) {
		message_free(state);
		return err_code(err, r, "write the state of the job");
	}
	successor_save_seat(seat, &seat_state);
	state->seat = &seat_state;
	state->listener = requests_listener(job);
	state->connection = connection;
	fds[n++] = seat->take;
	fds[n++] = seat->give;
	fds[n++] = seat->wake;
	fds[n++] = seat->page;
	fds[n++] = names_descriptor(seat->names);
	fds[n++] = state->listener;
	fds[n++] = connection;
	fds[n++] = state->viewer;
	fds[n++] = job->pty_master;
	for (int i = 0; i < 3; i++)
		fds[n++] = job->console[i];
	r = successor_exec(program, "keeper", &state->base, fds, n, err);
	state->seat = NULL;
	message_free(state);
	return r;
}

int request_upgrade(struct request *request, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__UpgradeRequest *wish = (const Pbeam__UpgradeRequest *)message;
	int r = check_job(request->job, wish->program, err);

	return r < 0 ? r : exec_keeper(request->job, wish->program, request->fd, err);
}

/* ---- the new one ---- */

static int load_job(struct job *job, const Pbeam__KeeperState *state, const struct seat *seat,
		    void (*before_scip)(void *arg), struct err *err)
{
	int r;

	if (state->n_console != 3)
		return err_set(err, -EPROTO, "the state of the job is malformed");
	r = names_job_get(seat->names, (struct rpid){getpid()}, &job->entry);
	if (r < 0)
		return err_code(err, r, "find the job in the name table");
	job->names = seat->names;
	job->root = state->root;
	job->root_gone = state->root_gone;
	job->root_status = state->root_status;
	job->pty_master = state->pty_master;
	memcpy(&job->saved_mask, &state->saved_mask, sizeof(state->saved_mask));
	snprintf(job->incarnation, sizeof(job->incarnation), "%s", state->incarnation);
	for (int i = 0; i < 3; i++)
		job->console[i] = state->console[i];
	r = pool_adopt(&job->pool, seat, state->scips, state->n_scips, before_scip, job);
	return r < 0 ? err_code(err, r, "take over the job's pool") : 0;
}

/* What has no way back is done last. */
static int serve_job(struct job *job, const Pbeam__KeeperState *state, struct err *err)
{
	int r = viewer_adopt(job, state->viewer, &state->backlog, err);

	if (r == 0)
		r = requests_adopt(job, state->listener, state->path, err);
	return r < 0 ? r : interval_start(job, err);
}

static void close_on_exec(const Pbeam__KeeperState *state)
{
	const int fds[] = {state->listener, state->connection, state->viewer, state->pty_master};

	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (fds[i] >= 0)
			(void)fcntl(fds[i], F_SETFD, FD_CLOEXEC);
	for (size_t i = 0; i < state->n_console; i++)
		if (state->console[i] >= 0)
			(void)fcntl(state->console[i], F_SETFD, FD_CLOEXEC);
}

int upgrade_take_over(struct job *job, const struct successor *from, void (*before_scip)(void *arg),
		      int *connection, struct err *err)
{
	static struct keeper_options options = {.console = {-1, -1, -1}, .pty_master = -1};
	static struct seat seat;
	Pbeam__KeeperState *state = NULL;
	int r = successor_read(from, &pbeam__keeper_state__descriptor, &state, err);

	*connection = -1;
	if (r == 0 && !state->seat)
		r = err_set(err, -EPROTO, "the state of the other version has no seat");
	if (r == 0)
		r = successor_load_seat(state->seat, &seat, err);
	if (r == 0) {
		options.save_files_max = state->save_files_max;
		job->options = &options;
		for (size_t i = 0; i < state->n_track && r == 0; i++)
			r = message_append_string(&job->track, &job->ntrack, state->track[i]);
	}
	if (r == 0) {
		r = load_job(job, state, &seat, before_scip, err);
	}
	if (r == 0 && !from->refused)
		r = fault_point("succeed-keeper", err);
	if (r == 0)
		r = serve_job(job, state, err);
	if (r == 0) {
		close_on_exec(state);
		*connection = state->connection;
	}
	message_free(state);
	return r;
}

/* ---- the reply ---- */

void upgrade_refused(int connection, const char *reason)
{
	struct err err = ERR_INIT;

	if (connection < 0)
		return;
	err_set(&err, -ENOTSUP, "%s", reason);
	rpc_refuse(connection, &err);
	close(connection);
}

struct upgrade {
	struct job *job;
	int connection;
};

static void on_upgraded(void *arg, const struct coordinator_outcome *outcome)
{
	struct upgrade *upgrade = arg;
	Pbeam__UpgradeReply reply = PBEAM__UPGRADE_REPLY__INIT;
	struct err err = ERR_INIT;

	reply.processes = outcome->processes;
	reply.program = (char *)(uintptr_t) "scip " PBEAM_VERSION;
	if (outcome->err.code)
		rpc_refuse(upgrade->connection, &outcome->err);
	else if (rpc_reply(upgrade->connection, &reply.base, &err) < 0)
		log_info("upgrade: %s", err.text);
	close(upgrade->connection);
	free(upgrade);
}

void upgrade_go_on(struct job *job, int connection)
{
	const struct coordinator_wish wish = {.kind = COORDINATOR_UPGRADE};
	struct upgrade *upgrade = calloc(1, sizeof(*upgrade));
	struct err err = ERR_INIT;
	int r = upgrade ? 0 : err_code(&err, -ENOMEM, "go on with the upgrade");

	if (upgrade)
		*upgrade = (struct upgrade){job, connection};
	if (r == 0)
		r = coordinator_start(job, &wish, on_upgraded, upgrade, &err);
	if (r < 0) {
		upgrade_refused(connection, err.text);
		free(upgrade);
	}
}
