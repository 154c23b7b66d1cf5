/*
 * The keeper hands over a socket for its events, the pty's master, and what the job wrote while nobody
 * looked. From then on this console is as good as the one of `scip run`; the earlier one is told and ends.
 */
#include "scip/job/attach.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "proto/daemon.pb-c.h"
#include "proto/frame.h"
#include "scip/job/console.h"
#include "scip/job/relay.h"
#include "scip/job/terminal.h"

enum { STATUS_SCIP = 125, JOBS_MOST = 256 };

struct attached {
	int events, master, backlog;
	struct vpid vpid;
};

static void close_attached(struct attached *attached)
{
	cleanup_close(&attached->events);
	cleanup_close(&attached->master);
	cleanup_close(&attached->backlog);
}

/* The keeper of the job that has the process or the name. */
static int find_keeper(struct names *names, const char *target, struct rpid *keeper, struct err *err)
{
	auto_free struct name_job *jobs = NULL;
	struct name_process process;
	char *end;
	long vpid = strtol(target, &end, 10);
	int n;

	if (*target && !*end && vpid > 0 && vpid <= INT_MAX) {
		if (names_process_get(names, (struct vpid){(int32_t)vpid}, &process) < 0)
			return err_set(err, -ESRCH,
				       "vpid %ld: there is no such process; `pbeamctl ps` lists all", vpid);
		*keeper = process.keeper;
		return 0;
	}
	jobs = calloc(JOBS_MOST, sizeof(*jobs));
	n = jobs ? names_job_list(names, jobs, JOBS_MOST) : 0;
	for (int i = 0; i < n && i < JOBS_MOST; i++)
		if (!strcmp(jobs[i].name, target)) {
			*keeper = jobs[i].keeper;
			return 0;
		}
	return err_set(err, -ESRCH, "%s: there is no job of that name; `pbeamctl ps` lists all", target);
}

static int take_reply(struct frame *frame, struct attached *out, struct err *err)
{
	Pbeam__AttachReply *reply;
	ProtobufCMessage *message;

	if (frame->type == PBEAM__DAEMON_REQUEST__DAEMON_FAILED) {
		message = frame_unpack(frame, &pbeam__failed__descriptor, err);
		if (message)
			err_set(err, -EIO, "%s", ((Pbeam__Failed *)message)->text);
		if (message)
			protobuf_c_message_free_unpacked(message, NULL);
		return -EIO;
	}
	message = frame_unpack(frame, &pbeam__attach_reply__descriptor, err);
	if (!message)
		return -EPROTO;
	reply = (Pbeam__AttachReply *)message;
	out->vpid.n = reply->vpid;
	if (frame->nfds >= 1)
		out->events = steal_fd(&frame->fds[0]);
	if (reply->tty && frame->nfds >= 2)
		out->master = steal_fd(&frame->fds[1]);
	if (reply->tty && frame->nfds >= 3)
		out->backlog = steal_fd(&frame->fds[2]);
	protobuf_c_message_free_unpacked(message, NULL);
	return out->events < 0 ? err_set(err, -EPROTO, "the job's keeper gave no console") : 0;
}

static int ask_keeper(struct rpid keeper, struct attached *out, struct err *err)
{
	Pbeam__Target target = PBEAM__TARGET__INIT;
	auto_close int sock = -1;
	char path[PATH_MAX];
	struct frame frame;
	int r = dirs_runtime(path, "job", err);

	if (r < 0)
		return r;
	snprintf(path + strlen(path), 32, "/%d", keeper.n);
	sock = frame_connect(path, err);
	if (sock < 0)
		return sock;
	r = frame_send(sock, PBEAM__DAEMON_REQUEST__DAEMON_ATTACH, &target.base, NULL, 0, err);
	if (r == 0)
		r = frame_recv(sock, &frame, err);
	if (r <= 0)
		return r < 0 ? r : err_set(err, -ESRCH, "the job has ended");
	r = take_reply(&frame, out, err);
	frame_free(&frame);
	return r;
}

static int conclude(enum relay_end end, int status, struct vpid vpid)
{
	switch (end) {
	case RELAY_ENDED:
		return console_exit_status(status);
	case RELAY_DETACHED:
		fprintf(stderr, "\r\nscip: detached; vpid %d goes on\n", vpid.n);
		return 0;
	case RELAY_TAKEN:
		fprintf(stderr, "scip: vpid %d goes on at another console\n", vpid.n);
		return STATUS_SCIP;
	case RELAY_HUNG_UP:
		return 128 + SIGHUP;
	case RELAY_LOST:
		fprintf(stderr, "scip: vpid %d: the job's keeper was killed and its processes with it\n",
			vpid.n);
		return STATUS_SCIP;
	}
	return STATUS_SCIP;
}

int attach_run(const char *target)
{
	struct attached attached = {.events = -1, .master = -1, .backlog = -1};
	struct relay_options options = {.may_detach = true};
	struct err err = ERR_INIT;
	struct rpid keeper = {0};
	enum relay_end end;
	int status = 0, r;
	sigset_t before;

	r = names_open(&options.names, &err);
	if (r == 0)
		r = find_keeper(options.names, target, &keeper, &err);
	if (r == 0 && !isatty(STDIN_FILENO))
		r = err_set(&err, -ENOTTY, "attach needs a terminal: standard input is none");
	if (r == 0)
		r = ask_keeper(keeper, &attached, &err);
	if (r < 0) {
		fprintf(stderr, "scip: %s\n", err.text);
		close_attached(&attached);
		return 1;
	}
	relay_block_signals(&before);
	if (attached.master < 0)
		fprintf(stderr,
			"scip: vpid %d has no terminal, its streams are files or pipes; Ctrl-C is passed on "
			"to it\n",
			attached.vpid.n);
	options.events = attached.events;
	options.master = attached.master;
	options.backlog = attached.backlog;
	options.vpid = attached.vpid;
	end = relay_run(&options, &status);
	status = conclude(end, status, attached.vpid);
	close_attached(&attached);
	names_close(options.names);
	return status;
}
