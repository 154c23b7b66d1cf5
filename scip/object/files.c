/*
 * File contents saved in the image and restored before anything is opened.
 *
 * Files without a name are always saved, files open for writing up to a limit: the runs of data that
 * SEEK_DATA and SEEK_HOLE show, page by page, so that holes stay holes. FICLONERANGE shares the blocks with
 * the image where the file system can (XFS, btrfs) and costs nothing, so that the limit does not apply;
 * otherwise they are copied.
 *
 * On restore a file whose device, inode, size, mtime and ctime are as they were is left alone. Otherwise it
 * is written in place (the inode stays, as other names and descriptors of it may exist), made if it is
 * missing, and its times are put back. A file over the limit has no contents here: its length is put back by
 * regular.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/io.h"
#include "base/page.h"
#include "scip/object/common.h"
#include "scip/object/object_dump.h"
#include "scip/object/object_restore.h"

#define COPY_CHUNK (1u << 20)

/* The next run of data at or after *start: page-aligned. False at the end. */
static bool next_run(int fd, uint64_t size, uint64_t *start, uint64_t *end)
{
	off_t data, hole;

	if (*start >= size)
		return false;
	data = lseek(fd, (off_t)*start, SEEK_DATA);
	if (data < 0) {
		if (errno == ENXIO)
			return false;
		data = (off_t)*start; /* a file system without SEEK_DATA */
	}
	hole = lseek(fd, data, SEEK_HOLE);
	if (hole < 0)
		hole = (off_t)size;
	*start = (uint64_t)data & ~(uint64_t)(IMAGE_PAGE - 1);
	*end = page_round_up((uint64_t)hole);
	return true;
}

static int copy_run(int from, int to, uint64_t from_offset, uint64_t to_offset, uint64_t len, bool pad)
{
	auto_free char *buf = malloc(COPY_CHUNK);

	if (!buf)
		return -ENOMEM;
	while (len) {
		size_t part = len < COPY_CHUNK ? (size_t)len : COPY_CHUNK;
		ssize_t n = io_pread_full(from, buf, part, (off_t)from_offset);
		int r;

		if (n < 0)
			return (int)n;
		if ((size_t)n < part) {
			if (!pad)
				return -EIO;
			memset(buf + n, 0, part - (size_t)n);
		}
		r = io_pwrite_full(to, buf, part, (off_t)to_offset);
		if (r < 0)
			return r;
		from_offset += part;
		to_offset += part;
		len -= part;
	}
	return 0;
}

/* Shares what can be shared; the rest (a last part of a page) is copied. Returns how much was. */
static uint64_t clone_run(int from, int to, uint64_t from_offset, uint64_t to_offset, uint64_t len,
			  uint64_t size)
{
	struct file_clone_range range = {
		.src_fd = from,
		.src_offset = from_offset,
		.dest_offset = to_offset,
		.src_length = len,
	};

	if (from_offset + len > size)
		range.src_length = (size - from_offset) & ~(uint64_t)(IMAGE_PAGE - 1);
	if (range.src_length == 0 || ioctl(to, FICLONERANGE, &range) < 0)
		return 0;
	return range.src_length;
}

static int write_run(struct image_writer *writer, int fd, uint64_t size, uint64_t start, uint64_t end,
		     bool *cloned, Pbeam__Pages *pages)
{
	struct image_arena *arena = image_writer_arena(writer);
	uint64_t offset = image_arena_take(arena, end - start);
	uint64_t shared =
		*cloned ? clone_run(fd, image_writer_fd(writer), start, offset, end - start, size) : 0;
	int r = copy_run(fd, image_writer_fd(writer), start + shared, offset + shared, end - start - shared,
			 true);

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

	while (next_run(fd, size, &start, &end)) {
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

	return size >= IMAGE_PAGE && clone_run(fd, image_writer_fd(writer), 0, offset, IMAGE_PAGE, size);
}

static uint64_t data_bytes(int fd, uint64_t size)
{
	uint64_t start = 0, end, sum = 0;

	while (next_run(fd, size, &start, &end)) {
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

int object_files_save(struct image_writer *writer, Pbeam__Manifest *manifest, int fd, const struct stat *st,
		      const char *path, bool unlinked, bool always, uint64_t limit, uint32_t *index,
		      struct err *err)
{
	uint64_t size = (uint64_t)st->st_size;
	Pbeam__SavedFile *saved;
	auto_close int source = -1;
	int r;

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
	saved = object_message(Pbeam__SavedFile, pbeam__saved_file__init);
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
	return object_files_write_pages(writer, source, size, &saved->n_pages, &saved->pages, err);
}

/* ---- restore ---- */

static int make_hole(int fd, uint64_t start, uint64_t end)
{
	static const char zero[IMAGE_PAGE];
	int r = 0;

	if (start >= end || fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)start,
				      (off_t)(end - start)) == 0)
		return 0;
	for (; start < end && r == 0; start += sizeof(zero))
		r = io_pwrite_full(fd, zero, end - start < sizeof(zero) ? end - start : sizeof(zero),
				   (off_t)start);
	return r;
}

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
			r = make_hole(fd, at, start);
		if (r == 0)
			r = copy_run(home, fd, offset, start, end - start, false);
		at = end;
	}
	if (r == 0 && st.st_size > 0)
		r = make_hole(fd, at, size);
	return r < 0 ? err_code(err, r, "write a file's contents") : 0;
}

