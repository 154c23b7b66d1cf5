/*
 * Memory that processes share copy-on-write, shared again after the restore.
 *
 * Only fork creates this sharing, so fork creates it again. Pages that at least two of a parent and its
 * descendants have at the same address are put into the parent first. Then it forks the children. Then each
 * of them, and the parent too, gets the pages that only it has and loses those that it has not. Where the
 * parent has written between its forks, a page has several versions: the parent is filled in rounds, each
 * with the children forked in it; the last round has what it shares with the youngest child. So a process may
 * be filled more than once, each time with the difference between what is wanted and what exists. All of this
 * is pure: from the image's processes to requests for the scips.
 *
 * Not shared again: pages of processes that run another program than their parent or were adopted, and pages
 * in a mapping that the child has extended since.
 */
#ifndef SCIP_REBUILD_INHERIT_H
#define SCIP_REBUILD_INHERIT_H

#include <stdbool.h>

#include "proto/control.pb-c.h"
#include "scip/rebuild/extents.h"

/* ---- memory that is passed on ---- */

/* The memory that a process passes on to its children. */
struct inherit_passing {
	struct extents *rounds;
	int nrounds;
	Pbeam__Memory memory;	 /* the process's own pages, and pages that only its children still have */
	Pbeam__Mapping **joined; /* mappings that combine several of different processes */
	size_t n_joined;
};

struct inherit {
	struct inherit_passing *passing; /* for each process; mostly empty */
	int *round; /* for each process, its parent's round in which it is forked, from 1; 0: it inherits
		       nothing */
	size_t n;
};

/* `from[i]` is the index of the process that forks process i, smaller than i, or negative where nothing can
 * be inherited. Returns 0 or -ENOMEM. Call inherit_free() in any case. */
must_check int inherit_survey(struct inherit *inherit, Pbeam__Process *const *processes, const int *from,
			      size_t n);
void inherit_free(struct inherit *inherit);

/* ---- requests for fills ---- */

/* The present memory of a process that is being made. */
struct inherit_state {
	struct inherit_state *next; /* the list of all states */
	const Pbeam__Memory *like;  /* has the same mappings */
	uint32_t *prot;		    /* their present protection */
	struct extents pages;
};
void inherit_state_free(struct inherit_state *state);

/* The process with the memory that is still to be filled. It points into the image or to memory of its own.
 */
struct inherit_request {
	Pbeam__Process process;
	Pbeam__Memory memory;
	Pbeam__Mapping *mappings; /* NULL: all mappings, none of them exists */
	size_t n_mappings;
	bool inherits; /* some of it exists */
	Pbeam__KeptMapping *kept;
	Pbeam__KeptMapping **kept_list;
	size_t n_kept;
	Pbeam__Range *dropped;
	Pbeam__Range **dropped_list;
	size_t n_dropped;
};

/* `state`: the present memory, NULL for none. With a `round` (from 1) the request is for what the process
 * passes on in that round, and *next becomes its memory afterwards; with 0 it is for the whole saved memory.
 * Returns 0 or -ENOMEM. Call inherit_request_free() in any case. */
must_check int inherit_request(const struct inherit_state *state, const Pbeam__Process *process,
			       const struct inherit_passing *passing, int round, struct inherit_request *out,
			       struct inherit_state **next);
void inherit_request_free(struct inherit_request *request);

#endif
