/* Lists the files that a restore changes, for the transaction that changes them (image/file_undo.h). */
#include <errno.h>
#include <sys/stat.h>

#include "image/file_undo.h"
#include "scip/object/common.h"
#include "scip/object/object_restore.h"

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
	const Pbeam__Manifest *manifest = restore->manifest;
	int r = file_undo_add_trees(undo, manifest, err);

	for (size_t i = 0; i < manifest->n_files && r == 0; i++)
		if (!object_regular_replaced(restore, (uint32_t)i + 1))
			r = file_undo_add_saved(undo, manifest->files[i], err);
	for (size_t i = 0; i < manifest->n_shared && r == 0; i++)
		r = file_undo_add_shared(undo, manifest->shared[i], err);
	return r < 0 ? r : list_cut(restore, undo, err);
}

int object_restore_forecast(struct object_restore *restore, Pbeam__FileFate ***fates, size_t *n,
			    struct err *err)
{
	struct file_undo *undo;
	int r = file_undo_open(&undo, restore->image, 0, err);

	if (r == 0)
		r = object_files_list(restore, undo, err);
	if (r == 0 && file_undo_list_fates(undo, fates, n) < 0)
		r = object_no_memory(err);
	file_undo_close(undo);
	return r;
}
