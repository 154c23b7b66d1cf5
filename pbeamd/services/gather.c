/* The processes of all hosts in one list. A host that does not answer in time is named instead. */
#include "pbeamd/services/gather.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "pbeamd/registry/registry_copy.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/scatter.h"
#include "proto/message.h"
#include "proto/rpc.h"

struct gather {
	struct cluster *cluster;
	struct scatter *scatter; /* NULL: all replies are there */
	gather_fn done;
	void *arg;
	Pbeam__ProcessList *list;
	bool failed;
};

void gather_cancel(struct gather *gather)
{
	if (gather->scatter)
		scatter_cancel(gather->scatter);
	message_free(gather->list);
	free(gather);
}

static int gather_compare_vpids(const void *a, const void *b)
{
	int32_t x = (*(Pbeam__ProcessInfo *const *)a)->vpid, y = (*(Pbeam__ProcessInfo *const *)b)->vpid;

	return x < y ? -1 : x > y;
}

static void gather_add_missing(struct gather *gather, const char *host)
{
	if (message_append_string(&gather->list->missing, &gather->list->n_missing, host) < 0)
		gather->failed = true;
}

static void gather_conclude(void *arg)
{
	struct gather *gather = arg;
	Pbeam__ProcessList *list = gather->list;

	gather->scatter = NULL;
	if (list->n_processes)
		bytes_sort(list->processes, list->n_processes, sizeof(Pbeam__ProcessInfo *),
			   gather_compare_vpids);
	if (gather->failed) {
		gather->done(gather->arg, NULL);
	} else {
		gather->list = NULL;
		gather->done(gather->arg, list);
	}
	gather_cancel(gather);
}

/* True for the remains of a process on a host that it has left. */
static bool gather_is_elsewhere(const struct gather *gather, const Pbeam__ProcessInfo *info, const char *host)
{
	char place[CHANNEL_HOST_MAX];

	return registry_copy_place(gather->cluster->copy, info->vpid, place) && strcmp(place, host) != 0;
}

static void gather_take_list(struct gather *gather, const char *host, const void *body, size_t len)
{
	Pbeam__ProcessList *part = pbeam__process_list__unpack(NULL, len, body);
	size_t kept = 0;

	if (!part) {
		gather_add_missing(gather, host);
		return;
	}
	for (size_t i = 0; i < part->n_processes; i++) {
		Pbeam__ProcessInfo *info = part->processes[i];

		if (gather_is_elsewhere(gather, info, host)) {
			part->processes[kept++] = info;
			continue;
		}
		if (message_string(&info->host, host) < 0)
			gather->failed = true;
		if (message_append(&gather->list->processes, &gather->list->n_processes, &info->base) < 0)
			gather->failed = true;
	}
	part->n_processes = kept; /* the others were moved to the list */
	message_free(part);
}

static void gather_on_part(void *arg, const char *host, uint32_t type, const void *body, size_t len)
{
	struct gather *gather = arg;

	if (type == PBEAM__RPC__RPC_REPLY)
		gather_take_list(gather, host, body, len);
	else
		gather_add_missing(gather, host);
}

struct gather *gather_begin(struct cluster *cluster, gather_fn done, void *arg)
{
	const struct scatter_request request = {.type = PBEAM__DAEMON_REQUEST__DAEMON_PS,
						.here = true,
						.came = gather_on_part,
						.done = gather_conclude};
	struct gather *gather = calloc(1, sizeof(*gather));

	if (!gather)
		return NULL;
	*gather = (struct gather){.cluster = cluster, .done = done, .arg = arg};
	gather->list = message_new(&pbeam__process_list__descriptor);
	if (gather->list)
		gather->scatter = scatter_begin(cluster, &request, gather);
	if (!gather->scatter) {
		gather_cancel(gather);
		return NULL;
	}
	return gather;
}
