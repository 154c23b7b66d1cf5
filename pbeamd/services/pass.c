/*
 * Chooses the host that carries out a user's request. If a process has an entry vpid/N, that is the host
 * named there; else this host if it runs the process; else the host that holds the block of its number. A job
 * whose name this host does not know is looked for on all hosts. So is a job to be rolled back that does not
 * run here, before it is taken for ended: it would run twice. Lists cover all hosts.
 */
#include "pbeamd/services/pass.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "pbeamd/registry/registry_copy.h"
#include "pbeamd/services/cut_request.h"
#include "pbeamd/services/gather.h"
#include "pbeamd/services/log_all.h"
#include "pbeamd/services/target.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/connection.h"
#include "pbeamd/transport/host.h"
#include "pbeamd/transport/remote_request.h"
#include "pbeamd/transport/scatter.h"
#include "pbeamd/transport/server.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "proto/stream.h"

/* A request that another host carries out, or for which the host is being looked for. */
struct pass {
	struct connection *connection;
	struct gather *gather;	 /* while a name is looked for, or processes are listed */
	struct scatter *scatter; /* while members are collected */
	Pbeam__Members *members;
	struct log_all *log; /* while checkpoints are listed */
	int64_t call;	     /* 0: none */
	uint32_t type;
	char name[NAME_TEXT_MAX]; /* the name looked for, or "" */
	int32_t vpid;		  /* the vpid looked for, or 0 */
	bool ended_too;		  /* a job that does not run anywhere is this host's */
	uint8_t *body;
	size_t len;
};

static void pass_free(struct pass *pass)
{
	pass->connection->pass = NULL;
	message_free(pass->members);
	free(pass->body);
	free(pass);
}

void pass_forget(struct connection *connection)
{
	struct pass *pass = connection->pass;

	if (!pass)
		return;
	if (pass->gather)
		gather_cancel(pass->gather);
	if (pass->scatter)
		scatter_cancel(pass->scatter);
	if (pass->log)
		log_all_cancel(pass->log);
	if (pass->call)
		remote_cancel(connection->server->cluster, pass->call);
	pass_free(pass);
}

static struct pass *new_pass(struct connection *connection, const struct frame *frame, struct err *err)
{
	struct pass *pass = calloc(1, sizeof(*pass));

	if (pass)
		pass->body = malloc(frame->len + 1);
	if (!pass || !pass->body) {
		free(pass);
		err_code(err, -ENOMEM, "pass the request on");
		return NULL;
	}
	pass->connection = connection;
	pass->type = frame->type;
	pass->len = frame->len;
	bytes_copy(pass->body, frame->body, frame->len);
	connection->pass = pass;
	connection->phase = CONNECTION_BUSY;
	return pass;
}

/* ---- to a host that is known ---- */

static void on_came(void *arg, uint32_t type, const void *body, size_t len)
{
	struct pass *pass = arg;
	struct connection *connection = pass->connection;

	if (type != PBEAM__RPC__RPC_PROGRESS) {
		pass->call = 0;
		pass_free(pass);
		connection->phase = CONNECTION_GREETED;
	}
	if (stream_send_bytes(&connection->stream, type, body, len) < 0)
		connection->closing = true;
}

static int send_to(struct pass *pass, struct host *host, struct err *err)
{
	int64_t id = remote_ask(pass->connection->server->cluster, host, pass->type, pass->body, pass->len,
				on_came, pass, err);

	if (id < 0)
		return (int)id;
	pass->call = id;
	return 1;
}

static int pass_to(struct connection *connection, const char *name, const struct frame *frame,
		   const char *who, struct err *err)
{
	struct cluster *cluster = connection->server->cluster;
	struct host *host = host_find(cluster, name);
	struct pass *pass;
	int r;

	if (!host)
		return err_set(err, -EHOSTUNREACH, "%s is on host %s, which is not known here", who, name);
	if (!host->peer)
		return err_set(err, -EHOSTUNREACH, "%s is on host %s, which is lost", who, name);
	pass = new_pass(connection, frame, err);
	if (!pass)
		return -ENOMEM;
	r = send_to(pass, host, err);
	if (r < 0)
		pass_free(pass);
	return r;
}

/* ---- to the host that has a job of this name, or this process ---- */

static bool is_looked_for(const struct pass *pass, const Pbeam__ProcessInfo *info)
{
	if (!pass->name[0])
		return info->vpid == pass->vpid;
	return !strcmp(info->job_name, pass->name) || !strcmp(info->group, pass->name);
}

