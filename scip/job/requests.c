/*
 * Connections to the keeper. Each brings one request at a time; its replies, progress before them, go back on
 * it. A connection that ends while its checkpoint is at work changes nothing for that: the image is finished,
 * only the reply has nobody to go to.
 */
#include "scip/job/requests.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "base/log.h"
#include "proto/control.pb-c.h"
#include "proto/daemon.pb-c.h"
#include "proto/frame.h"

enum { PROGRESS_NS = 200000000 };

struct request {
	struct request *next;
	struct keeper *keeper;
	struct frame_reader reader;
	int fd;	   /* -1: the other side has gone while it was at work */
	bool busy; /* a coordinator is at work for it */
	bool no_wait;
	bool rolls_back;
	uint32_t number;
	uint64_t start_ns;
	uint64_t resident; /* bytes of the processes to save, for the progress */
	char path[PATH_MAX];
	char job[STORE_JOB_MAX];
	bool numbered; /* `path` is one of the job's own */
};

void requests_store_job(const struct keeper *keeper, struct vpid target, char job[STORE_JOB_MAX])
{
	if (target.n == keeper->job.root.n && keeper->job.name[0])
		snprintf(job, STORE_JOB_MAX, "%.*s", STORE_JOB_MAX - 1, keeper->job.name);
	else
		store_job_of_vpid(target.n, job);
}

/* ---- replies ---- */

static void reply(struct request *request, uint32_t type, const ProtobufCMessage *message, const int *fds,
		  int nfds)
{
	struct err err = ERR_INIT;

	if (request->fd >= 0 && frame_send(request->fd, type, message, fds, nfds, &err) < 0)
		log_info("reply to a request: %s", err.text);
}

static void refuse(struct request *request, const struct err *err)
{
	Pbeam__Failed failed = PBEAM__FAILED__INIT;

	failed.code = err->code;
	failed.text = (char *)(uintptr_t)err->text;
	reply(request, PBEAM__DAEMON_REQUEST__DAEMON_FAILED, &failed.base, NULL, 0);
}

/* ---- the life of a connection ---- */

static void free_request(struct request *request)
{
	struct requests *requests = request->keeper->requests;

	for (struct request **p = &requests->list; *p; p = &(*p)->next)
		if (*p == request) {
			*p = request->next;
			break;
		}
	frame_reader_reset(&request->reader);
	free(request);
}

/* Closes the connection; the request itself stays while a coordinator is at work for it. */
static void hang_up(struct request *request)
{
	if (request->fd >= 0) {
		keeper_unwatch(request->keeper, request->fd);
		close(steal_fd(&request->fd));
	}
	if (!request->busy)
		free_request(request);
}

/* ---- checkpoint and rollback ---- */

static struct vpid target_of(const struct keeper *keeper, const Pbeam__Target *target)
{
	if (!target || target->vpid <= 0)
		return keeper->job.root;
	return (struct vpid){target->vpid};
}

static uint64_t resident_bytes(struct keeper *keeper)
{
	enum { MOST = 4096 };
	auto_free struct name_process *list = calloc(MOST, sizeof(*list));
	uint64_t sum = 0;
	int n = list ? names_process_list(keeper->names, keeper->job.keeper, list, MOST) : 0;

	for (int i = 0; i < n && i < MOST; i++) {
		char path[40], text[64] = "";
		unsigned long size, resident;

		snprintf(path, sizeof(path), "/proc/%d/statm", list[i].rpid.n);
		auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd >= 0 && io_read_full(fd, text, sizeof(text) - 1) > 0 &&
		    sscanf(text, "%lu %lu", &size, &resident) == 2)
			sum += (uint64_t)resident * 4096;
	}
	return sum;
}

static void show_progress(struct keeper *keeper, void *arg)
{
	struct request *request = arg;
	Pbeam__Progress progress = PBEAM__PROGRESS__INIT;
	char temporary[PATH_MAX + 32];
	struct stat st;

	if (!request->busy || request->fd < 0)
		return;
	snprintf(temporary, sizeof(temporary), "%s.tmp-%d", request->path, (int)keeper->coordinator);
	progress.phase = (char *)(uintptr_t)(request->rolls_back ? "restore" : "save");
	progress.total = request->resident;
	if (!request->rolls_back && stat(temporary, &st) == 0)
		progress.done = (uint64_t)st.st_blocks * 512;
	if (progress.done > progress.total)
		progress.done = progress.total;
	reply(request, PBEAM__DAEMON_REQUEST__DAEMON_PROGRESS, &progress.base, NULL, 0);
	if (keeper_alarm(keeper, io_now_ns(CLOCK_MONOTONIC) + PROGRESS_NS, show_progress, request) < 0)
		return; /* without an alarm to spare there is no progress to see */
}

