/*
 * A scip: the loop around one process. wait -> classify -> decide -> act.
 *
 * Scips come from the pool of their job's keeper (pool.c). Each waits on the job's hand-over socket for
 * a process: one just forked by a supervised parent (handoff.c: parked in a masked pause(), seized,
 * restored), the job's first process, or a husk of a restore. When its process has ended, it waits for
 * the next. Coordinators reach it on RUNTIME/scip/PID (control.c).
 */
#ifndef SCIP_SUPERVISOR_SUPERVISOR_H
#define SCIP_SUPERVISOR_SUPERVISOR_H

#include <signal.h>
#include <stdatomic.h>

#include "base/err.h"
#include "namespace/names.h"
#include "scip/fill/fill_signs.h"
#include "scip/tracee/process.h"

/* The message on the hand-over socket. */
struct handoff {
	int32_t rpid;
	int32_t vpid;
	int32_t keeper;
	uint32_t flags;		/* HANDOFF_* */
	int32_t dumpable;	/* HANDOFF_DUMPABLE: the value to put back */
	int32_t asked_dumpable; /* process->dumpable */
	int32_t coordinator;	/* HANDOFF_HELD: whose husk it is */
	uint64_t sigmask;
	uint64_t scratch, timeouts; /* the areas of scip that its memory, a copy of its parent's, contains */
	uint64_t parking;	    /* address of the instruction it waits at */
	struct user_regs_struct regs;
};
enum {
	HANDOFF_FORKED = 1u << 0,   /* parked in pause(): put regs and mask back */
	HANDOFF_LAUNCH = 1u << 1,   /* the keeper's child, waiting in pause() before it executes the program:
				       its pause() returns 1 if it is to load the restored filter, else 0 */
	HANDOFF_HELD = 1u << 2,	    /* a husk: stays stopped until the coordinator says so */
	HANDOFF_DIVERGED = 1u << 3, /* runs behind the restored filter */
	HANDOFF_DUMPABLE = 1u << 4, /* was made dumpable for the hand-over */
	HANDOFF_SHARES_MEMORY =
		1u << 6,	   /* shares memory with its parent (vfork), including the areas of scip */
	HANDOFF_FILTERS = 1u << 5, /* has seccomp filters of the program's own: process->filters */
};

/* Shared by all scips of a job and its keeper: one page. */
struct seat_shared {
	_Atomic int32_t idle; /* scips waiting, less the processes sent and not yet taken: may be negative */
	_Atomic uint32_t low, high;  /* wake the keeper below `low`; it forks until `high` are idle */
	_Atomic uint32_t surplus;    /* a scip that would exceed this leaves */
	_Atomic uint64_t handed;     /* hand-overs so far */
	_Atomic int32_t coordinator; /* the active coordinator, 0 none */
	struct fill_signs signs;
};

/* A scip's place in its job. */
struct seat {
	struct names *names;
	int take;     /* hand-over socket: idle scips receive ... */
	int give;     /* ... and supervisors send */
	int wake;     /* eventfd: the pool runs low */
	pid_t keeper; /* when it dies the scip dies, and the process with it */
	pid_t scip;   /* the scip at this place; 0 for the keeper */
	struct seat_shared *shared;
};

/* The signal that tells a scip that its keeper is gone (PR_SET_PDEATHSIG). */
#define SEAT_KEEPER_GONE SIGUSR1

/* Drops a thread that is gone, and releases its number. */
void supervisor_drop_thread(const struct seat *seat, struct tracee *tracee);

/* The life of a scip: never returns. */
_Noreturn void supervisor_main(const struct seat *seat);

#endif
