/*
 * Over one seqpacket pair the coordinator asks the keeper for husks (rebuild/keeper_protocol.h, husk.c) and
 * in the end sends its outcome, which is told from a request, and from how far it is, by its size. If it dies
 * without one the scips notice the end of their connections and let go what it froze; nothing here needs to
 * be undone.
 */
#include "scip/job/coordinator.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "image/image.h"
#include "scip/cut/return_part.h"
#include "scip/job/far.h"
#include "scip/job/husk.h"
#include "scip/job/line.h"
#include "scip/rebuild/keeper_protocol.h"
#include "scip/rollback/rollback_run.h"
#include "scip/supervisor/pool.h"

enum { LAST_WORDS_MS = 3000 };

struct coordinator {
	enum coordinator_kind kind;
	pid_t pid;
	int sock;
	coordinator_done_fn done;
	void *arg;
	struct husk *husk; /* that it asked for and that is being made */
	struct coordinator_outcome outcome;
	bool outcome_known;
	bool moved;			  /* the processes have, whatever becomes of it */
	bool departs;			  /* of a migration from here */
	const Pbeam__MigrateBegin *begin; /* of an arrival */
	coordinator_progress_fn progress;
};

static const char *const names_of_kinds[] = {
	[COORDINATOR_CHECKPOINT] = "checkpoint",     [COORDINATOR_RESTORE] = "restore",
	[COORDINATOR_ROLLBACK] = "rollback",	     [COORDINATOR_MIGRATE] = "migration",
	[COORDINATOR_PART] = "checkpoint",	     [COORDINATOR_RECEIVE] = "arrival",
	[COORDINATOR_SETTLE] = "end of a migration",
};

/* ---- in the coordinator ---- */

/* Of a rollback: an image of the whole job replaces all of it, whoever was named; else it is the named
 * process with its descendants, and the image must be of that. */
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

_Static_assert(sizeof(struct migrate_progress) != sizeof(struct keeper_request) &&
		       sizeof(struct migrate_progress) != sizeof(struct coordinator_outcome),
	       "told apart by their sizes");

static int run_restore(struct job *job, const struct coordinator_wish *wish, int keeper_sock,
		       struct coordinator_outcome *outcome)
{
	struct image_reader *image;
	struct rebuild_options options = {
		.path = wish->path,
		.force = wish->force,
		.console = job->console,
		.keeper_socket = keeper_sock,
		.keeper = job->entry.keeper,
		.signs = pool_signs(job->pool),
	};
	int r = image_reader_open(&image, wish->path, &outcome->err);

	if (r < 0)
		return r;
	if (wish->kind == COORDINATOR_ROLLBACK)
		r = choose_replaced(job, wish, image, &options.replace, &outcome->err);
	if (r == 0)
		r = rollback_run(job->names, image, &options, &outcome->restore, &outcome->err);
	image_reader_close(image);
	return r;
}

static int run_checkpoint(struct job *job, const struct coordinator_wish *wish,
			  struct coordinator_outcome *outcome)
{
	struct checkpoint_options options = {
		.target = wish->target.n ? wish->target : job->entry.root,
		.path = wish->path,
		.kill = wish->kill,
		.alone = wish->alone,
		.save_files_max = wish->save_files_max,
		.console = job->console,
		.job = &job->entry,
	};

	return checkpoint_run(job->names, &options, &outcome->checkpoint, &outcome->err);
}

static int flush_console(void *arg, struct err *err)
{
	far_leave(arg, true);
	return far_flush(arg, false, err);
}

static void keep_console(void *arg)
{
	far_leave(arg, false);
}

struct arrived {
	const struct job *job;
	struct vpid vpid;
	int keeper_sock;
};

/* reply.rpid, or -1. */
static int ask_keeper(int keeper_sock, uint32_t type)
{
	const struct keeper_request request = {.type = type};
	struct keeper_reply reply;
	ssize_t n = send(keeper_sock, &request, sizeof(request), MSG_NOSIGNAL);

	do
		n = n < 0 ? n : recv(keeper_sock, &reply, sizeof(reply), 0);
	while (n < 0 && errno == EINTR);
	return n == sizeof(reply) && reply.code == 0 ? reply.rpid : -1;
}

static void tell_moved(int keeper_sock)
{
	if (ask_keeper(keeper_sock, KEEPER_MOVED) < 0)
		log_warn("migrate: the keeper does not hear that they have moved");
}

static void on_moved_away(void *arg)
{
	const int *keeper_sock = arg;

	tell_moved(*keeper_sock);
}

