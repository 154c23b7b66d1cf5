/* The processes of all hosts in one list. A host that does not answer in time is named instead. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pbeamd/cluster/remote.h"
#include "pbeamd/registry/registry.h"
#include "proto/message.h"

enum { HOSTS_MAX = 256, PATIENCE_S = 4 };

struct part {
	struct gather *gather;
	int64_t id; /* 0: not asked */
	bool open;  /* the answer is awaited */
	char host[CHANNEL_HOST_MAX];
};

struct gather {
	struct cluster *cluster;
	struct event *patience;
	gather_fn done;
	void *arg;
	Pbeam__ProcessList *list;
	struct part parts[HOSTS_MAX];
	int nparts;
	bool failed;
};

void gather_cancel(struct gather *gather)
{
	for (int i = 0; i < gather->nparts; i++)
		if (gather->parts[i].open)
			remote_cancel(gather->cluster, gather->parts[i].id);
	if (gather->patience)
		event_free(gather->patience);
	message_free(gather->list);
	free(gather);
}

static int by_vpid(const void *a, const void *b)
{
	int32_t x = (*(Pbeam__ProcessInfo *const *)a)->vpid, y = (*(Pbeam__ProcessInfo *const *)b)->vpid;

	return x < y ? -1 : x > y;
}

static void missing(struct gather *gather, const char *host)
{
	if (message_append_string(&gather->list->missing, &gather->list->n_missing, host) < 0)
		gather->failed = true;
}

static void conclude(struct gather *gather)
{
	Pbeam__ProcessList *list = gather->list;

	for (int i = 0; i < gather->nparts; i++)
		if (gather->parts[i].open)
			missing(gather, gather->parts[i].host);
	if (list->n_processes)
		qsort(list->processes, list->n_processes, sizeof(Pbeam__ProcessInfo *), by_vpid);
	if (gather->failed) {
		gather->done(gather->arg, NULL);
	} else {
		gather->list = NULL;
		gather->done(gather->arg, list);
	}
	gather_cancel(gather);
}

static void on_patience(evutil_socket_t fd, short what, void *arg)
{
	conclude(arg);
}

/* What a process left behind where it was is not the process. */
static bool is_elsewhere(const struct gather *gather, const Pbeam__ProcessInfo *info, const char *host)
{
	const Pbeam__RegistryEntry *entry;
	Pbeam__Place *place;
	char key[32];
	bool r;

	snprintf(key, sizeof(key), "vpid/%d", info->vpid);
	entry = registry_copy_get(gather->cluster->copy, key);
	place = entry ? pbeam__place__unpack(NULL, entry->value.len, entry->value.data) : NULL;
	r = place && strcmp(place->host, host) != 0;
	message_free(place);
	return r;
}

static void take(struct gather *gather, const char *host, const void *body, size_t len)
{
	Pbeam__ProcessList *part = pbeam__process_list__unpack(NULL, len, body);
	size_t kept = 0;

	if (!part) {
		missing(gather, host);
		return;
	}
	for (size_t i = 0; i < part->n_processes; i++) {
		Pbeam__ProcessInfo *info = part->processes[i];

		if (is_elsewhere(gather, info, host)) {
			part->processes[kept++] = info;
			continue;
		}
		if (message_string(&info->host, host) < 0)
			gather->failed = true;
		if (message_append(&gather->list->processes, &gather->list->n_processes, &info->base) < 0)
			gather->failed = true;
	}
	part->n_processes = kept; /* the others have gone over */
	message_free(part);
}

static void on_part(void *arg, uint32_t type, const void *body, size_t len)
{
	struct part *part = arg;
	struct gather *gather = part->gather;

	if (type == PBEAM__DAEMON_REQUEST__DAEMON_PROGRESS)
		return;
	part->open = false;
	if (type == PBEAM__DAEMON_REQUEST__DAEMON_REPLY)
		take(gather, part->host, body, len);
	else
		missing(gather, part->host);
	for (int i = 0; i < gather->nparts; i++)
		if (gather->parts[i].open)
			return;
	conclude(gather);
}

/* One host, this one with NULL. */
static void ask(struct gather *gather, struct host *host)
{
	struct part *part = &gather->parts[gather->nparts];
	struct err err = ERR_INIT;
	int64_t id;

	if (gather->nparts == HOSTS_MAX)
		return;
	part->gather = gather;
	strcpy(part->host, host ? host->name : gather->cluster->options->name);
	id = remote_ask(gather->cluster, host, PBEAM__DAEMON_REQUEST__DAEMON_PS, NULL, 0, on_part, part,
			&err);
	if (id < 0) {
		missing(gather, part->host);
		return;
	}
	part->id = id;
	part->open = true;
	gather->nparts++;
}

struct gather *gather_begin(struct cluster *cluster, gather_fn done, void *arg)
{
	const struct timeval patience = {PATIENCE_S, 0};
	struct gather *gather = calloc(1, sizeof(*gather));

	if (!gather)
		return NULL;
	*gather = (struct gather){.cluster = cluster, .done = done, .arg = arg};
	gather->list = message_new(&pbeam__process_list__descriptor);
	gather->patience = event_new(cluster->server->base, -1, 0, on_patience, gather);
	if (gather->list && gather->patience && event_add(gather->patience, &patience) == 0) {
		ask(gather, NULL);
		for (struct host *host = cluster->hosts; host; host = host->next)
			ask(gather, host);
	}
	if (!gather->nparts) {
		gather_cancel(gather);
		return NULL;
	}
	return gather;
}
