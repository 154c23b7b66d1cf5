/* Paths of inotify watches. fdinfo shows device and inode of a watch, never its path, so the path is
 * recorded. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/io.h"
#include "base/log.h"
#include "namespace/record.h"
#include "scip/syscall/call.h"
#include "scip/tracee/memory.h"

/* The path as the program sees it, absolute, and as scip can reach it. */
static int find_paths(const struct call *call, char *seen, char *reached, size_t size)
{
	char path[PATH_MAX], link[48];
	ssize_t n = memory_read_string(call->process, (struct taddr){call->args[1]}, path, sizeof(path));
	int r;

	if (n <= 0)
		return n < 0 ? (int)n : -ENOENT;
	if (path[0] == '/') {
		snprintf(seen, size, "%s", path);
		r = snprintf(reached, size, "/proc/%d/root%s", call->tracee->tid, path);
	} else {
		snprintf(link, sizeof(link), "/proc/%d/cwd", call->tracee->tid);
		r = io_readlink(AT_FDCWD, link, seen, size);
		if (r < 0)
			return r;
		n = (ssize_t)strlen(seen);
		r = snprintf(seen + n, size - (size_t)n, "/%s", path);
		if (r < (int)(size - (size_t)n))
			r = snprintf(reached, size, "/proc/%d/cwd/%s", call->tracee->tid, path);
	}
	return r >= (int)size ? -ENAMETOOLONG : 0;
}

int enter_inotify_add_watch(struct call *call)
{
	char seen[PATH_MAX + 64], reached[PATH_MAX + 64];
	struct stat st;
	int flags = call->args[2] & IN_DONT_FOLLOW ? AT_SYMLINK_NOFOLLOW : 0, r;

	r = find_paths(call, seen, reached, sizeof(seen));
	if (r == 0 && fstatat(AT_FDCWD, reached, &st, flags) == 0) {
		r = record_watch_add(call->process->keeper, major(st.st_dev) << 20 | minor(st.st_dev),
				     st.st_ino, seen);
		if (r < 0)
			log_warn("process %d: the path of its inotify watch on %s could not be recorded: %s",
				 call->process->vpid.n, seen, strerror(-r));
	}
	return call_enter_regular(call);
}
