/*
 * The stub of a process that lives on another host: the process itself, emptied, so that its real
 * parent keeps its child under the number that it knows.
 *
 * It is made of the frozen process. The other threads end. The process executes scip's own file, which
 * frees all memory and ends handlers and timers, but never runs an instruction of it: it waits in
 * pause() with no signal blocked. As a tracee it reports every signal, ignored ones too, to its scip,
 * which forwards each to the host of the process (DAEMON_SIGNAL to the keeper) and delivers none. A
 * signal of its own reports the end of its parent (PR_SET_PDEATHSIG), which is forwarded as
 * DAEMON_ORPHAN. Requests report what happens to the process on its host: it ends (SCIP_FREEZE,
 * SCIP_RESTORE_EXIT), stops or continues (SCIP_STUB_STOP), or comes back. Then the stub is frozen and
 * held (SCIP_HOLD) and is a husk like any other.
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
int stub_stop_signal(const struct process *process);
/* The stub is about to end as its process did on the other host: the end is not reported to that host. */
void stub_expect_end(struct process *process);
/* The process is coming back: the stub becomes a held husk (process->returning). */
void stub_return(struct process *process);

/* Remembers the signals that were dumped into `saved`. The parent may have ended meanwhile, with or
 * without its signal pending: sets the present parent in `saved`. */
void stub_note_dumped(struct process *process, Pbeam__Process *saved);
/* Turns the frozen process into a stub and resumes it. On failure the process is still frozen, in an
 * undefined state. */
must_check int stub_make(const struct seat *seat, struct process *process, struct err *err);
/* The two halves of that, for a held husk that becomes the stub `saved` of an image: empties it; lets it
 * wait, stopped if `stopped` is a signal, as its process is. */
must_check int stub_empty(const struct seat *seat, struct process *process, const Pbeam__Process *saved,
			  struct err *err);
must_check int stub_begin(struct process *process, int stopped, struct err *err);
/* Handles a stop or the end of a stub: forwards a signal and drops it here. */
void stub_event(const struct seat *seat, struct tracee *tracee, int status);
/* The process was stopped by this signal on its host, or (SIGCONT) continues. */
must_check int stub_stop(struct process *process, int signal, struct err *err);

#endif
