/*
 * Joins parts of one job that go to the same host. What connects them becomes internal. The host joins their
 * images (cut_join.h).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/message.h"
#include "scip/cut/return.h"

static bool list_has_vpid(const int32_t *list, size_t n, int32_t vpid)
{
	for (size_t i = 0; i < n; i++)
		if (list[i] == vpid)
			return true;
	return false;
}

static int add_numbers(int32_t **to, size_t *n, const int32_t *from, size_t nfrom)
{
	int r = 0;

	for (size_t i = 0; i < nfrom && r == 0; i++)
		r = message_append_i32(to, n, from[i]);
	return r;
}

static int append_streams(Pbeam__CutStreamName ***to, size_t *n, Pbeam__CutStreamName *const *from,
			  size_t nfrom)
{
	for (size_t i = 0; i < nfrom; i++) {
		Pbeam__CutStreamName *stream = message_append_new(to, n, &pbeam__cut_stream_name__descriptor);

		if (!stream || message_bytes(&stream->cookie, from[i]->cookie.data, from[i]->cookie.len) < 0)
			return -ENOMEM;
		stream->id = from[i]->id;
	}
	return 0;
}

static int append_part(Pbeam__CutPart *to, const Pbeam__CutPart *part)
{
	int r = add_numbers(&to->vpids, &to->n_vpids, part->vpids, part->n_vpids);

	to->processes += part->processes;
	if (r == 0)
		r = add_numbers(&to->stubs, &to->n_stubs, part->stubs, part->n_stubs);
	if (r == 0)
		r = add_numbers(&to->guests, &to->n_guests, part->guests, part->n_guests);
	for (size_t i = 0; i < part->n_connections && r == 0; i++)
		r = message_append_u64(&to->connections, &to->n_connections, part->connections[i]);
	if (r == 0)
		r = append_streams(&to->floats, &to->n_floats, part->floats, part->n_floats);
	return r < 0 ? r : append_streams(&to->anchors, &to->n_anchors, part->anchors, part->n_anchors);
}

static Pbeam__CutPart *duplicate_part(const Pbeam__CutPart *part)
{
	Pbeam__CutPart *copy = message_new(&pbeam__cut_part__descriptor);

	if (!copy || !(copy->job = message_new(&pbeam__job__descriptor)) ||
	    message_string(&copy->job->uuid, part->job->uuid) < 0 ||
	    message_string(&copy->job->name, part->job->name) < 0 ||
	    message_string(&copy->host, part->host) < 0 || append_part(copy, part) < 0) {
		message_free(copy);
		return NULL;
	}
	copy->index = part->index;
	copy->vpid = part->vpid;
	return copy;
}

/* Removes processes and stubs that are now in the same part. */
static void unite_relations(Pbeam__CutPart *part)
{
	size_t stubs = 0, guests = 0, nstubs = part->n_stubs;

	for (size_t i = 0; i < nstubs; i++)
		if (!list_has_vpid(part->guests, part->n_guests, part->stubs[i])) {
			int32_t stub = part->stubs[i];

			part->stubs[i] = part->stubs[stubs];
			part->stubs[stubs++] = stub;
		}
	/* The removed stubs are behind those that stay. */
	for (size_t i = 0; i < part->n_guests; i++)
		if (!list_has_vpid(part->stubs + stubs, nstubs - stubs, part->guests[i]))
			part->guests[guests++] = part->guests[i];
	part->n_stubs = stubs;
	part->n_guests = guests;
}

static bool streams_have(Pbeam__CutStreamName *const *streams, size_t n, const Pbeam__CutStreamName *name)
{
	for (size_t i = 0; i < n; i++)
		if (streams[i]->id == name->id && message_same_bytes(&streams[i]->cookie, &name->cookie))
			return true;
	return false;
}

/* Removes bridges whose two ends are now in the same part. */
static void unite_streams(Pbeam__CutPart *part)
{
	Pbeam__CutStreamName **const anchors = part->anchors, **const floats = part->floats;
	size_t kept = 0, left = 0, n = part->n_anchors;

	for (size_t i = 0; i < n; i++)
		if (!streams_have(floats, part->n_floats, anchors[i])) {
			Pbeam__CutStreamName *anchor = anchors[i];

			anchors[i] = anchors[kept];
			anchors[kept++] = anchor;
		}
	for (size_t i = 0; i < part->n_floats; i++)
		if (streams_have(anchors + kept, n - kept, floats[i]))
			message_free(floats[i]);
		else
			floats[left++] = floats[i];
	for (size_t i = kept; i < n; i++)
		message_free(anchors[i]);
	part->n_anchors = kept;
	part->n_floats = left;
}

static bool return_to_same_host(const struct returning *a, const struct returning *b)
{
	return a != b && !strcmp(a->host, b->host) && !strcmp(a->saved->job->uuid, b->saved->job->uuid);
}

/* True if a process of another part of the same host is above its first process. */
static bool is_below(const struct returning *v, size_t n, const struct returning *own)
{
	const Pbeam__CutPart *saved = own->saved;

	if (!list_has_vpid(saved->guests, saved->n_guests, saved->vpid))
		return false;
	for (size_t i = 0; i < n; i++)
		if (return_to_same_host(&v[i], own) &&
		    list_has_vpid(v[i].saved->stubs, v[i].saved->n_stubs, saved->vpid))
			return true;
	return false;
}

/* Adds `more` to `first`. */
static int unite_parts(struct returning *first, const struct returning *more, struct err *err)
{
	if (!first->own)
		first->saved = first->own = duplicate_part(first->saved);
	if (!first->own || append_part(first->own, more->saved) < 0 ||
	    message_append_u32(&first->with, &first->nwith, more->saved->index) < 0)
		return err_code(err, -ENOMEM, "the parts of the cut");
	/* If the job has a keeper there, it gets all of it. */
	first->revive = first->revive && more->revive;
	return 0;
}

int return_join(struct returning *v, size_t *n, struct err *err)
{
	size_t kept = 0;
	int r = 0;

	for (size_t i = 0; i < *n; i++) { /* parts that are above others come first */
		size_t top = i;

		for (size_t k = i + 1; k < *n && is_below(v, *n, &v[top]); k++)
			if (return_to_same_host(&v[k], &v[top]) && !is_below(v, *n, &v[k]))
				top = k;
		if (top != i) {
			struct returning first = v[top];

			v[top] = v[i];
			v[i] = first;
		}
	}
	for (size_t i = 0; i < *n && r == 0; i++) {
		struct returning *first = NULL;

		for (size_t k = 0; k < kept && !first; k++)
			if (return_to_same_host(&v[k], &v[i]))
				first = &v[k];
		if (first)
			r = unite_parts(first, &v[i], err);
		else
			v[kept++] = v[i];
	}
	if (r < 0)
		return r;
	*n = kept;
	for (size_t i = 0; i < kept; i++)
		if (v[i].own) {
			unite_relations(v[i].own);
			unite_streams(v[i].own);
		}
	return 0;
}
