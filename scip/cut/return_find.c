/*
 * Finds the images of a rollback, and brings them where they are needed. They belong to a cut, with an image
 * for each part, or to a whole job that was on one host when it was saved; the job may have moved since.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "image/store.h"
#include "proto/message.h"
#include "scip/cut/cut.h"
#include "scip/cut/return.h"

/* ---- the images of each host ---- */

/* Requests the list of images from every host that is up. A host that does not answer has none. */
static void list_hosts_images(struct lead *lead)
{
	Pbeam__CutRequest request = PBEAM__CUT_REQUEST__INIT;

	request.operation = PBEAM__CUT_REQUEST__OPERATION__LOOK;
	request.name = lead->name;
	for (size_t i = 0; i < lead->hosts->n_hosts; i++) {
		const char *host = lead->hosts->hosts[i]->name;
		struct err err = ERR_INIT;
		int channel = lead_host_is_up(lead, host) ? lead_store(lead, host, &err) : -1;
		Pbeam__CutReply *reply = channel < 0 ? NULL : cut_ask(channel, &request, &err);

		if (!reply) { /* the host may just have been lost */
			lead->hosts->hosts[i]->state = PBEAM__HOST_INFO__STATE__LOST;
			log_warn("host %s: %s", host, err.text);
		}
		for (size_t k = 0; reply && k < lead->nknown; k++)
			if (lead->known[k].channel == channel) {
				message_free(lead->known[k].has);
				lead->known[k].has = reply;
			}
	}
}

static const Pbeam__CutImage *image_of(const struct lead_host *host, uint32_t number)
{
	for (size_t i = 0; host->has && i < host->has->n_images; i++)
		if (host->has->images[i]->number == number)
			return host->has->images[i];
	return NULL;
}

static struct lead_host *find_lead_host(struct lead *lead, const char *name)
{
	for (size_t i = 0; i < lead->nknown; i++)
		if (!strcmp(lead->known[i].name, name))
			return &lead->known[i];
	return NULL;
}

/* A host that has this image of the cut (0: the manifest), preferably this one. Images of another cut under
 * the same number do not count. */
static struct lead_host *who_has(struct lead *lead, uint32_t part)
{
	struct lead_host *found = NULL;

	for (size_t i = 0; i < lead->nknown; i++) {
		const Pbeam__CutImage *image = image_of(&lead->known[i], lead->number);
		bool has = image && part == 0;

		for (size_t k = 0; image && k < image->n_parts && part; k++)
			has = has || image->parts[k] == part;
		has = has && return_has_copy(lead->chosen, lead->known[i].name);
		if (has && (!found || !strcmp(lead->known[i].name, lead->own)))
			found = &lead->known[i];
	}
	return found;
}

/* An image of the host that has the same number but is not the chosen one, for instance of an earlier run. It
 * is kept. */
static const Pbeam__LogEntry *find_other_image(const struct lead *lead, const char *host)
{
	for (size_t i = 0; i < lead->log->n_entries; i++) {
		const Pbeam__LogEntry *entry = lead->log->entries[i];

		if (entry != lead->chosen && entry->number == lead->number && return_has_copy(entry, host))
			return entry;
	}
	return NULL;
}

static int check_image_room(const struct lead *lead, const char *host, struct err *err)
{
	const Pbeam__LogEntry *other = find_other_image(lead, host);

	return other && other->cut
		       ? err_set(err, -EEXIST, "host %s has another cut with number %u, in %s; move it away",
				 host, lead->number, other->copies[0]->path)
		       : 0;
}

/* Makes the image available here, from another host if necessary. The manifest becomes a copy where its place
 * is taken. */
