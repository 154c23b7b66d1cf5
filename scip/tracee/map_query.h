/* Questions to the kernel about one mapping of a process, without reading the list of all of them. */
#ifndef SCIP_TRACEE_MAP_QUERY_H
#define SCIP_TRACEE_MAP_QUERY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/types.h>

#include "base/err.h"
#include "scip/tracee/process.h"

/* linux/fs.h, PROCMAP_QUERY: an ioctl of /proc/PID/maps since Linux 6.11; not in the headers of older
 * systems.
 */
struct map_query {
	uint64_t size, query_flags, query_addr;
	uint64_t vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
	uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
	uint64_t vma_name_addr, build_id_addr;
};
#define MAP_QUERY_CALL _IOWR('f', 17, struct map_query)

/* The protection (PROT_*) of the mapping that contains `at`, or -ENOENT if there is none, or another -errno.
 */
must_check int map_query_prot(pid_t pid, struct taddr at);

/* Finds the mapping that contains `at`. True if its name is `name`; *start and *end are its range, or, if
 * there is none, that of the byte at `at`. */
bool map_query_is(pid_t pid, struct taddr at, const char *name, struct taddr *start, struct taddr *end);

#endif
