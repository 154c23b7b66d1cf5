/*
 * Over one seqpacket pair the coordinator sends its requests to the keeper, for husks above all (husk.c), and
 * at the end its outcome (proto/keeper.proto). If it dies without one, the scips notice the end of their
 * connections and release what it froze. Nothing has to be undone here.
 */
#include "scip/job/coordinator.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "image/file_undo.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/job/husk.h"
#include "scip/job/links.h"
#include "scip/job/remote_console.h"
#include "scip/supervisor/pool.h"

enum { LAST_WORDS_MS = 3000 };

struct coordinator {
	enum coordinator_kind kind;
	struct vpid target; /* the process that is saved, rolled back or moved */
	pid_t pid;
	int sock;
	coordinator_done_fn done;
	void *arg;
	struct husk *husk; /* that it asked for and that is being made */
	struct coordinator_outcome outcome;
	bool outcome_known;
	Pbeam__CoordinatorOutcome *message; /* has the outcome's strings */
	struct frame_reader reader;
	bool moved;			  /* the processes have moved, also if the coordinator fails later */
	bool rolled_back;		  /* the new processes run, also if the coordinator is killed later */
	const Pbeam__MigrateBegin *begin; /* of an arrival */
	coordinator_progress_fn progress;
};

/* ---- what the coordinator requests ---- */

static void coordinator_reply(struct coordinator *coordinator, int value, const struct err *err)
{
	Pbeam__KeeperReply reply = PBEAM__KEEPER_REPLY__INIT;

	reply.value = value;
	if (err->code < 0)
		rpc_refuse(coordinator->sock, err);
	else if (rpc_reply(coordinator->sock, &reply.base, NULL) < 0)
		log_warn("the coordinator is gone");
}

static void on_husk(void *arg, pid_t rpid, const struct err *err)
{
	struct job *job = arg;

	job->coordinator->husk = NULL;
	coordinator_reply(job->coordinator, rpid, err);
}

static void pass_progress(struct job *job, const struct frame *frame)
{
	Pbeam__Progress *progress = (void *)frame_unpack(frame, &pbeam__progress__descriptor, NULL);

	if (progress && job->coordinator->progress)
		job->coordinator->progress(job->coordinator->arg, progress);
	message_free(progress);
}

static int start_husk(struct job *job, const struct frame *frame, struct err *err)
{
	Pbeam__HuskRequest *request = (void *)frame_unpack(frame, &pbeam__husk_request__descriptor, err);
	int r;

	if (!request)
		return -EPROTO;
	r = job->coordinator->husk ? err_set(err, -EPROTO, "a husk is being made already")
				   : husk_make(&job->coordinator->husk, job, request, on_husk, job, err);
	message_free(request);
	return r;
}

static void note_moved(struct job *job)
{
	const Pbeam__MigrateBegin *begin = job->coordinator->begin;

	job->coordinator->moved = true;
	if (begin && begin->cut)
		links_reset(job, begin->uuid, begin->cut);
	if (begin && remote_console_moves_here(job, begin))
		remote_console_become_home(job, begin);
}

/* True if a rollback has set processes aside: its new processes are complete before the commit. */
static bool has_aside(const struct job *job)
{
	auto_free struct name_process *list = NULL;
	int n = names_snapshot(job->names, job->entry.keeper, &list);

	for (int i = 0; i < n; i++)
		if (list[i].aside)
			return true;
	return false;
}

/* The new first process is the job's; the end of the old one is not reported to other hosts. */
static int replace_root(struct job *job)
{
	bool is_new = job->next_root != 0;
	int r = job_replace_root(job);

	if (r < 0)
		log_error("the new first process is not in the name table");
	if (is_new)
		links_renew(job, job->entry.root, job->root);
	return r;
}

static void coordinator_serve_request(struct job *job, const struct frame *frame)
{
	struct coordinator *coordinator = job->coordinator;
	struct err err = ERR_INIT;
	int r = 0, n = 0;

	switch (frame->type) {
	case PBEAM__KEEPER_REQUEST__KEEPER_HUSK:
		r = start_husk(job, frame, &err);
		if (r == 0)
			return; /* on_husk() replies */
		break;
	case PBEAM__KEEPER_REQUEST__KEEPER_REPLACE:
		job->replacing = true;
		break;
	case PBEAM__KEEPER_REQUEST__KEEPER_REPLACED:
		coordinator->rolled_back = coordinator->kind == COORDINATOR_ROLLBACK && has_aside(job);
		r = replace_root(job);
		break;
	case PBEAM__KEEPER_REQUEST__KEEPER_MOVED:
		note_moved(job);
		break;
	case PBEAM__KEEPER_REQUEST__KEEPER_UNDER_WAY:
		n = links_under_way(job);
		break;
	default:
		r = err_set(&err, -EPROTO, "unexpected message %u from the coordinator", frame->type);
		break;
	}
	if (r < 0 && !err.code)
		err_code(&err, r, "serve the coordinator");
	coordinator_reply(coordinator, n, &err);
}

