/*
 * Chooses a host for each part: the host where its first process is now or, if nothing of the part runs, the
 * host where it was saved; --on chooses another one. One keeper has everything that a host has of a job. So
 * two parts of one job that go to the same host are joined (return_join.c), and processes of the job on other
 * hosts end.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/message.h"
#include "scip/arrival/arrival.h"
#include "scip/cut/lead.h"
#include "scip/cut/return.h"

/* --on FROM=TO for this host: TO, or NULL. */
static const char *find_mapped_host(const Pbeam__RollbackRequest *wish, const char *host)
{
	size_t len = strlen(host);

	for (size_t i = 0; i < wish->n_on; i++)
		if (!strncmp(wish->on[i], host, len) && wish->on[i][len] == '=')
			return wish->on[i] + len + 1;
	return NULL;
}

/* The host where the part's first process is now, or NULL. */
static const char *where_now(const Pbeam__ProcessList *list, const Pbeam__CutPart *part)
{
	for (size_t i = 0; i < list->n_processes; i++)
		if (list->processes[i]->vpid == part->vpid &&
		    !strcmp(list->processes[i]->job_uuid, part->job->uuid))
			return list->processes[i]->host;
	return NULL;
}

/* True if a part is on the host, or was when it was saved. */
static bool is_of(const struct lead *lead, const Pbeam__Cut *cut, const char *host, size_t len)
{
	for (size_t i = 0; i < cut->n_parts; i++) {
		const Pbeam__CutPart *part = cut->parts[i];
		const char *now = where_now(lead->processes, part);

		if ((strlen(part->host) == len && !strncmp(part->host, host, len)) ||
		    (now && strlen(now) == len && !strncmp(now, host, len)))
			return true;
	}
	return false;
}

static int check_maps(const struct lead *lead, const Pbeam__Cut *cut, const Pbeam__RollbackRequest *wish,
		      struct err *err)
{
	for (size_t i = 0; i < wish->n_on; i++) {
		const char *to = strchr(wish->on[i], '=');

		if (!to || to == wish->on[i] || !to[1])
			return err_set(err, -EINVAL, "--on %s: expected HOST=HOST", wish->on[i]);
		if (!is_of(lead, cut, wish->on[i], (size_t)(to - wish->on[i])))
			return err_set(err, -EINVAL,
				       "--on %s: nothing of it is, or was, on host %.*s; `pbeamctl ps` and "
				       "`pbeamctl hosts` tell",
				       wish->on[i], (int)(to - wish->on[i]), wish->on[i]);
		if (!lead_host_is_up(lead, to + 1))
			return err_set(err, -EHOSTUNREACH,
				       "--on %s: there is no host %s that is up; `pbeamctl "
				       "hosts` lists all",
				       wish->on[i], to + 1);
	}
	return 0;
}

static int refuse_lost_host(const struct returning *returning, struct err *err)
{
	return err_set(err, -EHOSTUNREACH,
		       "host %s, which had vpid %d (%s), is lost; say where it is to go: --on %s=HOST",
		       returning->host, returning->saved->vpid, returning->saved->job->name, returning->host);
}

static void place_part(const Pbeam__ProcessList *list, const Pbeam__RollbackRequest *wish,
		       struct returning *returning)
{
	const Pbeam__CutPart *part = returning->saved;
	const char *now = where_now(list, part), *host = now ? now : part->host,
		   *to = find_mapped_host(wish, host);

	if (!now && to)
		host = to;
	else if (to && strcmp(to, host) != 0)
		snprintf(returning->then, sizeof(returning->then), "%s", to);
	snprintf(returning->host, sizeof(returning->host), "%s", host);
	returning->revive = !now;
}

static int check_up(const struct lead *lead, const struct returning *returning, struct err *err)
{
	return lead_host_is_up(lead, returning->host) ? 0 : refuse_lost_host(returning, err);
}

static bool is_on(const struct returning *returning, const char *host, const char *uuid)
{
	return !strcmp(returning->host, host) && !strcmp(returning->saved->job->uuid, uuid);
}

/* The first process of this part has since moved to the host of another part: it is restored where it was
 * saved, if possible. */
static void separate_part(const struct lead *lead, const Pbeam__RollbackRequest *wish,
			  const struct returning *v, size_t n, struct returning *returning)
{
	const char *to = find_mapped_host(wish, returning->saved->host),
		   *host = to ? to : returning->saved->host;
	bool together = false;

	for (size_t i = 0; i < n; i++)
		together = together ||
			   (&v[i] != returning && is_on(&v[i], returning->host, returning->saved->job->uuid));
	if (returning->revive || !together || !strcmp(host, returning->host) || !lead_host_is_up(lead, host))
		return;
	snprintf(returning->host, sizeof(returning->host), "%s", host);
	returning->then[0] = 0;
	returning->revive = true;
}

