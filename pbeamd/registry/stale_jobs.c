/*
 * Ends stale jobs: a job of this host was rolled back on another host while this host was out of reach and
 * taken for lost. When this host is back the job would run twice, so its processes here are killed.
 *
 * The search begins when the central host sends the whole registry after an absence. A process that runs here
 * although vpid/N names another host is stale if it is older than the absence; a younger one may have a
 * number that was free. A process that has just arrived runs a moment before its entry is received: so the
 * search is repeated after two seconds, and only processes found both times, with the same entry, count. An
 * outgoing process is frozen until it has left. If one process of a job is stale, all of the job on this host
 * is ended: a rollback replaces the whole job, and processes started since the checkpoint are not part of it.
 */
#include "pbeamd/registry/stale_jobs.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "pbeamd/registry/registry_copy.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/host.h"

enum { LATER_NS = 2000000000 };

struct stale_job {
	struct stale_job *next;
	struct vpid vpid;
	struct rpid rpid;   /* 0: its job has been ended */
	struct rpid keeper; /* its job */
	uint64_t version;   /* of vpid/N */
};

void stale_jobs_away(struct cluster *cluster)
{
	cluster->away_ns = io_now_ns(CLOCK_REALTIME);
}

void stale_jobs_forget(struct cluster *cluster)
{
	while (cluster->stale_jobs) {
		struct stale_job *first = cluster->stale_jobs;

		cluster->stale_jobs = first->next;
		free(first);
	}
}

/* True if it runs here and its entry, of *version, names another host, `host`. */
static bool stale_jobs_is_elsewhere(const struct cluster *cluster, const struct name_process *process,
				    uint64_t *version, char host[static CHANNEL_HOST_MAX])
{
	const Pbeam__RegistryEntry *entry = registry_copy_place(cluster->copy, process->vpid.n, host);

	if (!entry || process->state != NAME_STATE_RUNNING || !strcmp(host, cluster->options->name))
		return false;
	*version = entry->version;
	return true;
}

static int list_processes(const struct cluster *cluster, struct name_process **out)
{
	return names_snapshot(cluster->server->names, (struct rpid){0}, out);
}

void stale_jobs_look(struct cluster *cluster)
{
	auto_free struct name_process *list = NULL;
	char host[CHANNEL_HOST_MAX];
	uint64_t version;
	int n = list_processes(cluster, &list);

	stale_jobs_forget(cluster);
	for (int i = 0; i < n; i++) {
		struct stale_job *new = NULL;

		if (list[i].start_ns < cluster->away_ns &&
		    stale_jobs_is_elsewhere(cluster, &list[i], &version, host))
			new = malloc(sizeof(*new));
		if (!new)
			continue;
		*new = (struct stale_job){cluster->stale_jobs, list[i].vpid, list[i].rpid, list[i].keeper,
					  version};
		cluster->stale_jobs = new;
	}
	cluster->stale_jobs_ns = io_now_ns(CLOCK_MONOTONIC) + LATER_NS;
}

static void end_job(struct cluster *cluster, struct rpid keeper, const char *host)
{
	auto_free struct name_process *list = NULL;
	int n = list_processes(cluster, &list);
	struct name_job job;

	if (names_job_get(cluster->server->names, keeper, &job) == 0)
		log_warn("job %s (vpid %d) was rolled back on host %s while this host was away: its "
			 "processes here are killed",
			 job.name, job.root.n, host);
	for (int i = 0; i < n; i++)
		if (list[i].keeper.n == keeper.n && list[i].state == NAME_STATE_RUNNING &&
		    kill(list[i].rpid.n, SIGKILL) < 0)
			log_debug("vpid %d has ended by itself", list[i].vpid.n);
	for (struct stale_job *s = cluster->stale_jobs; s; s = s->next)
		if (s->keeper.n == keeper.n)
			s->rpid.n = 0;
}

void stale_jobs_tick(struct cluster *cluster, uint64_t now_ns)
{
	const struct host *central = host_find(cluster, cluster->state.host);

	if (!cluster->stale_jobs || now_ns < cluster->stale_jobs_ns)
		return;
	if (central && central->peer && !cluster->central)
		for (const struct stale_job *s = cluster->stale_jobs; s; s = s->next) {
			struct name_process process;
			char host[CHANNEL_HOST_MAX];
			uint64_t version;

			if (names_process_get(cluster->server->names, s->vpid, &process) == 0 &&
			    process.rpid.n == s->rpid.n &&
			    stale_jobs_is_elsewhere(cluster, &process, &version, host) &&
			    version == s->version)
				end_job(cluster, process.keeper, host);
		}
	stale_jobs_forget(cluster); /* away again: the next whole registry starts another search */
}
