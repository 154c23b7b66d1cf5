/*
 * Calls that a stop has interrupted: what they were, and how they go on, here or in a restored process, so
 * that the program sees neither EINTR nor a wait that is too long or too short nor a short count.
 *
 * Everything happens by itself in stops_wait() and stops_resume(); what else is needed is
 * - pending_sample() before a freeze interrupts (when did each thread fall asleep?), pending_prepare() before
 *   it resumes;
 * - pending_saved_registers() for an image and pending_resume() for the process made from it.
 */
#ifndef SCIP_TRACEE_PENDING_H
#define SCIP_TRACEE_PENDING_H

#include "proto/image.pb-c.h"
#include "scip/tracee/process.h"

/* Looks at every running thread. Those asleep in a call with a relative timeout are remembered. */
void pending_sample(struct process *process);

/* No call of the tracee is interrupted, and none goes on: it has executed, or is to be another process. */
void pending_forget(struct tracee *tracee);
/* At every stop within get_signal() (event, group, signal-delivery): notes the call that was interrupted. */
void pending_note(struct tracee *tracee);
/* At a syscall stop of a call that goes on. True: it was ours alone and the tracee runs again. */
bool pending_syscall_stop(struct tracee *tracee);
/* Before the tracee is resumed from the stop that was noted. */
void pending_before_resume(struct tracee *tracee);

/* Before all threads are resumed, all stopped: makes room in the process for what pending_before_resume()
 * needs. When that fails such calls wait their whole timeout again. */
void pending_prepare(struct process *process);

/* The registers to be saved: those of a thread about to make the interrupted call (of the program's own
 * arguments), and what there is to know about it. call->args is allocated as protobuf-c frees it; none means
 * that no call was interrupted. */
must_check int pending_saved_registers(struct tracee *tracee, struct user_regs_struct *regs,
				       Pbeam__PendingCall *call, struct err *err);

/* The tracee (in any stop where remote calls are allowed) has its saved registers, its process its memory,
 * descriptors and all else; `call` may be NULL. Puts it into an event-stop within the interrupted call:
 * resumed, the kernel goes on with it with the time and the bytes that were left, or gives a pending signal
 * its handler and EINTR as it would have done in the saved process. */
must_check int pending_resume(struct tracee *tracee, const Pbeam__PendingCall *call, struct err *err);

#endif
