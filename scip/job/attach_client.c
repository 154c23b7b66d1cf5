/*
 * The keeper hands over a socket for its events, the pty's master, and the output of the job from the time
 * without a console. From then on this console is equal to that of `scip run`; the earlier console gets an
 * event and ends.
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
#include "proto/ask.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/job/console.h"
#include "scip/job/relay.h"

static int32_t attach_parse_vpid(const char *target)
{
	char *end;
	long vpid = strtol(target, &end, 10);

	return *target && !*end && vpid > 0 && vpid <= INT_MAX ? (int32_t)vpid : 0;
}

/* The job here that has the process or the name. */
static int attach_find_job(struct names *names, const char *target, struct name_job *out, struct err *err)
{
	auto_free struct name_job *jobs = NULL;
	struct name_process process;
	int32_t vpid = attach_parse_vpid(target);
	int n;

	if (vpid) {
		n = names_process_get(names, (struct vpid){vpid}, &process);
		if (n == 0)
			n = names_job_get(names, process.keeper, out);
		if (n < 0 && n != -ENOENT)
			return names_explain(names, n, err);
		if (n < 0)
			return err_set(err, -ESRCH,
				       "vpid %d: there is no such process; `pbeamctl ps` lists all", vpid);
		return 0;
	}
	n = names_jobs_snapshot(names, &jobs);
	for (int i = 0; i < n; i++)
		if (!strcmp(jobs[i].name, target)) {
			*out = jobs[i];
			return 0;
		}
	if (n < 0)
		return names_explain(names, n, err);
	return err_set(err, -ESRCH, "%s: there is no job of that name; `pbeamctl ps` lists all", target);
}

static int attach_take_reply(struct frame *frame, struct relay_options *out, struct err *err)
{
	Pbeam__AttachReply *reply;
	ProtobufCMessage *message;

	if (frame->type == PBEAM__RPC__RPC_FAILED) {
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

static int attach_to_keeper(struct rpid keeper, struct relay_options *out, struct err *err)
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
	r = attach_take_reply(&frame, out, err);
	frame_free(&frame);
	return r;
}

/* The host where the process, or one of the job of that name, is; "" where that is here. */
static int attach_find_host(const char *target, char host[NAME_TEXT_MAX], struct err *err)
{
	auto_close int sock = ask_open("scip " PBEAM_VERSION, err);
	Pbeam__ProcessList *list = NULL;
	int32_t vpid = attach_parse_vpid(target);
	char own[NAME_TEXT_MAX] = "";
	struct names *names;
	int r = sock;

	host[0] = 0;
	if (sock >= 0)
		r = ask_message(sock, PBEAM__DAEMON_REQUEST__DAEMON_PS, NULL, NULL,
				&pbeam__process_list__descriptor, &list, err);
	if (r == 0)
		r = names_open(&names, err);
	if (r == 0) {
		names_cluster(names, own);
		names_close(names);
	}
	for (size_t i = 0; r == 0 && i < list->n_processes && !host[0]; i++)
		if ((vpid ? list->processes[i]->vpid == vpid
			  : !strcmp(list->processes[i]->job_name, target)) &&
		    strcmp(list->processes[i]->host, own) != 0)
			snprintf(host, NAME_TEXT_MAX, "%s", list->processes[i]->host);
	message_free(list);
	return r < 0 ? r : 0;
}

/* 0: the console is taken over; 1: it is on another host. */
static int attach_take_over(const char *target, struct relay_options *out, char host[NAME_TEXT_MAX],
			    struct err *err)
{
	struct name_job job = {.home = ""};
	struct err elsewhere = ERR_INIT;
	struct names *names;
	int r = names_open(&names, err);

	if (r < 0)
		return r;
	names_include_others(names);
	names_limit_wait(names, true);
	r = attach_find_job(names, target, &job, err);
	names_close(names);
	snprintf(host, NAME_TEXT_MAX, "%s", job.home);
	if (r == -ESRCH && attach_find_host(target, host, &elsewhere) == 0 && host[0])
		r = 0;
	if (r == 0 && !isatty(STDIN_FILENO))
		r = err_set(err, -ENOTTY, "attach needs a terminal: standard input is none");
	if (r < 0 || host[0])
		return r < 0 ? r : 1;
	return attach_to_keeper(job.keeper, out, err);
}

static int attach_show(struct relay_options *relay)
{
	sigset_t before;

	relay_block_signals(&before);
	if (relay->master < 0)
		fprintf(stderr,
			"scip: vpid %d has no terminal, its streams are files or pipes; Ctrl-C is "
			"passed on to it\n",
			relay->vpid.n);
	return console_show(relay);
}

int attach_run(const char *target)
{
	struct relay_options relay = {.events = -1, .master = -1, .backlog = -1, .may_detach = true};
	char host[NAME_TEXT_MAX] = "";
	struct err err = ERR_INIT;
	int status = attach_take_over(target, &relay, host, &err);

	if (status == 0)
		status = attach_show(&relay);
	else if (status > 0)
		status = attach_there(target, host, &err);
	if (status < 0)
		fprintf(stderr, "scip: %s\n", err.text);
	relay_close(&relay);
	return status < 0 ? 1 : status;
}
