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
#include "scip/restore/coordinate.h"

static int check(struct coordinate *coordinate)
{
	const Pbeam__Manifest *manifest = coordinate->manifest;
	int r;

	if (manifest->n_processes == 0)
		return err_set(coordinate->err, -EINVAL, "there is no process in the image");
	r = check_numbers(coordinate);
	if (r == 0)
		r = check_image(coordinate);
	if (r == 0)
		r = plan_make(&coordinate->plan, manifest->processes, manifest->n_processes, coordinate->err);
	if (r == 0)
		r = object_restore_open(&coordinate->objects, coordinate->names, coordinate->image,
					coordinate->options->force, coordinate->options->console,
					coordinate->err);
	if (r == 0)
		r = object_restore_check_all(coordinate->objects, coordinate->err);
	if (r == 0)
		r = image_reader_verify(coordinate->image, coordinate->err);
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

static int make(struct coordinate *coordinate, uint64_t *since)
{
	int r = object_restore_make_all(coordinate->objects, coordinate->err);

	if (r == 0)
		r = shared_make_all(coordinate);
	if (r == 0)
		r = fault_point("restore-made-objects", coordinate->err);
	note("making the objects", since);
	if (r == 0)
		r = tree_make(coordinate);
	if (r == 0)
		r = fault_point("restore-made-tree", coordinate->err);
	note("making the processes", since);
	if (r == 0)
		r = tree_fill(coordinate);
	note("filling them", since);
	if (r == 0)
		r = object_restore_finish_all(coordinate->objects, coordinate->err);
	if (r == 0)
		r = shared_finish(coordinate);
	if (r == 0)
		record_watches(coordinate);
	if (r == 0)
		r = fault_point("restore-before-run", coordinate->err);
	if (r == 0)
		r = tree_run(coordinate);
	note("finishing", since);
	return r;
}

static void close_all(struct coordinate *coordinate)
{
	for (int i = 0; i < coordinate->plan.nnodes && coordinate->made; i++)
		if (coordinate->made[i].sock >= 0)
			close(coordinate->made[i].sock);
	free(coordinate->made);
	if (coordinate->objects)
		object_restore_close(coordinate->objects);
	shared_free(&coordinate->shared);
	plan_free(&coordinate->plan);
}

/* A connection to every scip and a descriptor for every object; the processes fetch theirs from here, which
 * an administrator may have restricted to descendants (Yama). */
static void prepare(void)
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
					.err = err};
	uint64_t since = io_now_ns(CLOCK_MONOTONIC);
	int r;

	prepare();
	r = check(&coordinate);
	note("checking", &since);
	if (r == 0 && options->replace.n > 0) {
		r = tree_clear(&coordinate);
		note("clearing", &since);
	}
	if (r == 0) {
		r = make(&coordinate, &since);
		if (r < 0)
			tree_abandon(&coordinate);
	}
	if (r == 0) {
		result->root = (struct vpid){coordinate.manifest->processes[0]->vpid};
		result->processes = (uint32_t)coordinate.manifest->n_processes;
	}
	close_all(&coordinate);
	return r < 0 ? err_wrap(err, r, "restore %s", options->path) : 0;
}
