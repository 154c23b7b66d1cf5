/*
 * Saves one part of a cut: the steps of a checkpoint (capture.h), each taken when the leader requests it. The
 * leader keeps all parts at the same step; a failure of any part, or of the leader, undoes the checkpoint.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "image/store.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/capture/capture.h"
#include "scip/cut/cut.h"
#include "scip/ends/end_address.h"
#include "scip/rejoin/cut_ends.h"
#include "scip/rejoin/cut_streams.h"
#include "scip/tracee/procfs.h"

enum { PATIENCE_S = 600, DURABLE_S = 3600, LOOKS = 2, LOOK_NS = 1000000 };

struct part {
	const struct cut_part *options;
	struct cut_ends ends;
	struct cut_streams streams;
	Pbeam__CutReply *next;	     /* being filled in */
	struct migrate_source bound; /* records bound addresses */
	int32_t *vpids;
	size_t nvpids;
};

/* Replies with `next` and receives the next request, which must have this operation (0: any). NULL with err
 * set. */
static Pbeam__CutRequest *exchange_step(struct part *part, int operation, struct err *err)
{
	Pbeam__CutRequest *request = NULL;
	int r = rpc_reply(part->options->channel, &part->next->base, err);

	message_free(part->next);
	part->next = message_new(&pbeam__cut_reply__descriptor);
	if (r == 0 && part->next)
		request = cut_take(part->options->channel, err);
	if (request && operation && (int)request->operation != operation) {
		err_set(err, -EPROTO, "unexpected request %d instead of %d", (int)request->operation,
			operation);
		message_free(request);
		return NULL;
	}
	return request;
}

static int await_step(struct part *part, int operation, struct err *err)
{
	Pbeam__CutRequest *request = exchange_step(part, operation, err);

	message_free(request);
	return request ? 0 : err->code < 0 ? err->code : -ENOMEM;
}

/* True if a stub has signals that it has not forwarded, which no image would contain. */
static bool has_signals(const struct member *member)
{
	static const char *const sets[] = {"SigPnd", "ShdPnd"};
	auto_free char *text = NULL;
	uint64_t pending = 0;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/status", member->rpid.n);
	if (io_slurp(-100, path, 1 << 14, &text, NULL) < 0)
		return false;
	for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
		const char *field = procfs_field(text, sets[i]);

		pending |= field ? strtoull(field, NULL, 16) : 0;
	}
	return pending & ~(1ull << (SIGCHLD - 1)); /* SIGCHLD is not forwarded */
}

/* True while signals are between a scip, which has forwarded them, and the keeper, which reads them. */
static bool signals_pass(const struct part *part)
{
	bool any = part->options->under_way(part->options->arg);

	for (int i = 0; i < LOOKS && !any; i++) {
		nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
		any = part->options->under_way(part->options->arg);
	}
	return any;
}

static int add_stub(struct part *part, const struct member *member, struct err *err)
{
	if (member->vpid.n == part->options->job->root.n)
		return err_set(
			err, -ENOTSUP,
			"vpid %d, the job's first process, is on another host, and other processes are on "
			"the host of its console; migrate it back first",
			member->vpid.n);
	if (has_signals(member))
		return err_set(err, -EBUSY, "a signal for vpid %d is on its way; try again", member->vpid.n);
	return message_append_i32(&part->next->stubs, &part->next->n_stubs, member->vpid.n);
}

static int add_guest(struct part *part, struct vpid vpid)
{
	const char *host = part->options->stub_host(part->options->arg, vpid);
	Pbeam__CutGuest *out;

	if (!host[0])
		return 0;
	out = message_add(part->next, guests, pbeam__cut_guest__descriptor);
	if (!out)
		return -ENOMEM;
	out->vpid = vpid.n;
	return message_string(&out->stub_host, host);
}

