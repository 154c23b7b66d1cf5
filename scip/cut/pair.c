/*
 * Two ends belong together when the one's own address is the other's peer and the other way round: real
 * addresses, as the kernels have them at the cut, whatever the programs call them. An address of the loopback
 * means another on each host.
 */
#include "scip/cut/pair.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "proto/message.h"
#include "scip/cut/cut.h"
#include "scip/cut/relations.h"
#include "scip/ends/end_tcp.h"
#include "scip/object/common.h"

struct found {
	struct inet_address own, peer;
	size_t part, at; /* the part, and the index of the end in it */
};

static bool is_loopback(const struct inet_address *address)
{
	struct inet_address plain = inet_in_family(address, AF_INET6);

	return IN6_IS_ADDR_LOOPBACK(&plain.v6.sin6_addr) ||
	       (IN6_IS_ADDR_V4MAPPED(&plain.v6.sin6_addr) && plain.v6.sin6_addr.s6_addr[12] == 127);
}

static bool are_two_ends(const struct lead *lead, const struct found *a, const struct found *b)
{
	if (!inet_same(&a->own, &b->peer) || !inet_same(&a->peer, &b->own))
		return false;
	return !is_loopback(&a->own) || !strcmp(lead->parts[a->part].host, lead->parts[b->part].host);
}

static int list_ends(struct lead *lead, struct found **found, size_t *n, struct err *err)
{
	for (size_t i = 0; i < lead->nparts; i++) {
		struct lead_part *part = &lead->parts[i];

		part->nids = part->reply->n_ends;
		part->ids = calloc(part->nids + 1, sizeof(*part->ids));
		if (!part->ids)
			return err_code(err, -ENOMEM, "list the connections");
		for (size_t k = 0; k < part->nids; k++) {
			struct found one = {.part = i, .at = k};

			if (!inet_address_parse(&part->reply->ends[k]->own, &one.own) ||
			    !inet_address_parse(&part->reply->ends[k]->peer, &one.peer))
				return err_set(err, -EPROTO, "host %s reports a connection without addresses",
					       part->host);
			if (object_append(*found, *n, one) < 0)
				return err_code(err, -ENOMEM, "list the connections");
		}
	}
	return 0;
}

/* Orders ends by their two ports, in either direction, so that the ends of one connection are neighbours. */
static int compare_ports(const void *a, const void *b)
{
	const struct found *v[2] = {a, b};
	unsigned ports[2][2];

	for (int i = 0; i < 2; i++) {
		unsigned own = inet_port(&v[i]->own), peer = inet_port(&v[i]->peer);

		ports[i][0] = own < peer ? own : peer;
		ports[i][1] = own < peer ? peer : own;
	}
	return memcmp(ports[0], ports[1], sizeof(ports[0]));
}

int pair_all(struct lead *lead, struct err *err)
{
	auto_free struct found *found = NULL;
	uint64_t id = 0;
	size_t n = 0;
	int r = list_ends(lead, &found, &n, err);

	if (r < 0 || !n)
		return r;
	bytes_sort(found, n, sizeof(*found), compare_ports);
	for (size_t i = 0; i < n; i++) {
		uint64_t *own = &lead->parts[found[i].part].ids[found[i].at];

		for (size_t k = i + 1; k < n && !*own && compare_ports(&found[i], &found[k]) == 0; k++) {
			uint64_t *other = &lead->parts[found[k].part].ids[found[k].at];

			if (!*other && are_two_ends(lead, &found[i], &found[k]))
				*own = *other = ++id;
		}
	}
	return 0;
}

/* ---- draining ---- */

static int send_ids(const struct lead_part *part, struct err *err)
{
	Pbeam__CutRequest *request = message_new(&pbeam__cut_request__descriptor);
	int r = request ? 0 : -ENOMEM;

	if (r == 0)
		r = relations_add_joins(part, request);
	for (size_t i = 0; i < part->nids && r == 0; i++) {
		Pbeam__CutEnd *end = message_add(request, ends, pbeam__cut_end__descriptor);

		if (end)
			end->id = part->ids[i];
		else
			r = -ENOMEM;
	}
	if (r < 0) {
		err_code(err, r, "drain the connections");
	} else {
		request->operation = PBEAM__CUT_REQUEST__OPERATION__DRAIN;
		r = cut_send(part->channel, request, err);
	}
	message_free(request);
	return r < 0 ? err_wrap(err, r, "host %s", part->host) : 0;
}

static const Pbeam__CutEnd *other_end(const struct lead *lead, const struct lead_part *own, size_t at)
{
	for (size_t i = 0; i < lead->nparts; i++)
		for (size_t k = 0; k < lead->parts[i].nids; k++)
			if (lead->parts[i].ids[k] == own->ids[at] && (&lead->parts[i] != own || k != at))
				return lead->parts[i].reply->ends[k];
	return NULL;
}

static int check_part_room(const struct lead *lead, const struct lead_part *part, size_t at, struct err *err)
{
	const Pbeam__CutEnd *own = part->reply->ends[at],
			    *other = own->waiting ? other_end(lead, part, at) : NULL;
	struct end_tcp_level sender = {.waiting = own->waiting}, receiver;

	if (!other)
		return 0;
	receiver = (struct end_tcp_level){.queued = other->queued, .room = other->room};
	if (end_tcp_fits(&sender, &receiver))
		return 0;
	return err_set(
		err, -EBUSY,
		"a TCP connection has more on its way than its receiver has room for; let the receiver "
		"read, or raise net.ipv4.tcp_rmem");
}

int pair_drain_round(struct lead *lead, uint64_t *waiting, struct err *err)
{
	int r = 0;

	*waiting = 0;
	for (size_t i = 0; i < lead->nparts && r == 0; i++)
		r = send_ids(&lead->parts[i], err);
	for (size_t i = 0; i < lead->nparts && r == 0; i++) {
		struct lead_part *part = &lead->parts[i];

		message_free(part->reply);
		part->reply = cut_receive(part->channel, err);
		if (!part->reply)
			r = err_wrap(err, err->code, "host %s", part->host);
		else if (part->reply->n_ends != part->nids)
			r = err_set(err, -EPROTO, "host %s reports other connections", part->host);
	}
	for (size_t i = 0; i < lead->nparts && r == 0; i++)
		for (size_t k = 0; k < lead->parts[i].nids && r == 0; k++) {
			*waiting += lead->parts[i].reply->ends[k]->waiting;
			r = check_part_room(lead, &lead->parts[i], k, err);
		}
	return r;
}
