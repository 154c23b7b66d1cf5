/* Directories: identity and the place of readdir. The offset is a cookie of the file system, valid in any
 * descriptor of the same directory. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "scip/object/common.h"
#include "scip/object/object_table.h"

static bool directory_match(struct object_dump *dump, const struct object_source *source)
{
	return S_ISDIR(source->st.st_mode);
}

static int directory_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
			  struct err *err)
{
	Pbeam__Directory *directory = object_message(Pbeam__Directory, pbeam__directory__init);
	struct stat now;
	off_t offset;

	out->directory = directory;
	if (!directory)
		return object_no_memory(err);
	if (stat(source->link, &now) < 0 || now.st_ino != source->st.st_ino ||
	    now.st_dev != source->st.st_dev)
		return err_set(err, -ENOTSUP,
			       "the directory %s, which has been removed; close it before the checkpoint",
			       source->link);
	offset = lseek(source->local, 0, SEEK_CUR);
	directory->offset = offset < 0 ? 0 : (uint64_t)offset;
	return object_identity(&source->st, source->link, false, &directory->file, err);
}

static int directory_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err)
{
	auto_free char *path = NULL;
	struct stat st;

	if (!object->directory->file)
		return err_set(err, -EBADMSG, "the image does not say which directory");
	path = object_text(&object->directory->file->path);
	if (!path)
		return object_no_memory(err);
	if (stat(path, &st) < 0)
		return err_sys(err, "directory %s is missing; make it again, then try again", path);
	if (!S_ISDIR(st.st_mode))
		return err_set(err, -ENOTDIR, "%s is no directory any more; put it back, then try again",
			       path);
	return 0;
}

static int directory_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd,
			     struct err *err)
{
	auto_free char *path = object_text(&object->directory->file->path);

	if (!path)
		return object_no_memory(err);
	*fd = open(path,
		   O_RDONLY | O_DIRECTORY | O_CLOEXEC | (int)(object->flags & (O_NONBLOCK | O_NOATIME)));
	if (*fd < 0)
		return err_sys(err, "open directory %s again", path);
	if (object->directory->offset && lseek(*fd, (off_t)object->directory->offset, SEEK_SET) < 0)
		return err_sys(err, "put back the place in directory %s", path);
	return 0;
}

static int directory_visit_files(Pbeam__Object *object, const struct object_visitor *visitor)
{
	return visitor->file(visitor->arg, object->directory->file, NULL);
}

const struct object_ops object_directory = {
	.name = "directory",
	.kind = PBEAM__OBJECT__KIND_DIRECTORY,
	.phase = 1,
	.match = directory_match,
	.dump = directory_dump,
	.check = directory_check,
	.restore = directory_restore,
	.visit_files = directory_visit_files,
	.shift = object_shift_none,
};
