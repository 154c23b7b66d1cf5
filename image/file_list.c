/* The files that an image has contents of, for the transaction that changes them. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "image/file_undo.h"
#include "proto/message.h"

enum { MODE_BITS = 07777, SHARED_MODE_BITS = 0777 };

static char *path_of_file(const Pbeam__FileIdentity *file)
{
	return message_dup_text(&file->path);
}

bool file_undo_is_unchanged(const Pbeam__SavedFile *saved, const struct stat *st)
{
	return st->st_dev == saved->file->dev && st->st_ino == saved->file->ino &&
	       (uint64_t)st->st_size == saved->file->size &&
	       io_time_ns(&st->st_mtim) == saved->file->mtime_ns &&
	       io_time_ns(&st->st_ctim) == saved->ctime_ns;
}

int file_undo_add_saved(struct file_undo *undo, const Pbeam__SavedFile *saved, struct err *err)
{
	auto_free char *path = saved->file ? path_of_file(saved->file) : NULL;
	struct stat st;

	if (!path)
		return err_code(err, -ENOMEM, "list the files that change");
	if (saved->unlinked || saved->by_tree)
		return 0;
	if (stat(path, &st) == 0 && file_undo_is_unchanged(saved, &st))
		return file_undo_add_unchanged(undo, path, &st, err);
	return file_undo_add(undo,
			     &(struct file_wish){.path = path,
						 .contents = true,
						 .size = saved->file->size,
						 .mtime_ns = saved->file->mtime_ns,
						 .mode = saved->mode & MODE_BITS,
						 .n_pages = saved->n_pages,
						 .pages = saved->pages},
			     err);
}

int file_undo_add_shared(struct file_undo *undo, const Pbeam__SharedMemory *shared, struct err *err)
{
	auto_free char *path = NULL;

	if (shared->kind != PBEAM__SHARED_MEMORY__KIND__POSIX_FILE || !shared->file ||
	    shared->file->deleted || shared->precopied)
		return 0;
	path = path_of_file(shared->file);
	if (!path)
		return err_code(err, -ENOMEM, "list the files that change");
	return file_undo_add(undo,
			     &(struct file_wish){.path = path,
						 .contents = true,
						 .size = shared->size,
						 .mode = shared->file->mode & SHARED_MODE_BITS,
						 .n_pages = shared->n_pages,
						 .pages = shared->pages},
			     err);
}

int file_undo_add_all(struct file_undo *undo, const Pbeam__Manifest *manifest, struct err *err)
{
	int r = file_undo_add_trees(undo, manifest, err);

	for (size_t i = 0; i < manifest->n_files && r == 0; i++)
		r = file_undo_add_saved(undo, manifest->files[i], err);
	for (size_t i = 0; i < manifest->n_shared && r == 0; i++)
		r = file_undo_add_shared(undo, manifest->shared[i], err);
	return r;
}