/* Lists the frozen processes for the leader. */
static int list_frozen(struct part *part, const struct group *group, struct err *err)
{
	int r = fault_point("cut-frozen", err);
	bool stubs = false;

	part->vpids = calloc(group->n + 1, sizeof(*part->vpids));
	if (!part->vpids)
		return err_code(err, -ENOMEM, "list the processes");
	for (size_t i = 0; i < group->n && r == 0; i++)
		stubs = stubs || group->v[i]->stub;
	if (r == 0 && stubs && signals_pass(part))
		r = err_set(err, -EBUSY, "a signal for a process on another host is on its way; try again");
	for (size_t i = 0; i < group->n && r == 0; i++) {
		if (group->v[i]->stub) {
			r = add_stub(part, group->v[i], err);
			continue;
		}
		part->vpids[part->nvpids++] = group->v[i]->vpid.n;
		r = add_guest(part, group->v[i]->vpid);
	}
	return r < 0 && !(err && err->code) ? err_code(err, r, "list the processes") : r;
}

static int drain_part(struct part *part, struct object_dump *dump, const Pbeam__CutRequest *request,
		      struct err *err)
{
	int r = part->ends.round ? 0 : cut_streams_join(&part->streams, dump, request, err);

	return r < 0 ? r : cut_ends_drain(&part->ends, dump, request, part->next, err);
}

/* Finds and drains the connections of the part, round after round, until the leader requests the objects. */
static int survey_part(void *arg, struct object_dump *dump, struct err *err)
{
	struct part *part = arg;
	int r = cut_streams_find(&part->streams, dump, part->next, err);

	if (r == 0)
		r = cut_ends_find(&part->ends, dump, part->next, err);

	while (r == 0) {
		Pbeam__CutRequest *request = exchange_step(part, 0, err);
		int operation = request ? (int)request->operation : -1;

		if (operation == PBEAM__CUT_REQUEST__OPERATION__DRAIN)
			r = drain_part(part, dump, request, err);
		else if (request && operation != PBEAM__CUT_REQUEST__OPERATION__OBJECTS)
			r = err_set(err, -EPROTO, "unexpected request %d instead of DRAIN", operation);
		else if (!request)
			r = err->code < 0 ? err->code : -ENOMEM;
		message_free(request);
		if (operation == PBEAM__CUT_REQUEST__OPERATION__OBJECTS)
			break;
	}
	return r < 0 ? r : cut_ends_look(&part->ends, err);
}

static int dump_part_object(void *arg, struct object_dump *dump, const struct object_source *of,
			    Pbeam__Object *out, struct err *err)
{
	struct part *part = arg;
	int r = cut_ends_dump(&part->ends, dump, of, out, err);

	if (r == 0)
		r = cut_streams_dump(&part->streams, dump, of, out, err);
	return r ? r : address_dump(&part->bound, dump, of, true, out, err);
}

static void report_lost(void *arg, const struct object_source *source, const char *peer)
{
	struct part *part = arg;
	auto_free char *comm = NULL;
	char path[64], text[256];

	snprintf(path, sizeof(path), "/proc/%d/comm", source->holder.n);
	if (io_slurp(-100, path, 64, &comm, NULL) == 0)
		comm[strcspn(comm, "\n")] = 0;
	snprintf(text, sizeof(text), "vpid %d (%s): fd %d is a TCP connection to %s", source->holder_vpid.n,
		 comm ? comm : "?", source->holder_fd, peer);
	if (message_append_string(&part->next->outside, &part->next->n_outside, text) < 0)
		log_warn("%s: it will be reset by a rollback", text);
}

static int report_saved(struct part *part, const struct capture_result *result, struct err *err)
{
	Pbeam__CutSaved *saved = part->next->saved = message_new(&pbeam__cut_saved__descriptor);

	if (!saved)
		return err_code(err, -ENOMEM, "report the image");
	saved->bytes = result->bytes;
	saved->pause_ns = result->pause_ns;
	saved->processes = (uint32_t)part->nvpids; /* without stubs */
	saved->threads = result->threads;
	saved->vpids = steal_ptr(&part->vpids);
	saved->n_vpids = part->nvpids;
	return part->options->save->kill ? await_step(part, PBEAM__CUT_REQUEST__OPERATION__KILL, err)
					 : rpc_reply(part->options->channel, &part->next->base, err);
}

