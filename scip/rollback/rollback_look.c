#include "scip/rollback/rollback_look.h"

#include "scip/object/object.h"

int rollback_check(struct names *names, struct image_reader *image, const struct rebuild_options *options,
		   struct err *err)
{
	struct rebuild *rebuild;
	int r = rebuild_open(&rebuild, names, image, options, err);

	if (r < 0)
		return r;
	r = rebuild_check(rebuild);
	rebuild_close(rebuild);
	return r;
}

int rollback_forecast(struct names *names, struct image_reader *image, const struct rebuild_options *options,
		      Pbeam__FileFate ***fates, size_t *n, struct err *err)
{
	struct object_restore *restore;
	int r = rollback_check(names, image, options, err);

	if (r < 0)
		return r;
	r = object_restore_open(&restore, names, image, options->force, options->console, err);
	if (r < 0)
		return r;
	r = object_restore_forecast(restore, fates, n, err);
	object_restore_close(restore);
	return r;
}
