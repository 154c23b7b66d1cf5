/*
 * A checkpoint and its order: the image is opened first, so that an unwritable path is refused before
 * anything is frozen; large files are stored while the processes run; then freeze, processes, shared memory,
 * objects, thaw; only then the slow part: digests, sync, rename. With --kill the processes stay frozen until
 * the image is durable, then they end.
 */
#include "scip/checkpoint/checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/fault.h"
#include "base/io.h"
#include "image/store.h"
#include "proto/message.h"
#include "scip/capture/capture.h"
#include "scip/object/object.h"

/* A rollback takes away what was not in a tracked directory: the image must not be there. */
static int checkpoint_check_place(const struct checkpoint_options *options, struct err *err)
{
	const char *slash = strrchr(options->path, '/');
	auto_free char *dir = strndup(options->path, slash ? (size_t)(slash - options->path) + 1 : 0);
	auto_free char *real = dir ? realpath(*dir ? dir : ".", NULL) : NULL;

	for (size_t i = 0; real && i < options->ntrack; i++) {
		if (dirs_contain(options->track[i], real))
			return err_set(err, -EINVAL,
				       "%s is in %s, which the job tracks; an image cannot be there",
				       options->path, options->track[i]);
	}
	return dir ? 0 : -ENOMEM;
}

/* Captures everything that needs the processes frozen. */
static int capture_processes(struct capture *c, const struct checkpoint_options *options, struct err *err)
{
	int r = capture_freeze(c, err);

	if (r >= 0)
		r = capture_dump(c, PBEAM__SCIP_DUMP__WHAT__ALL, err);
	if (r >= 0)
		r = capture_shared(c, err);
	if (r >= 0)
		r = object_trees_save(c->writer, c->manifest, options->track, options->ntrack, err);
	return r < 0 ? r : capture_objects(c, err);
}

struct reasons {
	Pbeam__Manifest *manifest;
	struct capture_result *result;
};

static int add_reason(void *arg, const char *why)
{
	struct reasons *reasons = arg;
	Pbeam__Manifest *manifest = reasons->manifest;
	struct capture_result *result = reasons->result;

	return message_append_string(&manifest->incomplete, &manifest->n_incomplete, why) < 0 ||
			       message_append_string(&result->incomplete, &result->nincomplete, why) < 0
		       ? -ENOMEM
		       : 0;
}

/* Finds why the image could not be restored as things are. */
static int find_reasons(struct capture *c, const struct checkpoint_options *options,
			struct capture_result *result, struct err *err)
{
	struct reasons reasons = {c->manifest, result};
	struct image_reader *image;
	struct err why = ERR_INIT;
	int r = object_files_check_saved(c->manifest, &why) < 0 ? add_reason(&reasons, why.text) : 0;

	if (r < 0 || !options->check)
		return r;
	r = image_reader_of_manifest(&image, options->path, c->manifest, err);
	if (r < 0)
		return r;
	r = options->check(options->check_arg, image, add_reason, &reasons, err);
	image_reader_close(image);
	return r < 0 ? err_code(err, r, "check %s", options->path) : 0;
}

static int save_processes(struct capture *c, const struct checkpoint_options *options,
			  struct capture_result *result, struct err *err)
{
	int r = capture_processes(c, options, err);

	if (r < 0 || !options->kill)
		capture_thaw(c);
	capture_log(c, "thawed");
	if (r < 0)
		return r;
	c->manifest->pause_ns = result->pause_ns = io_now_ns(CLOCK_MONOTONIC) - c->begin_ns;
	r = find_reasons(c, options, result, err);
	if (r >= 0)
		r = fault_point("before-commit", err);
	if (r >= 0)
		r = capture_commit(c, true, result, err);
	if (r < 0) {
		capture_thaw(c);
		return r;
	}
	return options->kill ? group_terminate(&c->group, err) : 0;
}

/* Large files are stored by blocks, of which the newest image has most; the others are stored now, while the
 * processes run. */
static int share_blocks(struct capture *c, const struct checkpoint_options *options, struct err *err)
{
	struct image_reader *newest = store_open_before(options->path);
	int r = image_writer_use_blocks(c->writer, newest ? image_reader_manifest(newest) : NULL, err), n;
	auto_free struct name_process *all = NULL;
	auto_free struct rpid *rpids = NULL;

	if (newest)
		image_reader_close(newest);
	n = r < 0 ? 0 : names_snapshot(c->group.names, c->group.keeper, &all);
	rpids = n > 0 ? calloc((size_t)n, sizeof(*rpids)) : NULL;
	if (!rpids)
		return r;
	for (int i = 0; i < n; i++)
		rpids[i] = all[i].rpid;
	return object_files_ahead(c->writer, rpids, (size_t)n, options->save_files_max, err);
}

static int attempt_checkpoint(struct names *names, const struct checkpoint_options *options,
			      struct capture_result *result, struct err *err)
{
	const struct capture_options how = {
		.target = options->target,
		.path = options->path,
		.alone = options->alone,
		.job = options->job,
		.console = options->console,
		.save_files_max = options->save_files_max,
	};
	struct capture capture;
	int r;

	memset(result, 0, sizeof(*result));
	r = capture_open(&capture, names, &how, err);
	if (r >= 0 && options->numbered)
		r = share_blocks(&capture, options, err);
	if (r >= 0)
		r = save_processes(&capture, options, result, err);
	result->total_ns = io_now_ns(CLOCK_MONOTONIC) - capture.begin_ns;
	capture_close(&capture);
	return r < 0 && err && !err->text[0] ? err_code(err, r, "checkpoint") : r;
}

int checkpoint_run(struct names *names, const struct checkpoint_options *options,
		   struct capture_result *result, struct err *err)
{
	struct capture_retry retry = {.last_ms = CAPTURE_RETRY_MS};
	int r = checkpoint_check_place(options, err);

	if (r < 0)
		return r;
	do
		r = attempt_checkpoint(names, options, result, err);
	while (capture_should_retry(&retry, options->target, r, err));
	return r;
}
