#include "image/file_replace.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/log.h"

int file_replace_reserve(int fd, uint64_t bytes)
{
	if (bytes == 0 || fallocate(fd, 0, 0, (off_t)bytes) == 0 || errno == EOPNOTSUPP || errno == ENOSYS)
		return 0;
	return -errno;
}

static int sync_replaced(const char *path, struct err *err)
{
	char copy[PATH_MAX];
	auto_close int fd = -1;
	int r = fault_point("image-renamed", err);

	if (r < 0)
		return r;
	snprintf(copy, sizeof(copy), "%s", path);
	fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 || (fsync(fd) < 0 && errno != EINVAL) ? err_sys(err, "sync the directory of %s", path)
							    : 0;
}

/* If the directory cannot be synced a crash may lose the name, so the name is taken back, and leads again to
 * the file that it led to before, which is kept under another name meanwhile (a kill leaves that name, which
 * store_claim() removes). On a file system without hard links only a new name can be taken back. */
int file_replace_commit(const char *temporary, const char *path, bool durable, bool *named, struct err *err)
{
	char old[PATH_MAX + 40];
	bool kept, is_new;
	int r;

	*named = false;
	snprintf(old, sizeof(old), "%s.old", temporary);
	unlink(old);
	kept = durable && link(path, old) == 0;
	is_new = durable && !kept && errno == ENOENT;
	if (rename(temporary, path) < 0) {
		r = err_sys(err, "rename %s to %s", temporary, path);
		unlink(old);
		return r;
	}
	r = durable ? sync_replaced(path, err) : 0;
	if (r < 0 && kept) {
		if (rename(old, path) < 0)
			log_error("put %s back: %s", path, strerror(errno));
		return r;
	}
	if (r < 0 && is_new)
		unlink(path);
	else
		*named = true;
	if (kept)
		unlink(old);
	return r;
}
