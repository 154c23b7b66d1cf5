/* The steps of a rebuild, in order. Each step is implemented in files of its own. */
#include "scip/rebuild/rebuild.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "namespace/record.h"
#include "proto/message.h"
#include "scip/rebuild/precopied_parts.h"

static void log_duration(struct rebuild *rebuild, const char *what)
{
	uint64_t now = io_now_ns(CLOCK_MONOTONIC);

	log_info("restore: %s took %lu us", what, (unsigned long)((now - rebuild->since) / 1000));
	rebuild->since = now;
}

int rebuild_open(struct rebuild **out, struct names *names, struct image_reader *image,
		 const struct rebuild_options *options, struct err *err)
{
	struct rebuild *rebuild = calloc(1, sizeof(*rebuild));
	int r;

	*out = NULL;
	if (!rebuild) {
		if (options->precopied)
			precopied_abandon(options->precopied);
		return err_code(err, -ENOMEM, "restore %s", options->path);
	}
	rebuild_init(rebuild, names, image, options, err);
	rebuild->since = io_now_ns(CLOCK_MONOTONIC);
	r = rebuild_vdso_adapt(rebuild->manifest, err);
	if (r < 0 && options->precopied)
		precopied_abandon(options->precopied);
	else if (options->precopied)
		r = precopied_take(rebuild, options->precopied);
	if (r < 0) {
		r = rebuild_undo(rebuild, r);
		rebuild_close(rebuild);
		return r;
	}
	*out = rebuild;
	return 0;
}

static int check_manifest(const struct rebuild *rebuild)
{
	const Pbeam__Manifest *manifest = rebuild->manifest;

	if (manifest->cut)
		return err_set(rebuild->err, -EINVAL,
			       "it is the list of a cut over several hosts; `pbeamctl rollback %s` brings "
			       "all of it back",
			       manifest->cut->name);
	if (manifest->n_processes == 0)
		return err_set(rebuild->err, -EINVAL, "there is no process in the image");
	if (manifest->partial && !rebuild->precopied)
		return err_set(rebuild->err, -EINVAL, "part of the image is missing");
	return 0;
}

/* Pre-copied processes already have their place in the tree. */
static int check_places(struct rebuild *rebuild)
{
	int r = rebuild_check_numbers(rebuild);

	if (r < 0)
		return r;
	r = rebuild->precopied ? 0 : above_find(rebuild);
	if (r < 0)
		return r;
	r = rebuild_check_image(rebuild);
	if (r < 0)
		return r;
	return rebuild->precopied ? 0 : rebuild_obstacle(rebuild, rebuild_plan(rebuild));
}

static int pass_object(void *arg, int r)
{
	return rebuild_obstacle(arg, r);
}

static int check_objects(struct rebuild *rebuild)
{
	const struct rebuild_options *options = rebuild->options;
	int r = object_restore_open(&rebuild->objects, rebuild->names, rebuild->image, options->force,
				    options->console, rebuild->err);

	if (r < 0)
		return rebuild_obstacle(rebuild, r);
	object_restore_set_external(rebuild->objects, options->external);
	return object_restore_check_each(rebuild->objects, pass_object, rebuild, rebuild->err);
}

/* A list of obstacles includes damage: the pages are not verified later. */
static int verify(struct rebuild *rebuild)
{
	return rebuild->obstacles && !rebuild->options->trusted
		       ? image_reader_verify(rebuild->image, rebuild->err)
		       : rebuild_verify_image(rebuild);
}

int rebuild_check(struct rebuild *rebuild)
{
	int r;

	if (rebuild->ends)
		return 0;
	r = check_manifest(rebuild);
	if (r < 0)
		return rebuild_obstacle(rebuild, r); /* there is nothing else to check */
	r = check_places(rebuild);
	if (r < 0)
		return r;
	r = check_objects(rebuild);
	if (r < 0)
		return r;
	r = rebuild_obstacle(rebuild, verify(rebuild));
	log_duration(rebuild, "checking");
	return r < 0 ? r : fault_point("restore-checked", rebuild->err);
}

