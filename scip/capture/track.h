/*
 * Reports from outside which memory of a running process was written.
 *
 * While the process is frozen for a moment, a call made in it creates a userfaultfd, which is taken with
 * pidfd_getfd(). In its WP_ASYNC mode (Linux 6.7) the kernel resolves write faults by itself; PAGEMAP_SCAN
 * reports the pages that were written and write-protects them again in the same call. So a page is either
 * sent as it is now or reported again. Memory that is not tracked (new memory, another program) counts as
 * written. Everything after the freeze happens from outside, through descriptors; closing the userfaultfd
 * ends the tracking.
 */
#ifndef SCIP_CAPTURE_TRACK_H
#define SCIP_CAPTURE_TRACK_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "namespace/names.h"
#include "scip/capture/group.h"

struct notes;
/* A piece of private anonymous memory. Or a shared object as one process maps it; then it begins where the
 * object would begin if all of it were mapped. */
struct track_range {
	uint64_t start, end;
	bool read;	     /* has been read once, */
	bool shares;	     /* and had pages then that other processes map too */
	struct notes *notes; /* the caller's: what was sent of the range or the object */
	uint32_t object;     /* its id, 0 for private memory */
	bool *missed;	     /* for an object: set when a piece could not be read */
};

struct tracked {
	struct rpid rpid;
	struct vpid vpid;
	int uffd, pagemap, mem;
	struct track_range *ranges;
	size_t nranges;
	dev_t dev; /* of its program */
	ino_t ino;
	pid_t parent, group, session;
	uint64_t terminal, stack; /* the stack's start, which moves when the same program is executed again */
	bool lost;		  /* the writes are no longer known: nothing that was sent is of use */
};

/* Begins to track a frozen member that has been dumped. *t needs track_end() in every case. 0 or -errno. */
must_check int track_begin(struct tracked *t, struct group *group, struct member *member, struct err *err);
/* Ends the tracking; may be called again. */
void track_end(struct tracked *t);
/* True if the member is the tracked process, with the same program, parent, group, session and terminal, and
 * all writes are known; or has ended as that process. */
bool track_matches(const struct tracked *t, const struct member *member);

/* Receives pages that were written, as contiguous pieces. 0 to continue, or -errno. */
typedef int (*track_fn)(void *arg, struct tracked *t, struct track_range *range, uint64_t start,
			uint64_t end);
/* Reports the pages that were written since they were reported last, and write-protects them. 0 or the -errno
 * of `fn`. */
must_check int track_report(struct tracked *t, track_fn fn, void *arg);
/* Adds the bytes that track_report() would report, and of those in memory that was moved or mapped again
 * meanwhile, which only the final image can hold. */
void track_count(const struct tracked *t, uint64_t *written, uint64_t *untracked);

/* Registers a mapping of shared memory. False: it cannot be tracked. */
bool track_register(const struct tracked *t, uint64_t start, uint64_t end);
/* Reports the written pages of a registered mapping; `again` write-protects them. False: it is no longer
 * mapped there. */
typedef void (*track_shared_fn)(void *arg, uint64_t start, uint64_t end);
bool track_scan_shared(const struct tracked *t, uint64_t start, uint64_t end, bool again, track_shared_fn fn,
		       void *arg);
/* The process's proportional share of shared memory, in bytes. */
uint64_t track_shared(const struct tracked *t);

/* Notes that all ranges have been reported and read once. */
void track_set_read(struct tracked *t);
/* Pieces of memory that were reported. */
enum { TRACK_RUNS = 256 };
struct track_run {
	uint64_t start, end;
	struct track_range *range;
	bool missing; /* out: it could not be read whole */
};
/* Makes the next round report a piece again that could not be sent. */
void track_report_again(struct tracked *t, const struct track_run *run);
/* Reads at most TRACK_RUNS pieces, one behind the other, into `to`. Pages that other processes share
 * copy-on-write stay shared. */
void track_read(const struct tracked *t, struct track_run *runs, size_t n, void *to);

#endif
