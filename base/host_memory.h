/* How much memory the calling process may have: the machine's, or less where its control groups say so. */
#ifndef BASE_HOST_MEMORY_H
#define BASE_HOST_MEMORY_H

#include <stdint.h>

struct host_memory {
	uint64_t total, available; /* bytes; available: without swapping, files in the cache count as free */
};

/* `proc`: where proc(5) is, "/proc". A limit that cannot be read is ignored; UINT64_MAX: not known. Sources:
 * proc(5) (meminfo, PID/cgroup, PID/mountinfo), cgroups(7), Documentation/admin-guide/cgroup-v2.rst and
 * cgroup-v1/memory.rst. */
void host_memory_size(const char *proc, struct host_memory *out);

/* How many pages of any process the kernel has written to swap since boot (pswpout and zswpout of
 * /proc/vmstat). Pages of nothing but zeroes do not count; 0, at almost no cost, while there is no swap
 * space. */
uint64_t host_memory_swapped_out(void);

#endif