/* From here until the outcome the frozen processes stay frozen even when the coordinator is killed: the
 * keeper puts the files back first. */
static int prepare_files(struct rebuild *rebuild)
{
	if (!rebuild->objects)
		return 0;
	atomic_store(&rebuild->options->signs->unsettled, true);
	return object_restore_prepare_files(rebuild->objects, rebuild->err);
}

int rebuild_stop(struct rebuild *rebuild)
{
	int r = rebuild->precopied ? 0 : above_hold(rebuild);

	atomic_store(&rebuild->options->signs->voted, false);
	if (r < 0)
		return r;
	r = rebuild->options->replace.n > 0 ? replaced_freeze(rebuild) : 0;
	if (r < 0)
		return r;
	if (rebuild->options->replace.n > 0 && !rebuild->ends)
		r = rebuild_beside_decide(rebuild);
	if (r < 0)
		return r;
	r = prepare_files(rebuild);
	return r < 0 ? r : fault_point("restore-frozen", rebuild->err);
}

int rebuild_clear(struct rebuild *rebuild)
{
	int r;

	if (rebuild->ends || rebuild->options->replace.n <= 0)
		return 0;
	if (rebuild->beside)
		return rebuild_beside_begin(rebuild);
	r = replaced_kill(rebuild);
	if (r < 0)
		return r;
	if (rebuild->whole) {
		record_peer_forget(rebuild->options->keeper);
		r = rebuild_sysv_clear(rebuild);
		if (r < 0)
			return r;
	}
	log_duration(rebuild, "clearing");
	return fault_point("restore-cleared", rebuild->err);
}

static int make_objects(struct rebuild *rebuild)
{
	int r = precopied_shared_give(rebuild);

	if (r < 0)
		return r;
	r = object_restore_make_all(rebuild->objects, rebuild->err);
	if (r < 0)
		return r;
	r = rebuild_shared_make_all(rebuild);
	if (r < 0)
		return r;
	r = rebuild_sysv_make_all(rebuild);
	log_duration(rebuild, "making the objects");
	return r < 0 ? r : fault_point("restore-made-objects", rebuild->err);
}

int rebuild_make(struct rebuild *rebuild)
{
	int r;

	if (rebuild->ends)
		return 0;
	r = make_objects(rebuild);
	if (r < 0)
		return r;
	r = rebuild_tree_make(rebuild);
	if (r < 0)
		return r;
	r = rebuild->beside ? 0 : rebuild_sysv_give_undo(rebuild);
	log_duration(rebuild, "making the processes");
	return r < 0 ? r : fault_point("restore-made-tree", rebuild->err);
}

/* The kernel did not see the program add these watches. Their paths are recorded for the next checkpoint; a
 * path that cannot be recorded is searched for then. */
static void record_watches(const struct rebuild *rebuild)
{
	for (size_t i = 0; i < rebuild->manifest->n_objects; i++) {
		const Pbeam__Object *object = rebuild->manifest->objects[i];

		if (object->kind_case != PBEAM__OBJECT__KIND_INOTIFY)
			continue;
		for (size_t n = 0; n < object->inotify->n_watches; n++) {
			const Pbeam__InotifyWatch *watch = object->inotify->watches[n];
			auto_free char *path = message_dup_text(&watch->path);

			if (path && record_watch_add(rebuild->options->keeper, (uint32_t)watch->dev,
						     watch->ino, path) < 0)
				log_debug("the path of a watch on %s is not recorded", path);
		}
	}
}

/* Does the work that requires all processes to be filled. */
static int finish_objects(struct rebuild *rebuild)
{
	int r = object_restore_put_back(rebuild->objects, rebuild->err);
	if (r < 0)
		return r;
	r = object_restore_finish_all(rebuild->objects, rebuild->err);
	if (r < 0)
		return r;
	r = rebuild_shared_finish(rebuild);
	if (r < 0)
		return r;
	if (!rebuild->beside)
		r = object_restore_record(rebuild->objects, rebuild->options->keeper, rebuild->err);
	if (r < 0)
		return r;
	record_watches(rebuild);
	return 0;
}

