#include "pbeamd/services/checkpoints.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/err.h"
#include "proto/message.h"
#include "proto/rpc.h"

enum { ENTRIES_MOST = 65536, UUID_MAX = 40 };

static int checkpoints_add_note(Pbeam__CheckpointLog *all, const char *host, const char *why)
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

/* Takes the entry out of `from`. */
static int checkpoints_add_entry(Pbeam__CheckpointLog *all, const char *host, Pbeam__LogEntry **from)
{
	Pbeam__LogEntry *entry = *from;
	int r = message_string(&entry->copies[0]->host, host);

	if (r < 0)
		return r;
	*from = NULL;
	return message_append(&all->entries, &all->n_entries, &entry->base);
}

static bool is_list_sane(const Pbeam__CheckpointLog *part)
{
	if (part->n_entries > ENTRIES_MOST || strlen(part->job) >= UUID_MAX)
		return false;
	for (size_t i = 0; i < part->n_entries; i++)
		if (!is_sane(part->entries[i]) ||
		    (i && part->entries[i]->number <= part->entries[i - 1]->number))
			return false;
	return true;
}

/* Takes over the state of the run from the host that has checkpoints; if several have the name, from this
 * one. */
static int checkpoints_add_live(Pbeam__CheckpointLog *all, const char *host, const Pbeam__CheckpointLog *part)
{
	bool here = !strcmp(host, all->here), is_at = part->at[0] && (here || !all->at[0]);

	if (!part->live || (all->live && !is_at))
		return 0;
	all->live = true;
	all->inner = part->inner;
	return message_string(&all->job, part->job) < 0 ? -ENOMEM
							: message_string(&all->at, is_at ? host : "");
}

static int take_list(Pbeam__CheckpointLog *all, const char *host, Pbeam__CheckpointLog *part)
{
	size_t left = 0;
	int r = 0;

	if (!part || !is_list_sane(part))
		return checkpoints_add_note(all, host, "gives a malformed answer");
	if (strcmp(part->store, all->store) != 0) /* another job has that name there */
		return 0;
	r = checkpoints_add_live(all, host, part);
	for (size_t i = 0; i < part->n_entries && r == 0; i++)
		r = checkpoints_add_entry(all, host, &part->entries[i]);
	for (size_t i = 0; i < part->n_entries; i++) /* some were moved to `all` */
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
	if (failed && failed->code == -ECONNRESET) /* the host has just been lost */
		return checkpoints_add_note(all, host, "does not answer");
	snprintf(why, sizeof(why), "refuses (%.*s)", ERR_TEXT_MAX - 1, failed ? failed->text : "?");
	return checkpoints_add_note(all, host, why);
}

int checkpoints_take(Pbeam__CheckpointLog *all, const char *host, uint32_t type, const void *body, size_t len)
{
	ProtobufCMessage *answer = NULL;
	int r;

	if (type == PBEAM__RPC__RPC_REPLY) {
		answer = protobuf_c_message_unpack(&pbeam__checkpoint_log__descriptor, NULL, len, body);
		r = take_list(all, host, (Pbeam__CheckpointLog *)(void *)answer);
	} else if (type == PBEAM__RPC__RPC_FAILED) {
		answer = protobuf_c_message_unpack(&pbeam__failed__descriptor, NULL, len, body);
		r = take_failure(all, host, (const Pbeam__Failed *)(const void *)answer);
	} else {
		r = checkpoints_add_note(all, host, "does not answer");
	}
	message_free(answer);
	return r;
}

/* ---- their order ---- */

