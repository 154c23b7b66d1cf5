/*
 * Connections to the keeper. Each carries one request at a time; progress and the reply return on it. If a
 * connection ends during its checkpoint, the image is finished and the reply is dropped.
 */
#include "scip/job/requests.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "base/list.h"
#include "base/log.h"
#include "proto/cut.pb-c.h"
#include "proto/rpc.h"
#include "proto/serve.h"
#include "scip/job/coordinator.h"
#include "scip/job/viewer.h"

struct requests {
	int listener;
	bool served;
	char path[PATH_MAX]; /* of the socket */
	struct request *list;
};

/* ---- for the handlers ---- */

void request_reply(struct request *request, uint32_t type, const ProtobufCMessage *message, const int *fds,
		   int nfds)
{
	struct err err = ERR_INIT;

	if (request->fd >= 0 && frame_send(request->fd, type, message, fds, nfds, &err) < 0)
		log_info("reply to a request: %s", err.text);
}

void request_refuse(struct request *request, const struct err *err)
{
	Pbeam__Failed failed = PBEAM__FAILED__INIT;

	failed.code = err->code;
	failed.text = (char *)(uintptr_t)err->text;
	request_reply(request, PBEAM__RPC__RPC_FAILED, &failed.base, NULL, 0);
}

static void request_free(struct request *request)
{
	struct requests *requests = request->job->requests;

	list_remove(&requests->list, request);
	frame_reader_reset(&request->reader);
	free(request);
}

void request_hang_up(struct request *request)
{
	if (request->fd >= 0) {
		loop_unwatch(&request->job->loop, request->fd);
		close(steal_fd(&request->fd));
	}
	if (request->saving && request->cancels && coordinator_cancel(request->job) < 0)
		log_debug("the request of a client that has left ends by itself");
	if (!request->saving)
		request_free(request);
}

void request_idle(struct request *request)
{
	if (request->fd < 0)
		request_free(request);
}

struct vpid request_target(const struct job *job, const Pbeam__Target *target)
{
	return target && target->vpid > 0 ? (struct vpid){target->vpid} : job->entry.root;
}

/* ---- attach ---- */

static int request_attach(struct request *request, const ProtobufCMessage *message, struct err *err)
{
	struct job *job = request->job;
	Pbeam__AttachReply attached = PBEAM__ATTACH_REPLY__INIT;
	auto_close int sock = -1, backlog = -1;
	int fds[3], n = 0, r = viewer_replace(job, &sock, &backlog, err);

	if (r < 0)
		return r;
	attached.vpid = job->entry.root.n;
	attached.tty = job->pty_master >= 0;
	fds[n++] = sock;
	if (attached.tty)
		fds[n++] = job->pty_master;
	if (attached.tty && backlog >= 0)
		fds[n++] = backlog;
	request_reply(request, PBEAM__RPC__RPC_REPLY, &attached.base, fds, n);
	return 0;
}

/* ---- connections ---- */

static const struct {
	uint32_t type;
	const ProtobufCMessageDescriptor *body;
	int (*handle)(struct request *request, const ProtobufCMessage *message, struct err *err);
} handlers[] = {
	{PBEAM__DAEMON_REQUEST__DAEMON_CHECKPOINT, &pbeam__checkpoint_request__descriptor,
	 request_checkpoint},
	{PBEAM__DAEMON_REQUEST__DAEMON_ROLLBACK, &pbeam__rollback_request__descriptor, request_rollback},
	{PBEAM__DAEMON_REQUEST__DAEMON_ATTACH, &pbeam__target__descriptor, request_attach},
	{PBEAM__DAEMON_REQUEST__DAEMON_STACK, &pbeam__target__descriptor, request_stack},
	{PBEAM__DAEMON_REQUEST__DAEMON_MIGRATE, &pbeam__migrate_request__descriptor, request_migrate},
	{PBEAM__DAEMON_REQUEST__DAEMON_CANCEL, &pbeam__target__descriptor, request_cancel},
	{PBEAM__DAEMON_REQUEST__DAEMON_SIGNAL, &pbeam__remote_signal__descriptor, request_signal},
	{PBEAM__DAEMON_REQUEST__DAEMON_ORPHAN, &pbeam__target__descriptor, request_orphan},
	{PBEAM__DAEMON_REQUEST__DAEMON_SAVE_PART, &pbeam__cut_request__descriptor, request_save_part},
	{PBEAM__DAEMON_REQUEST__DAEMON_UPGRADE, &pbeam__upgrade_request__descriptor, request_upgrade},
	{PBEAM__DAEMON_REQUEST__DAEMON_RECEIVE, &pbeam__migrate_begin__descriptor, request_receive},
};

/* Descendants that the first process has left running can still be saved and moved, and can return. */
static bool job_is_over(const struct job *job, uint32_t type, const ProtobufCMessage *message)
{
	const ProtobufCFieldDescriptor *field =
		protobuf_c_message_descriptor_get_field_by_name(message->descriptor, "target");
	const Pbeam__Target *target = NULL;

	if (!job->root_gone || type == PBEAM__DAEMON_REQUEST__DAEMON_RECEIVE ||
	    type == PBEAM__DAEMON_REQUEST__DAEMON_SAVE_PART || type == PBEAM__DAEMON_REQUEST__DAEMON_SIGNAL ||
	    type == PBEAM__DAEMON_REQUEST__DAEMON_ORPHAN || type == PBEAM__DAEMON_REQUEST__DAEMON_UPGRADE)
		return false;
	if (message->descriptor == &pbeam__target__descriptor)
		target = (const Pbeam__Target *)(const void *)message;
	else if (field)
		memcpy(&target, (const char *)message + field->offset, sizeof(target));
	return type == PBEAM__DAEMON_REQUEST__DAEMON_ATTACH ||
	       request_target(job, target).n == job->entry.root.n;
}