/* ---- what else runs ---- */

static const struct returning *find_on(const struct returning *v, size_t n, const char *host,
				       const char *uuid)
{
	for (size_t i = 0; i < n; i++)
		if ((!host || !strcmp(v[i].host, host)) && !strcmp(v[i].saved->job->uuid, uuid))
			return &v[i];
	return NULL;
}

static int add_stale_end(struct returning *v, const Pbeam__ProcessInfo *info, struct err *err)
{
	Pbeam__CutPart *none = message_new(&pbeam__cut_part__descriptor);

	*v = (struct returning){.saved = none, .own = none, .channel = -1, .ends = true};
	if (!none || !(none->job = message_new(&pbeam__job__descriptor)) ||
	    message_string(&none->job->uuid, info->job_uuid) < 0 ||
	    message_string(&none->job->name, info->job_name) < 0)
		return err_code(err, -ENOMEM, "the parts of the cut");
	none->vpid = info->job;
	snprintf(v->host, sizeof(v->host), "%s", info->host);
	return 0;
}

/* Adds the hosts where the job has processes and no part goes. */
static int add_ends(const Pbeam__ProcessList *list, struct returning **v, size_t *n, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < list->n_processes && r == 0; i++) {
		const Pbeam__ProcessInfo *info = list->processes[i];
		struct returning *more;

		if (!find_on(*v, *n, NULL, info->job_uuid) || find_on(*v, *n, info->host, info->job_uuid))
			continue;
		more = reallocarray(*v, *n + 1, sizeof(**v));
		if (!more)
			return err_code(err, -ENOMEM, "the parts of the cut");
		*v = more;
		r = add_stale_end(&more[(*n)++], info, err);
	}
	return r;
}

bool return_is_first(const struct returning *returning)
{
	const Pbeam__CutPart *saved = returning->saved;

	for (size_t i = 0; i < saved->n_guests; i++)
		if (saved->guests[i] == saved->vpid)
			return false;
	return true;
}

/* The console stays on its host as long as the job and that host exist. */
static int find_home(const struct lead *lead, const struct returning *v, size_t n,
		     struct returning *returning, struct err *err)
{
	const struct returning *first = returning;
	char host[64], stub_host[64];
	int r = 0;

	for (size_t i = 0; i < n && (first->ends || !return_is_first(first)); i++)
		if (!strcmp(v[i].saved->job->uuid, returning->saved->job->uuid) && !v[i].ends &&
		    return_is_first(&v[i]))
			first = &v[i];
	if (!first->revive)
		r = record_place(first->saved->vpid, host, stub_host, returning->home, err);
	if (first->revive || !lead_host_is_up(lead, returning->home))
		snprintf(returning->home, sizeof(returning->home), "%s", first->host);
	return r;
}

void return_free(struct returning *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (v[i].channel >= 0)
			close(v[i].channel);
		message_free(v[i].ready);
		message_free(v[i].own);
		free(v[i].with);
	}
	free(v);
}

static int place_all(struct lead *lead, const Pbeam__Cut *cut, const Pbeam__RollbackRequest *wish,
		     struct returning *v, size_t n, struct err *err)
{
	int r = check_maps(lead, cut, wish, err);

	for (size_t i = 0; i < n && r == 0; i++)
		place_part(lead->processes, wish, &v[i]);
	for (size_t i = n; i-- > 0 && r == 0;)
		separate_part(lead, wish, v, n, &v[i]);
	for (size_t i = 0; i < n && r == 0; i++)
		r = check_up(lead, &v[i], err);
	return r;
}

int return_place(struct lead *lead, const Pbeam__Cut *cut, const Pbeam__RollbackRequest *wish,
		 struct returning **v, size_t *n, struct err *err)
{
	int r = 0;

	*n = 0;
	*v = calloc(cut->n_parts + 1, sizeof(**v));
	if (!*v)
		return err_code(err, -ENOMEM, "roll back");
	for (; *n < cut->n_parts && r == 0; ++*n) {
		(*v)[*n] = (struct returning){.saved = cut->parts[*n], .channel = -1};
		if (!cut->parts[*n]->job)
			r = err_set(err, -EBADMSG, "the manifest of the cut is malformed");
	}
	if (r == 0)
		r = place_all(lead, cut, wish, *v, *n, err);
	if (r == 0)
		r = return_join(*v, n, err);
	if (r == 0)
		r = add_ends(lead->processes, v, n, err);
	for (size_t i = 0; i < *n && r == 0; i++)
		r = find_home(lead, *v, *n, &(*v)[i], err);
	return r;
}
