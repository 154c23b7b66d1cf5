/*
 * A restore from beginning to end, in a process of its own, a child of the job's keeper.
 *
 * First everything is checked that can be, without touching anything. Then, in a rollback, the processes that
 * are there are killed. Objects are made here, processes by the keeper and by one another, filled all at the
 * same time, and let go only when all are whole. If anything fails on the way whatever was made is killed;
 * the image is never written to.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "namespace/record.h"
#include "scip/restore/premake.h"

int coordinate_plan(struct coordinate *coordinate)
{
	const Pbeam__Manifest *manifest = coordinate->manifest;
	struct above *above = &coordinate->above;
	int r;

	for (;;) {
		r = plan_make(&coordinate->plan, manifest->processes, manifest->n_processes, NULL,
			      above->found ? &above->plan : NULL, coordinate->err);
		if (r != -EXDEV)
			return r;
		log_info("%s", coordinate->err->text);
		err_clear(coordinate->err);
		plan_free(&coordinate->plan);
		if (above_miss(coordinate) < 0)
			above->found = false;
	}
}

/* A whole job, or a part of one that is there. */
bool coordinate_is_whole(struct names *names, const struct restore_options *options)
{
	struct name_job job;

	if (options->joins)
		return false;
	if (options->step) /* a part of a cut: all that the keeper has */
		return true;
	return options->replace.n <= 0 || names_job_get(names, options->keeper, &job) < 0 ||
	       job.root.n == options->replace.n;
}

static int check(struct coordinate *coordinate)
{
	const Pbeam__Manifest *manifest = coordinate->manifest;
	int r;

	if (manifest->cut)
		return err_set(coordinate->err, -EINVAL,
			       "it is the list of a cut over several hosts; `pbeamctl rollback %s` brings "
			       "all of it back",
			       manifest->cut->name);
	if (manifest->n_processes == 0)
		return err_set(coordinate->err, -EINVAL, "there is no process in the image");
	if (manifest->partial && !coordinate->premade)
		return err_set(coordinate->err, -EINVAL, "a part of the image is missing");
	r = check_numbers(coordinate);
	if (r == 0 && !coordinate->premade)
		r = above_find(coordinate);
	if (r == 0)
		r = check_image(coordinate);
	if (r == 0 && !coordinate->premade)
		r = coordinate_plan(coordinate);
	if (r == 0)
		r = object_restore_open(&coordinate->objects, coordinate->names, coordinate->image,
					coordinate->options->force, coordinate->options->console,
					coordinate->err);
	if (r == 0)
		object_restore_set_external(coordinate->objects, coordinate->options->external);
	if (r == 0)
		r = object_restore_check_all(coordinate->objects, coordinate->err);
	if (r == 0)
		r = verify_image(coordinate);
	return r;
}

static void note(const char *what, uint64_t *since)
{
	uint64_t now = io_now_ns(CLOCK_MONOTONIC);

	log_info("restore: %s took %lu us", what, (unsigned long)((now - *since) / 1000));
	*since = now;
}

/* The kernel did not see these watches being made by the program: for the next checkpoint their paths are
 * recorded as if it had. A path that cannot be recorded is looked for then. */
static void record_watches(const struct coordinate *coordinate)
{
	for (size_t i = 0; i < coordinate->manifest->n_objects; i++) {
		const Pbeam__Object *object = coordinate->manifest->objects[i];

		if (object->kind_case != PBEAM__OBJECT__KIND_INOTIFY)
			continue;
		for (size_t n = 0; n < object->inotify->n_watches; n++) {
			const Pbeam__InotifyWatch *watch = object->inotify->watches[n];
			auto_free char *path = strndup((const char *)watch->path.data, watch->path.len);

			if (path && record_watch_add(coordinate->options->keeper, (uint32_t)watch->dev,
						     watch->ino, path) < 0)
				log_debug("the path of a watch on %s is not recorded", path);
		}
	}
}

/* Those of a migration that has been committed are nowhere else any more: whatever fails now, whoever can run
 * is let go. */
static int let_go(struct coordinate *coordinate)
{
	bool anyway = coordinate->options->held;
	int r = above_commit(coordinate);

	if (r == 0)
		r = fault_point("restore-adopted", coordinate->err);
	if (r < 0 && anyway)
		log_error("restore: %s", coordinate->err->text);
	if (r == 0 || anyway)
		r = fill_all_run(coordinate);
	if (r < 0 && anyway) {
		log_error("restore: %s", coordinate->err->text);
		r = 0;
	}
	if (r == 0)
		err_clear(coordinate->err);
	return r;
}

