/* One request to all hosts at once. */
#include "pbeamd/transport/scatter.h"

#include <stdlib.h>
#include <string.h>

#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/remote_request.h"
#include "proto/rpc.h"

enum { HOSTS_MAX = 256, PATIENCE_S = 4 };

struct part {
	struct scatter *scatter;
	int64_t id;
	bool open; /* the answer is awaited */
	char host[CHANNEL_HOST_MAX];
};

struct scatter {
	struct cluster *cluster;
	struct event *wake; /* when the time is over; at once if no host could be reached */
	scatter_part_fn came;
	scatter_done_fn done;
	void *arg;
	struct part parts[HOSTS_MAX];
	int nparts;
};

void scatter_cancel(struct scatter *scatter)
{
	for (int i = 0; i < scatter->nparts; i++)
		if (scatter->parts[i].open)
			remote_cancel(scatter->cluster, scatter->parts[i].id);
	if (scatter->wake)
		event_free(scatter->wake);
	free(scatter);
}

static void scatter_conclude(struct scatter *scatter)
{
	scatter_done_fn done = scatter->done;
	void *arg = scatter->arg;

	for (int i = 0; i < scatter->nparts; i++)
		if (scatter->parts[i].open)
			scatter->came(arg, scatter->parts[i].host, PBEAM__DAEMON_REQUEST__DAEMON_NONE, NULL,
				      0);
	scatter_cancel(scatter);
	done(arg);
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
	scatter_conclude(arg);
}

static bool is_open(const struct scatter *scatter)
{
	for (int i = 0; i < scatter->nparts; i++)
		if (scatter->parts[i].open)
			return true;
	return false;
}

static void scatter_on_part(void *arg, uint32_t type, const void *body, size_t len)
{
	struct part *part = arg;
	struct scatter *scatter = part->scatter;

	if (type == PBEAM__RPC__RPC_PROGRESS)
		return;
	part->open = false;
	scatter->came(scatter->arg, part->host, type, body, len);
	if (!is_open(scatter))
		scatter_conclude(scatter);
}

/* Sends the request to a host, NULL for this one. A host that cannot be reached has no answer. */
static void scatter_ask_host(struct scatter *scatter, struct host *host, uint32_t type, const void *body,
			     size_t len)
{
	struct part *part = &scatter->parts[scatter->nparts];
	struct err err = ERR_INIT;

	if (scatter->nparts == HOSTS_MAX)
		return;
	part->scatter = scatter;
	strcpy(part->host, host ? host->name : scatter->cluster->options->name);
	part->id = remote_ask(scatter->cluster, host, type, body, len, scatter_on_part, part, &err);
	part->open = part->id >= 0;
	if (part->open)
		scatter->nparts++;
	else
		scatter->came(scatter->arg, part->host, PBEAM__DAEMON_REQUEST__DAEMON_NONE, NULL, 0);
}

struct scatter *scatter_begin(struct cluster *cluster, const struct scatter_request *request, void *arg)
{
	struct timeval patience = {request->patience_s ? request->patience_s : PATIENCE_S, 0};
	struct scatter *scatter = calloc(1, sizeof(*scatter));

	if (!scatter)
		return NULL;
	*scatter = (struct scatter){
		.cluster = cluster, .came = request->came, .done = request->done, .arg = arg};
	scatter->wake = event_new(cluster->server->base, -1, 0, on_wake, scatter);
	if (!scatter->wake) {
		scatter_cancel(scatter);
		return NULL;
	}
	if (request->here)
		scatter_ask_host(scatter, NULL, request->type, request->body, request->len);
	for (struct host *host = cluster->hosts; host; host = host->next)
		scatter_ask_host(scatter, host, request->type, request->body, request->len);
	if (!is_open(scatter))
		patience = (struct timeval){0, 0};
	if (event_add(scatter->wake, &patience) < 0) {
		scatter_cancel(scatter);
		return NULL;
	}
	return scatter;
}