static int fetch_image(struct lead *lead, uint32_t part, char path[PATH_MAX], struct err *err)
{
	struct lead_host *host = who_has(lead, part);
	uint32_t as = part || !find_other_image(lead, lead->own) ? part : STORE_COPY;
	int r = store_image_path(lead->name, lead->number, as, path, err);

	if (r == 0 && part)
		r = check_image_room(lead, lead->own, err);
	if (r < 0)
		return r;
	if (!host)
		return err_set(err, -ENOENT, "no host that is up has part %u of checkpoint %u", part,
			       lead->number);
	if (!strcmp(host->name, lead->own))
		return 0;
	r = store_take(lead->name, lead->uuid, lead->number, err);
	lead->copied = lead->copied || as == STORE_COPY;
	if (r == 0)
		r = cut_get_image(host->channel, lead->name, lead->number, part, as, err);
	return r < 0 ? err_wrap(err, r, "host %s", host->name) : 0;
}

static int open_manifest(const char *path, struct image_reader **out, struct err *err)
{
	int r = image_reader_open(out, path, err);

	if (r == 0)
		r = image_reader_verify(*out, err);
	if (r == 0 && !image_reader_manifest(*out)->cut)
		r = err_set(err, -EINVAL, "%s is not a cut over several hosts", path);
	return r;
}

/* ---- the image of a whole job on one host ---- */

/* Describes the whole job as the only part of a cut. */
static int describe_alone(struct lead *lead, const Pbeam__Manifest *manifest)
{
	Pbeam__Cut *cut = lead->alone = message_new(&pbeam__cut__descriptor);
	Pbeam__CutPart *part = cut ? message_add(cut, parts, pbeam__cut_part__descriptor) : NULL;

	if (!part || !(part->job = message_new(&pbeam__job__descriptor)) ||
	    message_string(&part->host, lead->alone_host) < 0 ||
	    message_string(&part->job->uuid, manifest->job->uuid) < 0 ||
	    message_string(&part->job->name, manifest->job->name) < 0)
		return -ENOMEM;
	part->vpid = manifest->job->root_vpid;
	part->processes = (uint32_t)manifest->n_processes;
	for (size_t i = 0; i < manifest->n_processes; i++)
		if (message_append_i32(&part->vpids, &part->n_vpids, manifest->processes[i]->vpid) < 0)
			return -ENOMEM;
	return 0;
}

/* Makes the image available here, as itself or as a copy; *part becomes its number. */
static int fetch_alone(struct lead *lead, uint32_t *part, char path[PATH_MAX], struct err *err)
{
	const char *host = lead->chosen->copies[0]->host;
	bool here = !strcmp(host, lead->own);
	int r = store_image_path(lead->name, lead->number, *part = here ? 0 : STORE_COPY, path, err), channel;

	snprintf(lead->alone_host, sizeof(lead->alone_host), "%s", host);
	lead->copied = true; /* here or, later, on its host */
	if (r < 0 || here)
		return r;
	channel = lead_store(lead, host, err);
	r = channel < 0 ? channel : store_take(lead->name, lead->uuid, 0, err); /* makes the directory */
	if (r >= 0)
		r = cut_get_image(channel, lead->name, lead->number, 0, STORE_COPY, err);
	return r < 0 ? err_wrap(err, r, "host %s", host) : 0;
}

int return_find_alone(struct lead *lead, char path[PATH_MAX], struct err *err)
{
	const Pbeam__Manifest *manifest;
	struct image_reader *image;
	uint32_t part;
	int r = fetch_alone(lead, &part, path, err);

	if (r == 0)
		r = image_reader_open(&image, path, err);
	if (r < 0)
		return r;
	manifest = image_reader_manifest(image);
	if (!manifest->job || !manifest->n_processes || manifest->cut ||
	    manifest->processes[0]->vpid != manifest->job->root_vpid)
		r = err_set(err, -EBADMSG, "%s is not the image of a whole job", path);
	else if (describe_alone(lead, manifest) < 0)
		r = err_code(err, -ENOMEM, "roll back");
	else
		snprintf(lead->uuid, sizeof(lead->uuid), "%s", manifest->job->uuid);
	image_reader_close(image);
	return r;
}

