/*
 * Keeps the name table where it is found when its directory is removed.
 *
 * The table of running jobs lives on without a name: all that use it have it open and mapped. A new file
 * could not replace it in all of them at once, so the old one is given a name again. A file without links
 * cannot be linked (linkat(2) says ENOENT), but /proc/PID/fd/N of a process that has it open leads to it,
 * whatever its file system and even after that is unmounted. Each keeper, and pbeamd, puts such a symbolic
 * link into RUNTIME/tables, named by its pid. names_open() follows them when there is no
 * RUNTIME/names.VERSION. A link of a process that has ended leads nowhere and is removed; when none is left
 * there is no job either.
 */
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

/* The link of this process. */
static int publish_path(char path[PATH_MAX], struct err *err)
{
	int r = dirs_refuge(path, DIRS_TABLES, err);
	size_t len = strlen(path);

	if (r == 0 && snprintf(path + len, PATH_MAX - len, "/%u.%d", names_own_version(), (int)getpid()) >=
			      (int)(PATH_MAX - len))
		r = err_code(err, -ENAMETOOLONG, "%s", path);
	return r;
}

bool names_is_published(const struct names *names)
{
	char path[PATH_MAX + 32];
	struct stat ours, linked;

	if (table_place(names->table->head.version, path) < 0)
		return false;
	if (access(path, F_OK) == 0)
		return table_is_file(names->fd, path);
	return publish_path(path, NULL) == 0 && fstat(names->fd, &ours) == 0 && stat(path, &linked) == 0 &&
	       ours.st_ino == linked.st_ino && ours.st_dev == linked.st_dev;
}

/* A program that looked for the table before it was published made a new one. It is removed while it has no
 * job. names_job_add() looks under the same lock whether its table is in its place. */
static int publish_displace(const char *path, struct err *err)
{
	struct names *other;
	int r = names_open(&other, err);

	if (r < 0)
		return r;
	r = table_lock(other);
	if (r == 0) {
		if (!table_has_jobs(other->table) && table_is_file(other->fd, path))
			unlink(path);
		table_unlock(other);
	}
	names_close(other);
	return r < 0 ? err_code(err, r, "lock %s", path) : 0;
}

static int publish_link(struct err *err, int fd)
{
	char path[PATH_MAX], beside[PATH_MAX + 32], target[64];
	int r = publish_path(path, err);

	if (r < 0)
		return r;
	snprintf(target, sizeof(target), "/proc/%d/fd/%d", (int)getpid(), fd);
	snprintf(beside, sizeof(beside), "%s.new", path);
	unlink(beside);
	if (symlink(target, beside) < 0 || rename(beside, path) < 0)
		return err_sys(err, "make %s", path);
	return 0;
}

int names_publish(const struct names *names, struct err *err)
{
	char path[PATH_MAX + 32];
	int r = table_place(names->table->head.version, path);

	if (r < 0)
		return err_code(err, r, "find the runtime directory");
	if (table_is_file(names->fd, path))
		return 0;
	r = access(path, F_OK) == 0 ? publish_displace(path, err) : 0;
	if (r == 0)
		r = publish_link(err, names->fd);
	if (r == 0 && access(path, F_OK) == 0)
		r = err_set(
			err, -EEXIST,
			"%s is a newer table with jobs; jobs started before its directory was removed are "
			"not in it",
			path);
	return r;
}

void names_unpublish(void)
{
	char path[PATH_MAX + 48];

	if (dirs_find_refuge(path) < 0)
		return;
	snprintf(path + strlen(path), 48, "/" DIRS_TABLES "/%u.%d", names_own_version(), (int)getpid());
	unlink(path);
	*strrchr(path, '/') = 0;
	rmdir(path); /* the last one */
}
