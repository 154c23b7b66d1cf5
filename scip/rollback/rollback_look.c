#include "scip/rollback/rollback_look.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "image/file_guard.h"
#include "proto/message.h"
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

/* True if the user has given this file to the program again: `scip restore IMAGE >FILE`. The shell has
 * written to it then. */
static bool is_own_stream(const struct rebuild_options *options, const char *path)
{
	struct stat named, stream;

	for (int i = 0; options->console && i < 3; i++)
		if (options->console[i] >= 0 && fstat(options->console[i], &stream) == 0 &&
		    stat(path, &named) == 0 && named.st_dev == stream.st_dev && named.st_ino == stream.st_ino)
			return true;
	return false;
}

static int list_fates(struct names *names, struct image_reader *image, const struct rebuild_options *options,
		      Pbeam__FileFate ***fates, size_t *n, struct err *err)
{
	struct object_restore *restore;
	int r = object_restore_open(&restore, names, image, options->force, options->console, err);

	if (r < 0)
		return r;
	r = object_restore_forecast(restore, fates, n, err);
	object_restore_close(restore);
	if (r == 0)
		r = file_guard_mark(options->path, *fates, *n, err);
	for (size_t i = 0; r == 0 && i < *n; i++)
		if ((*fates)[i]->foreign && is_own_stream(options, (*fates)[i]->path))
			(*fates)[i]->foreign = false;
	return r;
}

int rollback_forecast(struct names *names, struct image_reader *image, const struct rebuild_options *options,
		      Pbeam__FileFate ***fates, size_t *n, struct err *err)
{
	int r = rollback_check(names, image, options, err);

	return r < 0 ? r : list_fates(names, image, options, fates, n, err);
}

int rollback_guard(struct names *names, struct image_reader *image, const struct rebuild_options *options,
		   struct rollback_kept *kept, struct err *err)
{
	Pbeam__FileFate **fates = NULL;
	size_t n = 0;
	int r;

	if (!file_guard_has_record(options->path))
		return 0;
	r = list_fates(names, image, options, &fates, &n, err);
	if (r == 0)
		r = file_guard_keep(fates, n, options->force, &kept->notes, &kept->nnotes, &kept->paths,
				    &kept->npaths, err);
	for (size_t i = 0; i < n; i++)
		message_free(fates[i]);
	free(fates);
	return r;
}