static int make(struct coordinate *coordinate, uint64_t *since)
{
	int r = premake_shared_give(coordinate);

	if (r == 0)
		r = object_restore_make_all(coordinate->objects, coordinate->err);
	if (r == 0)
		r = shared_make_all(coordinate);
	if (r == 0)
		r = sysv_make_all(coordinate);
	if (r == 0)
		r = fault_point("restore-made-objects", coordinate->err);
	note("making the objects", since);
	if (r == 0)
		r = tree_make(coordinate);
	if (r == 0)
		r = sysv_give_undo(coordinate);
	if (r == 0)
		r = fault_point("restore-made-tree", coordinate->err);
	note("making the processes", since);
	if (r == 0)
		r = fill_all(coordinate);
	note("filling them", since);
	if (r == 0)
		r = shared_put_back(coordinate);
	if (r == 0)
		r = object_restore_put_back(coordinate->objects, coordinate->err);
	if (r == 0)
		r = object_restore_finish_all(coordinate->objects, coordinate->err);
	if (r == 0)
		r = shared_finish(coordinate);
	if (r == 0)
		r = object_restore_record(coordinate->objects, coordinate->options->keeper, coordinate->err);
	if (r == 0)
		record_watches(coordinate);
	if (r == 0)
		r = fault_point("restore-before-run", coordinate->err);
	note("finishing", since);
	if (r == 0 && coordinate->options->held)
		r = fill_all_keep(coordinate);
	if (r == 0 && coordinate->options->held)
		r = coordinate->options->held(coordinate->options->held_arg, coordinate->err);
	if (r == 0)
		r = let_go(coordinate);
	note("letting them go", since);
	return r;
}

void coordinate_close(struct coordinate *coordinate)
{
	for (int i = 0; i < coordinate->plan.nnodes && coordinate->made; i++)
		if (coordinate->made[i].sock >= 0)
			close(coordinate->made[i].sock);
	free(coordinate->made);
	free(coordinate->unverified);
	above_close(coordinate);
	clear_close(coordinate);
	if (coordinate->objects)
		object_restore_close(coordinate->objects);
	while (coordinate->states) {
		struct inherit_state *state = coordinate->states;

		coordinate->states = state->next;
		inherit_state_free(state);
	}
	shared_free(&coordinate->shared);
	plan_free(&coordinate->plan);
	premake_release(coordinate->premade);
}

int coordinate_begin_made(struct coordinate *coordinate)
{
	coordinate->made = calloc((size_t)coordinate->plan.nnodes, sizeof(*coordinate->made));
	if (!coordinate->made)
		return err_code(coordinate->err, -ENOMEM, "processes");
	for (int i = 0; i < coordinate->plan.nnodes; i++)
		coordinate->made[i].sock = -1;
	return 0;
}

/* A connection to every scip and a descriptor for every object; the processes fetch theirs from here, which
 * an administrator may have restricted to descendants (Yama). */
void coordinate_prepare(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
}

int restore_run(struct names *names, struct image_reader *image, const struct restore_options *options,
		struct restore_result *result, struct err *err)
{
	struct coordinate coordinate = {.names = names,
					.image = image,
					.manifest = image_reader_manifest(image),
					.options = options,
					.whole = coordinate_is_whole(names, options),
					.above = {.sock = -1},
					.err = err};
	uint64_t since = io_now_ns(CLOCK_MONOTONIC);
	int r;

	coordinate_prepare();
	r = options->premade ? premake_take(&coordinate, options->premade) : 0;
	if (r == 0)
		r = check(&coordinate);
	note("checking", &since);
	if (r == 0)
		r = fault_point("restore-checked", err);
	if (r == 0 && !options->premade)
		r = above_hold(&coordinate);
	if (r == 0 && options->step)
		r = options->step(options->held_arg, err);
	if (r == 0)
		r = clear_stop(&coordinate);
	if (r == 0 && options->replace.n > 0) {
		r = clear_all(&coordinate);
		if (r == 0 && coordinate.whole) {
			record_peer_forget(options->keeper);
			r = sysv_clear(&coordinate);
		}
		if (r == 0)
			r = fault_point("restore-cleared", err);
		note("clearing", &since);
	}
	if (r == 0) {
		r = make(&coordinate, &since);
		if (r < 0)
			tree_abandon(&coordinate);
	} else if (options->premade) {
		tree_abandon(&coordinate);
	}
	if (r == 0) {
		result->root = (struct vpid){coordinate.manifest->processes[0]->vpid};
		result->processes = (uint32_t)coordinate.manifest->n_processes;
	}
	coordinate_close(&coordinate);
	return r < 0 ? err_wrap(err, r, "restore %s", options->path) : 0;
}

int restore_end(struct names *names, const struct restore_options *options, struct err *err)
{
	const Pbeam__Manifest nothing = PBEAM__MANIFEST__INIT;
	struct coordinate coordinate = {.names = names,
					.manifest = &nothing,
					.options = options,
					.whole = true,
					.ends = true,
					.above = {.sock = -1},
					.err = err};
	int r;

	coordinate_prepare();
	r = options->step(options->held_arg, err);
	if (r == 0)
		r = clear_stop(&coordinate);
	if (r == 0)
		r = clear_all(&coordinate);
	if (r == 0)
		r = options->held(options->held_arg, err);
	coordinate_close(&coordinate);
	return r;
}
