/*
 * Regular files: offset, flags, and what becomes of their contents.
 *
 *   open for writing          contents saved with the image up to a limit (files.c); beyond it only the
 * length is restored; other changes are refused open for reading          must be the same file, unchanged
 *   without a name (unlinked) contents always saved; made again without a name in the same directory
 *
 * A file whose name was removed but that has others is looked for in its directory; if it is not there it
 * cannot be found and is refused.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "scip/object/common.h"
#include "scip/object/object_restore.h"
#include "scip/object/object_table.h"

#define OPEN_FLAGS (O_ACCMODE | O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME | O_SYNC | O_DSYNC)

static bool regular_match(struct object_dump *dump, const struct object_source *source)
{
	return S_ISREG(source->st.st_mode) && source->link[0] == '/';
}

static bool is_file(const char *path, const struct stat *st)
{
	struct stat now;

	return stat(path, &now) == 0 && now.st_dev == st->st_dev && now.st_ino == st->st_ino;
}

/* Another name of the file in the directory of its old one; NULL if there is none. */
static char *find_other_name(const char *path, const struct stat *st)
{
	const char *slash = strrchr(path, '/');
	auto_free char *dir_name = slash ? strndup(path, (size_t)(slash - path) + 1) : NULL;
	auto_closedir DIR *dir = dir_name ? opendir(dir_name) : NULL;
	struct dirent *item;
	char *other;

	while (dir && (item = readdir(dir)) != NULL) {
		if (item->d_ino != st->st_ino || asprintf(&other, "%s%s", dir_name, item->d_name) < 0)
			continue;
		if (is_file(other, st))
			return other;
		free(other);
	}
	return NULL;
}

static int regular_name_of(const struct object_source *source, char **path, bool *unlinked, struct err *err)
{
	char *other;

	*path = strdup(source->link);
	if (!*path)
		return object_no_memory(err);
	*unlinked = source->st.st_nlink == 0;
	if (*unlinked) {
		object_cut_deleted(*path);
		return 0;
	}
	if (is_file(*path, &source->st))
		return 0;
	object_cut_deleted(*path);
	other = is_file(*path, &source->st) ? strdup(*path) : find_other_name(*path, &source->st);
	if (!other)
		return err_set(
			err, -ENOTSUP,
			"the file %s, which was removed under that name but has another that is not in "
			"its directory; close it, or give it its name back",
			*path);
	free(*path);
	*path = other;
	return 0;
}

static int regular_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
			struct err *err)
{
	Pbeam__RegularFile *regular = object_message(Pbeam__RegularFile, pbeam__regular_file__init);
	bool writable = (source->flags & O_ACCMODE) != O_RDONLY;
	auto_free char *path = NULL;
	bool unlinked;
	off_t offset;
	int r;

	out->regular = regular;
	if (!regular)
		return object_no_memory(err);
	r = regular_name_of(source, &path, &unlinked, err);
	if (r == 0)
		r = object_identity(&source->st, path, unlinked, &regular->file, err);
	if (r < 0)
		return r;
	offset = lseek(source->local, 0, SEEK_CUR);
	if (offset < 0)
		return err_sys(err, "the file %s, whose offset cannot be read", path);
	regular->offset = (uint64_t)offset;
	regular->unlinked = unlinked;
	regular->console = object_dump_console_stream(dump, source) + 1;
	regular->ctime_ns = object_ctime_ns(&source->st);
	if (!writable && !unlinked)
		return 0;
	r = object_dump_save_file(dump, source->local, &source->st, path, unlinked, unlinked, &regular->saved,
				  err);
	return r < 0 ? err_wrap(err, r, "the file %s, whose contents cannot be saved", path) : 0;
}

/* A file that one description reads and another writes is saved with the second description. */
static int regular_verify(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
			  struct err *err)
{
	const Pbeam__Manifest *manifest = object_dump_manifest(dump);

	for (size_t i = 0; i < manifest->n_files && !out->regular->saved; i++)
		if (manifest->files[i]->file->dev == source->st.st_dev &&
		    manifest->files[i]->file->ino == source->st.st_ino)
			out->regular->saved = (uint32_t)i + 1;
	return 0;
}

static bool all_append(struct object_restore *restore, const Pbeam__FileIdentity *file)
{
	const Pbeam__Manifest *manifest = object_restore_manifest(restore);

	for (size_t i = 0; i < manifest->n_objects; i++) {
		const Pbeam__Object *other = manifest->objects[i];

		if (other->kind_case == PBEAM__OBJECT__KIND_REGULAR && other->regular->file &&
		    other->regular->file->ino == file->ino && other->regular->file->dev == file->dev &&
		    (other->flags & O_ACCMODE) != O_RDONLY && !(other->flags & O_APPEND))
			return false;
	}
	return true;
}

