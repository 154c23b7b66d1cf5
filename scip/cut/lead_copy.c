/* Makes a cut valid, and lets it survive the loss of any one host. Each part's image is on the host where it
 * was made and on the leader's. The leader's own is on another host, if necessary one without a part. All of
 * these hosts have the manifest. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/log.h"
#include "image/image.h"
#include "image/store.h"
#include "proto/message.h"
#include "scip/capture/capture.h"
#include "scip/cut/cut.h"
#include "scip/cut/lead.h"
#include "scip/cut/relations.h"

enum { KEEP_DEFAULT = 5 };

static bool is_own(const struct lead *lead, const char *host)
{
	return !strcmp(host, lead->own);
}

/* Another host that has a part, else (*spare) any other; NULL if there is none. */
static const char *find_copy_host(const struct lead *lead, bool *spare)
{
	*spare = false;
	for (size_t i = 0; i < lead->nparts; i++)
		if (!is_own(lead, lead->parts[i].host))
			return lead->parts[i].host;
	*spare = true;
	for (size_t i = 0; i < lead->hosts->n_hosts; i++)
		if (!is_own(lead, lead->hosts->hosts[i]->name) &&
		    lead_host_is_up(lead, lead->hosts->hosts[i]->name))
			return lead->hosts->hosts[i]->name;
	return NULL;
}

static int copy_part_to_host(struct lead *lead, const struct lead_part *part, struct err *err)
{
	bool spare = false;
	const char *host = is_own(lead, part->host) ? find_copy_host(lead, &spare) : part->host;
	int r = host ? lead_store(lead, host, err) : 0;

	if (!host)
		return 0;
	if (r < 0)
		; /* it cannot be reached */
	else if (is_own(lead, part->host))
		r = cut_put_image(r, lead->name, lead->uuid, lead->number, part->index, part->index, err);
	else
		r = cut_get_image(r, lead->name, lead->number, part->index, part->index, err);
	if (r < 0 && spare) { /* which the program does not depend on */
		log_warn("%s: host %s has no copy of checkpoint %u: %s", lead->name, host, lead->number,
			 err->text);
		err_clear(err);
		return 0;
	}
	return r < 0 ? err_wrap(err, r, "copy the image of vpid %d (host %s)", part->vpid, host) : 0;
}

/* ---- the manifest ---- */

static int describe_part(const struct lead *lead, const struct lead_part *part, Pbeam__CutPart *out)
{
	const Pbeam__CutSaved *saved = part->saved->saved;

	out->index = part->index;
	out->vpid = part->vpid;
	out->bytes = saved->bytes;
	out->processes = saved->processes;
	out->threads = saved->threads;
	out->job = message_new(&pbeam__job__descriptor);
	if (!out->job || message_string(&out->host, part->host) < 0 ||
	    message_string(&out->job->uuid, part->uuid) < 0 || message_string(&out->job->name, part->job) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < part->outside->n_outside; i++)
		if (message_append_string(&out->outside, &out->n_outside, part->outside->outside[i]) < 0)
			return -ENOMEM;
	for (size_t i = 0; i < part->nids; i++)
		if (part->ids[i] &&
		    message_append_u64(&out->connections, &out->n_connections, part->ids[i]) < 0)
			return -ENOMEM;
	out->vpids = calloc(saved->n_vpids + 1, sizeof(*out->vpids));
	if (!out->vpids)
		return -ENOMEM;
	out->n_vpids = saved->n_vpids;
	bytes_copy(out->vpids, saved->vpids, saved->n_vpids * sizeof(*out->vpids));
	return relations_describe(lead, part, out);
}

