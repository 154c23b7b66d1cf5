/*
 * The requests that each phase of a connection accepts, and their handlers. A frame that is not in the
 * phase's table ends the connection.
 */
#include "pbeamd/handlers/handlers.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "image/store.h"
#include "pbeamd/registry/registry_engine.h"
#include "pbeamd/services/cut_request.h"
#include "pbeamd/services/forward.h"
#include "pbeamd/services/hosts.h"
#include "pbeamd/services/pass.h"
#include "pbeamd/services/process_requests.h"
#include "pbeamd/services/take_over.h"
#include "pbeamd/services/target.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/connection.h"
#include "pbeamd/transport/route.h"
#include "pbeamd/transport/server.h"
#include "pbeamd/transport/worker.h"
#include "proto/ask.h"

/* Returns 0 if the request has a reply or will have one, else -errno with a message for the user. */
typedef int (*handler_fn)(struct connection *connection, const ProtobufCMessage *message, struct err *err);

static int handle_hello(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__Hello *theirs = (const Pbeam__Hello *)message;
	Pbeam__Hello ours = PBEAM__HELLO__INIT;

	if (theirs->version != DAEMON_PROTOCOL)
		return err_set(
			err, -EPROTO,
			"pbeamd speaks version %u of the protocol, %s version %u; end the older pbeamd",
			DAEMON_PROTOCOL, theirs->program, theirs->version);
	ours.version = DAEMON_PROTOCOL;
	ours.program = (char *)(uintptr_t) "pbeamd " PBEAM_VERSION;
	ours.pid = getpid();
	connection_reply(connection, &ours.base);
	return 0;
}

static int handle_ps(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	return worker_start(connection, ps_work, NULL, err);
}

/* Checks that a request names a target. */
static int handlers_check_target(const Pbeam__Target *wish, struct err *err)
{
	if (!wish || (wish->vpid <= 0 && !wish->name[0]))
		return err_set(err, -EINVAL, "the request names no process");
	return 0;
}

static int handle_log(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__Target *wish = (const Pbeam__Target *)message;
	struct target target;
	int r = handlers_check_target(wish, err);

	if (r == 0)
		r = target_find(connection->server, wish, &target, err);
	return r < 0 ? r : worker_start(connection, log_work, &target, err);
}

static int handle_kill(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__KillRequest *wish = (const Pbeam__KillRequest *)message;
	Pbeam__Done done = PBEAM__DONE__INIT;
	struct target target;
	int r = handlers_check_target(wish->target, err);

	if (r == 0)
		r = target_find_live(connection->server, wish->target, &target, err);
	if (r == 0)
		r = kill_target(connection->server, &target, wish->signal, err);
	if (r == 0)
		connection_reply(connection, &done.base);
	return r;
}

static int handlers_forward(struct connection *connection, const struct target *target, uint32_t type,
			    const ProtobufCMessage *message, struct err *err)
{
	struct forward_request request = {.keeper = target->job.keeper, .type = type, .message = message};

	memcpy(request.who, target->who, sizeof(request.who));
	return forward_begin(connection, &request, err);
}

/* The live process that a request names, and `vpid` to name it by when the request is passed on. */
static int find_to_pass_on(struct connection *connection, const Pbeam__Target *wish, struct target *target,
			   Pbeam__Target *vpid, struct err *err)
{
	int r = target_find_live(connection->server, wish, target, err);

	pbeam__target__init(vpid);
	if (r == 0)
		vpid->vpid = target->process.vpid.n;
	return r;
}