/* A file that must be there as it was, or longer. */
static int check_present(struct object_restore *restore, const Pbeam__Object *object, const char *path,
			 struct err *err)
{
	const Pbeam__FileIdentity *file = object->regular->file;
	bool writable = (object->flags & O_ACCMODE) != O_RDONLY;
	struct stat st;

	if (stat(path, &st) < 0)
		return err_sys(err, "file %s is missing; put it back, then try again", path);
	if (!S_ISREG(st.st_mode))
		return err_set(err, -ESTALE, "%s is no regular file any more; put it back, then try again",
			       path);
	if (object_restore_force(restore))
		return 0;
	if (st.st_dev != file->dev || st.st_ino != file->ino)
		return err_set(
			err, -ESTALE,
			"file %s was replaced since the checkpoint; put the old one back, or use --force",
			path);
	if ((uint64_t)st.st_size == file->size && object_mtime_ns(&st) == file->mtime_ns)
		return 0;
	if (writable && (uint64_t)st.st_size >= file->size && all_append(restore, file))
		return 0; /* cuts off what was appended */
	return err_set(
		err, -ESTALE,
		writable ? "file %s has changed since the checkpoint and was too large to be saved with "
			   "it; use a larger --save-files next time, or --force to go on with it as it is"
			 : "file %s has changed since the checkpoint, which did not save it as it was open "
			   "for reading only; put it back, or use --force",
		path);
}

/* If the file was a stream of the console, and the program is started again with another console, the new
 * stream. Else -1: in a rollback the console still has the file, which is restored as any other. */
static int other_stream(struct object_restore *restore, const Pbeam__RegularFile *regular, const char *path)
{
	int stream = regular->console > 0 ? object_restore_console(restore, regular->console - 1) : -1;
	struct stat now, named;

	if (stream < 0 || fstat(stream, &now) < 0)
		return -1;
	if (now.st_dev == regular->file->dev && now.st_ino == regular->file->ino)
		return -1;
	if (stat(path, &named) == 0 && named.st_dev == now.st_dev && named.st_ino == now.st_ino)
		return -1;
	return stream;
}

bool object_regular_replaced(struct object_restore *restore, uint32_t saved)
{
	const Pbeam__Manifest *manifest = object_restore_manifest(restore);
	bool replaced = false;

	for (size_t i = 0; i < manifest->n_objects; i++) {
		const Pbeam__Object *object = manifest->objects[i];
		auto_free char *path = NULL;

		if (object->kind_case != PBEAM__OBJECT__KIND_REGULAR || object->regular->saved != saved ||
		    !object->regular->file)
			continue;
		path = object_text(&object->regular->file->path);
		if (!path || other_stream(restore, object->regular, path) < 0)
			return false;
		replaced = true;
	}
	return replaced;
}

/* That it can be opened as it was: a descriptor may have been passed by somebody who may do more. One's own
 * file can be made accessible (open_again()), one that is missing may be made from what was saved. */
static int check_access(const Pbeam__Object *object, const char *path, struct err *err)
{
	int access = object->flags & O_ACCMODE;
	int mode = access == O_RDONLY ? R_OK : access == O_WRONLY ? W_OK : R_OK | W_OK;
	struct stat st;

	if (faccessat(AT_FDCWD, path, mode, AT_EACCESS) == 0 || errno == ENOENT)
		return 0;
	if (errno == EACCES && stat(path, &st) == 0 && st.st_uid == geteuid())
		return 0;
	return err_sys(
		err,
		"file %s may not be opened by you as the program had it; get access to it, then try again",
		path);
}

static int regular_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err)
{
	const Pbeam__RegularFile *regular = object->regular;
	auto_free char *path = NULL;
	int r;

	if (!regular->file)
		return err_set(err, -EBADMSG, "the image does not say which file");
	if (regular->saved > object_restore_manifest(restore)->n_files)
		return err_set(err, -EBADMSG, "the image refers to contents it does not have");
	if (regular->unlinked && !regular->saved)
		return err_set(err, -EBADMSG, "the image lacks the contents of an unlinked file");
	path = object_text(&regular->file->path);
	if (!path)
		return object_no_memory(err);
	if (regular->unlinked || other_stream(restore, regular, path) >= 0)
		return 0;
	r = check_access(object, path, err);
	return r < 0 || regular->saved ? r : check_present(restore, object, path, err);
}

/* Makes a file without a name: under its old name for a moment, so that its link reads as it did; where that
 * is taken with O_TMPFILE, and where the directory is gone in /tmp. */
static int make_unlinked(const char *path, mode_t mode)
{
	auto_free char *dir = strdup(path);
	char *slash = dir ? strrchr(dir, '/') : NULL;
	int fd;

	if (!dir)
		return -ENOMEM;
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd >= 0)
		unlink(path);
	if (slash)
		slash[slash == dir] = 0;
	if (fd < 0)
		fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0)
		fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd >= 0 && fchmod(fd, mode & 07777) < 0) {
		close(fd);
		return -errno;
	}
	return fd < 0 ? -errno : fd;
}