/* The coordinator is at work for this request. */
static void begin(struct request *request)
{
	struct keeper *keeper = request->keeper;

	request->busy = true;
	request->start_ns = io_now_ns(CLOCK_MONOTONIC);
	if (!request->no_wait &&
	    keeper_alarm(keeper, request->start_ns + PROGRESS_NS, show_progress, request) < 0)
		log_debug("no alarm to show progress with");
}

static void on_done(struct keeper *keeper, const struct keeper_outcome *outcome, void *arg)
{
	struct request *request = arg;

	request->busy = false;
	keeper_alarm_cancel(keeper, show_progress, request);
	if (outcome->err.code && (request->no_wait || request->fd < 0))
		log_error("vpid %d: %s", keeper->job.root.n, outcome->err.text);
	if (outcome->err.code) {
		if (!request->no_wait)
			refuse(request, &outcome->err);
	} else if (request->rolls_back) {
		Pbeam__RollbackReply done = PBEAM__ROLLBACK_REPLY__INIT;

		done.vpid = outcome->restore.root.n;
		done.path = request->path;
		done.total_ns = io_now_ns(CLOCK_MONOTONIC) - request->start_ns;
		done.processes = outcome->restore.processes;
		reply(request, PBEAM__DAEMON_REQUEST__DAEMON_REPLY, &done.base, NULL, 0);
	} else {
		Pbeam__CheckpointReply done = PBEAM__CHECKPOINT_REPLY__INIT;

		if (request->numbered)
			store_prune(request->job,
				    keeper->job.keep ? keeper->job.keep : REQUESTS_KEEP_DEFAULT);
		done.path = request->path;
		done.bytes = outcome->checkpoint.bytes;
		done.pause_ns = outcome->checkpoint.pause_ns;
		done.total_ns = outcome->checkpoint.total_ns;
		done.number = request->number;
		done.processes = outcome->checkpoint.processes;
		done.threads = outcome->checkpoint.threads;
		if (!request->no_wait)
			reply(request, PBEAM__DAEMON_REQUEST__DAEMON_REPLY, &done.base, NULL, 0);
	}
	if (request->fd < 0)
		free_request(request);
}

/* `path` as the user meant it: from the directory that the command was given in. */
static int absolute_path(const char *path, const char *cwd, char out[PATH_MAX], struct err *err)
{
	bool relative = path[0] != '/';

	if (relative && (!cwd || cwd[0] != '/'))
		return err_set(err, -EINVAL, "%s: a relative path without a directory it is relative to",
			       path);
	if (snprintf(out, PATH_MAX, "%s%s%s", relative ? cwd : "", relative ? "/" : "", path) >=
	    PATH_MAX - 32)
		return err_code(err, -ENAMETOOLONG, "%s", path);
	return 0;
}

static int choose_output(struct request *request, const Pbeam__CheckpointRequest *wish, struct vpid target,
			 struct err *err)
{
	struct stat st;
	int r;

	requests_store_job(request->keeper, target, request->job);
	request->numbered = !wish->output || !wish->output[0];
	if (request->numbered)
		return store_claim(request->job, request->keeper->job.uuid, request->path, &request->number,
				   err);
	request->number = 0;
	r = absolute_path(wish->output, wish->cwd, request->path, err);
	if (r == 0 && stat(request->path, &st) == 0 && !S_ISREG(st.st_mode))
		r = err_set(err, -EISDIR, "%s is there and is no regular file; name a file", request->path);
	return r;
}

static int begin_checkpoint(struct request *request, const Pbeam__CheckpointRequest *wish, struct err *err)
{
	struct keeper *keeper = request->keeper;
	struct vpid target = target_of(keeper, wish->target);
	uint64_t most = wish->save_files_max ? wish->save_files_max : keeper->options->save_files_max;
	int r;

	if (wish->mode && wish->mode[0] && strcmp(wish->mode, "stop") != 0)
		return err_set(err, -ENOTSUP, "mode %s is not there in this version; use --mode stop",
			       wish->mode);
	if (keeper->coordinator)
		return err_set(
			err, -EBUSY,
			"a checkpoint or rollback of it is at work already; try again when it is done");
	r = choose_output(request, wish, target, err);
	if (r < 0)
		return r;
	request->rolls_back = false;
	request->no_wait = wish->no_wait;
	request->resident = resident_bytes(keeper);
	r = keeper_checkpoint(keeper, target, request->path, wish->kill, wish->alone, most, on_done, request,
			      err);
	if (r < 0)
		return r;
	begin(request);
	if (request->no_wait) {
		Pbeam__CheckpointReply started = PBEAM__CHECKPOINT_REPLY__INIT;

		started.path = request->path;
		started.number = request->number;
		reply(request, PBEAM__DAEMON_REQUEST__DAEMON_REPLY, &started.base, NULL, 0);
	}
	return 0;
}

