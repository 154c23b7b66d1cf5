#include "scip/bridge/bridge_holders.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "scip/bridge/bridge.h"
#include "scip/object/common.h"
#include "scip/object/terminal.h"

/* The array doubles: there may be many holders. */
static int holders_append(struct holders *out, struct holder holder)
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

/* Returns the N of /dev/pts/N, of a master from its fdinfo; -1: not a terminal. */
static int terminal_number(pid_t pid, int fd, const struct stat *st)
{
	auto_free char *info = NULL;
	char path[64];

	if (!terminal_is_master(st))
		return S_ISCHR(st->st_mode) ? terminal_pts_number(-1, st->st_rdev) : -1;
	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", pid, fd);
	if (io_slurp(AT_FDCWD, path, 65536, &info, NULL) < 0)
		return -1;
	return (int)(int64_t)object_fdinfo_number(info, "tty-index", 10, (uint64_t)-1);
}

static int add_descriptor(struct holders *out, pid_t pid, int dir, const char *name)
{
	struct holder holder = {.pid = pid, .fd = atoi(name)};
	struct stat target, entry;
	int number;

	/* the mode of the link is the file's access mode */
	if (fstatat(dir, name, &entry, AT_SYMLINK_NOFOLLOW) < 0 || fstatat(dir, name, &target, 0) < 0)
		return -errno;
	number = terminal_number(pid, holder.fd, &target);
	if (number < 0 && !S_ISFIFO(target.st_mode) && !S_ISSOCK(target.st_mode))
		return 0;
	holder.master = number >= 0 && terminal_is_master(&target);
	holder.slave = number >= 0 && !holder.master;
	holder.ino = number >= 0 ? bridge_terminal_ino(number) : target.st_ino;
	holder.pipe = S_ISFIFO(target.st_mode);
	holder.socket = S_ISSOCK(target.st_mode);
	holder.reads = entry.st_mode & S_IRUSR;
	holder.writes = entry.st_mode & S_IWUSR;
	return holders_append(out, holder);
}

/* What cannot be looked at for lack of something is not passed over: it may be the other end of a pipe. Other
 * errors are those of a process or descriptor that is gone, or is another user's. */
static int only_lack(int r)
{
	return r == -ENOMEM || r == -EMFILE || r == -ENFILE ? r : 0;
}

int holders_add(struct holders *out, pid_t pid)
{
	auto_closedir DIR *dir = NULL;
	const struct dirent *entry;
	char path[64];
	int r = 0;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	dir = opendir(path);
	if (!dir)
		return only_lack(-errno);
	while (r == 0 && (entry = readdir(dir)) != NULL) {
		char link[64];

		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		/* the link is read first: fstat() of a file on a dead network mount would block */
		r = io_readlink(dirfd(dir), entry->d_name, link, sizeof(link));
		if (r == 0 && (!strncmp(link, "pipe:", 5) || !strncmp(link, "socket:", 7) || link[0] == '/'))
			r = add_descriptor(out, pid, dirfd(dir), entry->d_name);
		r = only_lack(r);
	}
	return r;
}

/* scips, keepers, bridges: they hold their own descriptors, or the other end */
static bool is_own_process(pid_t pid, const char *own)
{
	char path[64], exe[PATH_MAX];

	snprintf(path, sizeof(path), "/proc/%d/exe", pid);
	return io_readlink(AT_FDCWD, path, exe, sizeof(exe)) < 0 || strcmp(exe, own) == 0;
}

static bool is_skipped_process(pid_t pid, const pid_t *skip, size_t nskip)
{
	for (size_t i = 0; i < nskip; i++)
		if (skip[i] == pid)
			return true;
	return false;
}

static bool is_bridge(pid_t pid)
{
	auto_free char *comm = NULL;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	return io_slurp(AT_FDCWD, path, 64, &comm, NULL) == 0 && strcmp(comm, BRIDGE_COMM "\n") == 0;
}

static int holders_read_all(struct holders *out, const pid_t *skip, size_t nskip, bool bridges,
			    struct err *err)
{
	auto_closedir DIR *proc = opendir("/proc");
	const struct dirent *entry;
	char own[PATH_MAX];
	int r = proc ? io_readlink(AT_FDCWD, "/proc/self/exe", own, sizeof(own)) : -errno;

	while (r == 0 && (entry = readdir(proc)) != NULL) {
		pid_t pid = atoi(entry->d_name);

		if (pid > 0 && !is_skipped_process(pid, skip, nskip) && is_own_process(pid, own) == bridges &&
		    (!bridges || is_bridge(pid)))
			r = holders_add(out, pid);
	}
	return r < 0 ? err_code(err, r, "look for processes that share descriptors") : 0;
}

int holders_read(struct holders *out, const pid_t *skip, size_t nskip, struct err *err)
{
	return holders_read_all(out, skip, nskip, false, err);
}

int holders_read_bridges(struct holders *out, struct err *err)
{
	return holders_read_all(out, NULL, 0, true, err);
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

static const struct holder *holders_find_master(const struct holders *holders, uint64_t ino)
{
	for (size_t i = 0; i < holders->n; i++)
		if (holders->v[i].ino == ino && holders->v[i].master)
			return &holders->v[i];
	return NULL;
}

int holders_get_master(const struct holders *holders, uint64_t ino)
{
	const struct holder *holder = holders_find_master(holders, ino);
	auto_close int pidfd = holder ? pidfd_open(holder->pid, 0) : -1;
	int fd = pidfd < 0 ? -1 : pidfd_getfd(pidfd, holder->fd, 0);

	return fd < 0 ? -ENOENT : fd;
}

static bool has_master(const struct holders *holders, pid_t pid, uint64_t ino)
{
	for (size_t i = 0; i < holders->n; i++)
		if (holders->v[i].pid == pid && holders->v[i].ino == ino && holders->v[i].master)
			return true;
	return false;
}

const struct holder *holders_find_slave(const struct holders *holders, uint64_t ino)
{
	for (size_t i = 0; i < holders->n; i++)
		if (holders->v[i].ino == ino && holders->v[i].slave &&
		    !has_master(holders, holders->v[i].pid, ino))
			return &holders->v[i];
	return NULL;
}

void holders_free(struct holders *holders)
{
	free(holders->v);
	holders->v = NULL;
	holders->n = 0;
}
