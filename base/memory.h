/* How much memory the calling process may have: the machine's, or less where its control groups say so. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <stdint.h>

struct memory_size {
	uint64_t total, available; /* bytes; available: without swapping, files in the cache count as free */
};

/* `proc`: where proc(5) is, "/proc". What cannot be read limits nothing; UINT64_MAX: not known. Sources:
 * proc(5) (meminfo, PID/cgroup, PID/mountinfo), cgroups(7), Documentation/admin-guide/cgroup-v2.rst and
 * cgroup-v1/memory.rst. */
void memory_size(const char *proc, struct memory_size *out);

/* How many pages the kernel has written to swap since it was booted, whoever's (pswpout and zswpout of
 * /proc/vmstat). Pages of nothing but zeroes do not count; 0 while there is
 * no swap space, and then it costs next to nothing. */
uint64_t memory_swapped_out(void);

#endif
