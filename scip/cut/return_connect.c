#include "scip/cut/return.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "proto/frame.h"
#include "proto/message.h"
#include "scip/cut/cut.h"
#include "scip/ends/end_tcp.h"

/* ---- connections ---- */

static int find_host_address(const struct lead *lead, const char *host, ProtobufCBinaryData *out,
			     struct err *err)
{
	for (size_t i = 0; i < lead->hosts->n_hosts; i++) {
		struct inet_address address;

		if (strcmp(lead->hosts->hosts[i]->name, host) == 0 &&
		    inet_address_from_text(lead->hosts->hosts[i]->address, &address))
			return message_bytes(out, &address.any, address.len);
	}
	return err_set(err, -EHOSTUNREACH, "host %s has no address that others can connect to", host);
}

static bool has_connection(const Pbeam__CutPart *part, uint64_t id)
{
	for (size_t i = 0; i < part->n_connections; i++)
		if (part->connections[i] == id)
			return true;
	return false;
}

/* The other part that has the connection, or the same part if it has both ends, because two parts have become
 * one. */
static const struct returning *other_of(const struct returning *v, size_t n, size_t own, uint64_t id)
{
	size_t ends = 0;

	for (size_t i = 0; i < n; i++)
		if (i != own && has_connection(v[i].saved, id))
			return &v[i];
	for (size_t i = 0; i < v[own].saved->n_connections; i++)
		ends += v[own].saved->connections[i] == id;
	return ends == 2 ? &v[own] : NULL;
}

/* One of two ends calls the other: the end of the later part, or the first end listed where both are in one
 * part. */
static bool end_connects(const struct returning *own, const struct returning *other, uint64_t id,
			 const Pbeam__MigrateState *state)
{
	if (other != own)
		return other < own;
	for (size_t i = 0; i < state->n_links; i++)
		if (state->links[i]->id == id)
			return false;
	return true;
}

/* Derives a cookie that only the two ends know from a secret of this rollback. */
static void make_cookie(const uint8_t secret[ACCEPTOR_COOKIE_SIZE], uint64_t id,
			uint8_t cookie[ACCEPTOR_COOKIE_SIZE])
{
	memcpy(cookie, secret, ACCEPTOR_COOKIE_SIZE);
	for (size_t i = 0; i < sizeof(id); i++)
		cookie[i] ^= (uint8_t)(id >> (8 * i));
}

static int add_link(const struct lead *lead, const struct returning *v, size_t n, size_t own, uint64_t id,
		    const uint8_t secret[ACCEPTOR_COOKIE_SIZE], Pbeam__MigrateState *state, struct err *err)
{
	const struct returning *other = other_of(v, n, own, id);
	bool call = other && end_connects(&v[own], other, id, state);
	Pbeam__CutLink *link = message_add(state, links, pbeam__cut_link__descriptor);
	uint8_t cookie[ACCEPTOR_COOKIE_SIZE];

	if (!other)
		return err_set(err, -EBADMSG, "connection %llu has one end only", (unsigned long long)id);
	make_cookie(secret, id, cookie);
	if (!link || message_bytes(&link->cookie, cookie, ACCEPTOR_COOKIE_SIZE) < 0)
		return err_code(err, -ENOMEM, "connections");
	link->id = id;
	link->calls = call;
	link->port4 = other->ready->port4;
	link->port6 = other->ready->port6;
	return find_host_address(lead, other->host, &link->address, err);
}

/* ---- bridges ---- */

static bool part_has_stream(Pbeam__CutStreamName *const *streams, size_t n, const Pbeam__CutStreamName *name)
{
	for (size_t i = 0; i < n; i++)
		if (streams[i]->id == name->id && message_same_bytes(&streams[i]->cookie, &name->cookie))
			return true;
	return false;
}

/* Adds the new cookie of the bridge whose anchors are in part `at`, derived from a secret of this rollback.
 */
static int add_stream(const struct returning *v, size_t at, const Pbeam__CutStreamName *name,
		      const uint8_t secret[ACCEPTOR_COOKIE_SIZE], Pbeam__MigrateState *state, struct err *err)
{
	Pbeam__CutStream *stream = message_add(state, streams, pbeam__cut_stream__descriptor);
	uint8_t cookie[ACCEPTOR_COOKIE_SIZE];

	if (name->cookie.len != sizeof(cookie))
		return err_set(err, -EBADMSG, "the manifest of the cut is malformed");
	make_cookie(secret, at + 1, cookie);
	for (size_t i = 0; i < sizeof(cookie); i++)
		cookie[i] ^= name->cookie.data[i];
	if (!stream || message_bytes(&stream->saved, name->cookie.data, name->cookie.len) < 0 ||
	    message_bytes(&stream->cookie, cookie, sizeof(cookie)) < 0 ||
	    message_string(&stream->host, v[at].host) < 0)
		return err_code(err, -ENOMEM, "bridges");
	stream->id = name->id;
	return 0;
}

static int add_shared_streams(const struct returning *v, size_t n, size_t own,
			      const uint8_t secret[ACCEPTOR_COOKIE_SIZE], Pbeam__MigrateState *state,
			      struct err *err)
{
	const Pbeam__CutPart *part = v[own].saved;
	int r = 0;

	for (size_t i = 0; i < part->n_anchors && r == 0; i++)
		r = add_stream(v, own, part->anchors[i], secret, state, err);
	for (size_t i = 0; i < part->n_floats && r == 0; i++) {
		size_t at = 0;

		while (at < n &&
		       !part_has_stream(v[at].saved->anchors, v[at].saved->n_anchors, part->floats[i]))
			at++;
		r = at < n ? add_stream(v, at, part->floats[i], secret, state, err)
			   : err_set(err, -EBADMSG, "a bridge has one end only");
	}
	return r;
}

/* ---- processes and their stubs ---- */

static bool lists_vpid(const int32_t *list, size_t n, int32_t vpid)
{
	for (size_t i = 0; i < n; i++)
		if (list[i] == vpid)
			return true;
	return false;
}

const struct returning *return_find_relation(const struct returning *v, size_t n, const struct returning *own,
					     int32_t vpid, bool stubs)
{
	for (size_t i = 0; i < n; i++) {
		const Pbeam__CutPart *part = v[i].saved;

		if (&v[i] != own && !strcmp(part->job->uuid, own->saved->job->uuid) &&
		    (stubs ? lists_vpid(part->stubs, part->n_stubs, vpid)
			   : lists_vpid(part->guests, part->n_guests, vpid)))
			return &v[i];
	}
	return NULL;
}

int return_connect(const struct lead *lead, const struct returning *v, size_t n, struct err *err)
{
	uint8_t secret[ACCEPTOR_COOKIE_SIZE];
	int r = 0;

	if (getrandom(secret, sizeof(secret), 0) != sizeof(secret))
		return err_sys(err, "make a cookie");
	for (size_t i = 0; i < n && r == 0; i++) {
		Pbeam__MigrateState *state = message_new(&pbeam__migrate_state__descriptor);

		r = state ? 0 : err_code(err, -ENOMEM, "connections");
		for (size_t k = 0; r == 0 && k < v[i].saved->n_connections; k++)
			r = add_link(lead, v, n, i, v[i].saved->connections[k], secret, state, err);
		if (r == 0)
			r = add_shared_streams(v, n, i, secret, state, err);
		if (r == 0)
			r = frame_send(v[i].channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_STATE, &state->base,
				       NULL, 0, err);
		message_free(state);
	}
	return r;
}
