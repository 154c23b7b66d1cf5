/* Lists the files that a restore changes, for the transaction that changes them (image/file_undo.h). */
#include <errno.h>
#include <sys/stat.h>

#include "image/file_undo.h"
#include "scip/object/common.h"
#include "scip/object/object_restore.h"

enum { MODE_BITS = 07777, SHARED_MODE_BITS = 0777 };

/* Files whose contents the image has for descriptors. */
static int list_saved(struct object_restore *restore, struct file_undo *undo, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < restore->manifest->n_files && r == 0; i++) {
		const Pbeam__SavedFile *saved = restore->manifest->files[i];
		auto_free char *path = object_text(&saved->file->path);
		struct stat st;

		if (!path)
			return object_no_memory(err);
		if (saved->unlinked || object_regular_replaced(restore, (uint32_t)i + 1) ||
		    (stat(path, &st) == 0 && object_files_unchanged(saved, &st)))
			continue;
		r = file_undo_add(undo,
				  &(struct file_wish){.path = path,
						      .contents = true,
						      .size = saved->file->size,
						      .mtime_ns = saved->file->mtime_ns,
						      .mode = saved->mode & MODE_BITS,
						      .n_pages = saved->n_pages,
						      .pages = saved->pages},
				  err);
	}
	return r;
}

/* Files that processes share by mapping them. */
static int list_shared(struct object_restore *restore, struct file_undo *undo, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < restore->manifest->n_shared && r == 0; i++) {
		const Pbeam__SharedMemory *shared = restore->manifest->shared[i];
		auto_free char *path = NULL;

		if (shared->kind != PBEAM__SHARED_MEMORY__KIND__POSIX_FILE || !shared->file ||
		    shared->file->deleted || shared->precopied)
			continue;
		path = object_text(&shared->file->path);
		if (!path)
			return object_no_memory(err);
		r = file_undo_add(undo,
				  &(struct file_wish){.path = path,
						      .contents = true,
						      .size = shared->size,
						      .mode = shared->file->mode & SHARED_MODE_BITS,
						      .n_pages = shared->n_pages,
						      .pages = shared->pages},
				  err);
	}
	return r;
}

/* Files of which only the length is known. */
static int list_cut(struct object_restore *restore, struct file_undo *undo, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < restore->nslots && r == 0; i++) {
		auto_free char *path = NULL;
		uint64_t size;

		if (object_regular_cut(restore, restore->slots[i].object, &path, &size))
			r = file_undo_add(undo, &(struct file_wish){.path = path, .size = size}, err);
	}
	return r;
}

int object_files_list(struct object_restore *restore, struct file_undo *undo, struct err *err)
{
	int r = list_saved(restore, undo, err);

	if (r < 0)
		return r;
	r = list_shared(restore, undo, err);
	return r < 0 ? r : list_cut(restore, undo, err);
}
