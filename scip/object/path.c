/* O_PATH descriptors: a place in the file tree, by name. The name is that of the thing itself, so a symbolic
 * link in the last place is the object: it is not followed. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "scip/object/common.h"
#include "scip/object/object_table.h"

static bool path_match(struct object_dump *dump, const struct object_source *source)
{
	return source->flags & O_PATH && source->link[0] == '/';
}

static int path_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
		     struct err *err)
{
	struct stat now;

	out->path = object_message(Pbeam__OPath, pbeam__opath__init);
	if (!out->path)
		return object_no_memory(err);
	if (lstat(source->link, &now) < 0 || now.st_ino != source->st.st_ino ||
	    now.st_dev != source->st.st_dev)
		return err_set(err, -ENOTSUP, "an O_PATH descriptor of %s, which was removed; close it first",
			       source->link);
	return object_identity(&source->st, source->link, false, &out->path->file, err);
}

static int path_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err)
{
	auto_free char *path = NULL;
	struct stat now;

	if (!object->path->file)
		return err_set(err, -EBADMSG, "the image does not say which path");
	path = object_text(&object->path->file->path);
	if (!path)
		return object_no_memory(err);
	if (lstat(path, &now) < 0)
		return err_sys(err, "%s is missing; put it back, then try again", path);
	if ((now.st_mode ^ object->path->file->mode) & S_IFMT)
		return err_set(err, -ESTALE, "%s is something else now; put it back, then try again", path);
	return 0;
}

static int path_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err)
{
	auto_free char *path = object_text(&object->path->file->path);

	if (!path)
		return object_no_memory(err);
	*fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC | (int)(object->flags & O_DIRECTORY));
	return *fd < 0 ? err_sys(err, "open %s again", path) : 0;
}

const struct object_ops object_path = {
	.name = "O_PATH descriptor",
	.kind = PBEAM__OBJECT__KIND_PATH,
	.phase = 1,
	.match = path_match,
	.dump = path_dump,
	.check = path_check,
	.restore = path_restore,
};