static bool saved_file_unchanged(const Pbeam__SavedFile *saved, const struct stat *st)
{
	return st->st_dev == saved->file->dev && st->st_ino == saved->file->ino &&
	       (uint64_t)st->st_size == saved->file->size && object_mtime_ns(st) == saved->file->mtime_ns &&
	       object_ctime_ns(st) == saved->ctime_ns;
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
		if (saved->unlinked || object_regular_replaced(restore, (uint32_t)i + 1))
			continue;
		if (stat(path, &st) < 0) {
			char *slash = strrchr(path, '/');

			if (errno != ENOENT && errno != ENOTDIR)
				return err_sys(err, "look at %s before it is restored", path);
			if (slash && slash != path)
				*slash = 0;
			if (access(slash == path ? "/" : path, W_OK) < 0)
				return err_sys(err, "file %s is missing and cannot be made again in %s",
					       (char *)saved->file->path.data, path);
			continue;
		}
		if (!S_ISREG(st.st_mode))
			return err_set(err, -EEXIST,
				       "%s is no regular file any more; move it away, then try again", path);
		if (!saved_file_unchanged(saved, &st) && access(path, W_OK) < 0 && st.st_uid != geteuid())
			return err_sys(err, "file %s has changed since the checkpoint and cannot be put back",
				       path);
	}
	return 0;
}

static int open_to_put_back(const char *path, mode_t mode, bool *made)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
	struct stat st;

	*made = false;
	if (fd < 0 && errno == ENOENT) {
		*made = true;
		fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	} else if (fd < 0 && errno == EACCES && stat(path, &st) == 0 &&
		   chmod(path, (st.st_mode & 07777) | S_IWUSR) == 0) {
		fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
		if (fd >= 0 && fchmod(fd, st.st_mode & 07777) < 0) {
			close(fd);
			fd = -1;
		}
	}
	return fd < 0 ? -errno : fd;
}

static int saved_file_put_back(struct object_restore *restore, const Pbeam__SavedFile *saved,
			       const char *path, struct err *err)
{
	struct timespec times[2] = {
		{.tv_nsec = UTIME_OMIT},
		{.tv_sec = (time_t)(saved->file->mtime_ns / 1000000000u),
		 .tv_nsec = (long)(saved->file->mtime_ns % 1000000000u)},
	};
	auto_close int fd = -1;
	struct stat st;
	bool made;
	int r;

	if (stat(path, &st) == 0 && (restore->waits || saved_file_unchanged(saved, &st)))
		return 0;
	fd = open_to_put_back(path, saved->mode & 07777, &made);
	if (fd < 0)
		return err_code(err, fd, "open %s to put it back", path);
	if (made && fchmod(fd, saved->mode & 07777) < 0)
		return err_sys(err, "set the mode of %s", path);
	r = object_files_read_pages(restore->image, fd, saved->file->size, saved->n_pages, saved->pages, err);
	if (r < 0)
		return err_wrap(err, r, "put back %s", path);
	if (futimens(fd, times) < 0 && errno != EPERM)
		return err_sys(err, "set the times of %s", path);
	return 0;
}

int object_files_put_back(struct object_restore *restore, struct err *err)
{
	for (size_t i = 0; i < restore->manifest->n_files; i++) {
		const Pbeam__SavedFile *saved = restore->manifest->files[i];
		auto_free char *path = object_text(&saved->file->path);
		int r;

		if (!path)
			return object_no_memory(err);
		if (saved->unlinked || object_regular_replaced(restore, (uint32_t)i + 1))
			continue;
		r = saved_file_put_back(restore, saved, path, err);
		if (r < 0)
			return r;
	}
	return 0;
}

bool object_files_may_wait(struct object_restore *restore)
{
	for (size_t i = 0; i < restore->manifest->n_files; i++) {
		const Pbeam__SavedFile *saved = restore->manifest->files[i];
		auto_free char *path = object_text(&saved->file->path);
		struct stat st;

		if (!saved->unlinked && !object_regular_replaced(restore, (uint32_t)i + 1) &&
		    (!path || stat(path, &st) < 0 || (uint64_t)st.st_size < saved->file->size))
			return false;
	}
	return true;
}