/* Captures everything that needs the processes frozen, and thaws them unless they are to be killed. */
static int capture_part(struct part *part, struct capture *c, struct err *err)
{
	int r = await_step(part, PBEAM__CUT_REQUEST__OPERATION__FREEZE, err);

	if (r >= 0)
		r = capture_freeze(c, err);
	if (r >= 0)
		r = list_frozen(part, &c->group, err);
	if (r >= 0)
		r = await_step(part, PBEAM__CUT_REQUEST__OPERATION__DUMP, err);
	if (r >= 0)
		r = capture_dump(c, PBEAM__SCIP_DUMP__WHAT__ALL, err);
	if (r >= 0)
		r = capture_shared(c, err);
	if (r >= 0)
		r = capture_objects(c, err);
	if (r >= 0)
		r = fault_point("cut-dumped", err);
	rpc_set_timeout(part->options->channel, DURABLE_S * 1000);
	if (r >= 0)
		r = await_step(part, PBEAM__CUT_REQUEST__OPERATION__THAW, err);
	cut_ends_free(&part->ends); /* undoes what draining has changed, before the processes go on */
	cut_streams_free(&part->streams);
	if (r < 0 || !part->options->save->kill)
		capture_thaw(c);
	capture_log(c, "thawed");
	return r;
}

static int save_part(struct part *part, struct names *names, const char *path, struct err *err)
{
	const struct cut_part *options = part->options;
	const struct object_external external = {
		.arg = part, .survey = survey_part, .dump = dump_part_object, .lost = report_lost};
	const struct capture_options how = {.target = {options->save->vpid},
					    .path = path,
					    .moves = true,
					    .whole_job = options->job != NULL,
					    .job = options->job,
					    .console = options->console,
					    .save_files_max = options->save_files_max,
					    .external = &external};
	struct capture_result result = {0};
	struct capture capture;
	int r = capture_open(&capture, names, &how, err);

	if (r >= 0)
		r = capture_part(part, &capture, err);
	if (r >= 0) {
		result.pause_ns = io_now_ns(CLOCK_MONOTONIC) - capture.begin_ns;
		capture.manifest->pause_ns = result.pause_ns;
		r = fault_point("before-commit", err);
	}
	if (r >= 0)
		r = capture_commit(&capture, true, &result, err);
	if (r >= 0)
		r = report_saved(part, &result, err);
	if (r < 0)
		capture_thaw(&capture);
	else if (options->save->kill)
		r = group_terminate(&capture.group, err);
	capture_close(&capture);
	return r < 0 && !err->text[0] ? err_code(err, r, "checkpoint") : r;
}

int cut_part_save(struct names *names, const struct cut_part *options, struct err *err)
{
	const Pbeam__CutRequest *save = options->save;
	struct part part = {.options = options, .bound = {.names = names, .host = ""}};
	char path[PATH_MAX];
	int r = cut_check_name(save->name, err);

	rpc_set_timeout(options->channel, PATIENCE_S * 1000);
	part.next = message_new(&pbeam__cut_reply__descriptor);
	if (r == 0 && (!part.next || !save->part || !save->number))
		r = err_set(err, -EPROTO, "a part without a number");
	if (r == 0)
		r = store_take(save->name, options->job->uuid, save->number, err);
	if (r == 0) {
		store_sweep_parts(save->name, save->number);
		r = store_image_path(save->name, save->number, save->part, path, err);
	}
	if (r == 0)
		r = save_part(&part, names, path, err);
	cut_ends_free(&part.ends);
	cut_streams_free(&part.streams);
	if (r == 0 && save->kill)
		r = rpc_reply(options->channel, &part.next->base, err);
	message_free(part.next);
	free(part.vpids);
	free(part.bound.addresses);
	free(part.bound.address_inos);
	if (r < 0)
		rpc_refuse(options->channel, err);
	return r;
}
