/*
 * A checkpoint of a process and its descendants.
 *
 * coordinate.c runs in the coordinator, a child of the keeper: freezes the processes through their scips
 * until no unfrozen descendant is left, lets each dump its memory, dumps the objects itself, thaws, writes
 * the manifest. collect.c (threads, signals, timers, credentials ...) and dump.c (mappings and pages) run in
 * each scip on its frozen process.
 */
#ifndef SCIP_CHECKPOINT_CHECKPOINT_H
#define SCIP_CHECKPOINT_CHECKPOINT_H

#include "image/image.h"
#include "proto/control.pb-c.h"
#include "scip/tracee/process.h"

/* ---- in a scip ---- */
/* Fills `out` with everything of the frozen process but descriptors and objects; pages are written to
 * `image_fd` by the injected code at offsets taken from the arena. `shared` lists its shared mappings with
 * pages (their contents are dumped by the coordinator's choice of one owner: the first process that takes
 * (dev, ino) in the arena). Leaves the process frozen and as it was, whatever happens. */
must_check int checkpoint_dump_process(struct process *process, int image_fd, struct image_arena *arena,
				       Pbeam__ScipDumped *out, struct err *err);

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
