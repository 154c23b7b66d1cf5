/*
 * Where each part is to be: where its first process is now, or, where nothing of it runs, on the host where
 * it was saved; --on takes it elsewhere. A keeper has all that a host has of a job, so two parts of one job
 * do not go to the same host.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "scip/cut/lead.h"
#include "scip/cut/return.h"
#include "scip/migrate/migrate.h"

/* --on FROM=TO for this host: TO, or NULL. */
static const char *mapped(const Pbeam__RollbackRequest *wish, const char *host)
{
	size_t len = strlen(host);

	for (size_t i = 0; i < wish->n_on; i++)
		if (!strncmp(wish->on[i], host, len) && wish->on[i][len] == '=')
			return wish->on[i] + len + 1;
	return NULL;
}

static int check_maps(const struct lead *lead, const Pbeam__RollbackRequest *wish, struct err *err)
{
	for (size_t i = 0; i < wish->n_on; i++) {
		const char *to = strchr(wish->on[i], '=');

		if (!to || to == wish->on[i] || !to[1])
			return err_set(err, -EINVAL, "--on %s: it is HOST=HOST", wish->on[i]);
		if (!lead_host_is_up(lead, to + 1))
			return err_set(err, -EHOSTUNREACH,
				       "--on %s: there is no host %s that is up; `pbeamctl "
				       "hosts` lists all",
				       wish->on[i], to + 1);
	}
	return 0;
}

/* The host where the part's first process is now; NULL when there is none. */
static const char *where_now(const Pbeam__ProcessList *list, const Pbeam__CutPart *part)
{
	for (size_t i = 0; i < list->n_processes; i++)
		if (list->processes[i]->vpid == part->vpid &&
		    !strcmp(list->processes[i]->job_uuid, part->job->uuid))
			return list->processes[i]->host;
	return NULL;
}

static int lost(const struct returning *returning, struct err *err)
{
	return err_set(err, -EHOSTUNREACH,
		       "host %s, which had vpid %d (%s), is lost; say where it is to go: --on %s=HOST",
		       returning->host, returning->saved->vpid, returning->saved->job->name, returning->host);
}

static int place(struct lead *lead, const Pbeam__ProcessList *list, const Pbeam__RollbackRequest *wish,
		 struct returning *returning, struct err *err)
{
	const Pbeam__CutPart *part = returning->saved;
	const char *now = where_now(list, part), *host = now ? now : part->host, *to = mapped(wish, host);

	if (!now && to)
		host = to;
	else if (to && strcmp(to, host) != 0)
		snprintf(returning->then, sizeof(returning->then), "%s", to);
	snprintf(returning->host, sizeof(returning->host), "%s", host);
	returning->revive = !now;
	return lead_host_is_up(lead, host) ? 0 : lost(returning, err);
}

/* Another part of the same job on the same host. */
static const struct returning *find_other(const struct returning *v, size_t n, const struct returning *own)
{
	for (size_t i = 0; i < n; i++)
		if (&v[i] != own && !strcmp(v[i].host, own->host) &&
		    !strcmp(v[i].saved->job->uuid, own->saved->job->uuid))
			return &v[i];
	return NULL;
}

/* Its first process has gone to the host of another part since: it is made again where it was saved. */
static void separate(const Pbeam__RollbackRequest *wish, const struct returning *v, size_t n,
		     struct returning *returning)
{
	const char *to = mapped(wish, returning->saved->host), *host = to ? to : returning->saved->host;

	if (returning->revive || !strcmp(host, returning->host) || !find_other(v, n, returning))
		return;
	snprintf(returning->host, sizeof(returning->host), "%s", host);
	returning->then[0] = 0;
	returning->revive = true;
}

static int check_apart(const struct lead *lead, const struct returning *v, size_t n,
		       const struct returning *returning, struct err *err)
{
	const char *saved = returning->saved->host;
	const struct returning *other = find_other(v, n, returning);

	if (!lead_host_is_up(lead, returning->host))
		return lost(returning, err);
	if (other)
		return err_set(err, -EINVAL,
			       "vpid %d, which was saved on host %s, and vpid %d are of one job and cannot "
			       "be rolled "
			       "back "
			       "on the same host (%s); name another one: --on %s=HOST",
			       returning->saved->vpid, saved, other->saved->vpid, returning->host, saved);
	return 0;
}

