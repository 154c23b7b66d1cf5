/*
 * Memory that processes share copy-on-write, shared again after the restore.
 *
 * Such sharing only comes from fork, so by fork it is made again. What at least two of a parent and its
 * children (and theirs) have at an address is put into the parent first; then it forks them; then each of
 * them, and the parent too, gets what it has for itself and loses what it has not. Where the parent has
 * written between its forks there are several versions of a page: then it is filled in rounds, each with the
 * children that were forked in it, the last one with what it has in common with the youngest. So a process
 * may be filled more than once, and what is to be done is the difference between what is wanted and what
 * there is. All of it is pure: from the image's processes to requests for the scips.
 *
 * Not shared again: pages of processes of which the one has another program than the other or was adopted,
 * and pages in a mapping that the child has made longer since.
 */
#ifndef SCIP_REBUILD_INHERIT_H
#define SCIP_REBUILD_INHERIT_H

#include <stdbool.h>

#include "proto/control.pb-c.h"
#include "scip/rebuild/extents.h"

/* ---- who passes on what ---- */

/* What a process passes on. */
struct inherit_passing {
	struct extents *rounds;
	int nrounds;
	Pbeam__Memory memory;	 /* its own, with what its children have and it has no more */
	Pbeam__Mapping **joined; /* mappings of it that are neither's, but the sum of several */
	size_t n_joined;
};

struct inherit {
	struct inherit_passing *passing; /* of each process: nothing, mostly */
	int *round; /* in which of its parent's rounds each process is forked, from 1; 0: it takes nothing */
	size_t n;
};

/* `from[i]` is the index of the process that forks process i, smaller than i, or negative where nothing can
 * come from it. 0 or -ENOMEM; inherit_free() in any case. */
must_check int inherit_survey(struct inherit *inherit, Pbeam__Process *const *processes, const int *from,
			      size_t n);
void inherit_free(struct inherit *inherit);

/* ---- what is to be done ---- */

/* The memory of a process that is being made. */
struct inherit_state {
	struct inherit_state *next; /* of all that were made */
	const Pbeam__Memory *like;  /* its mappings are those of this one */
	uint32_t *prot;		    /* their protection in force */
	struct extents pages;
};
void inherit_state_free(struct inherit_state *state);

/* The process with the memory that is left to be filled. What it points to is the image's or its own. */
struct inherit_request {
	Pbeam__Process process;
	Pbeam__Memory memory;
	Pbeam__Mapping *mappings; /* NULL: all that it had, nothing of it is there */
	size_t n_mappings;
	bool inherits; /* some of it is there */
	Pbeam__KeptMapping *kept;
	Pbeam__KeptMapping **kept_list;
	size_t n_kept;
	Pbeam__Range *dropped;
	Pbeam__Range **dropped_list;
	size_t n_dropped;
};

/* `state`: what it has by now, NULL for nothing. With a `round` (from 1) it is to get what it passes on in
 * that, and *next is what it has then; with 0 all that it had when it was saved. 0 or -ENOMEM;
 * inherit_request_free() in any case. */
must_check int inherit_request(const struct inherit_state *state, const Pbeam__Process *process,
			       const struct inherit_passing *passing, int round, struct inherit_request *out,
			       struct inherit_state **next);
void inherit_request_free(struct inherit_request *request);

#endif
