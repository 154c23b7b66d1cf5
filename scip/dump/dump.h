/*
 * The dump of one frozen process, in its scip.
 *
 * dump.c drives: dump_threads.c, dump_signals.c, dump_timers.c, dump_attributes.c, dump_semaphores.c,
 * dump_policies.c and dump_filters.c collect state, mappings.c and page_scan.c list the memory that has
 * contents, page_writer.c writes it to the image.
 */
#ifndef SCIP_DUMP_DUMP_H
#define SCIP_DUMP_DUMP_H

#include "image/image.h"
#include "proto/control.pb-c.h"
#include "scip/tracee/process.h"

/* Fills `out` with the state of the frozen process, except its descriptors and objects. The injected code
 * writes the pages to `image_fd`, at offsets from the arena. out->shared lists the shared mappings whose
 * contents belong into the image; one process dumps each part of them, see dump_shared(). The process stays
 * frozen and as it was, in every case. 0 or -errno. */
must_check int dump_process(struct process *process, Pbeam__ScipDump__What what, int image_fd,
			    struct image_arena *arena, Pbeam__ScipDumped *out, struct err *err);

/* Dumps the parts of shared memory that the coordinator requests from this process. 0 or -errno. */
must_check int dump_shared(struct process *process, int image_fd, struct image_arena *arena,
			   const Pbeam__ScipDumpShared *request, Pbeam__ScipDumpedShared *out,
			   struct err *err);

/* Collects the signals that threads of the frozen process get at their parent's end (PR_SET_PDEATHSIG), one
 * bit for each. 0, or -ENOTSUP if the program's own filters forbid the call. The process stays as it was. */
must_check int dump_death_signals(struct process *process, uint64_t *signals, struct err *err);

#endif
