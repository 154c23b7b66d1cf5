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
#include <stdbool.h>

#include "base/err.h"
#include "namespace/names.h"
#include "scip/fill/fill_signs.h"
#include "scip/tracee/process.h"

/* Shared by all scips of a job and its keeper: one page. */
struct seat_shared {
	_Atomic int32_t idle; /* scips waiting, less the processes sent and not yet taken: may be negative */
	_Atomic uint32_t low, high;  /* wake the keeper below `low`; it forks until `high` are idle */
	_Atomic uint32_t surplus;    /* a scip that would exceed this exits */
	_Atomic uint64_t handed;     /* hand-overs so far */
	_Atomic int32_t coordinator; /* the active coordinator, 0 none */
	_Atomic uint32_t generation; /* how often the job has changed to another version (docs/UPGRADE.md) */
	struct fill_signs signs;
	_Atomic bool reports_ends; /* scips tell the keeper whenever a process has left the name table */
};

/* A scip's place in its job. */
struct seat {
	struct names *names;
	int take;	     /* hand-over socket: idle scips receive ... */
	int give;	     /* ... and supervisors send */
	int wake;	     /* eventfd: the pool needs spares */
	int page;	     /* memory file of `shared` */
	pid_t keeper;	     /* the scip dies with the keeper, and the process with the scip */
	pid_t scip;	     /* the scip at this place; 0 for the keeper */
	uint32_t generation; /* of the program of this scip: an older one leaves the job when it is idle */
	struct seat_shared *shared;
};

/* The signal that a scip receives when its keeper ends (PR_SET_PDEATHSIG). */
#define SEAT_KEEPER_GONE SIGUSR1

/* Drops a thread that is gone, and releases its number. */
void supervisor_drop_thread(const struct seat *seat, struct tracee *tracee);

/* A process has left the name table: tells the keeper if that wants to know (pool_report_ends()), which then
 * looks as if a child of its own had ended. */
static inline void seat_report_end(const struct seat *seat)
{
	if (atomic_load(&seat->shared->reports_ends))
		kill(seat->keeper, SIGCHLD);
}

/* Runs a scip. Never returns. */
_Noreturn void supervisor_main(const struct seat *seat);

struct successor;
/* Goes on as the scip that has executed this program (successor.h). */
_Noreturn void supervisor_take_over(const struct successor *from);

#endif
