/*
 * A scip: the loop around one process. wait -> classify -> decide -> act.
 *
 * Scips come from the pool of their job's keeper (pool.c): each waits on the job's hand-over socket for a
 * process: one just forked by a supervised parent (handoff.c: parked in a masked pause(), seized, put back),
 * the job's first process, or a husk of a restore. When its process has ended it waits for the next. It
 * listens on RUNTIME/scip/PID for the coordinator (control.c).
 */
#ifndef SCIP_SUPERVISOR_SUPERVISOR_H
#define SCIP_SUPERVISOR_SUPERVISOR_H

#include "base/err.h"
#include "namespace/names.h"
#include "scip/tracee/process.h"

/* What a spare scip is told over the hand-over socket. */
struct handoff {
	int32_t rpid;
	int32_t vpid;
	int32_t keeper;
	uint32_t flags; /* HANDOFF_* */
	uint64_t sigmask;
	struct user_regs_struct regs;
};
enum {
	HANDOFF_FORKED = 1u << 0, /* parked in pause(): put regs and mask back */
	HANDOFF_LAUNCH =
		1u << 1, /* the keeper's child, waiting for us before it loads the filter and executes */
	HANDOFF_HELD = 1u << 2,	    /* a husk: stays stopped until the coordinator says so */
	HANDOFF_DIVERGED = 1u << 3, /* runs behind the restored filter */
};

/* The life of a scip: never returns. `handover` is the job's socket, `keeper_alive` a pipe that reads end of
 * file when the keeper is gone. */
_Noreturn void supervisor_main(struct names *names, int handover, int keeper_alive);

#endif
