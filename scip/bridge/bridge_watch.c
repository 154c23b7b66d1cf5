/* Descriptors of a bridge: watched by its epoll instance, or closed in a child. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "scip/bridge/bridge_stream.h"

int bridge_watch(struct bridge *bridge, int fd, struct watch *watch, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = watch};

	if (bridge->epoll < 0)
		return 0; /* not started yet: bridge_run() adds them */
	return epoll_ctl(bridge->epoll, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

void bridge_close_all_but(int back)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	while (dir && (entry = readdir(dir)) != NULL) {
		int fd = atoi(entry->d_name);
		struct stat st;

		/* The log is a file. */
		if (fd > 2 && fd != dirfd(dir) && fd != back && fstat(fd, &st) == 0 && !S_ISREG(st.st_mode))
			close(fd);
	}
	if (dir)
		closedir(dir);
}
