/*
 * A checkpoint and its order: the image is opened first, so that an unwritable path is refused before
 * anything is frozen; then freeze, processes, shared memory, objects, thaw; only then the slow part: digests,
 * sync, rename. With --kill the processes stay frozen until the image is durable, then they end.
 */
#include "scip/checkpoint/checkpoint.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/fault.h"
#include "base/io.h"
#include "scip/capture/capture.h"

/* Captures everything that needs the processes frozen. */
static int capture_processes(struct capture *c, struct err *err)
{
	int r = capture_freeze(c, err);

	if (r >= 0)
		r = capture_dump(c, PBEAM__SCIP_DUMP__WHAT__ALL, err);
	if (r >= 0)
		r = capture_shared(c, err);
	return r < 0 ? r : capture_objects(c, err);
}

static int save_processes(struct capture *c, const struct checkpoint_options *options,
			  struct capture_result *result, struct err *err)
{
	int r = capture_processes(c, err);

	if (r < 0 || !options->kill)
		capture_thaw(c);
	capture_log(c, "thawed");
	if (r < 0)
		return r;
	c->manifest->pause_ns = result->pause_ns = io_now_ns(CLOCK_MONOTONIC) - c->begin_ns;
	r = fault_point("before-commit", err);
	if (r >= 0)
		r = capture_commit(c, true, result, err);
	if (r < 0) {
		capture_thaw(c);
		return r;
	}
	return options->kill ? group_terminate(&c->group, err) : 0;
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
	int r;

	do
		r = attempt_checkpoint(names, options, result, err);
	while (capture_should_retry(&retry, options->target, r, err));
	return r;
}
