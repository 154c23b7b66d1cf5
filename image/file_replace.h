/* A file that takes the place of another: written beside it, with its room reserved, and renamed when it is
 * whole and durable. Whatever fails before leaves the other as it was. */
#ifndef IMAGE_FILE_REPLACE_H
#define IMAGE_FILE_REPLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Reserves blocks for the first `bytes` bytes, so that a full disk is found before the contents are written.
 * The length becomes `bytes` at least. A file system that cannot is no error. Returns 0 or -errno. */
must_check int file_replace_reserve(int fd, uint64_t bytes);
/* Gives the finished file `temporary` the name `path`. With `durable` the directory is synced. On failure
 * `path` leads to the file that it led to before, and `temporary` is gone or is left to the caller. *named
 * tells whether `path` leads to the new file: after a failure only where the file system has no hard links.
 * Returns 0 or -errno. */
must_check int file_replace_commit(const char *temporary, const char *path, bool durable, bool *named,
				   struct err *err);

#endif