static int handle_checkpoint(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__CheckpointRequest *wish = (const Pbeam__CheckpointRequest *)message;
	Pbeam__CheckpointRequest passed = *wish;
	Pbeam__Target vpid;
	struct target target;
	int r = handlers_check_target(wish->target, err);

	if (r == 0 && cut_is_group(connection->server, wish->target->name))
		return cut_lead(connection, "checkpoint", message, err);
	if (r == 0)
		r = find_to_pass_on(connection, wish->target, &target, &vpid, err);
	if (r < 0)
		return r;
	passed.target = &vpid;
	if (!wish->alone && cut_is_spread(connection->server, &target)) {
		vpid.name = target.store;
		return cut_lead(connection, "checkpoint", &passed.base, err);
	}
	return handlers_forward(connection, &target, PBEAM__DAEMON_REQUEST__DAEMON_CHECKPOINT, &passed.base,
				err);
}

/* stack and cancel */
static int pass_target_on(struct connection *connection, uint32_t type, const ProtobufCMessage *message,
			  struct err *err)
{
	const Pbeam__Target *wish = (const Pbeam__Target *)message;
	struct target target;
	Pbeam__Target vpid;
	int r = handlers_check_target(wish, err);

	if (r == 0)
		r = find_to_pass_on(connection, wish, &target, &vpid, err);
	return r < 0 ? r : handlers_forward(connection, &target, type, &vpid.base, err);
}

static int handle_stack(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	return pass_target_on(connection, PBEAM__DAEMON_REQUEST__DAEMON_STACK, message, err);
}

static int handle_cancel(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	return pass_target_on(connection, PBEAM__DAEMON_REQUEST__DAEMON_CANCEL, message, err);
}

static int handle_migrate(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__MigrateRequest *wish = (const Pbeam__MigrateRequest *)message;
	Pbeam__MigrateRequest passed = *wish;
	Pbeam__Target vpid;
	struct target target;
	int r = handlers_check_target(wish->target, err);

	if (r == 0 && !wish->host[0])
		r = err_set(err, -EINVAL, "the request names no host");
	if (r == 0)
		r = find_to_pass_on(connection, wish->target, &target, &vpid, err);
	if (r < 0)
		return r;
	passed.target = &vpid;
	return handlers_forward(connection, &target, PBEAM__DAEMON_REQUEST__DAEMON_MIGRATE, &passed.base,
				err);
}

static int handle_upgrade(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__UpgradeRequest *wish = (const Pbeam__UpgradeRequest *)message;
	Pbeam__UpgradeRequest passed = *wish;
	Pbeam__Target vpid;
	struct target target;
	int r = handlers_check_target(wish->target, err);

	if (r == 0)
		r = find_to_pass_on(connection, wish->target, &target, &vpid, err);
	if (r < 0)
		return r;
	if (names_job_of_other(connection->server->names, target.job.keeper))
		return err_set(
			err, -ENOTSUP,
			"%s: it is in the name table of another version, and cannot change to this one "
			"while it runs; `pbeamctl checkpoint --kill` and `pbeamctl rollback` move it",
			target.who);
	passed.target = &vpid;
	return handlers_forward(connection, &target, PBEAM__DAEMON_REQUEST__DAEMON_UPGRADE, &passed.base,
				err);
}

/* ---- rollback: in the keeper while there is one, else the job is started again from its image ---- */

/* Finds the requested image; a relative path starts at the user's directory. */
static int find_image(const Pbeam__RollbackRequest *wish, const char *store, char path[PATH_MAX],
		      struct err *err)
{
	bool relative = wish->path[0] && wish->path[0] != '/';

	if (wish->of_copy)
		return store_image_path(store, wish->number, STORE_COPY, path, err);
	if (!wish->path[0])
		return store_find(store, wish->number, path, err);
	if (snprintf(path, PATH_MAX, "%s%s%s", relative ? wish->cwd : "", relative ? "/" : "", wish->path) >=
	    PATH_MAX)
		return err_code(err, -ENAMETOOLONG, "%s", wish->path);
	return 0;
}

static bool revive_after_all(struct connection *connection, void *arg)
{
	struct err err = ERR_INIT;

	if (worker_start(connection, revive_work, arg, &err) < 0)
		return false;
	connection_close(connection); /* with the forward, and `arg` */
	return true;
}

