/*
 * Stores large files while the processes run, so that the pause is as long as it takes to read them again and
 * to store what has changed meanwhile, not as long as the disk takes for the whole.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "image/blocks.h"
#include "scip/object/common.h"
#include "scip/object/object_dump.h"

static int store_ahead(struct image_writer *writer, int dir, const char *name, uint64_t max, struct err *err)
{
	auto_close int fd = -1;
	struct stat link, st;

	/* The mode of the link says how the file was opened. */
	if (fstatat(dir, name, &link, AT_SYMLINK_NOFOLLOW) < 0 || !(link.st_mode & S_IWUSR) ||
	    fstatat(dir, name, &st, 0) < 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size > max)
		return 0;
	fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &st) < 0 || !object_files_by_blocks(writer, fd, (uint64_t)st.st_size))
		return 0;
	return blocks_ahead(image_writer_blocks(writer), fd, &st, err);
}

int object_files_ahead(struct image_writer *writer, const struct rpid *rpids, size_t n, uint64_t max,
		       struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < n; i++) {
		auto_closedir DIR *list = NULL;
		const struct dirent *entry;
		char path[64];

		snprintf(path, sizeof(path), "/proc/%d/fd", rpids[i].n);
		list = opendir(path);
		while (list && (entry = readdir(list)) != NULL) {
			r = entry->d_name[0] == '.'
				    ? 0
				    : store_ahead(writer, dirfd(list), entry->d_name, max, err);
			if (r == -ENOSPC)
				return err_wrap(err, r, "a large file that the program has open");
			if (r < 0)
				log_info("a large file: %s",
					 err->text); /* the dump says so if it fails again */
			err_clear(err);
		}
	}
	return 0;
}
