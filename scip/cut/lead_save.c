#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "channel/channel.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/cut/cut.h"
#include "scip/cut/lead.h"
#include "scip/cut/pair.h"
#include "scip/cut/relations.h"
#include "scip/ends/end_tcp.h"
#include "scip/reconnect/reconnect.h"

enum { PART_S = 600, DURABLE_S = 3600, ATTEMPTS = 14 };

/* ---- which parts ---- */

static bool is_of_it(const struct lead *lead, const Pbeam__ProcessInfo *info)
{
	return lead->group ? !strcmp(info->group, lead->name) : !strcmp(info->job_uuid, lead->uuid);
}

/* On each host where a job of it has processes, that has one part: of its first process there, if that lives.
 */
static int add_jobs(struct lead *lead, const Pbeam__ProcessList *list, struct err *err)
{
	if (list->n_missing)
		return err_set(
			err, -EHOSTUNREACH,
			"host %s does not answer, and %s may have processes there; wait for it, or give "
			"it up with `pbeamctl hosts --remove %s`",
			list->missing[0], lead->name, list->missing[0]);
	for (int first = 1; first >= 0; first--)
		for (size_t i = 0; i < list->n_processes; i++) {
			const Pbeam__ProcessInfo *info = list->processes[i];

			if (is_of_it(lead, info) && (!first || info->vpid == info->job) &&
			    !lead_add_part(lead, info->host, info->job_uuid, info->job_name, info->vpid, err))
				return -ENOMEM;
		}
	if (!lead->nparts)
		return err_set(err, -ESRCH, "%s: no job of that %s runs; `pbeamctl ps` lists all", lead->name,
			       lead->group ? "group" : "name");
	return 0;
}

/* Of a tree: its first process's part comes first. */
static int begin_tree(struct lead *lead, const Pbeam__ProcessList *list, struct err *err)
{
	for (size_t i = 0; i < list->n_processes; i++) {
		const Pbeam__ProcessInfo *info = list->processes[i];

		if (info->vpid != lead->vpid)
			continue;
		snprintf(lead->uuid, sizeof(lead->uuid), "%s", info->job_uuid);
		return lead_add_part(lead, info->host, info->job_uuid, info->job_name, info->vpid, err)
			       ? 0
			       : -ENOMEM;
	}
	return err_set(err, -ESRCH, "vpid %d: it has ended", lead->vpid);
}

static int find_parts(struct lead *lead, const Pbeam__CheckpointRequest *request, struct err *err)
{
	Pbeam__ProcessList *list = lead_list(err);
	int r = list ? 0 : err->code;

	if (r == 0) {
		lead->vpid = request->target->vpid;
		lead->group = lead->vpid == 0;
		snprintf(lead->name, sizeof(lead->name), "%s", request->target->name);
		r = cut_check_name(lead->name, err);
	}
	if (r == 0 && !lead->group)
		r = begin_tree(lead, list, err);
	if (r == 0)
		r = add_jobs(lead, list, err);
	message_free(list);
	return r;
}

/* Chooses the first number that no host has used. */
static int choose_number(struct lead *lead, struct err *err)
{
	Pbeam__CutRequest request = PBEAM__CUT_REQUEST__INIT;

	request.operation = PBEAM__CUT_REQUEST__OPERATION__LOOK;
	request.name = lead->name;
	for (size_t i = 0; i <= lead->nparts; i++) {
		const char *host = i < lead->nparts ? lead->parts[i].host : lead->own;
		int channel = lead_store(lead, host, err);
		Pbeam__CutReply *reply = channel < 0 ? NULL : cut_ask(channel, &request, err);

		if (!reply)
			return err_wrap(err, err->code, "host %s", host);
		if (reply->number > lead->number)
			lead->number = reply->number;
		message_free(reply);
	}
	lead->number++;
	return 0;
}

/* ---- the cut ---- */

static int begin_part(struct lead *lead, struct lead_part *part, const Pbeam__CheckpointRequest *wish,
		      struct err *err)
{
	Pbeam__CutRequest request = PBEAM__CUT_REQUEST__INIT;
	int r = part->channel = channel_open(part->host, PBEAM__CHANNEL_KIND__CHANNEL_CUT, NULL, err);

	if (r >= 0) {
		rpc_set_timeout(part->channel, PART_S * 1000);
		request.operation = PBEAM__CUT_REQUEST__OPERATION__SAVE;
		request.name = lead->name;
		request.number = lead->number;
		request.part = part->index;
		request.job = part->uuid;
		request.vpid = part->vpid;
		request.kill = wish->kill;
		request.save_files_max = wish->save_files_max;
		r = cut_send(part->channel, &request, err);
	}
	return r < 0 ? err_wrap(err, r, "host %s", part->host) : 0;
}

/* No part is frozen before all parts are ready. */
static int begin_save(struct lead *lead, const Pbeam__CheckpointRequest *wish, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < lead->nparts && r == 0; i++)
		r = begin_part(lead, &lead->parts[i], wish, err);
	for (size_t i = 0; i < lead->nparts && r == 0; i++) {
		lead->parts[i].reply = cut_receive(lead->parts[i].channel, err);
		if (!lead->parts[i].reply)
			r = err_wrap(err, err->code, "host %s", lead->parts[i].host);
	}
	return r;
}

static int drain_parts(void *lead, unsigned round, uint64_t *waiting, struct err *err)
{
	return pair_drain_round(lead, waiting, err);
}

static int take_saved(struct lead *lead, struct err *err)
{
	for (size_t i = 0; i < lead->nparts; i++) {
		if (!lead->parts[i].reply->saved)
			return err_set(err, -EPROTO, "host %s sent no description of its image",
				       lead->parts[i].host);
		lead->parts[i].saved = lead->parts[i].reply;
		lead->parts[i].reply = NULL;
	}
	return 0;
}