/* All descriptions of one unlinked file are of one new file. */
static int unlinked_file(struct object_restore *restore, const Pbeam__RegularFile *regular, const char *path,
			 struct err *err)
{
	const Pbeam__SavedFile *saved = object_restore_manifest(restore)->files[regular->saved - 1];
	int fd = object_restore_kept(restore, PBEAM__OBJECT__KIND_REGULAR, regular->saved);
	int r;

	if (fd >= 0)
		return fd;
	fd = make_unlinked(path, saved->mode);
	if (fd < 0)
		return err_code(err, fd, "make a file without a name in place of %s", path);
	r = object_files_read_pages(object_restore_image(restore), fd, saved->file->size, saved->n_pages,
				    saved->pages, err);
	if (r < 0) {
		close(fd);
		return r;
	}
	r = object_restore_keep(restore, PBEAM__OBJECT__KIND_REGULAR, regular->saved, fd, err);
	return r < 0 ? r : fd;
}

/* Opens even what its mode forbids: git opens new objects with mode 0444 for writing. */
static int open_again(const char *path, int flags)
{
	int fd = open(path, flags);
	struct stat st;

	if (fd < 0 && errno == EACCES && stat(path, &st) == 0 &&
	    chmod(path, (st.st_mode & 07777) | S_IRUSR | S_IWUSR) == 0) {
		fd = open(path, flags);
		if (chmod(path, st.st_mode & 07777) < 0 && fd >= 0) {
			close(fd);
			fd = -1;
		}
	}
	if (fd < 0 && errno == EPERM && flags & O_NOATIME)
		fd = open(path, flags & ~O_NOATIME);
	return fd < 0 ? -errno : fd;
}

bool object_regular_cut(struct object_restore *restore, const Pbeam__Object *object, char **path,
			uint64_t *size)
{
	const Pbeam__RegularFile *regular = object->regular;
	struct stat st;

	if (object->kind_case != PBEAM__OBJECT__KIND_REGULAR || regular->saved || regular->unlinked ||
	    (object->flags & O_ACCMODE) == O_RDONLY || object->external)
		return false;
	*path = object_text(&regular->file->path);
	*size = regular->file->size;
	if (*path && stat(*path, &st) == 0 && (uint64_t)st.st_size != *size &&
	    other_stream(restore, regular, *path) < 0)
		return true;
	free(*path);
	*path = NULL;
	return false;
}

static int regular_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd,
			   struct err *err)
{
	const Pbeam__RegularFile *regular = object->regular;
	auto_free char *path = object_text(&regular->file->path);
	int flags = (int)(object->flags & OPEN_FLAGS) | O_CLOEXEC | O_NOCTTY;
	char by_fd[40];
	int stream;

	if (!path)
		return object_no_memory(err);
	stream = other_stream(restore, regular, path);
	if (stream >= 0) {
		*fd = fcntl(stream, F_DUPFD_CLOEXEC, 3);
		return *fd < 0 ? err_sys(err, "attach the console") : 0;
	}
	if (regular->unlinked) {
		int made = unlinked_file(restore, regular, path, err);

		if (made < 0)
			return made;
		snprintf(by_fd, sizeof(by_fd), "/proc/self/fd/%d", made);
		*fd = open_again(by_fd, flags);
	} else {
		*fd = open_again(path, flags);
	}
	if (*fd < 0)
		return err_code(err, *fd, "open %s again", path);
	if (lseek(*fd, (off_t)regular->offset, SEEK_SET) < 0)
		return err_sys(err, "put back the offset of %s", path);
	return 0;
}

/* A description with locks is shared with the process that is replaced (object_locks_pass.c). */
static int regular_take_over(struct object_restore *restore, const Pbeam__Object *object, int fd,
			     struct err *err)
{
	return !object->regular->console && lseek(fd, (off_t)object->regular->offset, SEEK_SET) < 0
		       ? err_sys(err, "put back the offset of a file")
		       : 0;
}

static int regular_visit_files(Pbeam__Object *object, const struct object_visitor *visitor)
{
	Pbeam__RegularFile *regular = object->regular;

	return regular->unlinked ? 0 : visitor->file(visitor->arg, regular->file, &regular->ctime_ns);
}

/* A file with a name keeps its inode number, which is compared with the file's. */
static void regular_shift(Pbeam__Object *object, const struct object_shift *shift)
{
	Pbeam__RegularFile *regular = object->regular;

	regular->saved += regular->saved ? shift->saved : 0;
	if (regular->file && regular->unlinked)
		regular->file->ino += shift->ino;
}

const struct object_ops object_regular = {
	.name = "file",
	.kind = PBEAM__OBJECT__KIND_REGULAR,
	.phase = 1,
	.match = regular_match,
	.dump = regular_dump,
	.verify = regular_verify,
	.check = regular_check,
	.restore = regular_restore,
	.take_over = regular_take_over,
	.visit_files = regular_visit_files,
	.shift = regular_shift,
};
