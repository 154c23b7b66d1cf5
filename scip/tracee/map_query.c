#include "scip/tracee/map_query.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "scip/tracee/procfs.h"

enum { QUERY_READABLE = 1, QUERY_WRITABLE = 2, QUERY_EXECUTABLE = 4 };

static int open_maps(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	return open(path, O_RDONLY | O_CLOEXEC);
}

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
	auto_close int fd = open_maps(pid);

	if (fd < 0)
		return -errno;
	if (ioctl(fd, MAP_QUERY_CALL, &query) == 0)
		return prot_of_query(&query);
	return errno == ENOENT ? -ENOENT : search_lines(pid, at);
}

/* For kernels before 6.11. */
static bool search_name(pid_t pid, struct taddr at, const char *name, struct taddr *start, struct taddr *end)
{
	struct procfs_maps list;
	bool is = false;

	if (procfs_maps_read(pid, false, &list, NULL) < 0)
		return false;
	for (size_t i = 0; i < list.n; i++)
		if (at.a >= list.v[i].start && at.a < list.v[i].end) {
			start->a = list.v[i].start;
			end->a = list.v[i].end;
			is = !strcmp(list.v[i].name, name);
		}
	procfs_maps_free(&list);
	return is;
}

bool map_query_is(pid_t pid, struct taddr at, const char *name, struct taddr *start, struct taddr *end)
{
	char found[64] = "";
	struct map_query query = {.size = sizeof(query),
				  .query_addr = at.a,
				  .vma_name_size = sizeof(found),
				  .vma_name_addr = (uint64_t)(uintptr_t)found};
	auto_close int fd = open_maps(pid);

	start->a = at.a;
	end->a = at.a + 1;
	if (fd < 0)
		return false;
	if (ioctl(fd, MAP_QUERY_CALL, &query) < 0) {
		if (errno == ENOENT)
			return false;
		if (errno != ENAMETOOLONG)
			return search_name(pid, at, name, start, end);
		query.vma_name_size = 0; /* a path: ask for the range alone */
		query.vma_name_addr = 0;
		if (ioctl(fd, MAP_QUERY_CALL, &query) < 0)
			return false;
	}
	start->a = query.vma_start;
	end->a = query.vma_end;
	return !strcmp(found, name);
}
