/* One file that a restore changes: which ranges differ, the room for them, the writing. */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "image/file_copy.h"
#include "image/file_undo_parts.h"
#include "image/image.h"

#define BLOCK	    (256u << 10) /* is compared at once */
#define CLONE_LEAST (1u << 20)

static bool may_share_blocks(const struct change_range *range)
{
	return range->end - range->start >= CLONE_LEAST && range->start % IMAGE_PAGE == 0;
}

int file_change_open(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	struct stat st;

	if (fd < 0 && errno == EACCES && stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
	    chmod(path, (st.st_mode & 07777) | S_IRUSR | S_IWUSR) == 0) {
		fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
		if (chmod(path, st.st_mode & 07777) < 0 && fd >= 0) {
			close(fd);
			return -errno;
		}
	}
	return fd < 0 ? -errno : fd;
}

static int add_range(struct file_change *change, uint64_t start, uint64_t end, ssize_t run)
{
	struct change_range *last = change->nranges ? &change->ranges[change->nranges - 1] : NULL;
	struct change_range *more;

	if (start >= end)
		return 0;
	if (last && last->end == start && last->run == run) {
		last->end = end;
		return 0;
	}
	if ((change->nranges & (change->nranges + 1)) == 0) { /* room for 1, 3, 7 ... is used up */
		more = reallocarray(change->ranges, 2 * change->nranges + 1, sizeof(*more));
		if (!more)
			return -ENOMEM;
		change->ranges = more;
	}
	change->ranges[change->nranges++] = (struct change_range){start, end, run};
	return 0;
}

/* What becomes a hole differs where the file has data. */
static int plan_hole(struct file_change *change, uint64_t start, uint64_t end)
{
	uint64_t size = (uint64_t)change->before.st_size, data = start, hole;
	int r = 0;

	if (change->missing)
		return 0;
	while (r == 0 && data < end && file_copy_next_run(change->fd, size, &data, &hole) && data < end) {
		if (data < start)
			data = start;
		r = add_range(change, data, hole < end ? hole : end, -1);
		data = hole;
	}
	return r;
}

/* Compares page by page what both have. */
static int compare_block(struct file_change *change, const uint8_t *old, const uint8_t *new, uint64_t at,
			 size_t len, ssize_t run)
{
	int r = 0;

	for (size_t i = 0, n; i < len && r == 0; i += n) {
		n = len - i < IMAGE_PAGE ? len - i : IMAGE_PAGE;
		if (memcmp(old + i, new + i, n) != 0)
			r = add_range(change, at + i, at + i + n, run);
	}
	return r;
}

static int plan_data(struct file_change *change, int home, uint64_t offset, uint64_t start, uint64_t end,
		     ssize_t run)
{
	uint64_t size = change->missing ? 0 : (uint64_t)change->before.st_size;
	auto_free uint8_t *old = malloc(BLOCK), *new = malloc(BLOCK);
	uint64_t at = start;
	int r = 0;

	if (!old || !new)
		return -ENOMEM;
	while (r == 0 && at < end && at < size) {
		uint64_t limit = end < size ? end : size;
		size_t n = limit - at < BLOCK ? (size_t)(limit - at) : BLOCK;
		ssize_t had = io_pread_full(change->fd, old, n, (off_t)at);
		ssize_t gets = io_pread_full(home, new, n, (off_t)(offset + (at - start)));

		if (had < 0 || gets < 0)
			return had < 0 ? (int)had : (int)gets;
		if ((size_t)had < n || (size_t)gets < n)
			return -EIO;
		r = compare_block(change, old, new, at, n, run);
		at += n;
	}
	return r == 0 ? add_range(change, at, end, run) : r;
}

static int plan_contents(struct file_change *change, struct image_reader *image, struct err *err)
{
	const struct file_wish *wish = &change->wish;
	uint64_t at = 0;
	int r = 0;

	for (size_t i = 0; i < wish->n_pages; i++) {
		uint64_t start = wish->pages[i]->address, offset;
		uint64_t end = start + wish->pages[i]->count * IMAGE_PAGE;
		int home = image_reader_home(image, wish->pages[i], &offset, err);

		if (home < 0)
			return home;
		if (start < at || start >= wish->size || end <= start)
			return err_set(err, -EBADMSG, "the image's record of the contents of %s is malformed",
				       change->path);
		if (end > wish->size)
			end = wish->size;
		r = plan_hole(change, at, start);
		if (r == 0)
			r = plan_data(change, home, offset, start, end, (ssize_t)i);
		if (r < 0)
			return err_code(err, r, "compare %s with what was saved", change->path);
		at = end;
	}
	r = plan_hole(change, at, wish->size);
	return r < 0 ? err_code(err, r, "compare %s with what was saved", change->path) : 0;
}

static int compare_addresses(const void *a, const void *b)
{
	const Pbeam__Pages *x = *(Pbeam__Pages *const *)a, *y = *(Pbeam__Pages *const *)b;

	return x->address < y->address ? -1 : x->address > y->address;
}

