/* Paths that are elsewhere on this host. Private to scip/syscall/. */
#ifndef SCIP_SYSCALL_PATH_MAP_H
#define SCIP_SYSCALL_PATH_MAP_H

#include "namespace/paths.h"
#include "scip/syscall/call.h"

/* The paths of the process's job; NULL: none is elsewhere, at the cost of one load. */
const struct paths *path_map_of(struct process *process);
/* Where the path that the program gives is, into `out`, absolute; NULL: where it says. */
const struct path_entry *path_map_find(const struct call *call, int dir_arg, const char *path, char *out,
				       size_t size);
/* What the program calls `real`: its length, 0: just that. */
int path_map_name(const struct call *call, const char *real, char *out, size_t size);

#endif
