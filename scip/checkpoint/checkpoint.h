/*
 * A checkpoint of a process and its descendants.
 *
 * checkpoint_run.c runs in the coordinator, a child of the keeper, and takes the steps of capture.h: it
 * freezes the processes through their scips until no unfrozen descendant is left, lets each scip dump its
 * process, dumps the objects itself, thaws, writes the manifest. dump.c runs in each scip on its frozen
 * process: threads.c, signals.c, timers.c and attributes.c collect, mappings.c and pages.c say what memory
 * there is, write.c puts it into the image.
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
must_check int checkpoint_dump_process(struct process *process, Pbeam__ScipDump__What what, int image_fd,
				       struct image_arena *arena, Pbeam__ScipDumped *out, struct err *err);

/* Dumps the parts of shared memory that the coordinator wants from this process. */
must_check int checkpoint_dump_shared(struct process *process, int image_fd, struct image_arena *arena,
				      const Pbeam__ScipDumpShared *request, Pbeam__ScipDumpedShared *out,
				      struct err *err);

/* The signals that threads of the frozen process want when its parent ends (PR_SET_PDEATHSIG), a bit for
 * each. -ENOTSUP: its own filters forbid to ask. Leaves it as it was. */
must_check int checkpoint_death_signals(struct process *process, uint64_t *signals, struct err *err);

/* ---- in the coordinator ---- */
struct group;
struct object_external;
struct checkpoint_result;
/* A mapping of a shared object. */
struct member;
struct shared_use {
	struct member *member;
	Pbeam__SharedRef *ref;
};
/* Of the same object. That of a System V segment has its id in the place of its inode number, which another
 * file of that device may have too (ipc/shm.c, newseg()). */
static inline bool shared_is_same(const Pbeam__SharedRef *a, const Pbeam__SharedRef *b)
{
	const uint32_t sysv = PBEAM__SHARED_MEMORY__KIND__SYSV;

	return a->dev == b->dev && a->ino == b->ino && (a->kind == sysv) == (b->kind == sysv);
}
/* A shared object of the frozen group. */
struct shared_object {
	const struct shared_use *uses;
	size_t n;
	uint64_t size; /* in bytes */
	/* NULL: it cannot be pre-copied. Else `pages` are those that the kernel reports (address is the
	 * offset in the object). Out: `precopied`, an id, if it is chosen; at the end, if all of it has been
	 * sent, with `sent`. */
	Pbeam__SharedMemory *there;
};
typedef int shared_precopy_fn(void *arg, struct shared_object *objects, size_t n, struct err *err);

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
/* What the three descriptors of a console are. -ENOMEM. */
must_check int checkpoint_describe_streams(Pbeam__Job *out, const int console[3]);
/* Either the image is whole and durable and 0 comes back, or there is none and the programs go on as before.
 */
must_check int checkpoint_run(struct names *names, const struct checkpoint_options *options,
			      struct checkpoint_result *result, struct err *err);

#endif