static bool has(const int32_t *vpids, size_t n, int32_t vpid)
{
	for (size_t i = 0; i < n; i++)
		if (vpids[i] == vpid)
			return true;
	return false;
}

/* All that the host has of the job is replaced. With `stub` (0: none is meant) its process ends, unless that
 * is another part's, which sees to it itself: then the stub ends without a word. */
static bool is_cleared(const struct returning *v, size_t n, const char *host, const char *uuid, int32_t stub)
{
	for (size_t i = 0; i < n; i++) {
		const Pbeam__CutPart *part = v[i].saved;

		if (!strcmp(v[i].host, host) && !strcmp(part->job->uuid, uuid) &&
		    !has(part->stubs, part->n_stubs, stub))
			return true;
	}
	return false;
}

/* Each process of the cut that runs must be on the host where its part goes, or on one of the same job's,
 * where all is replaced; or its stub must, with which it ends. */
static int check_strays(const struct returning *v, size_t n, const Pbeam__ProcessList *list,
			const struct returning *returning, struct err *err)
{
	const Pbeam__CutPart *saved = returning->saved;
	const char *uuid = saved->job->uuid;
	char host[64], stub_host[64];
	int r = 0;

	for (size_t i = 0; i < list->n_processes && r == 0; i++) {
		const Pbeam__ProcessInfo *info = list->processes[i];

		if (strcmp(info->job_uuid, uuid) != 0 || !has(saved->vpids, saved->n_vpids, info->vpid) ||
		    is_cleared(v, n, info->host, uuid, 0))
			continue;
		r = record_place(info->vpid, host, stub_host, NULL, err);
		if (r == 0 && !is_cleared(v, n, stub_host, uuid, info->vpid))
			r = err_set(
				err, -EBUSY,
				"vpid %d, which is on host %s now, is to be rolled back on %s; end it first "
				"(pbeamctl kill -s KILL %d), or move it there",
				info->vpid, info->host, returning->host, info->vpid);
	}
	return r;
}

/* The console stays where it is as long as the job does. */
static int find_home(const struct returning *v, size_t n, struct returning *returning, struct err *err)
{
	const struct returning *first = returning;
	char host[64], stub_host[64];
	int r = 0;

	for (size_t i = 0; i < n && first->saved->n_guests; i++)
		if (!strcmp(v[i].saved->job->uuid, returning->saved->job->uuid) && !v[i].saved->n_guests)
			first = &v[i];
	if (!first->revive)
		r = record_place(first->saved->vpid, host, stub_host, returning->home, err);
	if (first->revive || !returning->home[0])
		snprintf(returning->home, sizeof(returning->home), "%s", first->host);
	return r;
}

int return_place(struct lead *lead, const Pbeam__Cut *cut, const Pbeam__RollbackRequest *wish,
		 struct returning *v, struct err *err)
{
	const Pbeam__ProcessList *list = lead->processes;
	size_t n = cut->n_parts;
	int r = check_maps(lead, wish, err);

	for (size_t i = 0; i < n; i++)
		v[i] = (struct returning){.saved = cut->parts[i], .channel = -1};
	for (size_t i = 0; i < n && r == 0; i++)
		if (!cut->parts[i]->job)
			r = err_set(err, -EBADMSG, "the manifest of the cut is malformed");
	for (size_t i = 0; i < n && r == 0; i++)
		r = place(lead, list, wish, &v[i], err);
	for (size_t i = n; i-- > 0 && r == 0;)
		separate(wish, v, n, &v[i]);
	for (size_t i = n; i-- > 0 && r == 0;)
		r = check_apart(lead, v, n, &v[i], err);
	for (size_t i = 0; i < n && r == 0; i++)
		r = check_strays(v, n, list, &v[i], err);
	for (size_t i = 0; i < n && r == 0; i++)
		r = find_home(v, n, &v[i], err);
	return r;
}