static int make_cut(struct lead *lead, const Pbeam__CheckpointRequest *wish, struct err *err)
{
	int r = begin_save(lead, wish, err);

	if (r == 0)
		r = lead_tell_all(lead, PBEAM__CUT_REQUEST__OPERATION__FREEZE, err);
	if (r == 0)
		r = relations_match(lead, err);
	if (r == 0)
		r = fault_point("cut-lead-frozen", err);
	if (r == 0)
		r = lead_tell_all(lead, PBEAM__CUT_REQUEST__OPERATION__DUMP, err);
	if (r == 0)
		r = pair_all(lead, err);
	if (r == 0)
		r = relations_match_bridges(lead, err);
	if (r == 0)
		r = end_tcp_drain_all(drain_parts, lead, err);
	if (r == 0)
		r = lead_tell_all(lead, PBEAM__CUT_REQUEST__OPERATION__OBJECTS, err);
	for (size_t i = 0; i < lead->nparts && r == 0; i++) {
		lead->parts[i].outside = lead->parts[i].reply;
		lead->parts[i].reply = NULL;
		rpc_set_timeout(lead->parts[i].channel, DURABLE_S * 1000);
	}
	if (r == 0)
		r = fault_point("cut-lead-dumped", err);
	if (r == 0)
		r = lead_tell_all(lead, PBEAM__CUT_REQUEST__OPERATION__THAW, err);
	return r < 0 ? r : take_saved(lead, err);
}

/* Repeats a checkpoint that was refused because of something in progress, which is mostly over soon. */
static int cut_at_last(struct lead *lead, const Pbeam__CheckpointRequest *wish, struct err *err)
{
	int r = make_cut(lead, wish, err);

	for (unsigned attempt = 0; r == -EBUSY && attempt < ATTEMPTS; attempt++) {
		log_info("%s: %s; it is tried again", lead->name, err->text);
		lead_close_parts(lead);
		reconnect_backoff(attempt);
		err_clear(err);
		r = make_cut(lead, wish, err);
	}
	return r;
}

/* ---- the reply ---- */

static int list_outside(const struct lead *lead, Pbeam__CheckpointReply *done)
{
	for (size_t i = 0; i < lead->nparts; i++) {
		const Pbeam__CutReply *of = lead->parts[i].outside;

		for (size_t k = 0; of && k < of->n_outside; k++)
			if (message_append_string(&done->outside, &done->n_outside, of->outside[k]) < 0)
				return -ENOMEM;
	}
	return 0;
}

static void answer_save(struct lead *lead, const char *path, uint64_t begin_ns)
{
	Pbeam__CheckpointReply *done = message_new(&pbeam__checkpoint_reply__descriptor);
	struct err err = ERR_INIT;

	if (lead->answered)
		return;
	lead->answered = true;
	if (!done || message_string(&done->path, path) < 0 || list_outside(lead, done) < 0) {
		log_error("%s: no memory for the answer", lead->name);
		message_free(done);
		return;
	}
	done->number = lead->number;
	done->total_ns = io_now_ns(CLOCK_MONOTONIC) - begin_ns;
	for (size_t i = 0; i < lead->nparts; i++) {
		const Pbeam__CutSaved *saved = lead->parts[i].saved->saved;

		done->bytes += saved->bytes;
		done->processes += saved->processes;
		done->threads += saved->threads;
		if (saved->pause_ns > done->pause_ns)
			done->pause_ns = saved->pause_ns;
	}
	if (frame_send(lead->user, PBEAM__RPC__RPC_REPLY, &done->base, NULL, 0, &err) < 0)
		log_info("saved, and the client has left: %s", err.text);
	message_free(done);
}

/* Of a tree: its job says so, which is here. */
static void find_keep(struct lead *lead)
{
	auto_free struct name_job *jobs = NULL;
	struct names *names = NULL;
	int n = !lead->group && names_open(&names, NULL) == 0 ? names_jobs_snapshot(names, &jobs) : 0;

	for (int i = 0; i < n; i++)
		if (!strcmp(jobs[i].uuid, lead->uuid))
			lead->keep = jobs[i].keep;
	if (names)
		names_close(names);
}

static int check_wish(const struct lead *lead, const Pbeam__CheckpointRequest *wish, struct err *err)
{
	if (wish->output[0])
		return err_set(err, -EINVAL,
			       "%s: a checkpoint of several parts is several images; leave out --output",
			       lead->name);
	if (wish->alone)
		return err_set(err, -EINVAL, "%s: its parts are not one process; leave out --alone",
			       lead->name);
	return 0;
}

int lead_save(struct lead *lead, const Pbeam__CheckpointRequest *wish, struct err *err)
{
	uint64_t begin_ns = io_now_ns(CLOCK_MONOTONIC);
	char path[PATH_MAX];
	int r = find_parts(lead, wish, err);

	if (r == 0)
		r = check_wish(lead, wish, err);
	if (r == 0)
		r = choose_number(lead, err);
	if (r < 0)
		return r;
	find_keep(lead);
	r = cut_at_last(lead, wish, err);
	if (r == 0)
		r = lead_copy(lead, path, err);
	if (r < 0) {
		lead_close_parts(lead);
		lead_drop(lead);
		return err_wrap(err, r, "%s", lead->name);
	}
	if (wish->kill)
		r = lead_tell_all(lead, PBEAM__CUT_REQUEST__OPERATION__KILL, err);
	answer_save(lead, path, begin_ns);
	return r;
}
