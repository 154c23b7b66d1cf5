/*
 * The checkpoints of a target on all hosts. For a vpid, a first request to all hosts finds the name that its
 * checkpoints are stored under, which is known to the host that runs the process, or else to the hosts that
 * have the checkpoints.
 */
#include "pbeamd/services/log_all.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "image/store.h"
#include "pbeamd/services/checkpoints.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/scatter.h"
#include "proto/message.h"
#include "proto/rpc.h"

/* A host has to open every image. A lost host is noticed earlier. */
enum { PATIENCE_S = 30 };

struct log_all {
	struct cluster *cluster;
	struct scatter *scatter; /* NULL: all replies are there */
	log_all_fn done;
	void *arg;
	int32_t vpid; /* 0: a name was given */
	int known_by; /* rank of the host that gave the name: see log_all_rank_host() */
	Pbeam__CheckpointLog *all;
	bool failed;
};

void log_all_cancel(struct log_all *log)
{
	if (log->scatter)
		scatter_cancel(log->scatter);
	message_free(log->all);
	free(log);
}

static bool is_number(const char *store)
{
	return strspn(store, "0123456789") == strlen(store);
}

/* ---- the name that the checkpoints of a vpid are stored under ---- */

/* The host that runs the process takes precedence, then this one. */
static int log_all_rank_host(const struct log_all *log, const char *host, const Pbeam__CheckpointLog *part)
{
	return (part->live ? 2 : 0) + (!strcmp(host, log->cluster->options->name) ? 1 : 0) + 1;
}

static bool is_store(const struct log_all *log, const char *store)
{
	char number[STORE_JOB_MAX];

	store_job_of_vpid(log->vpid, number);
	return !strcmp(store, number) || store_check_name(store, NULL) == 0;
}

static void on_store(void *arg, const char *host, uint32_t type, const void *body, size_t len)
{
	struct log_all *log = arg;
	Pbeam__CheckpointLog *part =
		type == PBEAM__RPC__RPC_REPLY ? pbeam__checkpoint_log__unpack(NULL, len, body) : NULL;

	if (part && is_store(log, part->store) && log_all_rank_host(log, host, part) > log->known_by) {
		log->known_by = log_all_rank_host(log, host, part);
		if (message_string(&log->all->store, part->store) < 0)
			log->failed = true;
	}
	message_free(part);
}

/* ---- the checkpoints ---- */

static void log_all_on_part(void *arg, const char *host, uint32_t type, const void *body, size_t len)
{
	struct log_all *log = arg;

	if (checkpoints_take(log->all, host, type, body, len) < 0)
		log->failed = true;
}

static void log_all_on_end(void *arg)
{
	struct log_all *log = arg;
	Pbeam__CheckpointLog *all = log->all;

	log->all = NULL;
	log->scatter = NULL;
	if (!log->failed)
		log->failed = checkpoints_order(all) < 0;
	log->done(log->arg, log->failed ? NULL : all);
	if (log->failed)
		message_free(all);
	free(log);
}

/* ---- requests ---- */

static void on_all_stores(void *arg);

/* Requests the checkpoints of the name, or of the vpid as long as the name is unknown or if there is none. */
static int log_all_ask(struct log_all *log, scatter_part_fn came, scatter_done_fn done)
{
	Pbeam__Target target = PBEAM__TARGET__INIT;
	struct scatter_request request = {.type = PBEAM__DAEMON_REQUEST__DAEMON_LOG,
					  .here = true,
					  .patience_s = PATIENCE_S,
					  .came = came,
					  .done = done};
	auto_free uint8_t *body = NULL;

	if (log->vpid > 0 && is_number(log->all->store))
		target.vpid = log->vpid;
	else
		target.name = log->all->store;
	request.len = pbeam__target__get_packed_size(&target);
	request.body = body = malloc(request.len + 1);
	if (!body)
		return -ENOMEM;
	pbeam__target__pack(&target, body);
	log->scatter = scatter_begin(log->cluster, &request, log);
	return log->scatter ? 0 : -ENOMEM;
}

static void on_all_stores(void *arg)
{
	struct log_all *log = arg;

	log->scatter = NULL;
	if (log->failed || log_all_ask(log, log_all_on_part, log_all_on_end) < 0) {
		log->failed = true;
		log_all_on_end(log);
	}
}

struct log_all *log_all_begin(struct cluster *cluster, const Pbeam__Target *target, log_all_fn done,
			      void *arg)
{
	struct log_all *log = calloc(1, sizeof(*log));
	char number[STORE_JOB_MAX];
	bool named = target->vpid <= 0;
	int r;

	if (!log)
		return NULL;
	*log = (struct log_all){.cluster = cluster, .done = done, .arg = arg, .vpid = target->vpid};
	store_job_of_vpid(target->vpid, number);
	log->all = message_new(&pbeam__checkpoint_log__descriptor);
	r = log->all ? message_string(&log->all->store, named ? target->name : number) : -ENOMEM;
	if (r == 0)
		r = message_string(&log->all->here, cluster->options->name);
	if (r == 0)
		r = named ? log_all_ask(log, log_all_on_part, log_all_on_end)
			  : log_all_ask(log, on_store, on_all_stores);
	if (r < 0) {
		log_all_cancel(log);
		return NULL;
	}
	return log;
}
