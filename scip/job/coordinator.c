/*
 * Coordinators. A checkpoint or a restore is straight-line blocking code in a child of the keeper
 * (checkpoint_run(), restore_run()). Over one seqpacket pair it asks for husks (restore/keeper_protocol.h)
 * and in the end sends its outcome, which is told from a request by its size. If it dies without one the
 * scips notice the end of their connections and let go what it froze; nothing here needs to be undone.
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

#include "base/io.h"
#include "base/log.h"
#include "image/image.h"
#include "scip/job/launch.h"
#include "scip/restore/keeper_protocol.h"
#include "scip/supervisor/pool.h"
#include "scip/syscall/syscall.h"

struct wish {
	bool restore, force, replace;
	bool kill, alone;
	struct vpid target;
	uint64_t save_files_max;
	const char *path;
};

/* ---- in the coordinator ---- */

static int run_restore(struct keeper *keeper, const struct wish *wish, int keeper_sock,
		       struct keeper_outcome *outcome)
{
	struct image_reader *image;
	struct restore_options options = {
		.path = wish->path,
		.force = wish->force,
		.console = keeper->console,
		.keeper_socket = keeper_sock,
		.replace = wish->replace ? keeper->job.root : (struct vpid){0},
		.keeper = keeper->job.keeper,
	};
	int r = image_reader_open(&image, wish->path, &outcome->err);

	if (r < 0)
		return r;
	r = restore_run(keeper->names, image, &options, &outcome->restore, &outcome->err);
	image_reader_close(image);
	return r;
}

static int run_checkpoint(struct keeper *keeper, const struct wish *wish, struct keeper_outcome *outcome)
{
	struct checkpoint_options options = {
		.target = wish->target,
		.path = wish->path,
		.kill = wish->kill,
		.alone = wish->alone,
		.save_files_max = wish->save_files_max,
		.console = keeper->console,
		.job = &keeper->job,
	};

	return checkpoint_run(keeper->names, &options, &outcome->checkpoint, &outcome->err);
}

_Noreturn static void be_coordinator(struct keeper *keeper, const struct wish *wish, int keeper_sock)
{
	static struct keeper_outcome outcome; /* static: five kilobytes, zeroed */
	sigset_t none;
	int r;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, "scip-coordinate");
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_IGN);
	r = wish->restore ? run_restore(keeper, wish, keeper_sock, &outcome)
			  : run_checkpoint(keeper, wish, &outcome);
	if (r < 0 && !outcome.err.code)
		err_code(&outcome.err, r, "%s %s", wish->restore ? "restore" : "checkpoint to", wish->path);
	snprintf(outcome.path, sizeof(outcome.path), "%s", wish->path);
	if (send(keeper_sock, &outcome, sizeof(outcome), MSG_NOSIGNAL) < 0)
		_exit(1);
	_exit(0);
}

/* ---- husks ---- */

static int wait_taken(struct keeper *keeper, struct vpid vpid, struct err *err)
{
	struct name_process entry;

	for (int tries = 0; tries < 10000; tries++) {
		int r = names_process_get(keeper->names, vpid, &entry);

		if (r < 0)
			return err_code(err, r, "vpid %d was not taken over by a scip", vpid.n);
		if (entry.state != NAME_STATE_BORN)
			return 0;
		nanosleep(&(struct timespec){.tv_nsec = tries < 100 ? 20000 : 1000000}, NULL);
	}
	return err_set(err, -ETIMEDOUT, "no scip took vpid %d", vpid.n);
}

static int enter_husk(struct keeper *keeper, pid_t husk, struct vpid *vpid, struct err *err)
{
	struct name_process entry = {
		.rpid = {husk},
		.keeper = keeper->job.keeper,
		.start_ns = io_now_ns(CLOCK_REALTIME),
		.state = NAME_STATE_BORN,
		.diverged = true,
	};
	int r;

	if (vpid->n)
		r = names_number_bind(keeper->names, *vpid, entry.rpid, keeper->job.keeper);
	else
		r = names_number_born(keeper->names, entry.rpid, keeper->job.keeper, vpid);
	if (r < 0)
		return err_code(err, r, "vpid %d", vpid->n);
	entry.vpid = *vpid;
	r = names_process_add(keeper->names, &entry);
	return r < 0 ? err_code(err, r, "enter vpid %d in the name table", vpid->n) : 0;
}

static int make_husk(struct keeper *keeper, const struct keeper_request *request, pid_t *husk,
		     struct err *err)
{
	struct handoff handoff = {.keeper = keeper->job.keeper.n,
				  .flags = HANDOFF_LAUNCH | HANDOFF_HELD | HANDOFF_DIVERGED};
	struct vpid vpid = {request->vpid};
	struct sock_fprog filter;
	pid_t pid;
	int r;

	r = syscall_filter_build(SYSCALL_FILTER_RESTORED, &filter, err);
	if (r < 0)
		return r;
	pid = launch_husk(keeper, &filter, err);
	free(filter.filter);
	if (pid < 0)
		return pid;
	r = enter_husk(keeper, pid, &vpid, err);
	handoff.rpid = pid;
	handoff.vpid = vpid.n;
	if (r == 0)
		r = pool_hand_over(keeper->pool, &handoff, err);
	if (r == 0)
		r = wait_taken(keeper, vpid, err);
	if (r == 0 && (request->flags & KEEPER_HUSK_ROOT))
		r = keeper_set_root(keeper, pid, vpid);
	if (r < 0)
		kill(pid, SIGKILL);
	*husk = pid;
	return r;
}

