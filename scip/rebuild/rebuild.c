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
#include "scip/rebuild/precopied_parts.h"

int rebuild_plan(struct rebuild *rebuild)
{
	const Pbeam__Manifest *manifest = rebuild->manifest;
	struct above *above = &rebuild->above;
	int r;

	for (;;) {
		r = plan_make(&rebuild->plan, manifest->processes, manifest->n_processes, NULL,
			      above->found ? &above->plan : NULL, rebuild->err);
		if (r != -EXDEV)
			return r;
		log_info("%s", rebuild->err->text);
		err_clear(rebuild->err);
		plan_free(&rebuild->plan);
		if (above_miss(rebuild) < 0)
			above->found = false;
	}
}

/* A whole job, or a part of one that is there. */
bool rebuild_is_whole(struct names *names, const struct rebuild_options *options)
{
	struct name_job job;

	if (options->joins)
		return false;
	if (options->step) /* a part of a cut: all that the keeper has */
		return true;
	return options->replace.n <= 0 || names_job_get(names, options->keeper, &job) < 0 ||
	       job.root.n == options->replace.n;
}

static int check(struct rebuild *rebuild)
{
	const Pbeam__Manifest *manifest = rebuild->manifest;
	int r;

	if (manifest->cut)
		return err_set(rebuild->err, -EINVAL,
			       "it is the list of a cut over several hosts; `pbeamctl rollback %s` brings "
			       "all of it back",
			       manifest->cut->name);
	if (manifest->n_processes == 0)
		return err_set(rebuild->err, -EINVAL, "there is no process in the image");
	if (manifest->partial && !rebuild->precopied)
		return err_set(rebuild->err, -EINVAL, "a part of the image is missing");
	r = rebuild_check_numbers(rebuild);
	if (r == 0 && !rebuild->precopied)
		r = above_find(rebuild);
	if (r == 0)
		r = rebuild_check_image(rebuild);
	if (r == 0 && !rebuild->precopied)
		r = rebuild_plan(rebuild);
	if (r == 0)
		r = object_restore_open(&rebuild->objects, rebuild->names, rebuild->image,
					rebuild->options->force, rebuild->options->console, rebuild->err);
	if (r == 0)
		object_restore_set_external(rebuild->objects, rebuild->options->external);
	if (r == 0)
		r = object_restore_check_all(rebuild->objects, rebuild->err);
	if (r == 0)
		r = rebuild_verify_image(rebuild);
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
static void record_watches(const struct rebuild *rebuild)
{
	for (size_t i = 0; i < rebuild->manifest->n_objects; i++) {
		const Pbeam__Object *object = rebuild->manifest->objects[i];

		if (object->kind_case != PBEAM__OBJECT__KIND_INOTIFY)
			continue;
		for (size_t n = 0; n < object->inotify->n_watches; n++) {
			const Pbeam__InotifyWatch *watch = object->inotify->watches[n];
			auto_free char *path = strndup((const char *)watch->path.data, watch->path.len);

			if (path && record_watch_add(rebuild->options->keeper, (uint32_t)watch->dev,
						     watch->ino, path) < 0)
				log_debug("the path of a watch on %s is not recorded", path);
		}
	}
}

/* Those of a migration that has been committed are nowhere else any more: whatever fails now, whoever can run
 * is let go. */
static int let_go(struct rebuild *rebuild)
{
	bool anyway = rebuild->options->held;
	int r = above_commit(rebuild);

	if (r == 0)
		r = fault_point("restore-adopted", rebuild->err);
	if (r < 0 && anyway)
		log_error("restore: %s", rebuild->err->text);
	if (r == 0 || anyway)
		r = rebuild_release(rebuild);
	if (r < 0 && anyway) {
		log_error("restore: %s", rebuild->err->text);
		r = 0;
	}
	if (r == 0)
		err_clear(rebuild->err);
	return r;
}

static int make(struct rebuild *rebuild, uint64_t *since)
{
	int r = precopied_shared_give(rebuild);

	if (r == 0)
		r = object_restore_make_all(rebuild->objects, rebuild->err);
	if (r == 0)
		r = rebuild_shared_make_all(rebuild);
	if (r == 0)
		r = rebuild_sysv_make_all(rebuild);
	if (r == 0)
		r = fault_point("restore-made-objects", rebuild->err);
	note("making the objects", since);
	if (r == 0)
		r = rebuild_tree_make(rebuild);
	if (r == 0)
		r = rebuild_sysv_give_undo(rebuild);
	if (r == 0)
		r = fault_point("restore-made-tree", rebuild->err);
	note("making the processes", since);
	if (r == 0)
		r = rebuild_fill(rebuild);
	note("filling them", since);
	if (r == 0)
		r = rebuild_shared_put_back(rebuild);
	if (r == 0)
		r = object_restore_put_back(rebuild->objects, rebuild->err);
	if (r == 0)
		r = object_restore_finish_all(rebuild->objects, rebuild->err);
	if (r == 0)
		r = rebuild_shared_finish(rebuild);
	if (r == 0)
		r = object_restore_record(rebuild->objects, rebuild->options->keeper, rebuild->err);
	if (r == 0)
		record_watches(rebuild);
	if (r == 0)
		r = fault_point("restore-before-run", rebuild->err);
	note("finishing", since);
	if (r == 0 && rebuild->options->held)
		r = rebuild_keep(rebuild);
	if (r == 0 && rebuild->options->held)
		r = rebuild->options->held(rebuild->options->held_arg, rebuild->err);
	if (r == 0)
		r = let_go(rebuild);
	note("letting them go", since);
	return r;
}

void rebuild_close(struct rebuild *rebuild)
{
	for (int i = 0; i < rebuild->plan.nnodes && rebuild->made; i++)
		if (rebuild->made[i].sock >= 0)
			close(rebuild->made[i].sock);
	free(rebuild->made);
	free(rebuild->unverified);
	above_close(rebuild);
	replaced_close(rebuild);
	if (rebuild->objects)
		object_restore_close(rebuild->objects);
	while (rebuild->states) {
		struct inherit_state *state = rebuild->states;

		rebuild->states = state->next;
		inherit_state_free(state);
	}
	rebuild_shared_free(&rebuild->shared);
	plan_free(&rebuild->plan);
	precopied_release(rebuild->precopied);
}

int rebuild_begin_made(struct rebuild *rebuild)
{
	rebuild->made = calloc((size_t)rebuild->plan.nnodes, sizeof(*rebuild->made));
	if (!rebuild->made)
		return err_code(rebuild->err, -ENOMEM, "processes");
	for (int i = 0; i < rebuild->plan.nnodes; i++)
		rebuild->made[i].sock = -1;
	return 0;
}

/* A connection to every scip and a descriptor for every object; the processes fetch theirs from here, which
 * an administrator may have restricted to descendants (Yama). */
void rebuild_prepare(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
}

int restore_run(struct names *names, struct image_reader *image, const struct rebuild_options *options,
		struct rebuild_result *result, struct err *err)
{
	struct rebuild rebuild = {.names = names,
				  .image = image,
				  .manifest = image_reader_manifest(image),
				  .options = options,
				  .whole = rebuild_is_whole(names, options),
				  .above = {.sock = -1},
				  .err = err};
	uint64_t since = io_now_ns(CLOCK_MONOTONIC);
	int r;

	rebuild_prepare();
	r = options->precopied ? precopied_take(&rebuild, options->precopied) : 0;
	if (r == 0)
		r = check(&rebuild);
	note("checking", &since);
	if (r == 0)
		r = fault_point("restore-checked", err);
	if (r == 0 && !options->precopied)
		r = above_hold(&rebuild);
	if (r == 0 && options->step)
		r = options->step(options->held_arg, err);
	if (r == 0)
		r = replaced_freeze(&rebuild);
	if (r == 0 && options->replace.n > 0) {
		r = replaced_kill(&rebuild);
		if (r == 0 && rebuild.whole) {
			record_peer_forget(options->keeper);
			r = rebuild_sysv_clear(&rebuild);
		}
		if (r == 0)
			r = fault_point("restore-cleared", err);
		note("clearing", &since);
	}
	if (r == 0) {
		r = make(&rebuild, &since);
		if (r < 0)
			rebuild_tree_kill(&rebuild);
	} else if (options->precopied) {
		rebuild_tree_kill(&rebuild);
	}
	if (r == 0) {
		result->root = (struct vpid){rebuild.manifest->processes[0]->vpid};
		result->processes = (uint32_t)rebuild.manifest->n_processes;
	}
	rebuild_close(&rebuild);
	return r < 0 ? err_wrap(err, r, "restore %s", options->path) : 0;
}

int restore_end(struct names *names, const struct rebuild_options *options, struct err *err)
{
	const Pbeam__Manifest nothing = PBEAM__MANIFEST__INIT;
	struct rebuild rebuild = {.names = names,
				  .manifest = &nothing,
				  .options = options,
				  .whole = true,
				  .ends = true,
				  .above = {.sock = -1},
				  .err = err};
	int r;

	rebuild_prepare();
	r = options->step(options->held_arg, err);
	if (r == 0)
		r = replaced_freeze(&rebuild);
	if (r == 0)
		r = replaced_kill(&rebuild);
	if (r == 0)
		r = options->held(options->held_arg, err);
	rebuild_close(&rebuild);
	return r;
}
