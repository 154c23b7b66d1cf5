/*
 * The keeper hands over a socket for its events, the pty's master, and what the job wrote while nobody
 * looked. From then on this console is as good as the one of `scip run`; the earlier one is told and ends.
 */
#include "scip/job/attach.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "proto/daemon.pb-c.h"
#include "proto/frame.h"
#include "scip/job/console.h"
#include "scip/job/relay.h"

enum { JOBS_MOST = 256 };

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

static int take_reply(struct frame *frame, struct relay_options *out, struct err *err)
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

static int ask_keeper(struct rpid keeper, struct relay_options *out, struct err *err)
{
	Pbeam__Target target = PBEAM__TARGET__INIT;
	auto_close int sock = -1;
	struct frame frame;
	int r;

	sock = frame_connect_to("job", keeper.n, err);
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

static int take_over(const char *target, struct relay_options *out, struct err *err)
{
	struct names *names;
	struct rpid keeper = {0};
	int r = names_open(&names, err);

	if (r < 0)
		return r;
	r = find_keeper(names, target, &keeper, err);
	names_close(names);
	if (r == 0 && !isatty(STDIN_FILENO))
		r = err_set(err, -ENOTTY, "attach needs a terminal: standard input is none");
	return r < 0 ? r : ask_keeper(keeper, out, err);
}

int attach_run(const char *target)
{
	struct relay_options relay = {.events = -1, .master = -1, .backlog = -1, .may_detach = true};
	struct err err = ERR_INIT;
	int status = 1;
	sigset_t before;

	if (take_over(target, &relay, &err) < 0) {
		fprintf(stderr, "scip: %s\n", err.text);
	} else {
		relay_block_signals(&before);
		if (relay.master < 0)
			fprintf(stderr,
				"scip: vpid %d has no terminal, its streams are files or pipes; Ctrl-C is "
				"passed on to it\n",
				relay.vpid.n);
		status = console_show(&relay);
	}
	relay_close(&relay);
	return status;
}
