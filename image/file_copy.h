/* Copies runs of files: holes stay holes, and blocks are shared (FICLONERANGE) where the file system can. */
#ifndef IMAGE_FILE_COPY_H
#define IMAGE_FILE_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Finds the next run of data at or after *start, in whole pages. False at the end of the file. */
bool file_copy_next_run(int fd, uint64_t size, uint64_t *start, uint64_t *end);
/* Copies bytes. With `pad`, what is missing at the end of `from` counts as zeros; else it is -EIO. Returns 0
 * or -errno. */
must_check int file_copy_bytes(int from, int to, uint64_t from_offset, uint64_t to_offset, uint64_t len,
			       bool pad);
/* Shares whole blocks of `from`, which has `size` bytes. Returns how many bytes are shared: 0 where that is
 * not possible; the end of a file that is no whole block must be copied. */
uint64_t file_copy_clone(int from, int to, uint64_t from_offset, uint64_t to_offset, uint64_t len,
			 uint64_t size);
/* Makes a hole, or writes zeros where the file system has none. The length of the file must not be less than
 * `end`. Returns 0 or -errno. */
must_check int file_copy_hole(int fd, uint64_t start, uint64_t end);
/* Copies the range of one file to the same place in another, holes included. Returns 0 or -errno. */
must_check int file_copy_range(int from, int to, uint64_t start, uint64_t end);
/* fsync() of the directory that has `path`. A file system that cannot is no error. Returns 0 or -errno. */
must_check int file_copy_sync_directory(const char *path);

#endif
