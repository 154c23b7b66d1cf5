/*
 * Which memory of a running process was written, told from outside.
 *
 * While the process is frozen for a moment a userfaultfd is made inside it by a call of ours and taken with
 * pidfd_getfd(). In its WP_ASYNC mode (Linux 6.7) the kernel resolves write faults by itself and PAGEMAP_SCAN
 * tells which pages were written, and write-protects them again in the same go: so a page is either sent as
 * it is now or told again. What is not tracked (new memory, another program) counts as written. All that is
 * done from outside, by descriptors; closing the userfaultfd ends it.
 */
#ifndef SCIP_MIGRATE_TRACK_H
#define SCIP_MIGRATE_TRACK_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "namespace/names.h"
#include "scip/checkpoint/group.h"

struct notes;
/* A piece of private anonymous memory; or a shared object as one process maps it (objects.h): then it begins
 * where the object would, were all of it mapped. */
struct track_range {
	uint64_t start, end;
	bool looked;	     /* it has been read once, */
	bool shares;	     /* and then had pages that are mapped elsewhere too */
	struct notes *notes; /* the caller's: what was sent of it; for an object those of the object */
	uint32_t object;     /* its id, 0: private memory */
	bool *missed;	     /* of an object: set when a piece could not be read */
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
	uint64_t terminal, stack; /* where this began: executing the same program once more moves it */
	bool lost;		  /* it is not known what was written: nothing that was sent is of use */
};

/* Of a frozen member that has been dumped. *t needs track_end() in every case. */
must_check int track_begin(struct tracked *t, struct group *group, struct member *member, struct err *err);
/* Nothing of it is tracked any more; it may be ended again. */
void track_end(struct tracked *t);
/* The member is the process that was tracked, with the same program, parent, group, session and terminal, and
 * all that was written is known; or it has ended as that. */
bool track_is(const struct tracked *t, const struct member *member);

/* Called with what was written, page by page contiguous. 0 to go on. */
typedef int (*track_fn)(void *arg, struct tracked *t, struct track_range *range, uint64_t start,
			uint64_t end);
/* Tells what was written since it was told last; from now on it is not written. */
must_check int track_tell(struct tracked *t, track_fn fn, void *arg);
/* Adds how many bytes track_tell() would tell of, and how many are where something was tracked that was moved
 * or mapped anew meanwhile: those are in the final image only. */
void track_count(const struct tracked *t, uint64_t *written, uint64_t *untracked);
/* The same of a piece of shared memory, watched by track_watch(): page by page contiguous, also where it was
 * only looked at. With `again` it is not written from now on. False: it is not mapped there any more. */
typedef void (*track_piece_fn)(void *arg, uint64_t start, uint64_t end);
bool track_piece(const struct tracked *t, uint64_t start, uint64_t end, bool again, track_piece_fn fn,
		 void *arg);
/* False: it cannot be watched. */
bool track_watch(const struct tracked *t, uint64_t start, uint64_t end);
/* Bytes of shared memory that are the process's by its part. */
uint64_t track_shared(const struct tracked *t);
/* All of it has been told and read once. */
void track_looked(struct tracked *t);
/* Pieces of what was told. */
enum { TRACK_RUNS = 256 };
struct track_run {
	uint64_t start, end;
	struct track_range *range;
	bool missing; /* out: it could not be read whole */
};
/* It was told but cannot be sent: it is told again. */
void track_again(struct tracked *t, const struct track_run *run);
/* The memory of at most TRACK_RUNS pieces, one after the other, into `to`. Pages that other processes share
 * copy-on-write stay shared. */
void track_read(const struct tracked *t, struct track_run *runs, size_t n, void *to);

#endif
