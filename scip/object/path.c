/* O_PATH descriptors: a place in the file tree, by name. A symbolic link as last component is the object
 * itself: it is not followed. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "scip/object/common.h"
#include "scip/object/object_table.h"
#include "scip/object/terminal.h"

static bool path_match(struct object_dump *dump, const struct object_source *source)
{
	return source->flags & O_PATH && source->link[0] == '/';
}

/* A terminal's own path is the one that the program knows. */
static int dump_identity(struct object_dump *dump, const struct object_source *source, Pbeam__OPath *out,
			 struct err *err)
{
	int number = terminal_path_number(source->link);
	char path[32];

	snprintf(path, sizeof(path), "/dev/pts/%d", number >= 0 ? object_dump_pts(dump, number) : 0);
	return object_identity(&source->st, number >= 0 ? path : source->link, false, &out->file, err);
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
	return dump_identity(dump, source, out->path, err);
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
	if (terminal_path_number(path) >= 0)
		return 0; /* may be made by the restore; if it is missing the open reports it */
	if (lstat(path, &now) < 0)
		return err_sys(err, "%s is missing; put it back, then try again", path);
	if ((now.st_mode ^ object->path->file->mode) & S_IFMT)
		return err_set(err, -ESTALE, "%s is something else now; put it back, then try again", path);
	return 0;
}

static int path_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err)
{
	auto_free char *path = object_text(&object->path->file->path);
	char now[32];
	int r;

	if (!path)
		return object_no_memory(err);
	r = object_restore_map_path(restore, path, now, sizeof(now), err);
	if (r < 0)
		return r;
	*fd = open(r > 0 ? now : path, O_PATH | O_NOFOLLOW | O_CLOEXEC | (int)(object->flags & O_DIRECTORY));
	return *fd < 0 ? err_sys(err, "open %s again", path) : 0;
}

static int path_visit_files(Pbeam__Object *object, const struct object_visitor *visitor)
{
	return visitor->file(visitor->arg, object->path->file, NULL);
}

const struct object_ops object_path = {
	.name = "O_PATH descriptor",
	.kind = PBEAM__OBJECT__KIND_PATH,
	.phase = 1,
	.match = path_match,
	.dump = path_dump,
	.check = path_check,
	.restore = path_restore,
	.visit_files = path_visit_files,
	.shift = object_shift_none,
};
