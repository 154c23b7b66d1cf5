/* The coordinator of one part: an ordinary checkpoint that goes on from step to step as the leader says. */
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
#include "scip/checkpoint/checkpoint.h"
#include "scip/checkpoint/group.h"
#include "scip/cut/cut.h"
#include "scip/cut/ends.h"
#include "scip/cut/lines.h"
#include "scip/ends/end_address.h"
#include "scip/tracee/procfs.h"

enum { PATIENCE_S = 600, DURABLE_S = 3600, LOOKS = 2, LOOK_NS = 1000000 };

struct part {
	const struct cut_part *options;
	struct cut_ends ends;
	struct cut_lines lines;
	Pbeam__CutReply *next;	     /* what the next answer tells */
	struct migrate_source bound; /* what it takes to record bound addresses */
	int32_t *vpids;
	size_t nvpids;
};

/* Answers what was asked for, with `next`, and waits for the next request, which must be this one. */
static Pbeam__CutRequest *go_on(struct part *part, int operation, struct err *err)
{
	Pbeam__CutRequest *request = NULL;
	int r = rpc_reply(part->options->channel, &part->next->base, err);

	message_free(part->next);
	part->next = message_new(&pbeam__cut_reply__descriptor);
	if (r == 0 && part->next)
		request = cut_take(part->options->channel, err);
	if (request && operation && (int)request->operation != operation) {
		err_set(err, -EPROTO, "request %d came when %d was to", (int)request->operation, operation);
		message_free(request);
		return NULL;
	}
	return request;
}

static int step(struct part *part, int operation, struct err *err)
{
	Pbeam__CutRequest *request = go_on(part, operation, err);

	message_free(request);
	return request ? 0 : err->code < 0 ? err->code : -ENOMEM;
}

static int on_opened(void *arg, struct err *err)
{
	return step(arg, PBEAM__CUT_REQUEST__OPERATION__FREEZE, err);
}

/* Of a stub: what it has not passed on yet would be in no image. */
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
	return pending & ~(1ull << (SIGCHLD - 1)); /* of those it has had here nobody is told */
}

/* Scips have passed them on, the keeper may be about to read them. */
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
			"vpid %d, its first process, is on another host, and others of it on the one of "
			"its console; bring it back first",
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

static int on_frozen(void *arg, const struct group *group, struct err *err)
{
	struct part *part = arg;
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
	if (r < 0)
		return err->code ? r : err_code(err, r, "list the processes");
	return step(arg, PBEAM__CUT_REQUEST__OPERATION__DUMP, err);
}

static int drain(struct part *part, struct object_dump *dump, const Pbeam__CutRequest *request,
		 struct err *err)
{
	int r = part->ends.round ? 0 : cut_lines_join(&part->lines, dump, request, err);

	return r < 0 ? r : cut_ends_drain(&part->ends, dump, request, part->next, err);
}

/* Memory is in the image. */
static int on_survey(void *arg, struct object_dump *dump, struct err *err)
{
	struct part *part = arg;
	int r = cut_lines_find(&part->lines, dump, part->next, err);

	if (r == 0)
		r = cut_ends_find(&part->ends, dump, part->next, err);

	while (r == 0) {
		Pbeam__CutRequest *request = go_on(part, 0, err);
		int operation = request ? (int)request->operation : -1;

		if (operation == PBEAM__CUT_REQUEST__OPERATION__DRAIN)
			r = drain(part, dump, request, err);
		else if (request && operation != PBEAM__CUT_REQUEST__OPERATION__OBJECTS)
			r = err_set(err, -EPROTO, "request %d came when DRAIN was to", operation);
		else if (!request)
			r = err->code < 0 ? err->code : -ENOMEM;
		message_free(request);
		if (operation == PBEAM__CUT_REQUEST__OPERATION__OBJECTS)
			break;
	}
	return r < 0 ? r : cut_ends_look(&part->ends, err);
}

static int on_dump(void *arg, struct object_dump *dump, const struct object_source *of, Pbeam__Object *out,
		   struct err *err)
{
	struct part *part = arg;
	int r = cut_ends_dump(&part->ends, dump, of, out, err);

	if (r == 0)
		r = cut_lines_dump(&part->lines, dump, of, out, err);
	return r ? r : address_dump(&part->bound, dump, of, true, out, err);
}

static void on_lost(void *arg, const struct object_source *source, const char *peer)
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

static int on_dumped(void *arg, struct err *err)
{
	struct part *part = arg;
	int r = fault_point("cut-dumped", err);

	rpc_set_timeout(part->options->channel, DURABLE_S * 1000);
	if (r == 0)
		r = step(part, PBEAM__CUT_REQUEST__OPERATION__THAW, err);
	cut_ends_free(&part->ends); /* what draining has changed is as it was before they go on */
	cut_lines_free(&part->lines);
	return r;
}

static int on_durable(void *arg, const struct checkpoint_result *result, struct err *err)
{
	struct part *part = arg;
	Pbeam__CutSaved *saved = part->next->saved = message_new(&pbeam__cut_saved__descriptor);

	if (!saved)
		return err_code(err, -ENOMEM, "tell of the image");
	saved->bytes = result->bytes;
	saved->pause_ns = result->pause_ns;
	saved->processes = (uint32_t)part->nvpids; /* stubs are none */
	saved->threads = result->threads;
	saved->vpids = steal_ptr(&part->vpids);
	saved->n_vpids = part->nvpids;
	return part->options->save->kill ? step(part, PBEAM__CUT_REQUEST__OPERATION__KILL, err)
					 : rpc_reply(part->options->channel, &part->next->base, err);
}

int cut_part_save(struct names *names, const struct cut_part *options, struct err *err)
{
	const Pbeam__CutRequest *save = options->save;
	struct part part = {.options = options, .bound = {.names = names, .host = ""}};
	const struct object_external external = {
		.arg = &part, .survey = on_survey, .dump = on_dump, .lost = on_lost};
	const struct checkpoint_cut cut = {.arg = &part,
					   .external = &external,
					   .opened = on_opened,
					   .frozen = on_frozen,
					   .dumped = on_dumped,
					   .durable = on_durable};
	char path[PATH_MAX];
	const struct checkpoint_options how = {.target = {save->vpid},
					       .path = path,
					       .cut = &cut,
					       .kill = save->kill,
					       .save_files_max = options->save_files_max,
					       .console = options->console,
					       .job = options->job};
	struct checkpoint_result result;
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
		r = checkpoint_run(names, &how, &result, err);
	cut_ends_free(&part.ends);
	cut_lines_free(&part.lines);
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
