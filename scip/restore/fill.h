/*
 * Inside scip/restore: what the parts of restore_fill() share.
 *
 * All of the work is system calls of the husk, gathered in batches that the injected code runs without stops.
 * fill_call() appends one; the batch is run when it is full or when fill_flush() is called. Calls that belong
 * together (one uses another's descriptor) are announced with fill_reserve(), so that no run falls between
 * them.
 */
#ifndef SCIP_RESTORE_FILL_H
#define SCIP_RESTORE_FILL_H

#include "proto/control.pb-c.h"
#include "scip/restore/restore.h"
#include "scip/tracee/procfs.h"
#include "scip/tracee/remote.h"

/* Descriptors of the husk while its memory is built; its table is empty before, so the numbers are known. */
enum { FILL_FD_SCIP = 0, FILL_FD_IMAGE = 1, FILL_FD_COORDINATOR = 2, FILL_FD_FIRST_FREE = 3 };

#define FILL_NOT_MAPPED UINT32_MAX

struct fill {
	struct process *process;
	struct tracee *leader;
	const Pbeam__ScipFill *request;
	const Pbeam__Process *saved;
	int image_fd;
	struct tracee *runner; /* through whom batches run: the leader, or a thread while that is set up */
	struct batch *batch;   /* under construction, or NULL */
	int ncalls;
	size_t room;	    /* bytes left for calls and data in this batch */
	size_t space;	    /* what an empty batch has */
	uint32_t *prot;	    /* protection in force of each mapping, FILL_NOT_MAPPED */
	uint64_t low, high; /* range that holds the injected area and, behind it, room for the moved vdso */
	struct err *err;
};

/* Appends a call; its number in the batch, or -errno. */
must_check int fill_call(struct fill *fill, uint32_t flags, int64_t nr, const uint64_t args[6]);
/* As fill_call() where nobody needs the number: 0 or -errno. */
must_check int fill_do(struct fill *fill, int64_t nr, const uint64_t args[6]);
/* ... where failure of the call does not matter. */
must_check int fill_try(struct fill *fill, int64_t nr, const uint64_t args[6]);
/* Argument `arg` of call `number` is what call `from` returns. */
void fill_from(struct fill *fill, int number, int from, unsigned arg);
/* Call `number` must return exactly `value`. */
void fill_expect(struct fill *fill, int number, int64_t value);
/* Makes sure that `calls` calls with `bytes` of data fit without a run in between. */
must_check int fill_reserve(struct fill *fill, int calls, size_t bytes);
/* Puts data where the husk can read (and write) it until the batch has run. */
must_check int fill_data(struct fill *fill, const void *data, size_t len, uint64_t *where);
/* Runs what was gathered. */
must_check int fill_flush(struct fill *fill);

/* mappings.c */
/* Where the injected code can be without being in the way of the husk's or the saved layout. */
must_check int mappings_find_room(struct fill *fill, const struct procfs_maps *maps, uint64_t bytes);
/* Unmaps the husk's own program, moves the vdso to where it was, maps everything writable that is to be
 * filled. */
must_check int mappings_clear(struct fill *fill, const struct procfs_maps *maps);
must_check int mappings_make(struct fill *fill);
/* Instead of mappings_clear() where memory of the image is there: unmaps all else. */
must_check int mappings_keep(struct fill *fill);
/* After the contents: protection, advice, names, locks, the kernel's own notes of the layout. */
must_check int mappings_finish(struct fill *fill);

/* policies.c: NUMA policies. Of a mapping, before it has contents; of the thread that runs the batches. What
 * the machine has no nodes for is left out. */
must_check int policy_set_mapping(struct fill *fill, const Pbeam__Mapping *map);
must_check int policy_set_thread(struct fill *fill, const Pbeam__Thread *saved);

/* contents.c */
must_check int contents_fill(struct fill *fill);

/* descriptors.c */
must_check int descriptors_fill(struct fill *fill);

/* attributes.c: of the process as a whole */
must_check int attributes_fill(struct fill *fill);
must_check int attributes_limits(struct fill *fill);

/* signals.c */
must_check int signals_fill_actions(struct fill *fill);
must_check int signals_queue(struct fill *fill, pid_t tid, size_t n, Pbeam__SignalInfo *const *pending);
must_check int signals_fill_timers(struct fill *fill);

/* filters.c: what the program has forbidden itself */
must_check int filters_install(struct fill *fill);

/* threads.c */
must_check int threads_fill(struct fill *fill);

#endif
