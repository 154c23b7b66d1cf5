/* Removes what killed checkpoints have left: PATH.tmp-PID where process PID does not exist. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "scip/capture/capture.h"

/* True for a temporary file of `base`, or of any numbered checkpoint in the same directory. */
static bool is_abandoned(const char *name, const char *base)
{
	size_t len = strlen(base), digits = strspn(name, "0123456789");
	char *end;
	long pid;

	if (strncmp(name, base, len)) {
		if (!digits || strncmp(name + digits, ".ckpt", 5))
			return false;
		len = digits + 5;
	}
	if (strncmp(name + len, ".tmp-", 5))
		return false;
	pid = strtol(name + len + 5, &end, 10);
	return !*end && pid > 0 && pid <= INT_MAX && kill((pid_t)pid, 0) < 0 && errno == ESRCH;
}

void capture_remove_stale(const char *path)
{
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
	auto_free char *dir = slash ? strndup(path, slash > path ? (size_t)(slash - path) : 1) : strdup(".");
	auto_closedir DIR *d = dir ? opendir(dir) : NULL;
	const struct dirent *entry;

	while (d && (entry = readdir(d)))
		if (is_abandoned(entry->d_name, base) && unlinkat(dirfd(d), entry->d_name, 0) == 0)
			log_info("removed %s/%s, left by a checkpoint that was killed", dir, entry->d_name);
}
