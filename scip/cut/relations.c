/*
 * All processes are frozen, so the relations that they report do not change. A stub without a process, or a
 * process without a stub, means that a message between two hosts is still in flight (an exit status, a
 * process that is recalled). The cut fails with -EBUSY, and the user can try again a moment later.
 */
#include "scip/cut/relations.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "proto/message.h"
#include "scip/bridge/bridge.h"

static bool has_stub(const struct lead_part *part, int32_t vpid)
{
	for (size_t i = 0; i < part->relations->n_stubs; i++)
		if (part->relations->stubs[i] == vpid)
			return true;
	return false;
}

static bool has_guest(const struct lead_part *part, int32_t vpid)
{
	for (size_t i = 0; i < part->relations->n_guests; i++)
		if (part->relations->guests[i]->vpid == vpid)
			return true;
	return false;
}

/* Another part of the same job for which `has` is true. */
static const struct lead_part *find_relative(const struct lead *lead, const struct lead_part *own,
					     int32_t vpid,
					     bool (*has)(const struct lead_part *part, int32_t vpid))
{
	for (size_t i = 0; i < lead->nparts; i++) {
		const struct lead_part *part = &lead->parts[i];

		if (part != own && !strcmp(part->uuid, own->uuid) && has(part, vpid))
			return part;
	}
	return NULL;
}

static int refuse_moving(int32_t vpid, struct err *err)
{
	return err_set(err, -EBUSY,
		       "vpid %d is just going to another host, or its end is on its way; try again", vpid);
}

/* The stub of a job's first process stays with its console, in no part. */
static int match_guest(const struct lead *lead, const struct lead_part *part, const Pbeam__CutGuest *guest,
		       struct err *err)
{
	if (find_relative(lead, part, guest->vpid, has_stub) ||
	    !lead_find_part(lead, guest->stub_host, part->uuid))
		return 0;
	return refuse_moving(guest->vpid, err);
}

int relations_match(struct lead *lead, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < lead->nparts; i++) {
		lead->parts[i].relations = lead->parts[i].reply;
		lead->parts[i].reply = NULL;
	}
	for (size_t i = 0; i < lead->nparts && r == 0; i++) {
		const struct lead_part *part = &lead->parts[i];

		for (size_t k = 0; k < part->relations->n_stubs && r == 0; k++)
			if (!find_relative(lead, part, part->relations->stubs[k], has_guest))
				r = refuse_moving(part->relations->stubs[k], err);
		for (size_t k = 0; k < part->relations->n_guests && r == 0; k++)
			r = match_guest(lead, part, part->relations->guests[k], err);
	}
	return r;
}

/* ---- bridges ---- */

static bool is_other_side(const Pbeam__CutBridge *a, const Pbeam__CutBridge *b)
{
	return a->anchor != b->anchor && a->id == b->id && message_same_bytes(&a->cookie, &b->cookie);
}

/* Both ends are in the kernel of one host. */
static bool bridges_match(const Pbeam__CutBridge *a, const Pbeam__CutBridge *b)
{
	if (a->cookie.len || b->cookie.len)
		return false;
	if (a->ino == a->peer) /* a pipe */
		return a->ino == b->ino && a->reads != b->reads;
	return a->ino == b->peer && a->peer == b->ino;
}

static const Pbeam__CutBridge *find_other_end(const struct lead *lead, const struct lead_part *own,
					      const Pbeam__CutBridge *bridge)
{
	for (size_t i = 0; i < lead->nparts; i++) {
		const struct lead_part *part = &lead->parts[i];

		for (size_t k = 0;
		     part != own && !strcmp(part->host, own->host) && k < part->bridged->n_bridges; k++)
			if (bridges_match(bridge, part->bridged->bridges[k]))
				return part->bridged->bridges[k];
	}
	return NULL;
}

static int name_side(Pbeam__CutBridge *side, const uint8_t *cookie, uint64_t id, bool anchor)
{
	side->id = id;
	side->anchor = anchor;
	return message_bytes(&side->cookie, cookie, BRIDGE_COOKIE);
}

