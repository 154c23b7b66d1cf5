/* The steps of a change of a directory tree, as the journal has them. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "image/file_copy.h"
#include "image/file_tree.h"
#include "proto/message.h"

enum { DEPTH_MAX = 1024 };

int file_tree_move(const char *from, const char *to)
{
	struct stat st;

	if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -errno;
	if (lstat(to, &st) == 0)
		return -EEXIST;
	return rename(from, to) < 0 ? -errno : 0;
}

/* ---- removing ---- */

/* Neither a symbolic link nor a mount is followed: what is mounted in a directory that goes is not ours. */
static int open_directory(int dir, const char *name)
{
	const struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
				     .resolve = dir == AT_FDCWD ? 0 : RESOLVE_NO_XDEV};
	long fd = syscall(SYS_openat2, dir, name, &how, sizeof(how));

	return fd < 0 ? -errno : (int)fd;
}

static int remove_at(int dir, const char *name, unsigned depth);

static int empty_directory(int fd, unsigned depth)
{
	auto_close int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_closedir DIR *list = again < 0 ? NULL : fdopendir(again);
	const struct dirent *entry;
	int r = 0;

	if (!list)
		return -errno;
	again = -1; /* the stream's */
	while (r == 0 && (errno = 0, entry = readdir(list)) != NULL)
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			r = remove_at(fd, entry->d_name, depth + 1);
	return r == 0 ? -errno : r;
}

static int remove_at(int dir, const char *name, unsigned depth)
{
	auto_close int fd = -1;
	struct stat st;
	int r;

	if (depth > DEPTH_MAX)
		return -ELOOP;
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISDIR(st.st_mode))
		return unlinkat(dir, name, 0) < 0 && errno != ENOENT ? -errno : 0;
	if ((st.st_mode & S_IRWXU) != S_IRWXU && fchmodat(dir, name, 0700, 0) < 0)
		return -errno;
	fd = open_directory(dir, name);
	if (fd < 0)
		return fd;
	r = empty_directory(fd, depth);
	if (r == 0 && unlinkat(dir, name, AT_REMOVEDIR) < 0)
		r = -errno;
	return r;
}

int file_tree_remove(const char *path)
{
	return remove_at(AT_FDCWD, path, 0);
}

/* ---- steps ---- */

static bool has_inode(const char *path, uint64_t ino)
{
	struct stat st;

	return path && lstat(path, &st) == 0 && st.st_ino == ino;
}

/* True for a name that list_step() in file_tree.c gives: hidden, beside `path`, with the mark. */
static bool is_name_beside(const char *name, const char *path, const char *mark)
{
	const char *slash = strrchr(path, '/');
	size_t dir = slash ? (size_t)(slash - path) + 1 : 0;

	return !*name || (dir && !strncmp(name, path, dir) && name[dir] == '.' && !strchr(name + dir, '/') &&
			  strstr(name + dir, mark));
}

bool file_tree_step_is_valid(const Pbeam__UndoStep *step)
{
	auto_free char *path = message_dup_text(&step->path), *old = message_dup_text(&step->old),
		       *new = message_dup_text(&step->new_);

	return path && old && new &&path[0] == '/' && is_name_beside(old, path, TREE_OLD) &&
	       is_name_beside(new, path, TREE_NEW);
}

int file_tree_step_back(const Pbeam__UndoStep *step)
{
	auto_free char *path = message_dup_text(&step->path), *old = message_dup_text(&step->old),
		       *new = message_dup_text(&step->new_);
	int r = 0;

	if (!path || !old || !new)
		return -ENOMEM;
	if (*new && step->new_ino && has_inode(path, step->new_ino))
		r = file_tree_move(path, new);
	if (r == 0 && *old && has_inode(old, step->old_ino))
		r = file_tree_move(old, path);
	return r < 0 ? r : file_copy_sync_directory(path);
}

static bool remove_or_log(const ProtobufCBinaryData *text)
{
	auto_free char *path = message_dup_text(text);
	int r = path && *path ? file_tree_remove(path) : 0;

	if (r < 0)
		log_warn("%s, which is not needed any more, cannot be removed now: %s", path, strerror(-r));
	return r == 0;
}

bool file_tree_step_drop(const Pbeam__UndoStep *step)
{
	return remove_or_log(&step->new_);
}

bool file_tree_step_finish(const Pbeam__UndoStep *step)
{
	return remove_or_log(&step->old);
}

int file_tree_set_attributes(const Pbeam__UndoAttributes *attributes, bool back)
{
	auto_free char *path = message_dup_text(&attributes->path);
	uint64_t mtime = back ? attributes->mtime_ns : attributes->new_mtime_ns;
	mode_t mode = attributes->new_mode & 07777;
	const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
					  {(time_t)(mtime / 1000000000u), (long)(mtime % 1000000000u)}};
	struct stat st;

	if (!path)
		return -ENOMEM;
	if (lstat(path, &st) < 0 || st.st_ino != attributes->ino || S_ISLNK(st.st_mode))
		return 0; /* another one by now */
	/* Before the commit no mode is changed. */
	if (!back && (st.st_mode & 07777) != mode && chmod(path, mode) < 0)
		return -errno;
	if (mtime && utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	return 0;
}