static void on_found(void *arg, Pbeam__ProcessList *list)
{
	struct pass *pass = arg;
	struct connection *connection = pass->connection;
	struct host *host = NULL;
	struct err err = ERR_INIT;

	pass->gather = NULL;
	for (size_t i = 0; list && i < list->n_processes && !host; i++)
		if (is_looked_for(pass, list->processes[i]))
			host = host_find(connection->server->cluster, list->processes[i]->host);
	if (!host && !pass->ended_too)
		err_set(&err, -ESRCH, "%s: there is no job of that name on any host; `pbeamctl ps` lists all",
			pass->name);
	else if (send_to(pass, host, &err) > 0)
		err_clear(&err);
	message_free(list);
	if (err.code) {
		pass_free(pass);
		connection_refuse(connection, &err);
	}
}

static int look_for(struct connection *connection, const Pbeam__Target *wish, const struct frame *frame,
		    struct err *err)
{
	struct pass *pass = new_pass(connection, frame, err);

	if (!pass)
		return -ENOMEM;
	snprintf(pass->name, sizeof(pass->name), "%s", wish->vpid > 0 ? "" : wish->name);
	pass->vpid = wish->vpid;
	pass->ended_too = frame->type == PBEAM__DAEMON_REQUEST__DAEMON_ROLLBACK;
	pass->gather = gather_begin(connection->server->cluster, on_found, pass);
	if (!pass->gather) {
		pass_free(pass);
		return err_code(err, -ENOMEM, "look for a job");
	}
	return 1;
}

/* ---- ps ---- */

static void on_list(void *arg, Pbeam__ProcessList *list)
{
	struct pass *pass = arg;
	struct connection *connection = pass->connection;
	struct err err = ERR_INIT;

	pass->gather = NULL;
	pass_free(pass);
	if (list) {
		connection_reply(connection, &list->base);
	} else {
		err_code(&err, -ENOMEM, "list processes");
		connection_refuse(connection, &err);
	}
	message_free(list);
}

static int list_all(struct connection *connection, const struct frame *frame, struct err *err)
{
	struct pass *pass = new_pass(connection, frame, err);

	if (!pass)
		return -ENOMEM;
	pass->gather = gather_begin(connection->server->cluster, on_list, pass);
	if (!pass->gather) {
		pass_free(pass);
		return err_code(err, -ENOMEM, "list processes");
	}
	return 1;
}

/* ---- log ---- */

static void pass_refuse_unknown(const struct pass *pass, const Pbeam__CheckpointLog *all, struct err *err)
{
	const char *answers = all->n_notes ? " that answers; " : "", *why = all->n_notes ? all->notes[0] : "";

	if (pass->vpid > 0)
		err_set(err, -ESRCH,
			"vpid %d: there is no such process and no checkpoint of one on any host%s%s; "
			"`pbeamctl ps` lists all",
			pass->vpid, answers, why);
	else
		err_set(err, -ESRCH,
			"%s: there is no job of that name and no checkpoint of one on any host%s%s; "
			"`pbeamctl ps` lists all",
			pass->name, answers, why);
}

static void on_log(void *arg, Pbeam__CheckpointLog *all)
{
	struct pass *pass = arg;
	struct connection *connection = pass->connection;
	struct err err = ERR_INIT;

	pass->log = NULL;
	if (!all)
		err_code(&err, -ENOMEM, "list checkpoints");
	else if (!all->live && !all->n_entries)
		pass_refuse_unknown(pass, all, &err);
	pass_free(pass);
	if (err.code)
		connection_refuse(connection, &err);
	else
		connection_reply(connection, &all->base);
	message_free(all);
}

static int list_checkpoints(struct connection *connection, const Pbeam__Target *wish,
			    const struct frame *frame, struct err *err)
{
	struct pass *pass = new_pass(connection, frame, err);

	if (!pass)
		return -ENOMEM;
	snprintf(pass->name, sizeof(pass->name), "%s", wish->name);
	pass->vpid = wish->vpid;
	pass->log = log_all_begin(connection->server->cluster, wish, on_log, pass);
	if (!pass->log) {
		pass_free(pass);
		return err_code(err, -ENOMEM, "list checkpoints");
	}
	return 1;
}

/* ---- members of a group or job that are on other hosts ---- */