int rebuild_fill(struct rebuild *rebuild)
{
	int r;

	if (rebuild->ends)
		return 0;
	r = rebuild_fill_all(rebuild);
	log_duration(rebuild, "filling the processes");
	if (r < 0)
		return r;
	r = finish_objects(rebuild);
	log_duration(rebuild, "finishing the objects");
	return r < 0 ? r : fault_point("restore-before-run", rebuild->err);
}

static int adopt_processes(struct rebuild *rebuild)
{
	int r = above_commit(rebuild);

	return r < 0 ? r : fault_point("restore-adopted", rebuild->err);
}

/* The commit is past: files keep what the image has. */
static void settle_files(struct rebuild *rebuild)
{
	if (!rebuild->objects)
		return;
	object_restore_settle(rebuild->objects);
	atomic_store(&rebuild->options->signs->unsettled, false);
}

/* Of a rollback with the old order: the new first process is the job's from now on. */
static int announce_root(struct rebuild *rebuild)
{
	return rebuild->whole && rebuild->options->replace.n > 0 && !rebuild->beside
		       ? rebuild_ask_keeper(rebuild, PBEAM__KEEPER_REQUEST__KEEPER_REPLACED, NULL, NULL)
		       : 0;
}

int rebuild_run(struct rebuild *rebuild)
{
	int r;

	r = announce_root(rebuild);
	if (r < 0)
		return r;
	r = adopt_processes(rebuild);
	if (r < 0 && !rebuild->committed)
		return r;
	if (r < 0)
		log_error("restore: %s", rebuild->err->text);
	err_clear(rebuild->err);
	settle_files(rebuild);
	r = rebuild_fill_release(rebuild);
	log_duration(rebuild, "releasing the processes");
	return r;
}

void rebuild_run_committed(struct rebuild *rebuild)
{
	if (rebuild->ends)
		return;
	if (announce_root(rebuild) < 0)
		log_error("restore: %s", rebuild->err->text);
	if (adopt_processes(rebuild) < 0)
		log_error("restore: %s", rebuild->err->text);
	settle_files(rebuild);
	if (rebuild_fill_release(rebuild) < 0)
		log_error("restore: %s", rebuild->err->text);
	log_duration(rebuild, "releasing the processes");
	err_clear(rebuild->err);
}

int rebuild_undo(struct rebuild *rebuild, int r)
{
	size_t n = 0;

	if (rebuild->committed)
		return err_wrap(rebuild->err, r, "restore %s", rebuild->options->path);
	auto_free struct pollfd *ends = rebuild->beside ? rebuild_beside_watch_ends(rebuild, &n) : NULL;

	atomic_store(&rebuild->options->signs->voted, false);
	rebuild_tree_kill(rebuild);
	rebuild_beside_await_ends(ends, n);
	rebuild_beside_end(rebuild, false);
	if (rebuild->beside)
		rebuild_sysv_undo(rebuild);
	if (rebuild->objects) {
		object_restore_give_back(rebuild->objects);
		object_restore_take_back(rebuild->objects, rebuild->err);
		atomic_store(&rebuild->options->signs->unsettled, false);
	}
	return rebuild->ends ? r : err_wrap(rebuild->err, r, "restore %s", rebuild->options->path);
}

struct rebuild_result rebuild_result(const struct rebuild *rebuild)
{
	const Pbeam__Manifest *manifest = rebuild->manifest;

	return (struct rebuild_result){.root = {manifest->n_processes ? manifest->processes[0]->vpid : 0},
				       .processes = (uint32_t)manifest->n_processes};
}

void rebuild_close(struct rebuild *rebuild)
{
	if (rebuild)
		rebuild_destroy(rebuild);
	free(rebuild);
}