static void on_ours(void *arg)
{
	const struct arrived *arrived = arg;

	tell_moved(arrived->keeper_sock);
	lines_end_far(arrived->job, arrived->vpid);
}

static bool is_guest(void *arg, struct vpid vpid)
{
	return lines_stub_host(arg, vpid)[0];
}

/* The keeper looks at it when it can: what does not fit is not worth waiting for, unless it is a sentence. */
static void tell_progress(void *arg, const struct migrate_progress *progress)
{
	const int *keeper_sock = arg;

	if (send(*keeper_sock, progress, sizeof(*progress),
		 MSG_NOSIGNAL | (progress->note[0] ? 0 : MSG_DONTWAIT)) < 0)
		log_debug("migrate: the keeper does not listen");
}

static int run_migrate(struct job *job, const struct coordinator_wish *wish, int keeper_sock,
		       struct coordinator_outcome *outcome)
{
	struct migrate_options options = *wish->migrate;

	options.console = job->console;
	options.job = &job->entry;
	options.incarnation = job->incarnation;
	options.flush = flush_console;
	options.stay = keep_console;
	options.flush_arg = job;
	options.gone = on_moved_away;
	options.gone_arg = &keeper_sock;
	options.progress = tell_progress;
	options.progress_arg = &keeper_sock;
	options.stays = is_guest;
	options.stays_arg = job;
	return migrate_source_run(job->names, &options, &outcome->migrate, &outcome->err);
}

static int run_receive(struct job *job, const struct coordinator_wish *wish, int keeper_sock,
		       struct coordinator_outcome *outcome)
{
	const struct vpid replace = {wish->begin->cut && job->root > 0 ? wish->begin->root : 0};
	/* With several parts all consoles that were elsewhere are; those that still are call again. */
	struct arrived arrived = {
		job, {wish->begin->cut && wish->begin->cut->n_with ? 0 : wish->begin->root}, keeper_sock};
	const struct migrate_arrival arrival = {.channel = wish->channel,
						.begin = wish->begin,
						.console = job->console,
						.keeper_socket = keeper_sock,
						.keeper = job->entry.keeper,
						.replace = replace,
						.joins = job->root > 0 && !wish->begin->cut,
						.ours = on_ours,
						.ours_arg = &arrived,
						.signs = pool_signs(job->pool)};

	if (far_is_here(job, wish->begin) && far_cut_pipes(job, &outcome->err) < 0)
		return outcome->err.code;
	if (wish->begin->cut)
		return return_part_run(job->names, &arrival, &outcome->restore, &outcome->err);
	return migrate_target_run(job->names, &arrival, &outcome->restore, &outcome->err);
}

static int run_settle(struct job *job, const struct coordinator_wish *wish, int keeper_sock,
		      struct coordinator_outcome *outcome)
{
	struct migrate_settling settling = *wish->settling;
	int r;

	settling.job = &job->entry;
	settling.progress = tell_progress;
	settling.progress_arg = &keeper_sock;
	r = migrate_settle(job->names, &settling, &outcome->err);
	outcome->moved = r > 0;
	if (r == 0 && settling.arrival)
		return err_set(&outcome->err, -ECANCELED, "the migration was given up");
	if (r > 0 && settling.arrival)
		lines_end_far(job, (struct vpid){0});
	return r < 0 ? r : 0;
}

struct saved_part {
	const struct job *job;
	int keeper_sock;
};

static const char *stub_host(void *arg, struct vpid vpid)
{
	const struct saved_part *part = arg;

	return lines_stub_host(part->job, vpid);
}

