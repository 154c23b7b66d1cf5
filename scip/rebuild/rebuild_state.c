/* State shared by the steps of a rebuild: rebuild_parts.h. */
#include <errno.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "scip/rebuild/precopied_parts.h"

/* True for a whole job, false for a part of a job whose other processes exist. */
static bool is_whole(const struct rebuild *rebuild)
{
	const struct rebuild_options *options = rebuild->options;
	struct name_job job;

	if (options->joins)
		return false;
	if (options->part || options->replace.n <= 0)
		return true;
	return names_job_get(rebuild->names, options->keeper, &job) < 0 || job.root.n == options->replace.n;
}

/* The coordinator needs a descriptor for every scip and every object. The processes fetch theirs from here,
 * which an administrator may have restricted to descendants (Yama). */
static void prepare_coordinator(void)
{
	io_raise_descriptor_limit();
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
}

void rebuild_init(struct rebuild *rebuild, struct names *names, struct image_reader *image,
		  const struct rebuild_options *options, struct err *err)
{
	static const Pbeam__Manifest nothing = PBEAM__MANIFEST__INIT;

	*rebuild = (struct rebuild){.names = names,
				    .image = image,
				    .manifest = image ? image_reader_manifest(image) : &nothing,
				    .options = options,
				    .ends = !image,
				    .above = {.sock = -1},
				    .err = err};
	rebuild->whole = !image || is_whole(rebuild);
	prepare_coordinator();
}

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

int rebuild_begin_made(struct rebuild *rebuild)
{
	rebuild->made = calloc((size_t)rebuild->plan.nnodes, sizeof(*rebuild->made));
	if (!rebuild->made)
		return err_code(rebuild->err, -ENOMEM, "processes");
	for (int i = 0; i < rebuild->plan.nnodes; i++)
		rebuild->made[i].sock = -1;
	return 0;
}

void rebuild_destroy(struct rebuild *rebuild)
{
	for (int i = 0; i < rebuild->plan.nnodes && rebuild->made; i++)
		if (rebuild->made[i].sock >= 0)
			close(rebuild->made[i].sock);
	free(rebuild->made);
	free(rebuild->unverified);
	if (rebuild->objects) /* before the old processes go on */
		object_restore_close(rebuild->objects);
	above_close(rebuild);
	replaced_close(rebuild);
	rebuild_beside_free(rebuild);
	while (rebuild->states) {
		struct inherit_state *state = rebuild->states;

		rebuild->states = state->next;
		inherit_state_free(state);
	}
	free(rebuild->sysv);
	rebuild_shared_free(&rebuild->shared);
	plan_free(&rebuild->plan);
	precopied_release(rebuild->precopied);
}