/* True if the checkpoints of all hosts must be searched. A job that has never been on another host has all of
 * its checkpoints here, and a number that exists here takes precedence over other hosts'. */
static bool is_elsewhere_too(const struct server *server, const struct target *target,
			     const Pbeam__RollbackRequest *wish)
{
	char path[PATH_MAX];

	if (!server->cluster || wish->in_place || wish->path[0])
		return false;
	return !target->live || (target->job.spread && target->process.vpid.n == target->job.root.n) ||
	       (wish->host[0] && strcmp(wish->host, server->cluster->options->name) != 0) ||
	       store_find(target->store, wish->number, path, NULL) == -ENOENT;
}

static int handle_rollback(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__RollbackRequest *wish = (const Pbeam__RollbackRequest *)message;
	auto_free struct revive *revive = calloc(1, sizeof(*revive));
	Pbeam__RollbackRequest passed = *wish;
	Pbeam__Target vpid = PBEAM__TARGET__INIT;
	char number[STORE_JOB_MAX], host[256];
	struct forward_request request = {.type = PBEAM__DAEMON_REQUEST__DAEMON_ROLLBACK,
					  .message = &passed.base};
	int r = revive ? handlers_check_target(wish->target, err) : err_code(err, -ENOMEM, "roll back");

	if (r == 0 && cut_is_group(connection->server, wish->target->name))
		return cut_rollback(connection, wish, wish->target->name, (struct vpid){0}, err);
	if (r == 0)
		r = target_find(connection->server, wish->target, &revive->target, err);
	if (r == -ESRCH && connection->server->cluster && !wish->in_place && !wish->path[0]) {
		err_clear(err); /* other hosts may have its checkpoints */
		store_job_of_vpid(wish->target->vpid, number);
		return cut_rollback(connection, wish, wish->target->vpid > 0 ? number : wish->target->name,
				    (struct vpid){0}, err);
	}
	if (r < 0)
		return r;
	revive->force = wish->force;
	revive->dry_run = wish->dry_run;
	if (is_elsewhere_too(connection->server, &revive->target, wish))
		return cut_rollback(connection, wish, revive->target.store, revive->target.process.vpid, err);
	target_host(connection->server, host);
	if (wish->host[0] && strcmp(wish->host, host) != 0)
		r = err_set(err, -EHOSTUNREACH, "there is no host %s; this one is %s", wish->host, host);
	else
		r = find_image(wish, revive->target.store, revive->path, err);
	if (r < 0)
		return err_wrap(err, r, "%s", revive->target.who);
	if (store_is_cut(revive->path))
		return cut_rollback(connection, wish, revive->target.store, revive->target.process.vpid, err);
	if (wish->n_on)
		return err_set(err, -EINVAL, "%s: %s is on one host alone; leave out --on",
			       revive->target.who, revive->path);
	if (!revive->target.live)
		return worker_start(connection, revive_work, revive, err);
	vpid.vpid = revive->target.process.vpid.n;
	passed.target = &vpid;
	request.keeper = revive->target.job.keeper;
	if (vpid.vpid == revive->target.job.root.n)
		request.gone = revive_after_all;
	request.release = free;
	request.arg = revive;
	memcpy(request.who, revive->target.who, sizeof(request.who));
	r = forward_begin(connection, &request, err);
	if (r == 0)
		revive = NULL;
	else if (r == -ESRCH && vpid.vpid == revive->target.job.root.n)
		r = worker_start(connection, revive_work, revive, err);
	return r;
}

#define NOWHERE ((size_t)-1)

