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
#include "scip/checkpoint/capture.h"

enum { RETRY_MOVE_MS = 1280 };

/* Captures everything that needs the processes frozen. */
static int capture_all(struct capture *c, const struct checkpoint_options *options, struct err *err)
{
	const struct checkpoint_mover *mover = options->mover;
	Pbeam__ScipDump__What what = mover ? mover->what : PBEAM__SCIP_DUMP__WHAT__ALL;
	int r = capture_freeze(c, err);

	if (r >= 0 && mover)
		r = mover->frozen(mover->arg, &c->group, &what, err);
	if (r >= 0 && options->cut)
		r = options->cut->frozen(options->cut->arg, &c->group, err);
	if (r >= 0)
		r = capture_dump(c, what, err);
	if (r >= 0)
		r = capture_shared(c, err);
	return r < 0 ? r : capture_objects(c, err);
}

/* Nothing is synced: the image lives only as long as the migration. */
static int run_move(struct capture *c, const struct checkpoint_options *options,
		    struct checkpoint_result *result, struct err *err)
{
	const struct checkpoint_mover *mover = options->mover;
	int r = capture_all(c, options, err);

	if (r >= 0)
		r = capture_commit(c, false, result, err);
	if (r >= 0)
		r = mover->move(mover->arg, &c->group, image_writer_fd(c->writer), result->bytes, err);
	if (r < 0) {
		mover->abort(mover->arg);
		capture_thaw(c);
	}
	capture_log(c, r < 0 ? "thawed" : "moved");
	return r;
}

static int run_save(struct capture *c, const struct checkpoint_options *options,
		    struct checkpoint_result *result, struct err *err)
{
	const struct checkpoint_cut *cut = options->cut;
	int r = cut ? cut->opened(cut->arg, err) : 0;

	if (r >= 0)
		r = capture_all(c, options, err);
	if (r >= 0 && cut)
		r = cut->dumped(cut->arg, err);
	if (r < 0 || !options->kill)
		capture_thaw(c);
	capture_log(c, "thawed");
	if (r < 0)
		return r;
	c->manifest->pause_ns = result->pause_ns = io_now_ns(CLOCK_MONOTONIC) - c->begin_ns;
	r = fault_point("before-commit", err);
	if (r >= 0)
		r = capture_commit(c, true, result, err);
	if (r >= 0 && cut)
		r = cut->durable(cut->arg, result, err);
	if (r < 0) {
		capture_thaw(c);
		return r;
	}
	return options->kill ? group_terminate(&c->group, err) : 0;
}

static int run_once(struct names *names, const struct checkpoint_options *options,
		    struct checkpoint_result *result, struct err *err)
{
	const struct checkpoint_mover *mover = options->mover;
	const struct checkpoint_cut *cut = options->cut;
	const struct capture_options how = {
		.target = options->target,
		.path = mover ? NULL : options->path,
		.alone = options->alone,
		.moves = mover || cut,
		.whole_job =
			!options->alone && options->job && (cut || options->job->root.n == options->target.n),
		.stays = mover ? mover->stays : NULL,
		.stays_arg = mover ? mover->stays_arg : NULL,
		.job = options->job,
		.console = options->console,
		.save_files_max = options->save_files_max,
		.external = mover ? mover->external
			    : cut ? cut->external
				  : NULL,
		.shared = mover ? mover->shared : NULL,
		.shared_arg = mover ? mover->arg : NULL,
	};
	struct capture capture;
	int r;

	memset(result, 0, sizeof(*result));
	r = capture_open(&capture, names, &how, err);
	if (r >= 0)
		r = mover ? run_move(&capture, options, result, err)
			  : run_save(&capture, options, result, err);
	result->total_ns = io_now_ns(CLOCK_MONOTONIC) - capture.begin_ns;
	capture_close(&capture);
	return r < 0 && err && !err->text[0] ? err_code(err, r, "checkpoint") : r;
}

int checkpoint_run(struct names *names, const struct checkpoint_options *options,
		   struct checkpoint_result *result, struct err *err)
{
	/* Processes that move may be in the way of the other ends of their connections, which move as well.
	 */
	struct capture_retry retry = {.last_ms = options->cut	  ? 0
						 : options->mover ? RETRY_MOVE_MS
								  : CAPTURE_RETRY_MS};
	int r;

	do
		r = run_once(names, options, result, err);
	while (capture_should_retry(&retry, options->target, r, err));
	return r;
}
