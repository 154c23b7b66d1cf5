#include "scip/migrate/bridge/holders.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/io.h"

/* Grows by doubling: there may be many. */
static int append(struct holders *out, struct holder holder)
{
	if ((out->n & (out->n - 1)) == 0) {
		struct holder *more = reallocarray(out->v, out->n ? out->n * 2 : 1, sizeof(*more));

		if (!more)
			return -ENOMEM;
		out->v = more;
	}
	out->v[out->n++] = holder;
	return 0;
}

static int add_descriptor(struct holders *out, pid_t pid, int dir, const char *name)
{
	struct stat target, entry;

	/* The link's own mode says how it is open. */
	if (fstatat(dir, name, &entry, AT_SYMLINK_NOFOLLOW) < 0 || fstatat(dir, name, &target, 0) < 0 ||
	    (!S_ISFIFO(target.st_mode) && !S_ISSOCK(target.st_mode)))
		return 0;
	return append(out, (struct holder){.ino = target.st_ino,
					   .pid = pid,
					   .pipe = S_ISFIFO(target.st_mode),
					   .reads = entry.st_mode & S_IRUSR,
					   .writes = entry.st_mode & S_IWUSR});
}

int holders_add(struct holders *out, pid_t pid)
{
	auto_closedir DIR *dir = NULL;
	const struct dirent *entry;
	char path[64];
	int r = 0;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	dir = opendir(path);
	while (dir && r == 0 && (entry = readdir(dir)) != NULL) {
		char link[64];

		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		/* A file of a dead network mount is not asked anything. */
		r = io_readlink(dirfd(dir), entry->d_name, link, sizeof(link));
		if (r == 0 && (!strncmp(link, "pipe:", 5) || !strncmp(link, "socket:", 7) || link[0] == '/'))
			r = add_descriptor(out, pid, dirfd(dir), entry->d_name);
		r = r == -ENOMEM ? r : 0;
	}
	return r;
}

/* scips, keepers, bridges: what they hold is theirs, or the other end. */
static bool is_ours(pid_t pid, const char *own)
{
	char path[64], exe[PATH_MAX];

	snprintf(path, sizeof(path), "/proc/%d/exe", pid);
	return io_readlink(AT_FDCWD, path, exe, sizeof(exe)) < 0 || strcmp(exe, own) == 0;
}

static bool skipped(pid_t pid, const pid_t *skip, size_t nskip)
{
	for (size_t i = 0; i < nskip; i++)
		if (skip[i] == pid)
			return true;
	return false;
}

int holders_read(struct holders *out, const pid_t *skip, size_t nskip, struct err *err)
{
	auto_closedir DIR *proc = opendir("/proc");
	const struct dirent *entry;
	char own[PATH_MAX];
	int r = proc ? io_readlink(AT_FDCWD, "/proc/self/exe", own, sizeof(own)) : -errno;

	while (r == 0 && (entry = readdir(proc)) != NULL) {
		pid_t pid = atoi(entry->d_name);

		if (pid > 0 && !skipped(pid, skip, nskip) && !is_ours(pid, own))
			r = holders_add(out, pid);
	}
	return r < 0 ? err_code(err, r, "look for who shares descriptors") : 0;
}

const struct holder *holders_find(const struct holders *holders, uint64_t ino, bool reads, bool writes)
{
	for (size_t i = 0; i < holders->n; i++)
		if (holders->v[i].ino == ino &&
		    ((reads && holders->v[i].reads) || (writes && holders->v[i].writes)))
			return &holders->v[i];
	return NULL;
}

static bool has_too(const struct holders *holders, pid_t pid, uint64_t ino)
{
	for (size_t i = 0; i < holders->n; i++)
		if (holders->v[i].pid == pid && holders->v[i].ino == ino)
			return true;
	return false;
}

const struct holder *holders_find_one_sided(const struct holders *holders, uint64_t ino, uint64_t peer)
{
	for (size_t i = 0; i < holders->n; i++)
		if (holders->v[i].ino == ino && !(peer && has_too(holders, holders->v[i].pid, peer)))
			return &holders->v[i];
	return NULL;
}

void holders_free(struct holders *holders)
{
	free(holders->v);
	holders->v = NULL;
	holders->n = 0;
}
