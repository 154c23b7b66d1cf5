/*
 * The order in which a process tree is made again: a pure function from the image's processes to a list of
 * steps.
 *
 * The kernel's rules: a forked process is in its parent's session and group. Only setsid() moves it to
 * another session, always one named after itself. Only setpgid() moves it to another group: one that has a
 * member in its session, or one named after itself. When a parent ends, its children go to the nearest living
 * ancestor that is a child subreaper, at last to the keeper. Therefore
 *
 *  - a child in the session that its parent was born in is forked before the parent's setsid();
 *  - a child that shares memory copy-on-write is forked when its parent has that memory (inherit.h), all
 *    others before;
 *  - an orphan is forked by a helper, itself forked by a member of the orphan's session; then the helper
 *    exits;
 *  - a session or group whose leader is gone is made by a helper with the leader's number, which exits when
 *    the members have joined.
 */
#ifndef SCIP_REBUILD_PLAN_H
#define SCIP_REBUILD_PLAN_H

#include <stdbool.h>

#include "base/err.h"
#include "proto/image.pb-c.h"
#include "scip/rebuild/inherit.h"

enum plan_step_kind {
	PLAN_HUSK,	/* the keeper (the first process's living parent) forks `node` */
	PLAN_FORK,	/* node `other` forks `node` */
	PLAN_EXEC,	/* `node` executes its program */
	PLAN_SETSID,	/* `node` makes a session */
	PLAN_SETPGID,	/* `node` goes into group `number`; 0: makes its own */
	PLAN_SUBREAPER, /* `node` becomes (number 1) or ceases to be (0) a child subreaper */
	PLAN_EXIT,	/* `node` ends, with the status of its process, 0 for a helper */
	PLAN_REAP,	/* node `other` waits for `node`, a helper that has ended */
	PLAN_MEMORY,	/* `node` gets the memory that the children forked next inherit: round `number` */
};

#define PLAN_KEEPER (-1)

/* A process to be made: one of the image, or a helper (process NULL). */
struct plan_node {
	const Pbeam__Process *process;
	int32_t vpid; /* 0: a nameless helper */
	int parent;   /* the node that forks it, or PLAN_KEEPER */
	int32_t exit_signal;
	/* Its present place while the plan is made. */
	int32_t session, group; /* 0: the keeper's */
	int exe;		/* node whose PLAN_EXEC gave it its program, or -1 */
};

struct plan_step {
	enum plan_step_kind kind;
	int node, other;
	int32_t number;
};

/* The place of the first process when its old parent still lives, in virtual numbers. */
struct plan_above {
	int32_t session, group; /* the parent's */
	const int32_t *groups;	/* all groups of that session that have members */
	size_t ngroups;
};

struct plan {
	struct plan_node *nodes; /* the image's processes first, in its order */
	int nnodes, node_room;
	struct plan_step *steps;
	int nsteps, step_room;
	int32_t keeper_session; /* virtual number that the keeper's own session stands for, 0 for none; with a
				   living parent: its session's */
	const struct plan_above *above;
	struct inherit inherit; /* shared memory */
};

/* A process without contents: a zombie, or the stub of a process on another host. */
static inline bool plan_is_empty(const Pbeam__Process *process)
{
	return process->state == PBEAM__PROCESS__STATE__ZOMBIE ||
	       process->state == PBEAM__PROCESS__STATE__STUB;
}

/* Makes the plan. `there` (NULL: none) marks processes that exist with their program, session and group: no
 * step makes them, but they fork others; their parents and leaders exist too, where these are among the
 * processes. `above` NULL: the keeper is the first process's parent; else it stays the caller's until
 * plan_free(). Returns 0; -ENOMEM; -EXDEV when the living parent is in another session than the one that the
 * first process must be forked in; -EINVAL with the reason when the processes cannot have come about or need
 * what is not supported. Call plan_free() in any case. */
must_check int plan_make(struct plan *plan, Pbeam__Process *const *processes, size_t n, const bool *there,
			 const struct plan_above *above, struct err *err);
void plan_free(struct plan *plan);

#endif
