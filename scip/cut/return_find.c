/*
 * What is rolled back to, and where it is: the newest checkpoint that any host has, or the one of that
 * number. That is a cut, or the image of a whole job that was on one host when it was made: the job may have
 * gone elsewhere since, and the image is brought there.
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

/* ---- who has what ---- */

/* Asks every host that is up what it has; a host without an answer has nothing. */
static void look(struct lead *lead)
{
	Pbeam__CutRequest request = PBEAM__CUT_REQUEST__INIT;

	request.operation = PBEAM__CUT_REQUEST__OPERATION__LOOK;
	request.name = lead->name;
	for (size_t i = 0; i < lead->hosts->n_hosts; i++) {
		const char *host = lead->hosts->hosts[i]->name;
		struct err err = ERR_INIT;
		int channel = lead_host_is_up(lead, host) ? lead_store(lead, host, &err) : -1;
		Pbeam__CutReply *reply = channel < 0 ? NULL : cut_ask(channel, &request, &err);

		if (!reply) { /* it may have been lost a moment ago */
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

static struct lead_host *find_host(struct lead *lead, const char *name)
{
	for (size_t i = 0; i < lead->nknown; i++)
		if (!strcmp(lead->known[i].name, name))
			return &lead->known[i];
	return NULL;
}

/* An image of this very job, alone. Others of the name are those of earlier jobs. */
static bool is_ours(const struct lead *lead, const Pbeam__CutImage *image)
{
	return lead->uuid[0] && !strcmp(image->job, lead->uuid);
}

static bool is_cut(const Pbeam__CutImage *image)
{
	return image->n_parts > 0;
}

/* A host with that image (0: the manifest); this one first. */
static struct lead_host *who_has(struct lead *lead, uint32_t part)
{
	struct lead_host *found = NULL;

	for (size_t i = 0; i < lead->nknown; i++) {
		const Pbeam__CutImage *image = image_of(&lead->known[i], lead->number);
		bool has = image && part == 0 && image->whole && (is_cut(image) || is_ours(lead, image));

		for (size_t k = 0; image && k < image->n_parts && part; k++)
			has = has || image->parts[k] == part;
		if (has && (!found || !strcmp(lead->known[i].name, lead->own)))
			found = &lead->known[i];
	}
	return found;
}

static int choose(struct lead *lead, uint32_t wish, struct err *err)
{
	uint32_t newest = 0;

	for (size_t i = 0; i < lead->nknown; i++)
		for (size_t k = 0; lead->known[i].has && k < lead->known[i].has->n_images; k++) {
			const Pbeam__CutImage *image = lead->known[i].has->images[k];

			if (image->whole && (is_cut(image) || is_ours(lead, image)) &&
			    image->number > newest && (!wish || image->number == wish))
				newest = image->number;
		}
	lead->number = newest;
	if (newest)
		return 0;
	return wish ? err_set(err, -ENOENT, "there is no checkpoint %u of it on any host", wish)
		    : err_set(err, -ENOENT,
			      "there is no checkpoint of it on any host; make one with `pbeamctl "
			      "checkpoint`");
}

/* The image here, fetched from another host if need be. */
static int fetch(struct lead *lead, uint32_t part, char path[PATH_MAX], struct err *err)
{
	struct lead_host *host = who_has(lead, part);
	int r = store_image_path(lead->name, lead->number, part, path, err);

	if (r < 0)
		return r;
	if (!host)
		return err_set(err, -ENOENT, "no host that is up has part %u of checkpoint %u", part,
			       lead->number);
	if (!strcmp(host->name, lead->own))
		return 0;
	r = store_take(lead->name, lead->uuid, lead->number, err);
	if (r == 0)
		r = cut_get_image(host->channel, lead->name, lead->number, part, part, err);
	return r < 0 ? err_wrap(err, r, "host %s", host->name) : 0;
}

static int open_manifest(const char *path, struct image_reader **out, struct err *err)
{
	int r = image_reader_open(out, path, err);

	if (r == 0)
		r = image_reader_verify(*out, err);
	if (r == 0 && !image_reader_manifest(*out)->cut)
		r = err_set(err, -EINVAL, "%s is no cut over several hosts", path);
	return r;
}

/* ---- the image of a whole job on one host ---- */

/* As if it were the only part of a cut. */
static int describe_alone(struct lead *lead, const Pbeam__Manifest *manifest, const struct lead_host *host)
{
	Pbeam__Cut *cut = lead->alone = message_new(&pbeam__cut__descriptor);
	Pbeam__CutPart *part = cut ? message_add(cut, parts, pbeam__cut_part__descriptor) : NULL;

	if (!part || !(part->job = message_new(&pbeam__job__descriptor)) ||
	    message_string(&part->host, host->name) < 0 ||
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

static int find_alone(struct lead *lead, struct lead_host *host, char path[PATH_MAX],
		      struct image_reader **image, struct err *err)
{
	bool here = !strcmp(host->name, lead->own);
	int r = store_image_path(lead->name, lead->number, here ? 0 : STORE_COPY, path, err);

	strcpy(lead->alone_host, host->name);
	if (r == 0 && !here)
		r = cut_get_image(host->channel, lead->name, lead->number, 0, STORE_COPY, err);
	if (r == 0)
		r = image_reader_open(image, path, err);
	if (r < 0)
		return err_wrap(err, r, "host %s", host->name);
	if (!image_reader_manifest(*image)->job || !image_reader_manifest(*image)->n_processes)
		return err_set(err, -EBADMSG, "%s does not say of which job it is", path);
	r = describe_alone(lead, image_reader_manifest(*image), host);
	return r < 0 ? err_code(err, r, "roll back") : 0;
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
	store_drop_copy(lead->name, lead->number);
	for (size_t i = 0; i < lead->nknown; i++)
		if (strcmp(lead->known[i].name, lead->own) != 0)
			message_free(cut_ask(lead->known[i].channel, &request, NULL));
}

/* ---- what is wished for ---- */

/* Whose checkpoints count, while it runs. */
static int name_job(struct lead *lead, const Pbeam__Target *target, struct err *err)
{
	Pbeam__ProcessList *list = target->vpid > 0 ? lead_list(err) : NULL;

	for (size_t i = 0; list && i < list->n_processes; i++)
		if (list->processes[i]->vpid == target->vpid)
			snprintf(lead->uuid, sizeof(lead->uuid), "%s", list->processes[i]->job_uuid);
	message_free(list);
	return target->vpid > 0 && !list ? err->code : 0;
}

static int open_cut(struct lead *lead, char path[PATH_MAX], struct image_reader **manifest, struct err *err)
{
	const Pbeam__Manifest *of;
	int r = fetch(lead, 0, path, err);

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

int return_find(struct lead *lead, const Pbeam__RollbackRequest *wish, char path[PATH_MAX],
		struct image_reader **manifest, struct err *err)
{
	struct lead_host *host;
	int r;

	snprintf(lead->name, sizeof(lead->name), "%s", wish->target->name);
	r = cut_check_name(lead->name, err);
	if (r == 0)
		r = name_job(lead, wish->target, err);
	if (r == 0) {
		look(lead);
		r = choose(lead, wish->number, err);
	}
	if (r < 0)
		return r;
	host = who_has(lead, 0);
	return host && !is_cut(image_of(host, lead->number)) ? find_alone(lead, host, path, manifest, err)
							     : open_cut(lead, path, manifest, err);
}

int return_bring_image(struct lead *lead, const struct returning *returning, struct err *err)
{
	uint32_t part = returning->saved->index;
	struct lead_host *to = find_host(lead, returning->host);
	const Pbeam__CutImage *has = to ? image_of(to, lead->number) : NULL;
	char path[PATH_MAX];
	int r;

	for (size_t i = 0; has && i < has->n_parts && !lead->alone; i++)
		if (has->parts[i] == part)
			return 0;
	if (!to)
		return err_set(err, -EHOSTUNREACH, "host %s cannot be reached", returning->host);
	if (lead->alone)
		return bring_alone(lead, to, err);
	r = fetch(lead, part, path, err);
	if (r == 0 && strcmp(to->name, lead->own) != 0)
		r = cut_put_image(to->channel, lead->name, lead->uuid, lead->number, part, part, err);
	if (r == 0 && strcmp(to->name, lead->own) != 0 &&
	    cut_put_image(to->channel, lead->name, lead->uuid, lead->number, 0, 0, err) < 0) {
		log_info("host %s: %s", to->name, err->text); /* it can do without */
		err_clear(err);
	}
	return r < 0 ? err_wrap(err, r, "bring the image of vpid %d to %s", returning->saved->vpid, to->name)
		     : 0;
}