static int describe_cut(const struct lead *lead, Pbeam__Manifest *manifest, struct err *err)
{
	int r = capture_describe_host(NULL, manifest, err);

	manifest->cut = message_new(&pbeam__cut__descriptor);
	manifest->job = message_new(&pbeam__job__descriptor);
	if (r == 0 &&
	    (!manifest->cut || !manifest->job || message_string(&manifest->cut->name, lead->name) < 0 ||
	     message_string(&manifest->job->name, lead->group ? "" : lead->parts[0].job) < 0 ||
	     message_string(&manifest->job->uuid, lead->uuid) < 0))
		r = -ENOMEM;
	if (r < 0)
		return err->code ? err->code : err_code(err, r, "describe the cut");
	manifest->cut->number = lead->number;
	manifest->job->root_vpid = lead->group ? 0 : lead->parts[0].vpid;
	for (size_t i = 0; i < lead->nparts && r == 0; i++) {
		Pbeam__CutPart *part = message_add(manifest->cut, parts, pbeam__cut_part__descriptor);

		r = part ? describe_part(lead, &lead->parts[i], part) : -ENOMEM;
		if (lead->parts[i].saved->saved->pause_ns > manifest->pause_ns)
			manifest->pause_ns = lead->parts[i].saved->saved->pause_ns;
	}
	return r < 0 ? err_code(err, r, "describe the cut") : 0;
}

static int write_manifest(const struct lead *lead, const char *path, struct err *err)
{
	Pbeam__Manifest *manifest = message_new(&pbeam__manifest__descriptor);
	struct image_writer *writer = NULL;
	uint64_t bytes;
	int r = manifest ? describe_cut(lead, manifest, err) : err_code(err, -ENOMEM, "describe the cut");

	if (r == 0)
		r = image_writer_open(&writer, path, 0, err);
	if (r == 0)
		r = image_writer_commit(writer, manifest, true, &bytes, err);
	image_writer_close(writer);
	message_free(manifest);
	return r;
}

/* The cut counts already: a missing copy is reported, no more. */
static void spread_manifest(struct lead *lead)
{
	Pbeam__CutRequest prune = PBEAM__CUT_REQUEST__INIT;

	prune.operation = PBEAM__CUT_REQUEST__OPERATION__PRUNE;
	prune.name = lead->name;
	prune.keep = lead->keep ? lead->keep : KEEP_DEFAULT;
	for (size_t i = 0; i < lead->nknown; i++) {
		struct err err = ERR_INIT;
		Pbeam__CutReply *reply = NULL;
		int r = 0;

		if (!is_own(lead, lead->known[i].name))
			r = cut_put_image(lead->known[i].channel, lead->name, lead->uuid, lead->number, 0, 0,
					  &err);
		if (r == 0)
			reply = cut_ask(lead->known[i].channel, &prune, &err);
		if (!reply)
			log_warn("%s: host %s has no copy of checkpoint %u: %s", lead->name,
				 lead->known[i].name, lead->number, err.text);
		message_free(reply);
	}
}

int lead_copy(struct lead *lead, char path[PATH_MAX], struct err *err)
{
	int r = store_take(lead->name, lead->uuid, lead->number, err);

	for (size_t i = 0; i < lead->nparts && r == 0; i++)
		r = copy_part_to_host(lead, &lead->parts[i], err);
	if (r == 0)
		r = fault_point("cut-lead-before-manifest", err);
	if (r == 0)
		r = store_image_path(lead->name, lead->number, 0, path, err);
	if (r == 0)
		r = write_manifest(lead, path, err);
	if (r == 0)
		spread_manifest(lead);
	return r;
}

/* A transfer that failed has ended the channel: the host is asked on another one. */
static void drop_at_host(struct lead *lead, const struct lead_host *host, const Pbeam__CutRequest *request)
{
	struct err err = ERR_INIT;
	Pbeam__CutReply *reply = cut_ask(host->channel, request, &err);
	auto_close int again = -1;

	if (!reply && lead_host_is_up(lead, host->name)) {
		again = lead_open_store(host->name, &err);
		reply = again < 0 ? NULL : cut_ask(again, request, &err);
	}
	if (!reply)
		log_info("%s: host %s keeps images of checkpoint %u until the next one: %s", lead->name,
			 host->name, lead->number, err.text);
	message_free(reply);
}

void lead_drop(struct lead *lead)
{
	Pbeam__CutRequest request = PBEAM__CUT_REQUEST__INIT;

	request.operation = PBEAM__CUT_REQUEST__OPERATION__PRUNE;
	request.name = lead->name;
	request.number = lead->number;
	for (size_t i = 0; i < lead->nknown; i++)
		drop_at_host(lead, &lead->known[i], &request);
	store_drop_parts(lead->name, lead->number);
}
