/* Finds the name table: RUNTIME/names, or the link of a process that has published it (names_publish.c). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "namespace/table.h"

bool table_is_file(int fd, const char *path)
{
	struct stat a, b;

	return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

int table_place(uint32_t version, char path[PATH_MAX + 32])
{
	int r = dirs_runtime(path, NULL, NULL);

	snprintf(path + strlen(path), 32, "/" TABLE_FILE ".%u", version);
	return r;
}

/* True for VERSION.PID with this version. */
static bool place_is_link(uint32_t version, const char *name)
{
	char prefix[16];
	int n = snprintf(prefix, sizeof(prefix), "%u.", version);

	return !strncmp(name, prefix, (size_t)n) && name[n] && !name[n + (int)strspn(name + n, "0123456789")];
}

int table_open_published(uint32_t version)
{
	char path[PATH_MAX + 16];
	const struct dirent *entry;
	struct stat st;

	if (dirs_find_refuge(path) < 0)
		return -ENOENT;
	strcat(path, "/" DIRS_TABLES);
	auto_closedir DIR *links = opendir(path);
	while (links && (entry = readdir(links))) {
		auto_close int fd = -1;

		if (!place_is_link(version, entry->d_name))
			continue;
		/* O_NONBLOCK: the number may be another process's by now, and the descriptor anything. */
		fd = openat(dirfd(links), entry->d_name, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
		if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
		    st.st_size == (off_t)sizeof(struct table))
			return steal_fd(&fd);
		if (fd >= 0 || errno == ENOENT) /* not for want of a descriptor */
			unlinkat(dirfd(links), entry->d_name, 0);
	}
	return -ENOENT;
}

bool names_is_found(const struct names *names)
{
	char path[PATH_MAX + 32];
	struct stat ours, linked;
	auto_close int fd = -1;

	if (table_place(names->table->head.version, path) < 0)
		return false;
	if (access(path, F_OK) == 0)
		return table_is_file(names->fd, path);
	fd = table_open_published(names->table->head.version);
	return fd >= 0 && fstat(fd, &linked) == 0 && fstat(names->fd, &ours) == 0 &&
	       ours.st_ino == linked.st_ino && ours.st_dev == linked.st_dev;
}