static int take_members(Pbeam__Members *all, const char *host, uint32_t type, const void *body, size_t len)
{
	Pbeam__Members *part = type == PBEAM__RPC__RPC_REPLY ? pbeam__members__unpack(NULL, len, body) : NULL;
	int32_t *grown;

	if (!part)
		return message_append_string(&all->missing, &all->n_missing, host);
	grown = realloc(all->vpids, (all->n_vpids + part->n_vpids + 1) * sizeof(*grown));
	if (!grown) {
		message_free(part);
		return -ENOMEM;
	}
	bytes_copy(grown + all->n_vpids, part->vpids, part->n_vpids * sizeof(*grown));
	all->vpids = grown;
	all->n_vpids += part->n_vpids;
	if (part->code < 0)
		all->code = part->code;
	message_free(part);
	return 0;
}

static void on_members(void *arg, const char *host, uint32_t type, const void *body, size_t len)
{
	struct pass *pass = arg;

	if (take_members(pass->members, host, type, body, len) < 0)
		pass->members->code = -ENOMEM;
}

static void on_all_members(void *arg)
{
	struct pass *pass = arg;
	struct connection *connection = pass->connection;

	pass->scatter = NULL;
	connection_reply(connection, &pass->members->base);
	pass_free(pass);
}

static int ask_members(struct connection *connection, const struct frame *frame, struct err *err)
{
	struct pass *pass = new_pass(connection, frame, err);
	struct scatter_request request = {
		.type = frame->type, .len = frame->len, .came = on_members, .done = on_all_members};

	if (!pass)
		return -ENOMEM;
	request.body = pass->body;
	pass->members = message_new(&pbeam__members__descriptor);
	if (pass->members)
		pass->scatter = scatter_begin(connection->server->cluster, &request, pass);
	if (!pass->scatter) {
		pass_free(pass);
		return err_code(err, -ENOMEM, "send a request to other hosts");
	}
	return 1;
}

/* ---- which it is ---- */

/* True for a process that runs here. If it has just arrived our copy of the registry does not know it yet. */
static bool runs_here(const struct server *server, int32_t vpid)
{
	struct name_process process;

	return names_process_get(server->names, (struct vpid){vpid}, &process) == 0 &&
	       process.state == NAME_STATE_RUNNING;
}

static int pass_vpid(struct connection *connection, int32_t vpid, const struct frame *frame, struct err *err)
{
	struct server *server = connection->server;
	const char *own = server->cluster->options->name;
	Pbeam__Target wish = PBEAM__TARGET__INIT;
	char host[CHANNEL_HOST_MAX], block[NAME_TEXT_MAX], who[32];
	bool moved = registry_copy_place(server->cluster->copy, vpid, host) != NULL;
	struct target target;

	snprintf(who, sizeof(who), "vpid %d", vpid);
	wish.vpid = vpid;
	if (moved && strcmp(host, own) != 0 && !runs_here(server, vpid))
		return pass_to(connection, host, frame, who, err);
	if (moved || target_find_live(server, &wish, &target, NULL) == 0)
		return 0;
	if (frame->type == PBEAM__DAEMON_REQUEST__DAEMON_ROLLBACK)
		return look_for(connection, &wish, frame, err);
	if (names_block_find(server->names, (struct vpid){vpid}, block) == 0 && strcmp(block, own) != 0)
		return pass_to(connection, block, frame, who, err);
	return 0;
}

static int pass_name(struct connection *connection, const Pbeam__Target *wish, const struct frame *frame,
		     struct err *err)
{
	struct server *server = connection->server;
	char host[CHANNEL_HOST_MAX];
	struct target target;

	if (target_find_live(server, wish, &target, NULL) == 0) {
		if (!registry_copy_place(server->cluster->copy, target.job.root.n, host) ||
		    !strcmp(host, server->cluster->options->name))
			return 0;
		return pass_to(connection, host, frame, wish->name, err);
	}
	if (cut_is_group(server, wish->name))
		return 0;
	return look_for(connection, wish, frame, err);
}

int pass_elsewhere(struct connection *connection, const Pbeam__Target *target, const struct frame *frame,
		   struct err *err)
{
	if (!connection->server->cluster || connection->passed_on)
		return 0;
	if (frame->type == PBEAM__DAEMON_REQUEST__DAEMON_PS)
		return list_all(connection, frame, err);
	if (frame->type == PBEAM__DAEMON_REQUEST__DAEMON_MEMBERS)
		return ask_members(connection, frame, err);
	if (!target || (target->vpid <= 0 && !target->name[0]))
		return 0;
	if (frame->type == PBEAM__DAEMON_REQUEST__DAEMON_LOG)
		return list_checkpoints(connection, target, frame, err);
	if (target->vpid > 0)
		return pass_vpid(connection, target->vpid, frame, err);
	return pass_name(connection, target, frame, err);
}
