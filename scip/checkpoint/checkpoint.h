/*
 * A checkpoint of a process and its descendants.
 *
 * coordinate.c runs in the coordinator, a child of the keeper: freezes the processes through their scips
 * until no unfrozen descendant is left, lets each dump its memory, dumps the objects itself, thaws, writes
 * the manifest. dump.c runs in each scip on its frozen process: threads.c, signals.c, timers.c and
 * attributes.c collect, mappings.c and pages.c say what memory there is, write.c puts it into the image.
 */
#ifndef SCIP_CHECKPOINT_CHECKPOINT_H
#define SCIP_CHECKPOINT_CHECKPOINT_H

#include "image/image.h"
#include "proto/control.pb-c.h"
#include "scip/tracee/process.h"

/* ---- in a scip ---- */
/* Fills `out` with everything of the frozen process but descriptors and objects; pages are written to
 * `image_fd` by the injected code at offsets taken from the arena. out->shared lists its shared mappings
 * whose contents belong into the image; they are dumped by one process for each part, see below. Leaves the
 * process frozen and as it was, whatever happens. */
must_check int checkpoint_dump_process(struct process *process, int image_fd, struct image_arena *arena,
				       Pbeam__ScipDumped *out, struct err *err);

/* Dumps the parts of shared memory that the coordinator wants from this process. */
must_check int checkpoint_dump_shared(struct process *process, int image_fd, struct image_arena *arena,
				      const Pbeam__ScipDumpShared *request, Pbeam__ScipDumpedShared *out,
				      struct err *err);

/* ---- in the coordinator ---- */
struct checkpoint_options {
	struct vpid target;
	const char *path; /* final path */
	bool kill, alone;
	uint64_t save_files_max;
	const int *console; /* 3 descriptors */
	const struct name_job *job;
};
struct checkpoint_result {
	uint64_t bytes, pause_ns, total_ns;
	uint32_t processes, threads;
};
/* Either the image is whole and durable and 0 comes back, or there is none and the programs go on as before.
 */
must_check int checkpoint_run(struct names *names, const struct checkpoint_options *options,
			      struct checkpoint_result *result, struct err *err);

#endif
