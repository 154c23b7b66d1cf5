/*
 * `pbeamctl hosts --take-over`: the user declares the central host lost for good, and this host becomes
 * central.
 *
 *  1. All reachable hosts report the revision of their copy of the registry. A host that still has a
 *     channel to the central one refuses, and nothing happens.
 *  2. The newest copy is used, since a host that has received a change may have acted on it. If another host
 *     has it, that host sends it.
 *  3. The store of this host becomes the registry in one durable transaction: before it nothing has changed,
 *     after it this host is central, whenever it is started. Changes of the lost host that no other host has
 *     received are dropped; versions and ranges continue behind them.
 *  4. The other hosts receive the new term by their channels (registry/central.c) and follow. The user gets
 *     the reply when they have.
 */
#include "pbeamd/services/take_over.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/parse.h"
#include "pbeamd/registry/central.h"
#include "pbeamd/registry/registry_copy.h"
#include "pbeamd/registry/registry_engine.h"
#include "pbeamd/registry/registry_heard.h"
#include "pbeamd/registry/registry_store.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/connection.h"
#include "pbeamd/transport/host.h"
#include "pbeamd/transport/remote_request.h"
#include "pbeamd/transport/scatter.h"
#include "pbeamd/transport/server.h"
#include "proto/message.h"
#include "proto/rpc.h"

enum { HEARD_MS = 2000 };

struct take_over {
	struct cluster *cluster;
	struct connection *connection; /* NULL: gone, no reply is sent */
	struct scatter *scatter;       /* while the revisions are collected */
	int64_t call;		       /* while the newest copy is fetched; 0: none */
	uint64_t newest;
	char from[CHANNEL_HOST_MAX]; /* the host that has it; "": this one */
	char old[CHANNEL_HOST_MAX];  /* the central host that is lost */
	char answered[512], silent[512];
	struct err refused;
	bool done; /* the reply is sent once all have the new term */
};

static void take_over_free(struct take_over *take_over)
{
	struct cluster *cluster = take_over->cluster;

	if (take_over->scatter)
		scatter_cancel(take_over->scatter);
	if (take_over->call > 0)
		remote_cancel(cluster, take_over->call);
	cluster->take_over = NULL;
	free(take_over);
}

static void take_over_refuse(struct take_over *take_over, const struct err *err)
{
	if (take_over->connection)
		connection_refuse(take_over->connection, err);
	take_over_free(take_over);
}

void take_over_forget_connection(struct connection *connection)
{
	struct cluster *cluster = connection->server->cluster;

	if (cluster && cluster->take_over && cluster->take_over->connection == connection)
		cluster->take_over->connection = NULL;
}

void take_over_close(struct cluster *cluster)
{
	if (cluster->take_over && !cluster->take_over->done)
		take_over_free(cluster->take_over);
}

/* ---- the answer ---- */

static __attribute__((format(printf, 2, 3))) int add_note(Pbeam__HostList *list, const char *format, ...)
{
	char text[1400];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return message_append_string(&list->notes, &list->n_notes, text);
}

static int take_over_describe(const struct take_over *take_over, Pbeam__HostList *list)
{
	const char *answered = take_over->answered, *silent = take_over->silent, *old = take_over->old;
	int r = add_note(list, "host %s is the central one now%s", take_over->cluster->options->name,
			 answered[0] ? "" : "; no other one was reached");

	if (r == 0 && answered[0])
		r = add_note(list, "%s %s with it", answered, strchr(answered, ',') ? "go on" : "goes on");
	if (r == 0 && silent[0])
		r = add_note(list,
			     "no answer from %s: changes that no other host has are lost; a host that "
			     "did not answer follows as soon as it reaches any host",
			     silent);
	if (r == 0)
		r = add_note(list,
			     "if host %s runs somewhere still there are two central hosts until it reaches "
			     "this one; then it becomes an ordinary host and its changes since are dropped; "
			     "`pbeamctl hosts --remove %s` gives up its processes",
			     old, old);
	return r;
}

static void take_over_on_heard(void *arg, const Pbeam__RegistryReply *reply)
{
	struct take_over *take_over = arg;
	struct connection *connection = take_over->connection;
	Pbeam__HostList *list = message_new(&pbeam__host_list__descriptor);
	struct err err = ERR_INIT;

	if (!list || take_over_describe(take_over, list) < 0)
		err_code(&err, -ENOMEM, "this host is the central one now");
	if (connection && err.code)
		connection_refuse(connection, &err);
	else if (connection)
		connection_reply(connection, &list->base);
	message_free(list);
	take_over_free(take_over);
}

/* ---- the change ---- */

static void see_block(void *arg, const Pbeam__RegistryEntry *entry)
{
	uint64_t *end = arg, block;

	if (parse_number(entry->key + strlen("block/"), 0, NAMES_BLOCKS - 1, &block, NULL) == 0 &&
	    (block + 1) << NAMES_BLOCK_BITS > *end)
		*end = (block + 1) << NAMES_BLOCK_BITS;
}