/* Two ends of different parts on one host become the two sides of one bridged stream. */
static int join_ends(const struct lead *lead, struct err *err)
{
	uint8_t cookie[BRIDGE_COOKIE];
	uint64_t id = 0;

	if (getrandom(cookie, sizeof(cookie), 0) != sizeof(cookie))
		return err_sys(err, "make a cookie");
	for (size_t i = 0; i < lead->nparts; i++)
		for (size_t k = 0; k < lead->parts[i].bridged->n_bridges; k++) {
			Pbeam__CutBridge *own = lead->parts[i].bridged->bridges[k],
					 *other = (Pbeam__CutBridge *)(uintptr_t)find_other_end(
						 lead, &lead->parts[i], own);

			if (other && (name_side(own, cookie, ++id, true) < 0 ||
				      name_side(other, cookie, id, false) < 0))
				return err_code(err, -ENOMEM, "bridges");
		}
	return 0;
}

int relations_add_joins(const struct lead_part *part, Pbeam__CutRequest *request)
{
	for (size_t i = 0; i < part->bridged->n_bridges; i++) {
		const Pbeam__CutBridge *bridge = part->bridged->bridges[i];
		Pbeam__CutJoin *join;

		if (!bridge->ino || !bridge->cookie.len)
			continue;
		join = message_add(request, joins, pbeam__cut_join__descriptor);
		if (!join || message_bytes(&join->cookie, bridge->cookie.data, bridge->cookie.len) < 0)
			return -ENOMEM;
		join->ino = bridge->ino;
		join->id = bridge->id;
		join->anchor = bridge->anchor;
	}
	return 0;
}

static bool has_other_side(const struct lead *lead, const Pbeam__CutBridge *bridge)
{
	for (size_t i = 0; i < lead->nparts; i++)
		for (size_t k = 0; k < lead->parts[i].bridged->n_bridges; k++)
			if (is_other_side(bridge, lead->parts[i].bridged->bridges[k]))
				return true;
	return false;
}

int relations_match_bridges(struct lead *lead, struct err *err)
{
	for (size_t i = 0; i < lead->nparts; i++) {
		lead->parts[i].bridged = lead->parts[i].reply;
		lead->parts[i].reply = NULL;
	}
	for (size_t i = 0; i < lead->nparts; i++)
		for (size_t k = 0; k < lead->parts[i].bridged->n_bridges; k++) {
			const Pbeam__CutBridge *bridge = lead->parts[i].bridged->bridges[k];

			if (bridge->cookie.len && !has_other_side(lead, bridge))
				return err_set(
					err, -EBUSY,
					"host %s: the other end of a %s is on a host that both its programs "
					"have left, has "
					"just been closed, or is no program's that is saved with it; let "
					"what "
					"is in it be read, or move one of the two there",
					lead->parts[i].host, bridge->text);
		}
	return join_ends(lead, err);
}

/* ---- the manifest ---- */

static int describe_bridges(const struct lead_part *part, Pbeam__CutPart *out)
{
	for (size_t i = 0; i < part->bridged->n_bridges; i++) {
		const Pbeam__CutBridge *bridge = part->bridged->bridges[i];
		Pbeam__CutStreamName *name;

		if (!bridge->cookie.len)
			continue;
		name = bridge->anchor ? message_add(out, anchors, pbeam__cut_stream_name__descriptor)
				      : message_add(out, floats, pbeam__cut_stream_name__descriptor);
		if (!name || message_bytes(&name->cookie, bridge->cookie.data, bridge->cookie.len) < 0)
			return -ENOMEM;
		name->id = bridge->id;
	}
	return 0;
}

int relations_describe(const struct lead *lead, const struct lead_part *part, Pbeam__CutPart *out)
{
	for (size_t i = 0; i < part->relations->n_stubs; i++)
		if (message_append_i32(&out->stubs, &out->n_stubs, part->relations->stubs[i]) < 0)
			return -ENOMEM;
	for (size_t i = 0; i < part->relations->n_guests; i++)
		if (find_relative(lead, part, part->relations->guests[i]->vpid, has_stub) &&
		    message_append_i32(&out->guests, &out->n_guests, part->relations->guests[i]->vpid) < 0)
			return -ENOMEM;
	return describe_bridges(part, out);
}
