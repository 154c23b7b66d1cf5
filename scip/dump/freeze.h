/*
 * Stops all threads of the process, so that their state is complete, and resumes them without a trace.
 *
 * Freezing needs the supervisor's loop, because events arrive meanwhile: a fork whose child must be handed
 * over, a signal, an exit. freeze_begin() interrupts all threads. The loop continues to wait and act, but
 * before it resumes a tracee it calls freeze_hold(). When freeze_settled() returns true the control request
 * is answered. A thread in a trapped call first completes it: stops_resume() interrupts it again, so that it
 * stops at once. A thread that waits in vfork cannot stop before its child executes or exits, so parents are
 * frozen before children. pending_saved_registers() gives the registers for an image.
 */
#ifndef SCIP_DUMP_FREEZE_H
#define SCIP_DUMP_FREEZE_H

#include "scip/tracee/process.h"

/* Interrupts every running thread, and sets process->frozen until the thaw. New threads are held as well:
 * freeze_hold() is called at their first stop. */
void freeze_begin(struct process *process);
/* Called when a tracee has stopped during a freeze. True: it is held now (tracee->frozen) and must not be
 * resumed. False: it cannot be held at this stop (a seccomp stop, a syscall-exit stop that syscall_exit()
 * must handle, an exit event); handle it and resume the tracee, which will stop again. */
bool freeze_hold(struct tracee *tracee);
/* True if all live threads are held. */
bool freeze_settled(const struct process *process);
/* Resumes every thread where it was: with its signal, its group stop, the kernel's restart of an interrupted
 * call. */
void thaw_process(struct process *process);

#endif