static int take_over_change(struct take_over *take_over, struct err *err)
{
	struct cluster *cluster = take_over->cluster;
	struct registry_state next = cluster->state;
	uint64_t numbers = REGISTRY_NUMBERS_FIRST;
	int r;

	registry_copy_each(cluster->copy, "block/", see_block, &numbers);
	next.term++;
	next.central = true;
	next.revision = registry_copy_revision(cluster->copy);
	next.address[0] = 0;
	strcpy(next.host, cluster->options->name);
	r = fault_point("take-over", err);
	if (r == 0)
		r = registry_store_take_over(&cluster->store, &next, numbers, err);
	if (r < 0)
		return r;
	if (fault_point("taken-over", NULL) < 0)
		log_debug("the take-over is durable");
	log_warn("this host has taken over from host %s: it is the central one now", take_over->old);
	central_become(cluster, &next);
	return 0;
}

static void take_over_conclude(struct take_over *take_over, const Pbeam__RegistryChanges *whole)
{
	struct cluster *cluster = take_over->cluster;
	const struct host *old = host_find(cluster, take_over->old);
	struct err err = ERR_INIT;

	if (whole && registry_take_whole(cluster, whole) < 0)
		err_set(&err, -EBADMSG, "the newest copy of the registry cannot be used; see the log");
	else if (!cluster->kept)
		err_set(&err, -EIO, "the registry cannot be stored here; see the log");
	else if (!cluster_is_central(cluster, take_over->old))
		err_set(&err, -EBUSY, "host %s has taken over meanwhile", cluster->state.host);
	else if (old && host_is_up(old))
		err_set(&err, -EBUSY, "host %s, the central one, is up again", take_over->old);
	else if (take_over_change(take_over, &err) == 0) {
		take_over->done = true;
		heard_of_all(cluster, HEARD_MS, take_over_on_heard, take_over);
		return;
	}
	take_over_refuse(take_over, &err);
}

/* ---- the newest copy ---- */

/* Uses this host's copy, and stores it again: storing some changes may have failed. */
static void take_over_use_own_copy(struct take_over *take_over)
{
	struct err err = ERR_INIT;
	Pbeam__RegistryChanges *whole = registry_whole(take_over->cluster, &err);

	if (whole)
		take_over_conclude(take_over, whole);
	else
		take_over_refuse(take_over, &err);
	message_free(whole);
}

static void on_whole(void *arg, uint32_t type, const void *body, size_t len)
{
	struct take_over *take_over = arg;
	struct err err = ERR_INIT;
	Pbeam__CopyReply *reply;

	if (type == PBEAM__RPC__RPC_PROGRESS)
		return;
	take_over->call = 0;
	reply = type == PBEAM__RPC__RPC_REPLY ? pbeam__copy_reply__unpack(NULL, len, body) : NULL;
	if (reply && reply->copy && reply->copy->whole && reply->copy->revision >= take_over->newest) {
		take_over_conclude(take_over, reply->copy);
	} else {
		err_set(&err, -EHOSTUNREACH,
			"host %s has the newest copy of the registry and was lost before it had sent it; "
			"nothing has changed, try again",
			take_over->from);
		take_over_refuse(take_over, &err);
	}
	message_free(reply);
}

static void take_over_fetch_copy(struct take_over *take_over)
{
	struct cluster *cluster = take_over->cluster;
	Pbeam__CopyRequest request = PBEAM__COPY_REQUEST__INIT;
	struct err err = ERR_INIT;
	uint8_t bytes[32];

	request.term = cluster->state.term;
	request.whole = true;
	take_over->call =
		remote_ask(cluster, host_find(cluster, take_over->from), PBEAM__DAEMON_REQUEST__DAEMON_COPY,
			   bytes, pbeam__copy_request__pack(&request, bytes), on_whole, take_over, &err);
	if (take_over->call < 0)
		take_over_refuse(take_over, &err);
}

/* ---- the revisions of all hosts ---- */

static void add_name(char *list, size_t size, const char *host)
{
	size_t len = strlen(list);

	snprintf(list + len, size - len, "%s%s", len ? ", " : "", host);
}

static void take_over_on_part(void *arg, const char *host, uint32_t type, const void *body, size_t len)
{
	struct take_over *take_over = arg;
	Pbeam__CopyReply *reply =
		type == PBEAM__RPC__RPC_REPLY ? pbeam__copy_reply__unpack(NULL, len, body) : NULL;
	Pbeam__Failed *failed =
		type == PBEAM__RPC__RPC_FAILED ? pbeam__failed__unpack(NULL, len, body) : NULL;

	if (failed && failed->code != -ECONNRESET && !take_over->refused.code)
		err_set(&take_over->refused, -EBUSY, "host %s: %s", host, failed->text);
	if (reply && reply->revision > take_over->newest) {
		take_over->newest = reply->revision;
		strcpy(take_over->from, host);
	}
	if (reply)
		add_name(take_over->answered, sizeof(take_over->answered), host);
	else if (strcmp(host, take_over->old) != 0)
		add_name(take_over->silent, sizeof(take_over->silent), host);
	message_free(reply);
	message_free(failed);
}