static const struct handler {
	enum connection_phase phase;
	uint32_t type;
	const ProtobufCMessageDescriptor *body; /* NULL: empty */
	handler_fn handle;
	size_t target; /* offset of the Target, by which the request may be for another host; 0: the body is
			  one, NOWHERE: it has none */
} handlers[] = {
	{CONNECTION_NEW, PBEAM__DAEMON_REQUEST__DAEMON_HELLO, &pbeam__hello__descriptor, handle_hello,
	 NOWHERE},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_PS, NULL, handle_ps, NOWHERE},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_LOG, &pbeam__target__descriptor, handle_log, 0},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_KILL, &pbeam__kill_request__descriptor,
	 handle_kill, offsetof(Pbeam__KillRequest, target)},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_CHECKPOINT, &pbeam__checkpoint_request__descriptor,
	 handle_checkpoint, offsetof(Pbeam__CheckpointRequest, target)},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_ROLLBACK, &pbeam__rollback_request__descriptor,
	 handle_rollback, offsetof(Pbeam__RollbackRequest, target)},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_MIGRATE, &pbeam__migrate_request__descriptor,
	 handle_migrate, offsetof(Pbeam__MigrateRequest, target)},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_UPGRADE, &pbeam__upgrade_request__descriptor,
	 handle_upgrade, NOWHERE},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_CANCEL, &pbeam__target__descriptor, handle_cancel,
	 0},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_STACK, &pbeam__target__descriptor, handle_stack,
	 0},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_HOSTS, &pbeam__hosts_request__descriptor,
	 handle_hosts, NOWHERE},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_CHANNEL, &pbeam__channel_request__descriptor,
	 handle_channel, NOWHERE},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_EXPECT, &pbeam__channel_request__descriptor,
	 handle_expect, NOWHERE},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_REGISTRY, &pbeam__registry_request__descriptor,
	 handle_registry, NOWHERE},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_SIGNAL, &pbeam__remote_signal__descriptor,
	 handle_signal, offsetof(Pbeam__RemoteSignal, target)},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_CALL, &pbeam__remote_call__descriptor, handle_call,
	 offsetof(Pbeam__RemoteCall, target)},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_PROC, &pbeam__proc_request__descriptor,
	 handle_proc, offsetof(Pbeam__ProcRequest, target)},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_MEMBERS, &pbeam__members_request__descriptor,
	 handle_members, NOWHERE},
	{CONNECTION_GREETED, PBEAM__DAEMON_REQUEST__DAEMON_COPY, &pbeam__copy_request__descriptor,
	 handle_copy, NOWHERE},
};

static const Pbeam__Target *target_of(const struct handler *handler, const ProtobufCMessage *message)
{
	if (handler->target == NOWHERE)
		return NULL;
	if (handler->target == 0)
		return (const Pbeam__Target *)message;
	return *(Pbeam__Target *const *)(const void *)((const char *)message + handler->target);
}

bool handlers_dispatch(struct connection *connection, const struct frame *frame)
{
	const struct handler *handler = NULL;
	ProtobufCMessage *message = NULL;
	struct err err = ERR_INIT;
	int r;

	for (size_t i = 0; i < sizeof(handlers) / sizeof(handlers[0]); i++)
		if (handlers[i].phase == connection->phase && handlers[i].type == frame->type)
			handler = &handlers[i];
	if (!handler) {
		log_warn("request %u is not allowed now: closing the connection", frame->type);
		return false;
	}
	if (handler->body) {
		message = frame_unpack(frame, handler->body, &err);
		if (!message) {
			log_warn("request %u: %s: closing the connection", frame->type, err.text);
			return false;
		}
	}
	r = pass_elsewhere(connection, target_of(handler, message), frame, &err);
	if (r == 0)
		r = handler->handle(connection, message, &err);
	if (message)
		protobuf_c_message_free_unpacked(message, NULL);
	if (r < 0)
		connection_refuse(connection, &err);
	return r < 0 || !connection->closing;
}

void handlers_forget(struct connection *connection)
{
	registry_forget_connection(connection);
	take_over_forget_connection(connection);
	pass_forget(connection);
	if (connection->forward)
		forward_end(connection->forward);
}
