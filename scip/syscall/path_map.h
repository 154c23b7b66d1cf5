/* Paths that differ on this host. Private to scip/syscall/. */
#ifndef SCIP_SYSCALL_PATH_MAP_H
#define SCIP_SYSCALL_PATH_MAP_H

#include "namespace/paths.h"
#include "scip/syscall/call.h"

/* The path map of the process's job, or NULL if no path differs. That case costs one load. */
const struct paths *path_map_of(struct process *process);
/* Finds the file that the program's path means, absolute, in `out`. NULL if the path is right as it is. */
const struct path_entry *path_map_find(const struct call *call, int dir_arg, const char *path, char *out,
				       size_t size);
/* Writes the program's name of `real` to `out`. Returns its length, 0 if the names are the same. */
int path_map_name(const struct call *call, const char *real, char *out, size_t size);

#endif
