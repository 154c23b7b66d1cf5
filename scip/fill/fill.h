/*
 * Turns a held husk into a saved process. These functions run in the scip that supervises the husk.
 *
 * The coordinator of a restore (scip/rebuild) requests these steps, in this order, over the scip's socket:
 * fill_exec(), any number of fill_husk() (all but the last with `memory_only`), fill_release().
 */
#ifndef SCIP_FILL_FILL_H
#define SCIP_FILL_FILL_H

#include <stdbool.h>
#include <stdint.h>

#include "image/image.h"
#include "proto/control.pb-c.h"
#include "scip/tracee/process.h"

/* Executes `path` in the husk, which is then stopped before its first instruction. */
must_check int fill_exec(struct process *process, const char *path, struct err *err);
/* Rebuilds address space, contents, descriptors, threads, handlers and timers. Afterwards every thread is
 * stopped with its saved registers. `images` are the image and those of its ancestors that hold pages; the
 * caller keeps ownership of the descriptors. 0 or -errno. */
must_check int fill_husk(struct process *process, const Pbeam__ScipFill *fill, const int *images,
			 size_t nimages, struct err *err);
/* Makes the held husk exit with this wait status. Returns 0 once the husk is dying; the supervisor's loop
 * then handles the exit like any other. */
must_check int fill_exit(struct process *process, int status, struct err *err);
/* Has the filled process take locks and make semop() calls, as `take` says. -EAGAIN: another process holds a
 * lock; the locks before it have been taken, and may be taken again. */
must_check int fill_take(struct process *process, const Pbeam__ScipTake *take, struct err *err);
/* Resumes the filled process, or leaves it stopped if it was stopped when it was saved. */
must_check int fill_release(struct process *process, const Pbeam__Process *saved, struct err *err);

/* The protection that a mapping needs while it is being filled. */
uint32_t fill_mapping_prot_needed(const Pbeam__Mapping *map);
/* True for the kernel's own mappings, which every process has: vdso and vvar. */
bool fill_mapping_is_kernels(const Pbeam__Mapping *map);

/* Installs descriptors of another process (of the same user) under descriptor numbers of the frozen
 * process. Returns 0, or -errno with nothing changed. Registers and all other state are preserved. */
must_check int fill_replace(struct process *process, const Pbeam__ScipReplace *request, struct err *err);

#endif