static void serve_request(struct keeper *keeper, const struct keeper_request *request)
{
	struct keeper_reply reply = {0};
	struct err err = ERR_INIT;
	pid_t husk = 0;

	switch (request->type) {
	case KEEPER_HUSK:
		reply.code = make_husk(keeper, request, &husk, &err);
		reply.rpid = husk;
		break;
	case KEEPER_REPLACE:
		keeper->replacing = true;
		break;
	default:
		reply.code = err_set(&err, -EPROTO, "unknown request of the coordinator");
		break;
	}
	snprintf(reply.text, sizeof(reply.text), "%.*s", (int)sizeof(reply.text) - 1, err.text);
	if (send(keeper->coordinator_sock, &reply, sizeof(reply), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		log_warn("the coordinator is gone");
}

/* ---- its life ---- */

static void on_coordinator(struct keeper *keeper, int fd, short revents, void *arg)
{
	union {
		struct keeper_request request;
		struct keeper_outcome outcome;
	} message;
	ssize_t n = recv(fd, &message, sizeof(message), MSG_DONTWAIT);

	if (n == (ssize_t)sizeof(message.request)) {
		serve_request(keeper, &message.request);
	} else if (n == (ssize_t)sizeof(message.outcome)) {
		keeper->outcome = message.outcome;
		keeper->outcome_known = true;
	} else if (n >= 0 || (errno != EAGAIN && errno != EINTR)) {
		keeper_unwatch(keeper, fd);
	}
}

static int start(struct keeper *keeper, const struct wish *wish, keeper_done_fn done, void *arg,
		 struct err *err)
{
	int pair[2], r;
	pid_t pid;

	if (keeper->coordinator)
		return err_set(
			err, -EBUSY,
			"a checkpoint or rollback of this job is at work already; wait until it has ended");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return err_sys(err, "make a socket for the coordinator");
	r = keeper_watch(keeper, pair[0], POLLIN, on_coordinator, NULL);
	if (r < 0) {
		err_code(err, r, "watch the coordinator");
		goto fail;
	}
	pid = fork();
	if (pid < 0) {
		r = err_sys(err, "start the coordinator");
		keeper_unwatch(keeper, pair[0]);
		goto fail;
	}
	if (pid == 0) {
		int console[3] = {keeper->console[0], keeper->console[1], keeper->console[2]};

		/* It needs the streams. */
		for (int i = 0; i < 3; i++)
			keeper->console[i] = -1;
		keeper_close_private(keeper);
		memcpy(keeper->console, console, sizeof(console));
		be_coordinator(keeper, wish, pair[1]);
	}
	close(pair[1]);
	keeper->coordinator = pid;
	keeper->coordinator_sock = pair[0];
	keeper->coordinator_rolls_back = wish->restore;
	keeper->outcome_known = false;
	keeper->done = done;
	keeper->done_arg = arg;
	return 0;
fail:
	close(pair[0]);
	close(pair[1]);
	return r;
}

bool coordinator_reaped(struct keeper *keeper, pid_t pid, int status)
{
	if (pid != keeper->coordinator)
		return false;
	while (!keeper->outcome_known) { /* what it sent last */
		char byte;

		if (recv(keeper->coordinator_sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0)
			break;
		on_coordinator(keeper, keeper->coordinator_sock, POLLIN, NULL);
	}
	if (!keeper->outcome_known) {
		memset(&keeper->outcome, 0, sizeof(keeper->outcome));
		err_set(&keeper->outcome.err, -EIO, "the coordinator of the %s was killed (wait status %#x)",
			keeper->coordinator_rolls_back ? "rollback" : "checkpoint", (unsigned)status);
	}
	keeper_unwatch(keeper, keeper->coordinator_sock);
	close(keeper->coordinator_sock);
	keeper->coordinator_sock = -1;
	keeper->coordinator = 0;
	keeper->replacing = false;
	if (keeper->done)
		keeper->done(keeper, &keeper->outcome, keeper->done_arg);
	return true;
}

int keeper_checkpoint(struct keeper *keeper, struct vpid target, const char *path, bool kill, bool alone,
		      uint64_t save_files_max, keeper_done_fn done, void *arg, struct err *err)
{
	struct wish wish = {.kill = kill,
			    .alone = alone,
			    .target = target,
			    .save_files_max = save_files_max,
			    .path = path};

	return start(keeper, &wish, done, arg, err);
}

int keeper_rollback(struct keeper *keeper, const char *path, bool force, keeper_done_fn done, void *arg,
		    struct err *err)
{
	struct wish wish = {.restore = true, .replace = true, .force = force, .path = path};

	return start(keeper, &wish, done, arg, err);
}

int coordinator_restore(struct keeper *keeper, const char *path, bool force, keeper_done_fn done, void *arg,
			struct err *err)
{
	struct wish wish = {.restore = true, .force = force, .path = path};

	return start(keeper, &wish, done, arg, err);
}
