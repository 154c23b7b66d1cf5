#include "scip/tracee/map_query.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "scip/tracee/procfs.h"

enum { QUERY_READABLE = 1, QUERY_WRITABLE = 2, QUERY_EXECUTABLE = 4 };

static int prot_of_query(const struct map_query *query)
{
	return (query->vma_flags & QUERY_READABLE ? PROT_READ : 0) |
	       (query->vma_flags & QUERY_WRITABLE ? PROT_WRITE : 0) |
	       (query->vma_flags & QUERY_EXECUTABLE ? PROT_EXEC : 0);
}

/* For kernels before 6.11. */
static int search_lines(pid_t pid, struct taddr at)
{
	struct procfs_maps maps;
	int prot = procfs_maps_read(pid, false, &maps, NULL);

	if (prot < 0)
		return prot;
	prot = -ENOENT;
	for (size_t i = 0; i < maps.n && prot < 0; i++)
		if (at.a >= maps.v[i].start && at.a < maps.v[i].end)
			prot = maps.v[i].prot;
	procfs_maps_free(&maps);
	return prot;
}

int map_query_prot(pid_t pid, struct taddr at)
{
	struct map_query query = {.size = sizeof(query), .query_addr = at.a};
	auto_close int fd = -1;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (ioctl(fd, MAP_QUERY_CALL, &query) == 0)
		return prot_of_query(&query);
	return errno == ENOENT ? -ENOENT : search_lines(pid, at);
}
