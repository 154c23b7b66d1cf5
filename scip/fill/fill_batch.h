/*
 * Internal to scip/fill: shared by the parts of fill_husk().
 *
 * All work on the husk is done by system calls that it makes itself, gathered in batches which the injected
 * code runs without a stop. fill_call() appends a call; the batch runs when it is full or on fill_flush().
 * fill_reserve() announces calls that belong together, so that no run separates a call from the descriptor
 * it uses.
 */
#ifndef SCIP_FILL_FILL_BATCH_H
#define SCIP_FILL_FILL_BATCH_H

#include "proto/control.pb-c.h"
#include "scip/fill/fill.h"
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
	const int *images; /* the image, its parent, ... */
	size_t nimages;
	struct tracee *runner; /* runs the batches: the leader, or the thread that is being set up */
	struct batch *batch;   /* under construction, or NULL */
	int ncalls;
	size_t room;	    /* bytes left for calls and data in this batch */
	size_t space;	    /* bytes of an empty batch */
	uint32_t *prot;	    /* current protection of each mapping, or FILL_NOT_MAPPED */
	uint64_t low, high; /* range of the injected area and of the room for the moved vdso behind it */
	struct err *err;
};

/* Appends a call. Returns its number in the batch, or -errno. */
must_check int fill_call(struct fill *fill, uint32_t flags, int64_t nr, const uint64_t args[6]);
/* Like fill_call(), for calls whose number is not needed. Returns 0 or -errno. */
must_check int fill_do(struct fill *fill, int64_t nr, const uint64_t args[6]);
/* Like fill_do(), for calls that may fail. */
must_check int fill_try(struct fill *fill, int64_t nr, const uint64_t args[6]);
/* Passes the result of call `from` as argument `arg` of call `number`. */
void fill_from(struct fill *fill, int number, int from, unsigned arg);
/* Call `number` must return exactly `value`. */
void fill_expect(struct fill *fill, int number, int64_t value);
/* Ensures that the next `calls` calls with `bytes` of data go into one batch. */
must_check int fill_reserve(struct fill *fill, int calls, size_t bytes);
/* Copies data to memory that the husk can read and write until the batch has run. */
must_check int fill_data(struct fill *fill, const void *data, size_t len, uint64_t *where);
/* Runs the batch under construction, if any. */
must_check int fill_flush(struct fill *fill);

/* ---- fill_mappings.c ---- */
/* Finds room for the injected code that neither the husk nor the saved layout uses. */
must_check int fill_mappings_find_room(struct fill *fill, const struct procfs_maps *maps, uint64_t bytes);
/* Unmaps the husk's own program and moves the vdso to its saved address. */
must_check int fill_mappings_clear(struct fill *fill, const struct procfs_maps *maps);
/* Replaces fill_mappings_clear() where an earlier fill or a fork has left memory of the image: unmaps
 * everything else. */
must_check int fill_mappings_keep(struct fill *fill);
/* Creates the saved mappings. Those that will be filled are writable. */
must_check int fill_mappings_make(struct fill *fill);
/* After the contents: protection, advice, names, locks, and the kernel's record of the layout. */
must_check int fill_mappings_finish(struct fill *fill);

/* ---- fill_kernel.c: the vdso and its data ---- */
struct fill_kernel;
/* Moves the husk's to `park`, where room for them is. Sets *out, which the caller frees: where each belongs.
 */
must_check int fill_kernel_park(struct fill *fill, const struct procfs_maps *maps, uint64_t park,
				struct fill_kernel **out);
/* The length of the range at `park` that they occupy. */
uint64_t fill_kernel_bytes(const struct fill_kernel *kernel);
/* Moves each to its saved address, and unmaps those that the program did not have. */
must_check int fill_kernel_place(struct fill *fill, const struct fill_kernel *kernel);
/* Writes the text of a vdso that the image gives: one that the program changed, or that of another kernel. */
must_check int fill_kernel_text(struct fill *fill);
/* Sets the protection of one, when no call is made by its instructions any more. */
must_check int fill_kernel_finish(struct fill *fill, const Pbeam__Mapping *map);

/* ---- fill_policies.c: NUMA policies; nodes that this machine lacks are left out ---- */
/* Sets the policy of a mapping; call before the mapping is filled. */
must_check int fill_policy_mapping(struct fill *fill, const Pbeam__Mapping *map);
/* Sets the policy of the thread that runs the batches. */
must_check int fill_policy_thread(struct fill *fill, const Pbeam__Thread *saved);

/* ---- fill_contents.c ---- */
must_check int fill_contents(struct fill *fill);

/* ---- fill_descriptors.c ---- */
must_check int fill_descriptors(struct fill *fill);

/* ---- fill_attributes.c: attributes of the whole process ---- */
must_check int fill_attributes(struct fill *fill);
must_check int fill_limits(struct fill *fill);

/* ---- fill_signals.c ---- */
must_check int fill_signal_actions(struct fill *fill);
must_check int fill_signal_queue(struct fill *fill, pid_t tid, size_t n, Pbeam__SignalInfo *const *pending);
must_check int fill_timers(struct fill *fill);

/* ---- fill_filters.c: the program's own seccomp filters ---- */
must_check int fill_filters(struct fill *fill);

/* ---- fill_threads.c ---- */
must_check int fill_threads(struct fill *fill);

#endif
