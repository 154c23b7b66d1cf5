#include "pbeamctl/migrate_all.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "pbeamctl/format.h"
#include "proto/cluster.pb-c.h"
#include "proto/message.h"

/* The processes that could not move; they are not tried again. */
struct refused {
	int32_t *vpids;
	size_t n;
};

void migrate_print(const Pbeam__MigrateReply *done)
{
	char size[16], pause[24], total[24];

	format_size(done->bytes, size);
	format_span(done->pause_ns, pause);
	format_span(done->total_ns, total);
	fprintf(stderr, "vpid %d (%u process%s) runs on %s: %s sent in %s (%u round%s), paused for %s\n",
		done->vpid, done->processes, done->processes == 1 ? "" : "es", text_visible(done->host), size,
		total, done->rounds, done->rounds == 1 ? "" : "s", pause);
	client_print_notes(done->notes, done->n_notes);
}

static bool is_refused(const struct refused *refused, int32_t vpid)
{
	for (size_t i = 0; i < refused->n; i++)
		if (refused->vpids[i] == vpid)
			return true;
	return false;
}

static int add_refused(struct refused *refused, int32_t vpid)
{
	int32_t *more = reallocarray(refused->vpids, refused->n + 1, sizeof(*more));

	if (!more)
		return -ENOMEM;
	refused->vpids = more;
	refused->vpids[refused->n++] = vpid;
	return 0;
}

/* True if its parent is not on the same host. Its descendants move with it. */
static bool is_top(const Pbeam__ProcessList *list, const Pbeam__ProcessInfo *process)
{
	for (size_t i = 0; i < list->n_processes; i++)
		if (list->processes[i]->vpid == process->vppid &&
		    !strcmp(list->processes[i]->host, process->host))
			return false;
	return true;
}

static int move_tree(Pbeam__MigrateRequest *request, const Pbeam__ProcessInfo *process, struct err *err)
{
	Pbeam__Target target = PBEAM__TARGET__INIT;
	Pbeam__MigrateReply *done;
	int r;

	target.vpid = process->vpid;
	request->target = &target;
	r = client_ask(PBEAM__DAEMON_REQUEST__DAEMON_MIGRATE, &request->base,
		       &pbeam__migrate_reply__descriptor, &done, err);
	request->target = NULL;
	if (r < 0)
		return r;
	migrate_print(done);
	message_free(done);
	return 0;
}

/* Moves the processes that are there now. Returns the number of trees moved, or -errno. */
static int move_present(Pbeam__MigrateRequest *request, const char *from, struct refused *refused,
			struct err *err)
{
	Pbeam__ProcessList *list;
	int moved = 0, r;

	r = client_ask(PBEAM__DAEMON_REQUEST__DAEMON_PS, NULL, &pbeam__process_list__descriptor, &list, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < list->n_processes && r == 0; i++) {
		const Pbeam__ProcessInfo *process = list->processes[i];
		struct err why = ERR_INIT;

		if (strcmp(process->host, from) != 0 || !is_top(list, process) ||
		    is_refused(refused, process->vpid))
			continue;
		if (move_tree(request, process, &why) == 0) {
			moved++;
		} else if (why.code != -ESRCH) { /* ESRCH: it has exited meanwhile */
			printf("%s\n", why.text);
			r = add_refused(refused, process->vpid);
		}
	}
	message_free(list);
	return r < 0 ? r : moved;
}

/* Prints the processes elsewhere that depend on the host. Returns their number. */
static int list_dependants(const char *from, struct err *err)
{
	Pbeam__HostsRequest request = PBEAM__HOSTS_REQUEST__INIT;
	Pbeam__HostList *list;
	int n = 0, r;

	r = client_ask(PBEAM__DAEMON_REQUEST__DAEMON_HOSTS, &request.base, &pbeam__host_list__descriptor,
		       &list, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < list->n_hosts; i++)
		for (size_t j = 0; j < list->hosts[i]->n_depends && !strcmp(list->hosts[i]->name, from); j++)
			n += printf("%s\n", text_visible(list->hosts[i]->depends[j])) > 0;
	message_free(list);
	return n;
}

int migrate_all(Pbeam__MigrateRequest *request, const char *from)
{
	struct refused refused = {0};
	struct err err = ERR_INIT;
	int r;

	do
		r = move_present(request, from, &refused, &err);
	while (r > 0); /* for those forked meanwhile */
	if (r == 0)
		r = list_dependants(from, &err);
	free(refused.vpids);
	if (r < 0)
		return command_failed(&err);
	return refused.n || r > 0 ? STATUS_FAILED : STATUS_DONE;
}
