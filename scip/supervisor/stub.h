/*
 * The stub of a process that lives on another host now: the process itself, emptied, so that its real parent
 * goes on having the child that it had, under the number that it knows.
 *
 * Made of the frozen process: its other threads end, it executes scip's own file (which gives all memory back
 * and ends its handlers and timers) and never runs an instruction of it: it waits in pause() with no signal
 * blocked. Being traced, it reports every signal, ignored ones too, to its scip, which passes each on to
 * where the process is now (DAEMON_SIGNAL to the keeper) and delivers none. The end of its parent it learns
 * by a signal of its own (PR_SET_PDEATHSIG), and tells that (DAEMON_ORPHAN). What befalls the process there
 * comes back by requests: it ends (SCIP_FREEZE, SCIP_RESTORE_EXIT), stops or goes on (SCIP_STUB_STOP), or
 * comes back: then the stub is frozen and held (SCIP_HOLD) and is a husk like any other.
 */
#ifndef SCIP_SUPERVISOR_STUB_H
#define SCIP_SUPERVISOR_STUB_H

#include "proto/image.pb-c.h"
#include "scip/supervisor/supervisor.h"

/* Allocates process->stub when the process is taken over (-ENOMEM); freed with stub_detach(). */
must_check int stub_attach(struct process *process);
void stub_detach(struct process *process);

/* True while the process lives on another host and this is its stub. */
bool stub_is(const struct process *process);
/* The signal that has stopped the process on its host, 0: it runs. */
int stub_stopped(const struct process *process);
/* The stub is about to end as its process did there: its end is not passed on. */
void stub_expect_end(struct process *process);
/* The process is coming back: the stub becomes a held husk (process->returning). */
void stub_return(struct process *process);

/* The frozen process has been dumped into `saved`: what of its signals is there is remembered. Its parent may
 * have ended meanwhile, and the signal of that be there or not: `saved` gets whose child it is now. */
void stub_note_dumped(struct process *process, Pbeam__Process *saved);
/* Makes it a stub and lets it wait. On failure it is frozen still, whatever is left of it. */
must_check int stub_make(const struct seat *seat, struct process *process, struct err *err);
/* The two halves of that, for a held husk that becomes the stub `saved` of an image: it is emptied; it waits,
 * stopped if `stopped` is a signal, as its process is there. */
must_check int stub_empty(const struct seat *seat, struct process *process, const Pbeam__Process *saved,
			  struct err *err);
must_check int stub_begin(struct process *process, int stopped, struct err *err);
/* Something has happened to the stub: a signal is passed on, and forgotten here. */
void stub_event(const struct seat *seat, struct tracee *tracee, int status);
/* The process was stopped there by this signal, or (SIGCONT) goes on. */
must_check int stub_stop(struct process *process, int signal, struct err *err);

#endif
