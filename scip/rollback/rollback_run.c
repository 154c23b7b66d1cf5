#include "scip/rollback/rollback_run.h"

static int rollback_steps(struct rebuild *rebuild)
{
	int r = rebuild_check(rebuild);

	if (r < 0)
		return r;
	r = rebuild_stop(rebuild);
	if (r < 0)
		return r;
	r = rebuild_clear(rebuild);
	if (r < 0)
		return r;
	r = rebuild_make(rebuild);
	if (r < 0)
		return r;
	r = rebuild_fill(rebuild);
	if (r < 0)
		return r;
	r = rebuild_commit(rebuild);
	if (r < 0)
		return r;
	return rebuild_run(rebuild);
}

int rollback_run(struct names *names, struct image_reader *image, const struct rebuild_options *options,
		 struct rebuild_result *result, struct err *err)
{
	struct rebuild *rebuild;
	int r = rebuild_open(&rebuild, names, image, options, err);

	if (r < 0)
		return r;
	r = rollback_steps(rebuild);
	if (r < 0)
		r = rebuild_undo(rebuild, r);
	*result = rebuild_result(rebuild);
	rebuild_close(rebuild);
	return r;
}