static void take_outcome(struct coordinator *coordinator, const struct frame *frame)
{
	Pbeam__CoordinatorOutcome *message =
		(void *)frame_unpack(frame, &pbeam__coordinator_outcome__descriptor, NULL);
	struct coordinator_outcome *outcome = &coordinator->outcome;

	if (!message || coordinator->outcome_known) {
		message_free(message);
		return;
	}
	if (message->failed)
		rpc_take_failure(message->failed, &outcome->err);
	outcome->moved = message->moved;
	outcome->root.n = message->root;
	outcome->processes = message->processes;
	outcome->threads = message->threads;
	outcome->bytes = message->bytes;
	outcome->pause_ns = message->pause_ns;
	outcome->total_ns = message->total_ns;
	outcome->rounds = message->rounds;
	outcome->obstacles = message->obstacles;
	outcome->nobstacles = message->n_obstacles;
	outcome->files = message->files;
	outcome->nfiles = message->n_files;
	coordinator->message = message;
	coordinator->outcome_known = true;
}

/* Takes all frames that have come. */
static void on_message(void *arg, int fd)
{
	struct job *job = arg;
	struct frame frame;
	int r;

	while (job->coordinator && (r = frame_reader_step(&job->coordinator->reader, fd, &frame, NULL)) > 0) {
		if (frame.type == PBEAM__KEEPER_REQUEST__KEEPER_OUTCOME)
			take_outcome(job->coordinator, &frame);
		else if (frame.type == PBEAM__RPC__RPC_PROGRESS)
			pass_progress(job, &frame);
		else
			coordinator_serve_request(job, &frame);
		frame_free(&frame);
	}
	if (job->coordinator && r != -EAGAIN)
		loop_unwatch(&job->loop, fd);
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
	frame_reader_reset(&coordinator->reader);
	message_free(coordinator->message);
	free(coordinator);
	job->coordinator = NULL;
	job->coordinator_pid = 0;
	job->departing = job->arrives = job->rolls_back = false;
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
	coordinator_main(job, wish, keeper_sock);
}