int return_bring_copy(struct lead *lead, struct err *err)
{
	char path[PATH_MAX];
	uint32_t part;
	int r = fetch_alone(lead, &part, path, err), channel;

	if (r < 0 || !strcmp(lead->at, lead->own))
		return r;
	channel = lead_store(lead, lead->at, err);
	r = channel < 0 ? channel
			: cut_put_image(channel, lead->name, lead->uuid, lead->number, part, STORE_COPY, err);
	return r < 0 ? err_wrap(err, r, "host %s", lead->at) : 0;
}

static int bring_alone(struct lead *lead, const struct lead_host *to, struct err *err)
{
	uint32_t part = strcmp(lead->alone_host, lead->own) != 0 ? STORE_COPY : 0;

	if (!strcmp(to->name, lead->alone_host))
		return 0;
	lead->alone->parts[0]->index = STORE_COPY;
	return strcmp(to->name, lead->own) != 0 ? cut_put_image(to->channel, lead->name, lead->uuid,
								lead->number, part, STORE_COPY, err)
						: 0;
}

void return_drop_copies(struct lead *lead)
{
	Pbeam__CutRequest request = PBEAM__CUT_REQUEST__INIT;

	request.operation = PBEAM__CUT_REQUEST__OPERATION__PRUNE;
	request.name = lead->name;
	request.number = lead->number;
	request.part = STORE_COPY;
	if (!lead->copied)
		return;
	lead->copied = false;
	store_drop_copy(lead->name, lead->number);
	for (size_t i = 0; i < lead->nknown; i++)
		if (strcmp(lead->known[i].name, lead->own) != 0)
			message_free(cut_ask(lead->known[i].channel, &request, NULL));
}

/* ---- a cut ---- */

int return_find_cut(struct lead *lead, char path[PATH_MAX], struct image_reader **manifest, struct err *err)
{
	const Pbeam__Manifest *of;
	int r;

	list_hosts_images(lead);
	r = fetch_image(lead, 0, path, err);
	if (r == 0)
		r = open_manifest(path, manifest, err);
	if (r < 0)
		return r;
	of = image_reader_manifest(*manifest);
	if (!of->cut->n_parts)
		return err_set(err, -EBADMSG, "%s has no parts", path);
	snprintf(lead->uuid, sizeof(lead->uuid), "%s", of->job ? of->job->uuid : "");
	return 0;
}

static int bring_image(struct lead *lead, const struct returning *returning, const struct lead_host *to,
		       uint32_t part, struct err *err)
{
	const Pbeam__CutImage *has =
		return_has_copy(lead->chosen, to->name) ? image_of(to, lead->number) : NULL;
	char path[PATH_MAX];
	int r;

	for (size_t i = 0; has && i < has->n_parts; i++)
		if (has->parts[i] == part)
			return 0;
	r = fetch_image(lead, part, path, err);
	if (r == 0)
		r = check_image_room(lead, to->name, err);
	if (r == 0 && strcmp(to->name, lead->own) != 0)
		r = cut_put_image(to->channel, lead->name, lead->uuid, lead->number, part, part, err);
	if (r == 0 && strcmp(to->name, lead->own) != 0 && !find_other_image(lead, to->name) &&
	    !find_other_image(lead, lead->own) &&
	    cut_put_image(to->channel, lead->name, lead->uuid, lead->number, 0, 0, err) < 0) {
		log_info("host %s: %s", to->name, err->text); /* the host does not need it */
		err_clear(err);
	}
	return r < 0 ? err_wrap(err, r, "bring the image of vpid %d to %s", returning->saved->vpid, to->name)
		     : 0;
}

int return_bring_images(struct lead *lead, const struct returning *returning, struct err *err)
{
	int r = lead_store(lead, returning->host, err);
	const struct lead_host *to = r < 0 ? NULL : find_lead_host(lead, returning->host);

	if (!to)
		return err_wrap(err, err->code, "host %s", returning->host);
	if (lead->alone)
		return bring_alone(lead, to, err);
	r = bring_image(lead, returning, to, returning->saved->index, err);
	for (size_t i = 0; i < returning->nwith && r == 0; i++)
		r = bring_image(lead, returning, to, returning->with[i], err);
	return r;
}