/* What serve_readable() calls: false when the connection is to end. */
static bool request_dispatch(void *arg, struct frame *frame)
{
	struct request *request = arg;
	struct err err = ERR_INIT;
	ProtobufCMessage *message;
	size_t i = 0;
	int r;

	while (i < sizeof(handlers) / sizeof(handlers[0]) && handlers[i].type != frame->type)
		i++;
	if (i == sizeof(handlers) / sizeof(handlers[0]) || request->saving) {
		log_warn("request %u is not for a keeper, or came before the reply to the last one",
			 frame->type);
		return false;
	}
	message = frame_unpack(frame, handlers[i].body, &err);
	if (!message) {
		log_warn("request %u: %s", frame->type, err.text);
		return false;
	}
	request->frame = frame;
	if (job_is_over(request->job, frame->type, message))
		r = err_set(&err, -ESRCH, "it has ended");
	else
		r = handlers[i].handle(request, message, &err);
	protobuf_c_message_free_unpacked(message, NULL);
	if (r < 0)
		request_refuse(request, &err);
	return r <= 0;
}

static void on_request(void *arg, int fd)
{
	struct request *request = arg;

	if (!serve_readable(&request->reader, fd, request_dispatch, request))
		request_hang_up(request);
}

static void on_connection(void *arg, int listener)
{
	struct job *job = arg;
	struct requests *requests = job->requests;
	struct request *request;
	struct err err = ERR_INIT;
	int fd = serve_accept(listener, &err);

	if (fd < 0 && fd != -EAGAIN)
		log_warn("%s", err.text);
	if (fd < 0)
		return;
	request = calloc(1, sizeof(*request));
	if (!request || loop_watch(&job->loop, fd, on_request, request) < 0) {
		log_warn("a connection is turned away: too many");
		free(request);
		close(fd);
		return;
	}
	request->job = job;
	request->fd = fd;
	request->next = requests->list;
	requests->list = request;
}

int requests_place_checkpoints(const struct job *job, struct err *err)
{
	char store[STORE_JOB_MAX], dir[PATH_MAX];

	if (!job->options->dir)
		return 0;
	if (io_mkdirs(job->options->dir, err) < 0)
		return err_wrap(err, -EACCES, "--dir");
	if (!realpath(job->options->dir, dir))
		return err_sys(err, "--dir %s", job->options->dir);
	job_store_name(job, job->entry.root, store);
	return store_place(store, dir, err);
}

static int place_socket(const struct job *job, char path[PATH_MAX], struct err *err)
{
	int r = dirs_runtime(path, "job", err);
	size_t len = strlen(path);

	if (r == 0 &&
	    snprintf(path + len, PATH_MAX - len, "/%d", job->entry.keeper.n) >= (int)(PATH_MAX - len))
		r = err_code(err, -ENAMETOOLONG, "socket in %s", path);
	return r;
}

/* Makes no directory: it may be being removed. */
bool requests_are_reachable(const struct job *job)
{
	char path[PATH_MAX + 32];

	if (!job->requests || dirs_runtime(path, NULL, NULL) < 0)
		return false;
	snprintf(path + strlen(path), 32, "/job/%d", job->entry.keeper.n);
	return strcmp(path, job->requests->path) == 0 && access(path, F_OK) == 0;
}

int requests_return(struct job *job, struct err *err)
{
	struct requests *requests = job->requests;
	char path[PATH_MAX];
	auto_close int listener = -1;
	int r = requests ? place_socket(job, path, err) : 0;

	if (r < 0 || !requests)
		return r;
	listener = serve_listen(path, err);
	if (listener < 0)
		return listener;
	if (requests->served) {
		r = loop_watch(&job->loop, listener, on_connection, job);
		if (r < 0)
			return err_code(err, r, "listen on %s", path);
		loop_unwatch(&job->loop, requests->listener);
	}
	close(requests->listener);
	requests->listener = steal_fd(&listener);
	strcpy(requests->path, path);
	return 0;
}

int requests_open(struct job *job, struct err *err)
{
	struct requests *requests = calloc(1, sizeof(*requests));
	int r;

	if (!requests)
		return err_code(err, -ENOMEM, "listen for requests");
	requests->listener = -1;
	job->requests = requests;
	r = place_socket(job, requests->path, err);
	if (r < 0)
		return r;
	requests->listener = serve_listen(requests->path, err);
	return requests->listener < 0 ? requests->listener : 0;
}

int requests_serve(struct job *job, struct err *err)
{
	const struct requests *requests = job->requests;
	int r = loop_watch(&job->loop, requests->listener, on_connection, job);

	if (r < 0)
		return err_code(err, r, "listen on %s", requests->path);
	job->requests->served = true;
	return 0;
}

int requests_adopt(struct job *job, int listener, const char *path, struct err *err)
{
	struct requests *requests = calloc(1, sizeof(*requests));

	if (!requests)
		return err_code(err, -ENOMEM, "listen for requests");
	requests->listener = listener;
	snprintf(requests->path, sizeof(requests->path), "%s", path);
	job->requests = requests;
	return requests_serve(job, err);
}

int requests_listener(const struct job *job)
{
	return job->requests->listener;
}

const char *requests_path(const struct job *job)
{
	return job->requests->path;
}

void requests_close(struct job *job)
{
	struct requests *requests = job->requests;

	if (!requests)
		return;
	while (requests->list) {
		if (requests->list->saving)
			requests->list->forget(requests->list);
		request_hang_up(requests->list);
	}
	if (requests->listener >= 0) {
		loop_unwatch(&job->loop, requests->listener);
		close(requests->listener);
		unlink(requests->path);
	}
	free(requests);
	job->requests = NULL;
}