static int checkpoints_compare_numbers(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

/* 0: the same image. */
static int compare_images(const Pbeam__LogEntry *a, const Pbeam__LogEntry *b)
{
	int r = checkpoints_compare_numbers(a->number, b->number);

	if (r == 0)
		r = checkpoints_compare_numbers(a->created_ns, b->created_ns);
	if (r == 0)
		r = checkpoints_compare_numbers(a->bytes, b->bytes);
	if (r == 0)
		r = checkpoints_compare_numbers(a->cut, b->cut);
	return r ? r : strcmp(a->job, b->job);
}

static int checkpoints_compare_entries(const void *a, const void *b)
{
	const Pbeam__LogEntry *x = *(Pbeam__LogEntry *const *)a, *y = *(Pbeam__LogEntry *const *)b;
	int r = compare_images(x, y);

	return r ? r : strcmp(x->copies[0]->host, y->copies[0]->host);
}

/* The copies of one image, which are beside each other, become one entry. */
static int checkpoints_unite_copies(Pbeam__CheckpointLog *all)
{
	size_t kept = 0;
	int r = 0;

	for (size_t i = 0; i < all->n_entries; i++) {
		Pbeam__LogEntry *entry = all->entries[i], *last = kept ? all->entries[kept - 1] : NULL;

		if (!last || entry->problem[0] || last->problem[0] || compare_images(last, entry) != 0) {
			all->entries[kept++] = entry;
			continue;
		}
		if (message_append(&last->copies, &last->n_copies, &entry->copies[0]->base) < 0)
			r = -ENOMEM;
		entry->n_copies = 0; /* moved to `last` */
		message_free(entry);
	}
	all->n_entries = kept;
	return r;
}

static void put_first(Pbeam__LogEntry *entry, const char *host)
{
	size_t at = 0;

	while (at < entry->n_copies && strcmp(entry->copies[at]->host, host) != 0)
		at++;
	for (; at < entry->n_copies && at > 0; at--) {
		Pbeam__LogCopy *earlier = entry->copies[at - 1];

		entry->copies[at - 1] = entry->copies[at];
		entry->copies[at] = earlier;
	}
}

/* ---- their names ---- */

static bool checkpoints_is_on_host(const Pbeam__LogEntry *entry, const char *host)
{
	for (size_t i = 0; i < entry->n_copies; i++)
		if (!strcmp(entry->copies[i]->host, host))
			return true;
	return false;
}

/* True if the checkpoint belongs to the live run. */
static bool checkpoints_is_of_run(const Pbeam__CheckpointLog *all, const Pbeam__LogEntry *entry)
{
	return all->live && entry->job[0] && !strcmp(entry->job, all->job);
}

/* A checkpoint of an inner process is restored on the host where it was made; a cut of an earlier run would
 * run beside the present one. */
static bool can_be_had(const Pbeam__CheckpointLog *all, const Pbeam__LogEntry *entry)
{
	if (!all->live)
		return true;
	return all->inner ? checkpoints_is_on_host(entry, all->at)
			  : !entry->cut || checkpoints_is_of_run(all, entry);
}

static bool is_preferred(const Pbeam__CheckpointLog *all, const Pbeam__LogEntry *a, const Pbeam__LogEntry *b)
{
	if (can_be_had(all, a) != can_be_had(all, b))
		return can_be_had(all, a);
	if (checkpoints_is_of_run(all, a) != checkpoints_is_of_run(all, b))
		return checkpoints_is_of_run(all, a);
	if (checkpoints_is_on_host(a, all->at) != checkpoints_is_on_host(b, all->at))
		return checkpoints_is_on_host(a, all->at);
	return a->created_ns > b->created_ns;
}

static int checkpoints_name_entry(const Pbeam__CheckpointLog *all, size_t i, size_t first, size_t end)
{
	Pbeam__LogEntry *entry = all->entries[i];
	bool best = true;
	char to[300];

	for (size_t k = first; k < end; k++)
		if (k < i ? !is_preferred(all, entry, all->entries[k])
			  : is_preferred(all, all->entries[k], entry))
			best = false;
	snprintf(to, sizeof(to), best ? "%u" : "%u@%s", entry->number, entry->copies[0]->host);
	return message_string(&entry->to, can_be_had(all, entry) ? to : "");
}

int checkpoints_name(Pbeam__CheckpointLog *all)
{
	size_t first = 0, end;
	int r = 0;

	for (; first < all->n_entries; first = end) {
		for (end = first; end < all->n_entries; end++)
			if (all->entries[end]->number != all->entries[first]->number)
				break;
		for (size_t i = first; i < end && r == 0; i++)
			r = checkpoints_name_entry(all, i, first, end);
	}
	return r;
}

int checkpoints_order(Pbeam__CheckpointLog *all)
{
	int r;

	if (all->n_entries)
		bytes_sort(all->entries, all->n_entries, sizeof(Pbeam__LogEntry *),
			   checkpoints_compare_entries);
	r = checkpoints_unite_copies(all);
	for (size_t i = 0; i < all->n_entries; i++)
		put_first(all->entries[i], all->here);
	return r < 0 ? r : checkpoints_name(all);
}