/* The newest image of this very run: one of an earlier run of the same name is only taken when asked for by
 * number. */
static int newest_of_run(const struct keeper *keeper, const char *job, char path[PATH_MAX], struct err *err)
{
	auto_free uint32_t *numbers = NULL;
	int n = store_list(job, &numbers, err);

	if (n <= 0)
		return n < 0 ? n : store_find(job, 0, path, err);
	while (n-- > 0) {
		struct image_reader *image;
		const Pbeam__Manifest *manifest;
		int r = store_find(job, numbers[n], path, err);
		bool ours;

		if (r == 0)
			r = image_reader_open(&image, path, err);
		if (r < 0)
			return r;
		manifest = image_reader_manifest(image);
		ours = !keeper->job.uuid[0] || !manifest->job || !manifest->job->uuid ||
		       !manifest->job->uuid[0] || !strcmp(manifest->job->uuid, keeper->job.uuid);
		image_reader_close(image);
		if (ours)
			return 0;
	}
	return err_set(err, -ENOENT,
		       "there is no checkpoint of this run of %s; `pbeamctl log %s` lists those of earlier "
		       "ones, for --to",
		       job, job);
}

static int begin_rollback(struct request *request, const Pbeam__RollbackRequest *wish, struct err *err)
{
	struct keeper *keeper = request->keeper;
	int r;

	if (keeper->coordinator)
		return err_set(
			err, -EBUSY,
			"a checkpoint or rollback of it is at work already; try again when it is done");
	requests_store_job(keeper, target_of(keeper, wish->target), request->job);
	if (wish->path && wish->path[0])
		r = absolute_path(wish->path, wish->cwd, request->path, err);
	else if (wish->number)
		r = store_find(request->job, wish->number, request->path, err);
	else
		r = newest_of_run(keeper, request->job, request->path, err);
	if (r < 0)
		return r;
	request->rolls_back = true;
	request->no_wait = false;
	r = keeper_rollback(keeper, request->path, wish->force, on_done, request, err);
	if (r == 0)
		begin(request);
	return r;
}

/* ---- attach ---- */

