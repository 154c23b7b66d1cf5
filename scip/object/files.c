/*
 * File contents saved in the image and restored before anything is opened.
 *
 * Files without a name are always saved, files open for writing too unless they exceed --save-files: the runs
 * of data that SEEK_DATA and SEEK_HOLE show, page by page, so that holes stay holes. FICLONERANGE shares the
 * blocks with the image where the file system can (XFS, btrfs) and costs nothing, so that the limit does not
 * apply. Otherwise the contents of a large file are stored by blocks beside a numbered image, and only those
 * that have changed since the last one (image/blocks.h); what is left is copied into the image.
 *
 * On restore a file whose device, inode, size, mtime and ctime are as they were is left alone. Otherwise it
 * is changed in place, or made if it is missing: files_switch.c. A file over the limit has no contents here:
 * only its length is put back.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <unistd.h>

#include "image/blocks.h"
#include "image/file_copy.h"
#include "image/file_undo.h"
#include "scip/object/common.h"
#include "scip/object/object_dump.h"
#include "scip/object/object_restore.h"

enum { LARGE = 4 << 20 }; /* bytes of a file that is stored by blocks */

static int write_run(struct image_writer *writer, int fd, uint64_t size, uint64_t start, uint64_t end,
		     bool *cloned, Pbeam__Pages *pages)
{
	struct image_arena *arena = image_writer_arena(writer);
	uint64_t offset = image_arena_take(arena, end - start);
	uint64_t shared =
		*cloned ? file_copy_clone(fd, image_writer_fd(writer), start, offset, end - start, size) : 0;
	int r = file_copy_bytes(fd, image_writer_fd(writer), start + shared, offset + shared,
				end - start - shared, true);

	if (r < 0)
		return r;
	*cloned = shared > 0;
	image_arena_written(arena, offset, end - start);
	pages->address = start;
	pages->count = (end - start) / IMAGE_PAGE;
	pages->offset = offset;
	return 0;
}

int object_files_write_pages(struct image_writer *writer, int fd, uint64_t size, size_t *n,
			     Pbeam__Pages ***pages, struct err *err)
{
	uint64_t start = 0, end;
	bool cloned = true;

	while (file_copy_next_run(fd, size, &start, &end)) {
		Pbeam__Pages *run = object_message(Pbeam__Pages, pbeam__pages__init);
		int r;

		if (!run || object_append(*pages, *n, run) < 0) {
			free(run);
			return object_no_memory(err);
		}
		r = write_run(writer, fd, size, start, end, &cloned, run);
		if (r < 0)
			return err_code(err, r, "save contents of a file");
		start = end;
	}
	return 0;
}

/* True if the first block can be shared with the image: tried on room that is then left unused. */
static bool can_clone(struct image_writer *writer, int fd, uint64_t size)
{
	uint64_t offset = image_arena_take(image_writer_arena(writer), IMAGE_PAGE);

	return size >= IMAGE_PAGE &&
	       file_copy_clone(fd, image_writer_fd(writer), 0, offset, IMAGE_PAGE, size);
}

static uint64_t data_bytes(int fd, uint64_t size)
{
	uint64_t start = 0, end, sum = 0;

	while (file_copy_next_run(fd, size, &start, &end)) {
		sum += end - start;
		start = end;
	}
	return sum;
}

/* A readable descriptor with an offset of its own: the duplicate may be write-only, and its offset is the
 * program's. */
static int open_for_reading(int fd, const char *path, const struct stat *st)
{
	struct stat now;
	int again = object_reopen(fd, O_RDONLY | O_NONBLOCK);

	if (again >= 0)
		return again;
	/* A write-only file that we may not read by its descriptor may be readable by its name. */
	again = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (again < 0)
		return -errno;
	if (fstat(again, &now) < 0 || now.st_dev != st->st_dev || now.st_ino != st->st_ino) {
		close(again);
		return -EACCES;
	}
	return again;
}

bool object_files_by_blocks(struct image_writer *writer, int fd, uint64_t size)
{
	return image_writer_blocks(writer) && size >= LARGE && !can_clone(writer, fd, size);
}

int object_files_write(struct image_writer *writer, Pbeam__Manifest *manifest, int fd, const struct stat *st,
		       size_t *n, Pbeam__Pages ***pages, struct err *err)
{
	uint64_t size = (uint64_t)st->st_size;

	if (object_files_by_blocks(writer, fd, size))
		return blocks_add(image_writer_blocks(writer), fd, st, manifest, n, pages, err);
	return object_files_write_pages(writer, fd, size, n, pages, err);
}

int object_files_save_new(struct image_writer *writer, Pbeam__Manifest *manifest, int fd,
			  const struct stat *st, const char *path, bool unlinked, uint32_t *index,
			  struct err *err)
{
	Pbeam__SavedFile *saved = object_message(Pbeam__SavedFile, pbeam__saved_file__init);
	int r;

	if (!saved || object_append(manifest->files, manifest->n_files, saved) < 0) {
		free(saved);
		return object_no_memory(err);
	}
	r = object_identity(st, path, unlinked, &saved->file, err);
	if (r < 0)
		return r;
	saved->unlinked = unlinked;
	saved->mode = st->st_mode & 07777;
	saved->ctime_ns = object_ctime_ns(st);
	*index = (uint32_t)manifest->n_files;
	return object_files_write(writer, manifest, fd, st, &saved->n_pages, &saved->pages, err);
}

