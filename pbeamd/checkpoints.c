#include "pbeamd/checkpoints.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "proto/message.h"

enum { ENTRIES_MOST = 65536, UUID_MAX = 40 };

static int note(Pbeam__CheckpointLog *all, const char *host, const char *why)
{
	char text[ERR_TEXT_MAX + 128];

	snprintf(text, sizeof(text), "host %s %s; its checkpoints are not shown", host, why);
	return message_append_string(&all->notes, &all->n_notes, text);
}

static bool is_sane(const Pbeam__LogEntry *entry)
{
	return entry->number && entry->n_copies == 1 && strlen(entry->copies[0]->path) < PATH_MAX &&
	       strlen(entry->job) < UUID_MAX && strlen(entry->problem) < ERR_TEXT_MAX;
}

static bool is_same_image(const Pbeam__LogEntry *a, const Pbeam__LogEntry *b)
{
	return a->number == b->number && a->created_ns == b->created_ns && a->bytes == b->bytes &&
	       a->cut == b->cut && !strcmp(a->job, b->job) && !a->problem[0] && !b->problem[0];
}

static Pbeam__LogEntry *find(const Pbeam__CheckpointLog *all, const Pbeam__LogEntry *entry)
{
	for (size_t i = 0; i < all->n_entries; i++)
		if (is_same_image(all->entries[i], entry))
			return all->entries[i];
	return NULL;
}

/* Takes the entry out of `from`. */
static int add(Pbeam__CheckpointLog *all, const char *host, Pbeam__LogEntry **from)
{
	Pbeam__LogEntry *entry = *from, *there = find(all, entry);
	Pbeam__LogCopy *copy;
	int r = message_string(&entry->copies[0]->host, host);

	if (r < 0)
		return r;
	if (!there) {
		*from = NULL;
		return message_append(&all->entries, &all->n_entries, &entry->base);
	}
	copy = message_add(there, copies, pbeam__log_copy__descriptor);
	return !copy || message_string(&copy->host, host) < 0
		       ? -ENOMEM
		       : message_string(&copy->path, entry->copies[0]->path);
}

static bool is_list_sane(const Pbeam__CheckpointLog *part)
{
	if (part->n_entries > ENTRIES_MOST || strlen(part->job) >= UUID_MAX)
		return false;
	for (size_t i = 0; i < part->n_entries; i++)
		if (!is_sane(part->entries[i]))
			return false;
	return true;
}

static int take_list(Pbeam__CheckpointLog *all, const char *host, Pbeam__CheckpointLog *part)
{
	size_t left = 0;
	int r = 0;

	if (!part || !is_list_sane(part))
		return note(all, host, "gives a malformed answer");
	if (strcmp(part->store, all->store) != 0) /* what it calls so is something else */
		return 0;
	if (part->live && !all->live)
		r = message_string(&all->job, part->job);
	all->live = all->live || part->live;
	for (size_t i = 0; i < part->n_entries && r == 0; i++)
		r = add(all, host, &part->entries[i]);
	for (size_t i = 0; i < part->n_entries; i++) /* some have gone over */
		if (part->entries[i])
			part->entries[left++] = part->entries[i];
	part->n_entries = left;
	return r;
}

static int take_failure(Pbeam__CheckpointLog *all, const char *host, const Pbeam__Failed *failed)
{
	char why[ERR_TEXT_MAX + 16];

	if (failed && failed->code == -ESRCH)
		return 0;
	if (failed && failed->code == -ECONNRESET) /* it has just been lost */
		return note(all, host, "does not answer");
	snprintf(why, sizeof(why), "refuses (%.*s)", ERR_TEXT_MAX - 1, failed ? failed->text : "?");
	return note(all, host, why);
}

int checkpoints_take(Pbeam__CheckpointLog *all, const char *host, uint32_t type, const void *body, size_t len)
{
	ProtobufCMessage *answer = NULL;
	int r;

	if (type == PBEAM__DAEMON_REQUEST__DAEMON_REPLY) {
		answer = protobuf_c_message_unpack(&pbeam__checkpoint_log__descriptor, NULL, len, body);
		r = take_list(all, host, (Pbeam__CheckpointLog *)(void *)answer);
	} else if (type == PBEAM__DAEMON_REQUEST__DAEMON_FAILED) {
		answer = protobuf_c_message_unpack(&pbeam__failed__descriptor, NULL, len, body);
		r = take_failure(all, host, (const Pbeam__Failed *)(const void *)answer);
	} else {
		r = note(all, host, "does not answer");
	}
	message_free(answer);
	return r;
}

/* ---- their order ---- */

static int by_number(const void *a, const void *b)
{
	const Pbeam__LogEntry *x = *(Pbeam__LogEntry *const *)a, *y = *(Pbeam__LogEntry *const *)b;

	if (x->number != y->number)
		return x->number < y->number ? -1 : 1;
	if (x->created_ns != y->created_ns)
		return x->created_ns < y->created_ns ? -1 : 1;
	return strcmp(x->copies[0]->host, y->copies[0]->host);
}

static int by_host(const void *a, const void *b)
{
	return strcmp((*(Pbeam__LogCopy *const *)a)->host, (*(Pbeam__LogCopy *const *)b)->host);
}

static void order_copies(Pbeam__LogEntry *entry, const char *here)
{
	size_t own = 0;

	qsort(entry->copies, entry->n_copies, sizeof(Pbeam__LogCopy *), by_host);
	while (own < entry->n_copies && strcmp(entry->copies[own]->host, here) != 0)
		own++;
	for (; own < entry->n_copies && own > 0; own--) {
		Pbeam__LogCopy *earlier = entry->copies[own - 1];

		entry->copies[own - 1] = entry->copies[own];
		entry->copies[own] = earlier;
	}
}

void checkpoints_order(Pbeam__CheckpointLog *all)
{
	for (size_t i = 0; i < all->n_entries; i++)
		order_copies(all->entries[i], all->here);
	if (all->n_entries)
		qsort(all->entries, all->n_entries, sizeof(Pbeam__LogEntry *), by_number);
}
