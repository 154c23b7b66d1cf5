/*
 * Removes the sockets of killed keepers and scips, RUNTIME/job/PID and RUNTIME/scip/PID. A process that ends
 * properly removes its own. One made within the last second is left alone: its number may be in use again.
 */
#include "pbeamd/services/sweep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"

/* False if the number is free, or was taken by a program that is no scip or keeper. */
static bool is_owner_alive(pid_t pid)
{
	auto_free char *comm = NULL;
	char path[40];
	int r;

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	r = io_slurp(AT_FDCWD, path, 64, &comm, NULL);
	if (r < 0)
		return r != -ENOENT && r != -ESRCH;
	return !strncmp(comm, "scip", 4);
}

static void sweep_dir(const char *sub)
{
	char path[PATH_MAX];
	auto_closedir DIR *dir = NULL;
	struct dirent *entry;
	struct stat st;

	if (dirs_runtime(path, sub, NULL) < 0)
		return;
	dir = opendir(path);
	while (dir && (entry = readdir(dir))) {
		size_t digits = strspn(entry->d_name, "0123456789");
		pid_t pid = atoi(entry->d_name);

		/* PID.PID: a socket that has not got its name yet (frame_listen()). */
		if (!digits || (entry->d_name[digits] && entry->d_name[digits] != '.') || pid <= 0 ||
		    is_owner_alive(pid))
			continue;
		if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    S_ISSOCK(st.st_mode) && time(NULL) - st.st_ctime > 1)
			unlinkat(dirfd(dir), entry->d_name, 0);
	}
}

void sweep_sockets(void)
{
	sweep_dir("job");
	sweep_dir("scip");
}