static const struct err *no_copy(struct err *err)
{
	err_set(err, -ENODATA, "neither this host nor any that answers has a copy of the registry");
	return err;
}

static void take_over_on_end(void *arg)
{
	struct take_over *take_over = arg;
	struct err err = ERR_INIT;

	take_over->scatter = NULL;
	if (take_over->refused.code)
		take_over_refuse(take_over, &take_over->refused);
	else if (!take_over->newest)
		take_over_refuse(take_over, no_copy(&err));
	else if (take_over->from[0])
		take_over_fetch_copy(take_over);
	else
		take_over_use_own_copy(take_over);
}

/* ---- the requests ---- */

/* The newest change that this host has, or that an earlier daemon stored. */
static int own_revision(struct cluster *cluster, uint64_t *revision, struct err *err)
{
	struct registry_state state;
	int r = 0;

	*revision = registry_copy_revision(cluster->copy);
	if (!registry_copy_ready(cluster->copy)) {
		r = registry_store_state(&cluster->store, &state, err);
		*revision = state.revision;
	}
	return r;
}

static int take_over_check(const struct cluster *cluster, struct err *err)
{
	const char *old = cluster->state.host;
	struct host *host = host_find((struct cluster *)(uintptr_t)cluster, old);

	if (cluster->central)
		return err_set(err, -EALREADY, "host %s is the central one already", cluster->options->name);
	if (cluster->take_over)
		return err_set(err, -EBUSY, "this host is already taking over");
	if (!old[0])
		return err_set(err, -ENODATA,
			       "this host has never reached the central one and has no copy of the registry; "
			       "take over on another host");
	if (cluster->listener < 0)
		return err_set(
			err, -EINVAL,
			"this host does not listen, so the others could not reach it; start its pbeamd "
			"with --listen as well, or take over on another host");
	if (host && host_is_up(host))
		return err_set(
			err, -EBUSY,
			"host %s is the central one and it is up; another one takes over when it is lost",
			old);
	return 0;
}

int take_over_begin(struct connection *connection, struct err *err)
{
	Pbeam__CopyRequest wish = PBEAM__COPY_REQUEST__INIT;
	struct scatter_request request = {.type = PBEAM__DAEMON_REQUEST__DAEMON_COPY,
					  .came = take_over_on_part,
					  .done = take_over_on_end};
	struct cluster *cluster = connection->server->cluster;
	struct take_over *take_over;
	uint8_t bytes[32];
	int r = cluster_need(connection->server, err);

	if (r == 0)
		r = take_over_check(cluster, err);
	if (r < 0)
		return r;
	take_over = calloc(1, sizeof(*take_over));
	if (!take_over)
		return err_code(err, -ENOMEM, "take over");
	take_over->cluster = cluster;
	strcpy(take_over->old, cluster->state.host);
	cluster->take_over = take_over;
	wish.term = cluster->state.term;
	request.body = bytes;
	request.len = pbeam__copy_request__pack(&wish, bytes);
	r = own_revision(cluster, &take_over->newest, err);
	if (r == 0)
		take_over->scatter = scatter_begin(cluster, &request, take_over);
	if (r == 0 && !take_over->scatter)
		r = err_code(err, -ENOMEM, "take over");
	if (r < 0) {
		take_over_free(take_over);
		return r;
	}
	take_over->connection = connection;
	connection->phase = CONNECTION_BUSY;
	return 1;
}

static int may_be_taken(struct cluster *cluster, uint64_t term, struct err *err)
{
	const struct registry_state *state = &cluster->state;
	const struct host *central = host_find(cluster, state->host);

	if (cluster->central || state->term > term)
		return err_set(err, -EBUSY, "host %s is the central one already", state->host);
	if (cluster->take_over)
		return err_set(err, -EBUSY, "it is taking over itself");
	if (central && central->peer)
		return err_set(err, -EBUSY, "it has a channel to the central host, %s", state->host);
	return 0;
}

int handle_copy(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__CopyRequest *wish = (const Pbeam__CopyRequest *)message;
	struct cluster *cluster = connection->server->cluster;
	Pbeam__CopyReply reply = PBEAM__COPY_REPLY__INIT;
	int r = cluster_need(connection->server, err);

	if (r == 0)
		r = may_be_taken(cluster, wish->term, err);
	if (r == 0)
		r = own_revision(cluster, &reply.revision, err);
	if (r == 0 && wish->whole) {
		reply.copy = registry_whole(cluster, err);
		r = reply.copy ? 0 : err->code;
	}
	if (r == 0)
		connection_reply(connection, &reply.base);
	message_free(reply.copy);
	return r;
}
