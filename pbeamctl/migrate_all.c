#include "pbeamctl/migrate_all.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "pbeamctl/format.h"
#include "proto/cluster.pb-c.h"
#include "proto/message.h"

/* Those that could not go: they are not tried again. */
struct left {
	int32_t *vpids;
	size_t n;
};

void migrate_tell(const Pbeam__MigrateReply *done)
{
	char size[16], pause[24], total[24];

	format_size(done->bytes, size);
	format_span(done->pause_ns, pause);
	format_span(done->total_ns, total);
	fprintf(stderr, "vpid %d (%u process%s) runs on %s: %s sent in %s (%u round%s), paused for %s\n",
		done->vpid, done->processes, done->processes == 1 ? "" : "es", done->host, size, total,
		done->rounds, done->rounds == 1 ? "" : "s", pause);
}

static bool is_left(const struct left *left, int32_t vpid)
{
	for (size_t i = 0; i < left->n; i++)
		if (left->vpids[i] == vpid)
			return true;
	return false;
}

static int leave(struct left *left, int32_t vpid)
{
	int32_t *more = reallocarray(left->vpids, left->n + 1, sizeof(*more));

	if (!more)
		return -ENOMEM;
	left->vpids = more;
	left->vpids[left->n++] = vpid;
	return 0;
}

/* Its parent is not on the host as well: whoever descends from it goes with it. */
static bool is_top(const Pbeam__ProcessList *list, const Pbeam__ProcessInfo *process)
{
	for (size_t i = 0; i < list->n_processes; i++)
		if (list->processes[i]->vpid == process->vppid &&
		    !strcmp(list->processes[i]->host, process->host))
			return false;
	return true;
}

static int move(Pbeam__MigrateRequest *request, const Pbeam__ProcessInfo *process, struct err *err)
{
	Pbeam__Target target = PBEAM__TARGET__INIT;
	ProtobufCMessage *reply;
	int r;

	target.vpid = process->vpid;
	request->target = &target;
	r = client_ask(PBEAM__DAEMON_REQUEST__DAEMON_MIGRATE, &request->base,
		       &pbeam__migrate_reply__descriptor, &reply, err);
	request->target = NULL;
	if (r < 0)
		return r;
	migrate_tell((const Pbeam__MigrateReply *)reply);
	message_free(reply);
	return 0;
}

/* All that are there now. How many have left, or -errno. */
static int pass(Pbeam__MigrateRequest *request, const char *from, struct left *left, struct err *err)
{
	ProtobufCMessage *reply;
	int moved = 0, r;

	r = client_ask(PBEAM__DAEMON_REQUEST__DAEMON_PS, NULL, &pbeam__process_list__descriptor, &reply, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < ((const Pbeam__ProcessList *)reply)->n_processes && r == 0; i++) {
		const Pbeam__ProcessList *list = (const Pbeam__ProcessList *)reply;
		const Pbeam__ProcessInfo *process = list->processes[i];
		struct err why = ERR_INIT;

		if (strcmp(process->host, from) != 0 || !is_top(list, process) ||
		    is_left(left, process->vpid))
			continue;
		if (move(request, process, &why) == 0) {
			moved++;
		} else if (why.code != -ESRCH) { /* it has ended meanwhile */
			printf("%s\n", why.text);
			r = leave(left, process->vpid);
		}
	}
	message_free(reply);
	return r < 0 ? r : moved;
}

/* How many are elsewhere and depend on the host. */
static int list_dependants(const char *from, struct err *err)
{
	Pbeam__HostsRequest request = PBEAM__HOSTS_REQUEST__INIT;
	const Pbeam__HostList *list;
	ProtobufCMessage *reply;
	int n = 0, r;

	r = client_ask(PBEAM__DAEMON_REQUEST__DAEMON_HOSTS, &request.base, &pbeam__host_list__descriptor,
		       &reply, err);
	if (r < 0)
		return r;
	list = (const Pbeam__HostList *)reply;
	for (size_t i = 0; i < list->n_hosts; i++)
		for (size_t j = 0; j < list->hosts[i]->n_depends && !strcmp(list->hosts[i]->name, from); j++)
			n += printf("%s\n", list->hosts[i]->depends[j]) > 0;
	message_free(reply);
	return n;
}

int migrate_all(Pbeam__MigrateRequest *request, const char *from)
{
	struct left left = {0};
	struct err err = ERR_INIT;
	int r;

	do
		r = pass(request, from, &left, &err);
	while (r > 0); /* those that were born meanwhile */
	if (r == 0)
		r = list_dependants(from, &err);
	free(left.vpids);
	if (r < 0)
		return command_failed(&err);
	return left.n || r > 0 ? STATUS_FAILED : STATUS_DONE;
}