int object_files_save(struct image_writer *writer, Pbeam__Manifest *manifest, int fd, const struct stat *st,
		      const char *path, bool unlinked, bool always, uint64_t limit, uint32_t *index,
		      struct err *err)
{
	uint64_t size = (uint64_t)st->st_size;
	auto_close int source = -1;

	*index = 0;
	for (size_t i = 0; i < manifest->n_files; i++)
		if (manifest->files[i]->file->dev == st->st_dev &&
		    manifest->files[i]->file->ino == st->st_ino) {
			*index = (uint32_t)i + 1;
			return 0;
		}
	source = open_for_reading(fd, path, st);
	if (source < 0 && !always)
		return 0; /* not readable for us: only its length is restored */
	if (source < 0)
		return err_code(err, source, "open it for reading, to save its contents");
	if (!always && size > limit && data_bytes(source, size) > limit && !can_clone(writer, source, size))
		return 0;
	return object_files_save_new(writer, manifest, source, st, path, unlinked, index, err);
}

/* The first file that the image lacks although the processes can change it in place. */
static char *find_left_out(const Pbeam__Manifest *manifest)
{
	for (size_t i = 0; i < manifest->n_objects; i++) {
		const Pbeam__Object *object = manifest->objects[i];

		if (object->kind_case == PBEAM__OBJECT__KIND_REGULAR && !object->external &&
		    !object->regular->saved && !object->regular->unlinked &&
		    (object->flags & O_ACCMODE) != O_RDONLY && !(object->flags & O_APPEND))
			return object_text(&object->regular->file->path);
	}
	for (size_t i = 0; i < manifest->n_processes; i++)
		for (size_t k = 0;
		     manifest->processes[i]->memory && k < manifest->processes[i]->memory->n_mappings; k++) {
			const Pbeam__Mapping *map = manifest->processes[i]->memory->mappings[k];

			if (map->kind == PBEAM__MAPPING__KIND__FILE_SHARED && !map->shared_id && map->file &&
			    (map->prot | map->max_prot) & PROT_WRITE)
				return object_text(&map->file->path);
		}
	return NULL;
}

int object_files_check_saved(const Pbeam__Manifest *manifest, struct err *err)
{
	auto_free char *path = find_left_out(manifest);

	return path ? err_set(err, -EFBIG,
			      "%s, which the program has open or mapped for writing, was not saved (it "
			      "exceeds "
			      "--save-files, or cannot be read); no rollback is possible once it has changed",
			      path)
		    : 0;
}

/* ---- restore ---- */

int object_files_read_pages(struct image_reader *image, int fd, uint64_t size, size_t n,
			    Pbeam__Pages *const *pages, struct err *err)
{
	uint64_t at = 0;
	struct stat st;
	int r = 0;

	if (fstat(fd, &st) < 0 || ((uint64_t)st.st_size != size && ftruncate(fd, (off_t)size) < 0))
		return err_sys(err, "set a file's length to %llu", (unsigned long long)size);
	for (size_t i = 0; i < n && r == 0; i++) {
		uint64_t start = pages[i]->address, end = start + pages[i]->count * IMAGE_PAGE, offset;
		int home = image_reader_home(image, pages[i], &offset, err);

		if (home < 0)
			return home;

		if (start < at || start >= size)
			return err_set(err, -EBADMSG, "the image's record of a file's contents is malformed");
		if (end > size)
			end = size;
		if (st.st_size > 0)
			r = file_copy_hole(fd, at, start);
		if (r == 0)
			r = file_copy_bytes(home, fd, offset, start, end - start, false);
		at = end;
	}
	if (r == 0 && st.st_size > 0)
		r = file_copy_hole(fd, at, size);
	return r < 0 ? err_code(err, r, "write a file's contents") : 0;
}

int object_files_check(struct object_restore *restore, struct err *err)
{
	for (size_t i = 0; i < restore->manifest->n_files; i++) {
		const Pbeam__SavedFile *saved = restore->manifest->files[i];
		auto_free char *path = NULL;
		struct stat st;

		if (!saved->file)
			return err_set(err, -EBADMSG, "the image's saved file %zu has no identity", i + 1);
		path = object_text(&saved->file->path);
		if (!path)
			return object_no_memory(err);
		if (saved->unlinked || saved->by_tree || object_regular_replaced(restore, (uint32_t)i + 1))
			continue;
		if (stat(path, &st) < 0) {
			auto_free char *dir = strdup(path);
			char *slash = dir ? strrchr(dir, '/') : NULL;

			if (!dir)
				return object_no_memory(err);
			if (errno != ENOENT && errno != ENOTDIR)
				return err_sys(err, "look at %s before it is restored", path);
			if (slash && slash != dir)
				*slash = 0;
			if (access(slash == dir ? "/" : dir, W_OK) < 0)
				return err_sys(err, "file %s is missing and cannot be made again in %s", path,
					       dir);
			continue;
		}
		if (!S_ISREG(st.st_mode))
			return err_set(err, -EEXIST,
				       "%s is no regular file any more; move it away, then try again", path);
		if (!file_undo_is_unchanged(saved, &st) && access(path, W_OK) < 0 && st.st_uid != geteuid())
			return err_sys(err, "file %s has changed since the checkpoint and cannot be put back",
				       path);
	}
	return 0;
}