static void on_console(struct keeper *keeper, int fd, short revents, void *arg)
{
	char byte;

	if (recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	keeper_unwatch(keeper, fd);
	close(fd);
	keeper->console_sock = -1;
	requests_console_gone(keeper);
}

/* The console that is there is told and forgotten. */
static void dismiss_console(struct keeper *keeper)
{
	struct keeper_event event = {
		.type = KEEPER_TAKEN, .value = keeper->job.root.n, .keeper = keeper->job.keeper.n};

	if (keeper->console_sock < 0)
		return;
	if (send(keeper->console_sock, &event, sizeof(event), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		log_debug("the earlier console has gone already");
	keeper_unwatch(keeper, keeper->console_sock);
	close(keeper->console_sock);
	keeper->console_sock = -1;
}

static int attach(struct request *request, struct err *err)
{
	struct keeper *keeper = request->keeper;
	Pbeam__AttachReply attached = PBEAM__ATTACH_REPLY__INIT;
	auto_close int ours = -1, theirs = -1, backlog = -1;
	int pair[2], fds[3], n = 0, r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return err_sys(err, "make a socket for the console");
	ours = pair[0];
	theirs = pair[1];
	dismiss_console(keeper);
	r = keeper_watch(keeper, ours, POLLIN, on_console, NULL);
	if (r < 0)
		return err_code(err, r, "watch the new console");
	backlog = backlog_take(keeper);
	attached.vpid = keeper->job.root.n;
	attached.tty = keeper->pty_master >= 0;
	fds[n++] = theirs;
	if (attached.tty)
		fds[n++] = keeper->pty_master;
	if (attached.tty && backlog >= 0)
		fds[n++] = backlog;
	keeper->console_sock = steal_fd(&ours);
	reply(request, PBEAM__DAEMON_REQUEST__DAEMON_REPLY, &attached.base, fds, n);
	return 0;
}

/* ---- stack ---- */

/* In a child of the keeper: blocking, it may take as long as the scip takes. */
static int ask_scip_for_stack(struct keeper *keeper, struct vpid target, char **text, struct err *err)
{
	struct name_process process;
	char path[PATH_MAX];
	struct frame answer;
	ProtobufCMessage *message;
	auto_close int sock = -1;
	int r = names_process_get(keeper->names, target, &process);

	if (r < 0)
		return err_set(err, -ESRCH, "vpid %d has ended", target.n);
	if (process.scip.n <= 0)
		return err_set(err, -EAGAIN, "vpid %d is just being born; try again", target.n);
	r = dirs_runtime(path, "scip", err);
	if (r < 0)
		return r;
	snprintf(path + strlen(path), 32, "/%d", process.scip.n);
	sock = frame_connect(path, err);
	if (sock < 0)
		return sock;
	r = frame_send(sock, PBEAM__SCIP_REQUEST__SCIP_STACK, NULL, NULL, 0, err);
	if (r == 0)
		r = frame_recv(sock, &answer, err);
	if (r <= 0)
		return r < 0 ? r : err_set(err, -ESRCH, "vpid %d has ended", target.n);
	if (answer.type == PBEAM__SCIP_REQUEST__SCIP_FAILED) {
		message = frame_unpack(&answer, &pbeam__scip_failed__descriptor, err);
		if (message)
			err_set(err, -EIO, "%s", ((Pbeam__ScipFailed *)message)->text);
		return -EIO;
	}
	message = frame_unpack(&answer, &pbeam__scip_stack__descriptor, err);
	if (!message)
		return -EPROTO;
	*text = ((Pbeam__ScipStack *)message)->text;
	return 0;
}

/* The connection belongs to the child from here on. */
static int stack(struct request *request, const Pbeam__Target *wish, struct err *err)
{
	pid_t child = fork();

	if (child < 0)
		return err_sys(err, "start a process to look at the stack");
	if (child == 0) {
		Pbeam__StackReply answer = PBEAM__STACK_REPLY__INIT;
		struct err problem = ERR_INIT;

		fcntl(request->fd, F_SETFL, 0); /* blocking: the text may be long */
		if (ask_scip_for_stack(request->keeper, target_of(request->keeper, wish), &answer.text,
				       &problem) < 0)
			refuse(request, &problem);
		else
			reply(request, PBEAM__DAEMON_REQUEST__DAEMON_REPLY, &answer.base, NULL, 0);
		_exit(0);
	}
	hang_up(request);
	return 1;
}

/* ---- requests ---- */

/* Returns 0, 1 when the connection is gone, or -errno with the sentence for the other side. */
static int handle_checkpoint(struct request *request, const ProtobufCMessage *message, struct err *err)
{
	return begin_checkpoint(request, (const Pbeam__CheckpointRequest *)message, err);
}

static int handle_rollback(struct request *request, const ProtobufCMessage *message, struct err *err)
{
	return begin_rollback(request, (const Pbeam__RollbackRequest *)message, err);
}

static int handle_attach(struct request *request, const ProtobufCMessage *message, struct err *err)
{
	return attach(request, err);
}

static int handle_stack(struct request *request, const ProtobufCMessage *message, struct err *err)
{
	return stack(request, (const Pbeam__Target *)message, err);
}

static const struct {
	uint32_t type;
	const ProtobufCMessageDescriptor *body;
	int (*handle)(struct request *request, const ProtobufCMessage *message, struct err *err);
} handlers[] = {
	{PBEAM__DAEMON_REQUEST__DAEMON_CHECKPOINT, &pbeam__checkpoint_request__descriptor, handle_checkpoint},
	{PBEAM__DAEMON_REQUEST__DAEMON_ROLLBACK, &pbeam__rollback_request__descriptor, handle_rollback},
	{PBEAM__DAEMON_REQUEST__DAEMON_ATTACH, &pbeam__target__descriptor, handle_attach},
	{PBEAM__DAEMON_REQUEST__DAEMON_STACK, &pbeam__target__descriptor, handle_stack},
};

/* Returns false when the connection is to end. */
static bool dispatch(struct request *request, struct frame *frame)
{
	struct err err = ERR_INIT;
	ProtobufCMessage *message;
	size_t i = 0;
	int r;

	while (i < sizeof(handlers) / sizeof(handlers[0]) && handlers[i].type != frame->type)
		i++;
	if (i == sizeof(handlers) / sizeof(handlers[0]) || request->busy) {
		log_warn("request %u is none of the keeper's, or came before the last was answered",
			 frame->type);
		return false;
	}
	message = frame_unpack(frame, handlers[i].body, &err);
	if (!message) {
		log_warn("request %u: %s", frame->type, err.text);
		return false;
	}
	if (request->keeper->root_gone)
		r = err_set(&err, -ESRCH, "it has ended");
	else
		r = handlers[i].handle(request, message, &err);
	protobuf_c_message_free_unpacked(message, NULL);
	if (r < 0)
		refuse(request, &err);
	return true;
}

static bool is_listed(const struct requests *requests, const struct request *request)
{
	for (const struct request *r = requests->list; r; r = r->next)
		if (r == request)
			return true;
	return false;
}

static void on_request(struct keeper *keeper, int fd, short revents, void *arg)
{
	struct request *request = arg;
	struct err err = ERR_INIT;
	struct frame frame;
	int r = frame_reader_step(&request->reader, fd, &frame, &err);
	bool go_on;

	if (r == -EAGAIN)
		return;
	if (r <= 0) {
		if (r < 0)
			log_info("connection: %s", err.text);
		hang_up(request);
		return;
	}
	go_on = dispatch(request, &frame);
	frame_free(&frame);
	if (!go_on && is_listed(keeper->requests, request))
		hang_up(request);
}

static void on_connection(struct keeper *keeper, int listener, short revents, void *arg)
{
	struct requests *requests = keeper->requests;
	struct err err = ERR_INIT;
	struct request *request;
	int fd = frame_accept(listener, &err);

	if (fd < 0) {
		if (fd != -EAGAIN)
			log_warn("%s", err.text);
		return;
	}
	request = calloc(1, sizeof(*request));
	if (!request || fcntl(fd, F_SETFL, O_NONBLOCK) < 0 ||
	    keeper_watch(keeper, fd, POLLIN, on_request, request) < 0) {
		log_warn("a connection is turned away: too many");
		free(request);
		close(fd);
		return;
	}
	request->keeper = keeper;
	request->fd = fd;
	request->next = requests->list;
	requests->list = request;
}

/* ---- what keeper.h declares ---- */

/* --dir: where the numbered checkpoints go. */
static int place_checkpoints(const struct keeper *keeper, struct err *err)
{
	char job[STORE_JOB_MAX], dir[PATH_MAX];

	if (!keeper->options->dir)
		return 0;
	if (io_mkdirs(keeper->options->dir, err) < 0)
		return err_wrap(err, -EACCES, "--dir");
	if (!realpath(keeper->options->dir, dir))
		return err_sys(err, "--dir %s", keeper->options->dir);
	requests_store_job(keeper, keeper->job.root, job);
	return store_place(job, dir, err);
}

int requests_open(struct keeper *keeper, struct err *err)
{
	struct requests *requests;
	int r = place_checkpoints(keeper, err);

	if (r < 0)
		return r;
	requests = calloc(1, sizeof(*requests));

	if (!requests)
		return err_code(err, -ENOMEM, "listen for requests");
	requests->listener = -1;
	keeper->requests = requests;
	r = dirs_runtime(requests->path, "job", err);
	if (r < 0)
		return r;
	snprintf(requests->path + strlen(requests->path), 32, "/%d", keeper->job.keeper.n);
	requests->listener = frame_listen(requests->path, err);
	if (requests->listener < 0)
		return requests->listener;
	if (fcntl(requests->listener, F_SETFL, O_NONBLOCK) < 0)
		return err_sys(err, "listen on %s", requests->path);
	r = keeper_watch(keeper, requests->listener, POLLIN, on_connection, NULL);
	if (r < 0)
		return err_code(err, r, "listen on %s", requests->path);
	interval_start(keeper);
	return 0;
}

void requests_console_gone(struct keeper *keeper)
{
	if (keeper->requests)
		backlog_start(keeper);
}

void requests_job_ended(struct keeper *keeper, int status)
{
	interval_stop(keeper);
}

void requests_close(struct keeper *keeper)
{
	struct requests *requests = keeper->requests;

	if (!requests)
		return;
	interval_stop(keeper);
	while (requests->list) {
		struct request *request = requests->list;

		keeper_alarm_cancel(keeper, show_progress, request);
		request->busy = false;
		hang_up(request);
	}
	if (requests->listener >= 0) {
		keeper_unwatch(keeper, requests->listener);
		close(requests->listener);
		unlink(requests->path);
	}
	free(requests->backlog.bytes);
	free(requests);
	keeper->requests = NULL;
}