/* Serves its last messages, requests included, which are not read yet. */
static void read_last_words(struct job *job)
{
	struct coordinator *coordinator = job->coordinator;
	char byte;

	while (!coordinator->outcome_known && recv(coordinator->sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
		on_message(job, coordinator->sock);
}

/* The caller of a migration is told of its success shortly before the target's coordinator has ended, and may
 * send the next request at once. */
static void await_last_words(struct job *job)
{
	const uint64_t end_ns = io_now_ns(CLOCK_MONOTONIC) + LAST_WORDS_MS * 1000000ull;
	struct pollfd poll_fd = {.fd = job->coordinator->sock, .events = POLLIN};

	read_last_words(job);
	while (job->coordinator->kind == COORDINATOR_RECEIVE && !job->coordinator->outcome_known &&
	       io_now_ns(CLOCK_MONOTONIC) < end_ns && poll(&poll_fd, 1, LAST_WORDS_MS) > 0 &&
	       !(poll_fd.revents & POLLHUP))
		read_last_words(job);
	read_last_words(job); /* the socket may have been closed after the last message */
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
					    .target = wish->target.n ? wish->target : job->entry.root,
					    .sock = -1,
					    .done = done,
					    .arg = arg,
					    .progress = wish->progress,
					    .begin = wish->begin,
					    .moved = wish->settling && wish->settling->known};
	job->coordinator = coordinator;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0 ||
	    fcntl(pair[0], F_SETFL, O_NONBLOCK) < 0) {
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
	job->coordinator_pid = coordinator->pid;
	job->departing = wish->kind == COORDINATOR_MIGRATE || (wish->settling && !wish->settling->arrival);
	job->arrives = wish->kind == COORDINATOR_RECEIVE;
	job->rolls_back = wish->kind == COORDINATOR_ROLLBACK || (wish->begin && wish->begin->cut);
	if (coordinator->pid == 0)
		start_child(job, wish, theirs);
	return 0;
fail:
	free_coordinator(job);
	return r;
}

int coordinator_cancel(const struct job *job)
{
	if (!job->coordinator || job->coordinator->kind != COORDINATOR_MIGRATE)
		return -ESRCH;
	return kill(job->coordinator->pid, SIGTERM) < 0 ? -errno : 0;
}

static void kill_old(const struct job *job)
{
	auto_free struct name_process *list = NULL;
	int n = names_snapshot(job->names, job->entry.keeper, &list);

	for (int i = 0; i < n; i++)
		if (list[i].aside && list[i].rpid.n > 1)
			kill(list[i].rpid.n, SIGKILL);
}

/* The coordinator of a rollback was killed. Whether that was before or after the commit is known. */
static void settle_rollback(struct job *job)
{
	bool committed = atomic_load(&pool_signs(job->pool)->condemned);

	job->coordinator->rolled_back |= committed && has_aside(job);
	if (committed) {
		replace_root(job);
		kill_old(job);
	}
	file_undo_decide(job->entry.keeper.n, committed);
	names_replace_end(job->names, job->entry.keeper, committed);
}

/* The coordinator of a part of a cut was killed before its vote: nothing was committed. */
static void give_up_part(struct job *job)
{
	file_undo_decide(job->entry.keeper.n, false);
	names_replace_end(job->names, job->entry.keeper, false);
}

/* A coordinator that was killed has left files and numbers to the keeper; the files of an arrival follow the
 * processes. False: it had voted for a rollback over several hosts, and the next coordinator settles that. */
static bool settle_changes(struct job *job)
{
	const struct coordinator *coordinator = job->coordinator;
	struct fill_signs *signs = pool_signs(job->pool);
	bool known = coordinator->outcome_known, voted = !known && atomic_load(&signs->voted);
	struct err err = ERR_INIT;

	if (!known && coordinator->kind == COORDINATOR_ROLLBACK)
		settle_rollback(job);
	if (!known && !voted && coordinator->begin && coordinator->begin->cut)
		give_up_part(job);
	if (!known && coordinator->kind != COORDINATOR_CHECKPOINT && file_undo_recover(&err) < 0)
		log_error("%s", err.text);
	if (known && coordinator->kind == COORDINATOR_SETTLE)
		file_undo_decide(job->entry.keeper.n, coordinator->outcome.moved);
	if (voted)
		return false;
	job->next_root = 0;
	atomic_store(&signs->voted, false);
	atomic_store(&signs->unsettled, false);
	return true;
}

static uint32_t count_processes(const struct job *job)
{
	auto_free struct name_process *list = NULL;
	int n = names_snapshot(job->names, job->entry.keeper, &list);
	uint32_t count = 0;

	for (int i = 0; i < n; i++)
		count += list[i].state != NAME_STATE_DEAD;
	return count;
}

bool coordinator_reaped(struct job *job, pid_t pid, int status)
{
	struct coordinator_outcome outcome;
	Pbeam__CoordinatorOutcome *message;
	coordinator_done_fn done;
	void *arg;
	bool settled;

	if (!job->coordinator || pid != job->coordinator->pid)
		return false;
	read_last_words(job);
	outcome = job->coordinator->outcome;
	settled = settle_changes(job);
	if (!job->coordinator->outcome_known && job->coordinator->rolled_back) {
		log_warn("the coordinator of a rollback was killed after the commit (wait status %#x)",
			 (unsigned)status);
		outcome.root = job->coordinator->target;
		outcome.processes = count_processes(job);
	} else if (!job->coordinator->outcome_known) {
		memset(&outcome, 0, sizeof(outcome));
		outcome.killed = true;
		outcome.moved = job->coordinator->moved;
		err_set(&outcome.err, -EIO, "the coordinator of the %s was killed (wait status %#x)",
			coordinator_kind_names[job->coordinator->kind], (unsigned)status);
	}
	/* From a keeper -ESRCH means that its job has ended, not a process that the coordinator has missed.
	 */
	if (outcome.err.code == -ESRCH && !job->root_gone)
		outcome.err.code = -ECONNRESET;
	message = steal_ptr(&job->coordinator->message);
	done = job->coordinator->done;
	arg = job->coordinator->arg;
	free_coordinator(job);
	pool_set_coordinator(job->pool, 0);
	job->replacing = !settled;
	if (done)
		done(arg, &outcome);
	message_free(message);
	/* done() may have started a coordinator that finds out how this one ended. Until then the host that
	 * signals and state changes belong to is unknown. */
	if (!job->coordinator)
		links_settle(job, (struct vpid){0});
	return true;
}