static bool under_way(void *arg)
{
	const struct saved_part *part = arg;

	return ask_keeper(part->keeper_sock, KEEPER_UNDER_WAY) != 0;
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

static int run(struct job *job, const struct coordinator_wish *wish, int keeper_sock,
	       struct coordinator_outcome *outcome)
{
	switch (wish->kind) {
	case COORDINATOR_CHECKPOINT:
		return run_checkpoint(job, wish, outcome);
	case COORDINATOR_MIGRATE:
		return run_migrate(job, wish, keeper_sock, outcome);
	case COORDINATOR_RECEIVE:
		return run_receive(job, wish, keeper_sock, outcome);
	case COORDINATOR_SETTLE:
		return run_settle(job, wish, keeper_sock, outcome);
	case COORDINATOR_PART:
		return run_part(job, wish, keeper_sock, outcome);
	case COORDINATOR_RESTORE:
	case COORDINATOR_ROLLBACK:
		break;
	}
	return run_restore(job, wish, keeper_sock, outcome);
}

_Noreturn static void be_coordinator(struct job *job, const struct coordinator_wish *wish, int keeper_sock)
{
	static struct coordinator_outcome outcome; /* static: zeroed, padding and all */
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
	signal(SIGTTOU, SIG_IGN); /* it sets the job's terminal, which is its own, from the background */
	r = run(job, wish, keeper_sock, &outcome);
	if (r < 0 && !outcome.err.code)
		err_code(&outcome.err, r, "%s %s", names_of_kinds[wish->kind], wish->path ? wish->path : "");
	if (send(keeper_sock, &outcome, sizeof(outcome), MSG_NOSIGNAL) < 0)
		_exit(1);
	_exit(0);
}

/* ---- what it asks for ---- */

static void answer(struct coordinator *coordinator, pid_t rpid, const struct err *err)
{
	struct keeper_reply reply = {.code = err->code, .rpid = rpid};

	snprintf(reply.text, sizeof(reply.text), "%.*s", (int)sizeof(reply.text) - 1, err->text);
	if (send(coordinator->sock, &reply, sizeof(reply), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		log_warn("the coordinator is gone");
}

static void on_husk(void *arg, pid_t rpid, const struct err *err)
{
	struct job *job = arg;

	job->coordinator->husk = NULL;
	answer(job->coordinator, rpid, err);
}

static void serve_request(struct job *job, const struct keeper_request *request)
{
	struct coordinator *coordinator = job->coordinator;
	struct err err = ERR_INIT;
	int r = 0, n = 0;

	switch (request->type) {
	case KEEPER_HUSK:
		if (coordinator->husk)
			r = err_set(&err, -EPROTO, "a husk is being made already");
		else
			r = husk_make(&coordinator->husk, job, request, on_husk, job, &err);
		if (r == 0)
			return; /* answered when it is there */
		break;
	case KEEPER_REPLACE:
		job->replacing = true;
		break;
	case KEEPER_MOVED:
		coordinator->moved = true;
		if (coordinator->begin && coordinator->begin->cut)
			lines_reset(job, coordinator->begin->uuid, coordinator->begin->cut);
		if (coordinator->begin && far_is_here(job, coordinator->begin))
			far_come_here(job, coordinator->begin);
		break;
	case KEEPER_UNDER_WAY:
		n = lines_under_way(job);
		break;
	default:
		r = err_set(&err, -EPROTO, "unknown request of the coordinator");
		break;
	}
	if (r < 0 && !err.code)
		err_code(&err, r, "serve the coordinator");
	answer(coordinator, n, &err);
}

static void on_message(void *arg, int fd)
{
	struct job *job = arg;
	union {
		struct keeper_request request;
		struct coordinator_outcome outcome;
		struct migrate_progress progress;
	} message;
	ssize_t n = recv(fd, &message, sizeof(message), MSG_DONTWAIT);

	if (n == (ssize_t)sizeof(message.request)) {
		serve_request(job, &message.request);
	} else if (n == (ssize_t)sizeof(message.outcome)) {
		job->coordinator->outcome = message.outcome;
		job->coordinator->outcome_known = true;
	} else if (n == (ssize_t)sizeof(message.progress)) {
		if (job->coordinator->progress)
			job->coordinator->progress(job->coordinator->arg, &message.progress);
	} else if (n >= 0 || (errno != EAGAIN && errno != EINTR)) {
		loop_unwatch(&job->loop, fd);
	}
}

/* ---- its life ---- */

static void free_coordinator(struct job *job)
{
	struct coordinator *coordinator = job->coordinator;

	if (coordinator->husk)
		husk_cancel(coordinator->husk);
	if (coordinator->sock >= 0) {
		loop_unwatch(&job->loop, coordinator->sock);
		close(coordinator->sock);
	}
	free(coordinator);
	job->coordinator = NULL;
}

/* In the child. */
_Noreturn static void start_child(struct job *job, const struct coordinator_wish *wish, int keeper_sock)
{
	int console[3] = {job->console[0], job->console[1], job->console[2]};

	/* It needs the streams, and the channel. */
	for (int i = 0; i < 3; i++)
		job->console[i] = -1;
	job->arrival = -1;
	job_close_private(job);
	memcpy(job->console, console, sizeof(console));
	be_coordinator(job, wish, keeper_sock);
}

/* What it sent last, requests included, and nobody has read yet. */
static void read_last_words(struct job *job)
{
	struct coordinator *coordinator = job->coordinator;
	char byte;

	while (!coordinator->outcome_known && recv(coordinator->sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
		on_message(job, coordinator->sock);
}

/* What arrives runs, and whoever moved it is told so, a moment before its coordinator has ended: he may ask
 * for the next thing at once. */
static void await_last_words(struct job *job)
{
	const uint64_t end_ns = io_now_ns(CLOCK_MONOTONIC) + LAST_WORDS_MS * 1000000ull;
	struct pollfd poll_fd = {.fd = job->coordinator->sock, .events = POLLIN};

	read_last_words(job);
	while (job->coordinator->kind == COORDINATOR_RECEIVE && !job->coordinator->outcome_known &&
	       io_now_ns(CLOCK_MONOTONIC) < end_ns && poll(&poll_fd, 1, LAST_WORDS_MS) > 0 &&
	       !(poll_fd.revents & POLLHUP))
		read_last_words(job);
	read_last_words(job); /* it may have hung up behind them */
}

int coordinator_idle(struct job *job, struct err *err)
{
	int status;
	pid_t pid;

	if (!job->coordinator)
		return 0;
	await_last_words(job);
	pid = job->coordinator->pid;
	if (job->coordinator->outcome_known && waitpid(pid, &status, 0) == pid)
		coordinator_reaped(job, pid, status);
	if (job->coordinator)
		return err_set(err, -EBUSY,
			       "a checkpoint, rollback or migration of it is at work already; try again when "
			       "it is done");
	return 0;
}

int coordinator_start(struct job *job, const struct coordinator_wish *wish, coordinator_done_fn done,
		      void *arg, struct err *err)
{
	auto_close int theirs = -1;
	struct coordinator *coordinator;
	int pair[2], r;

	r = coordinator_idle(job, err);
	if (r < 0)
		return r;
	coordinator = calloc(1, sizeof(*coordinator));
	if (!coordinator)
		return err_code(err, -ENOMEM, "start the coordinator");
	*coordinator = (struct coordinator){.kind = wish->kind,
					    .sock = -1,
					    .done = done,
					    .arg = arg,
					    .progress = wish->progress,
					    .begin = wish->begin,
					    .departs = wish->kind == COORDINATOR_MIGRATE ||
						       (wish->settling && !wish->settling->arrival),
					    .moved = wish->settling && wish->settling->known};
	job->coordinator = coordinator;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
		r = err_sys(err, "make a socket for the coordinator");
		goto fail;
	}
	coordinator->sock = pair[0];
	theirs = pair[1];
	r = loop_watch(&job->loop, pair[0], on_message, job);
	if (r < 0) {
		err_code(err, r, "watch the coordinator");
		goto fail;
	}
	coordinator->pid = fork();
	if (coordinator->pid < 0) {
		r = err_sys(err, "start the coordinator");
		goto fail;
	}
	if (coordinator->pid == 0)
		start_child(job, wish, theirs);
	return 0;
fail:
	free_coordinator(job);
	return r;
}

pid_t coordinator_pid(const struct job *job)
{
	return job->coordinator ? job->coordinator->pid : 0;
}

bool coordinator_departs(const struct job *job)
{
	return job->coordinator && job->coordinator->departs;
}

int coordinator_cancel(const struct job *job)
{
	if (!job->coordinator || job->coordinator->kind != COORDINATOR_MIGRATE)
		return -ESRCH;
	return kill(job->coordinator->pid, SIGTERM) < 0 ? -errno : 0;
}

bool coordinator_reaped(struct job *job, pid_t pid, int status)
{
	static struct coordinator_outcome outcome;
	coordinator_done_fn done;
	void *arg;

	if (!job->coordinator || pid != job->coordinator->pid)
		return false;
	read_last_words(job);
	outcome = job->coordinator->outcome;
	if (!job->coordinator->outcome_known) {
		memset(&outcome, 0, sizeof(outcome));
		outcome.killed = true;
		outcome.moved = job->coordinator->moved;
		err_set(&outcome.err, -EIO, "the coordinator of the %s was killed (wait status %#x)",
			names_of_kinds[job->coordinator->kind], (unsigned)status);
	}
	done = job->coordinator->done;
	arg = job->coordinator->arg;
	free_coordinator(job);
	pool_set_coordinator(job->pool, 0);
	job->replacing = false;
	if (done)
		done(arg, &outcome);
	/* One that asks how it ended: until then nobody knows whose signals and ends these are. */
	if (!job->coordinator)
		lines_settle(job, (struct vpid){0});
	return true;
}
