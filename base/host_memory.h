/* The memory that the calling process may use: the machine's, or less if its control groups limit it. */
#ifndef BASE_HOST_MEMORY_H
#define BASE_HOST_MEMORY_H

#include <stdint.h>

struct host_memory {
	uint64_t total, available; /* bytes; available: without swapping, files in the cache count as free */
};

/* `proc`: the mount point of proc(5), "/proc". A limit that cannot be read is ignored; UINT64_MAX:
 * unknown. Sources: proc(5) (meminfo, PID/cgroup, PID/mountinfo), cgroups(7),
 * Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst. */
void host_memory_size(const char *proc, struct host_memory *out);

/* The number of pages that the kernel has written to swap since boot, of any process (pswpout and zswpout
 * of /proc/vmstat). Pages of zeroes do not count. 0, at almost no cost, while there is no swap space. */
uint64_t host_memory_swapped_out(void);

#endif
