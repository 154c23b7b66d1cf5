/*
 * Calls that a stop has interrupted, and how they are continued, here or in a restored process. The
 * program sees no EINTR, no wait that is too long or too short, and no short count.
 *
 * stops_wait() and stops_resume() do most of it. In addition:
 * - pending_sample() before a freeze interrupts (to know when each thread fell asleep),
 *   pending_prepare() before it resumes;
 * - pending_saved_registers() for an image, and pending_resume() in the process made from it.
 */
#ifndef SCIP_TRACEE_PENDING_H
#define SCIP_TRACEE_PENDING_H

#include "proto/image.pb-c.h"
#include "scip/tracee/process.h"

/* Samples every running thread and remembers those asleep in a call with a relative timeout. */
void pending_sample(struct process *process);

/* Forgets the interrupted or continued call: the tracee has executed a program, or becomes another
 * process. */
void pending_forget(struct tracee *tracee);
/* At every stop within get_signal() (event, group, signal-delivery): notes the call that was interrupted. */
void pending_note(struct tracee *tracee);
/* At a syscall stop of a continued call. True: the stop was internal and the tracee runs again. */
bool pending_syscall_stop(struct tracee *tracee);
/* Before the tracee is resumed from the stop that was noted. */
void pending_before_resume(struct tracee *tracee);

/* Before all threads are resumed, while all are stopped: maps the memory that pending_before_resume()
 * needs. If that fails, these calls wait their whole timeout again. */
void pending_prepare(struct process *process);

/* Fills `regs` with the registers of a thread about to make the interrupted call (with the program's own
 * arguments), and `call` with its state. call->args is allocated for protobuf-c to free; NULL means that
 * no call was interrupted. */
must_check int pending_saved_registers(struct tracee *tracee, struct user_regs_struct *regs,
				       Pbeam__PendingCall *call, struct err *err);

/* Puts a tracee that has its saved registers, in a process with its memory and descriptors, into an
 * event-stop within the interrupted call. The tracee may be in any stop where remote calls are allowed;
 * `call` may be NULL. When resumed, the kernel continues the call with the time and bytes left, or runs a
 * handler for a pending signal and returns EINTR, as it would have done in the saved process. */
must_check int pending_resume(struct tracee *tracee, const Pbeam__PendingCall *call, struct err *err);

#endif