static int sort_pages(struct file_change *change)
{
	size_t n = change->wish.n_pages;

	change->pages = calloc(n + 1, sizeof(*change->pages));
	if (!change->pages)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		change->pages[i] = change->wish.pages[i];
	bytes_sort(change->pages, n, sizeof(*change->pages), compare_addresses);
	change->wish.pages = change->pages;
	return 0;
}

int file_change_plan(struct file_change *change, struct image_reader *image, struct err *err)
{
	if (sort_pages(change) < 0)
		return err_code(err, -ENOMEM, "compare %s with what was saved", change->path);
	change->fd = file_change_open(change->path);
	if (change->fd == -ENOENT && change->wish.contents) {
		change->fd = -1;
		change->missing = true;
	} else if (change->fd < 0) {
		int r = change->fd;

		change->fd = -1;
		return err_code(err, r,
				"file %s will be changed and cannot be opened for reading and writing",
				change->path);
	} else if (fstat(change->fd, &change->before) < 0) {
		return err_sys(err, "look at %s", change->path);
	}
	if (!change->missing && !S_ISREG(change->before.st_mode))
		return err_set(err, -EEXIST, "%s is no regular file any more; move it away, then try again",
			       change->path);
	return change->wish.contents ? plan_contents(change, image, err) : 0;
}

bool file_change_is_none(const struct file_change *change)
{
	return !change->missing && !change->nranges && (uint64_t)change->before.st_size == change->wish.size;
}

int file_change_keep_tail(struct file_change *change)
{
	uint64_t size = change->missing ? 0 : (uint64_t)change->before.st_size;

	return add_range(change, change->wish.size, size, -1);
}

int file_change_reserve(const struct file_change *change, struct err *err)
{
	int unshare = change->copy && !change->missing ? FALLOC_FL_UNSHARE_RANGE : 0;

	if (!change->missing && (uint64_t)change->before.st_size < change->wish.size &&
	    ftruncate(change->fd, (off_t)change->wish.size) < 0)
		return err_sys(err, "make %s longer", change->path);
	for (size_t i = 0; i < change->nranges; i++) {
		const struct change_range *range = &change->ranges[i];
		const off_t start = (off_t)range->start, len = (off_t)(range->end - range->start);

		/* A block that the undo copy shares needs another one when it is written to. */
		if (range->run < 0 ||
		    (unshare && fallocate(change->fd, FALLOC_FL_KEEP_SIZE | unshare, start, len) == 0) ||
		    fallocate(change->fd, FALLOC_FL_KEEP_SIZE, start, len) == 0)
			continue;
		if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)
			return 0; /* the file system cannot: a failure to write is taken back */
		return err_sys(err,
			       "there is no room for the %llu saved bytes of %s; free some, then try again",
			       (unsigned long long)change->wish.size, change->path);
	}
	return 0;
}

static int write_ranges(const struct file_change *change, struct image_reader *image, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < change->nranges && r == 0; i++) {
		const struct change_range *range = &change->ranges[i];
		const Pbeam__Pages *pages;
		uint64_t offset, shared = 0;
		int home;

		if (range->run < 0) {
			r = file_copy_hole(change->fd, range->start, range->end);
			continue;
		}
		pages = change->wish.pages[range->run];
		home = image_reader_home(image, pages, &offset, err);
		if (home < 0)
			return home;
		offset += range->start - pages->address;
		if (may_share_blocks(range))
			shared = file_copy_clone(home, change->fd, offset, range->start,
						 (range->end - range->start) & ~(uint64_t)(IMAGE_PAGE - 1),
						 UINT64_MAX);
		r = file_copy_bytes(home, change->fd, offset + shared, range->start + shared,
				    range->end - range->start - shared, false);
		if (r == 0)
			r = fault_point("files-range", err);
	}
	return r < 0 ? err_code(err, r, "write the saved contents of %s", change->path) : 0;
}

int file_change_set_times(int fd, uint64_t atime_ns, uint64_t mtime_ns)
{
	struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};
	const uint64_t ns[2] = {atime_ns, mtime_ns};

	for (int i = 0; i < 2; i++)
		if (ns[i])
			times[i] =
				(struct timespec){(time_t)(ns[i] / 1000000000u), (long)(ns[i] % 1000000000u)};
	return futimens(fd, times) < 0 && errno != EPERM ? -errno : 0;
}

int file_change_write(const struct file_change *change, struct image_reader *image, struct err *err)
{
	struct stat st;
	int r = write_ranges(change, image, err);

	if (r < 0)
		return r;
	if (fstat(change->fd, &st) < 0 || (!change->cut_late && (uint64_t)st.st_size != change->wish.size &&
					   ftruncate(change->fd, (off_t)change->wish.size) < 0))
		return err_sys(err, "set the length of %s", change->path);
	r = file_change_set_times(change->fd, 0, change->wish.mtime_ns);
	if (r < 0)
		return err_code(err, r, "set the times of %s", change->path);
	if (fsync(change->fd) < 0 && errno != EINVAL)
		return err_sys(err, "write %s to disk", change->path);
	return 0;
}

void file_change_free(struct file_change *change)
{
	if (change->fd >= 0)
		close(change->fd);
	free(change->path);
	free(change->copy);
	free(change->pages);
	free(change->ranges);
}
