#include "image/file_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/page.h"

#define COPY_CHUNK  (1u << 20)
#define CLONE_LEAST (256u << 10) /* less is copied faster */

bool file_copy_next_run(int fd, uint64_t size, uint64_t *start, uint64_t *end)
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
	*start = (uint64_t)data & ~(uint64_t)(PAGE - 1);
	*end = page_round_up((uint64_t)hole);
	return true;
}

int file_copy_bytes(int from, int to, uint64_t from_offset, uint64_t to_offset, uint64_t len, bool pad)
{
	auto_free char *buf = malloc(len < COPY_CHUNK ? (size_t)len + 1 : COPY_CHUNK);

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

uint64_t file_copy_clone(int from, int to, uint64_t from_offset, uint64_t to_offset, uint64_t len,
			 uint64_t size)
{
	struct file_clone_range range = {
		.src_fd = from,
		.src_offset = from_offset,
		.dest_offset = to_offset,
		.src_length = len,
	};

	if (from_offset + len > size)
		range.src_length = (size - from_offset) & ~(uint64_t)(PAGE - 1);
	if (range.src_length == 0 || ioctl(to, FICLONERANGE, &range) < 0)
		return 0;
	return range.src_length;
}

int file_copy_hole(int fd, uint64_t start, uint64_t end)
{
	static const char zero[PAGE];
	int r = 0;

	if (start >= end || fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)start,
				      (off_t)(end - start)) == 0)
		return 0;
	for (; start < end && r == 0; start += sizeof(zero))
		r = io_pwrite_full(fd, zero, end - start < sizeof(zero) ? end - start : sizeof(zero),
				   (off_t)start);
	return r;
}

/* Bytes without holes, to the same place. */
static int copy_solid(int from, int to, uint64_t start, uint64_t end)
{
	uint64_t shared = 0;

	if (end - start >= CLONE_LEAST && start % PAGE == 0 && end % PAGE == 0)
		shared = file_copy_clone(from, to, start, start, end - start, end);
	return file_copy_bytes(from, to, start + shared, start + shared, end - start - shared, true);
}

int file_copy_range(int from, int to, uint64_t start, uint64_t end)
{
	uint64_t at = start, data = start, hole;
	int r = 0;

	while (r == 0 && at < end && file_copy_next_run(from, end, &data, &hole)) {
		if (data < at)
			data = at; /* the page of a range that begins inside it */
		if (data >= end)
			break;
		if (hole > end)
			hole = end;
		r = file_copy_hole(to, at, data);
		if (r == 0)
			r = copy_solid(from, to, data, hole);
		at = data = hole;
	}
	return r == 0 ? file_copy_hole(to, at, end) : r;
}

int file_copy_sync_directory(const char *path)
{
	char copy[PATH_MAX];
	auto_close int fd = -1;

	snprintf(copy, sizeof(copy), "%s", path);
	fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno == EACCES ? 0 : -errno; /* a directory that may be searched but not read */
	return fsync(fd) < 0 && errno != EINVAL ? -errno : 0;
}
