/*
 * Stopping all threads of the process so that their state is whole, and letting them go as if nothing had
 * been.
 *
 * Freezing needs the loop: events come in meanwhile (a fork whose child must be handed over, a signal, an
 * exit). So it is two calls around the loop's own work: freeze_begin() interrupts all threads; the loop goes
 * on waiting and acting but, instead of resuming a tracee that may be held, calls freeze_hold(); once
 * freeze_settled() the control request is answered. A thread in a trapped call is let through to its end
 * first (stops_resume() interrupts it again, so it stops at once); a thread that waits in vfork cannot stop
 * before its child executes or exits, so parents are frozen before children.
 */
#ifndef SCIP_DUMP_FREEZE_H
#define SCIP_DUMP_FREEZE_H

#include "proto/image.pb-c.h"
#include "scip/tracee/process.h"

/* process->frozen is set from here to the thaw. Interrupts every running thread (new ones too, as they
 * appear: freeze_hold() is called for their first stop). */
void freeze_begin(struct process *process);
/* The tracee has stopped while freezing. True: it is held now (frozen = true), leave it. False: it cannot be
 * held here (a seccomp stop, a syscall-exit stop that syscall_exit() must see first, an exit event): act and
 * resume it, it will stop again. */
bool freeze_hold(struct tracee *tracee);
/* All live threads are held. */
bool freeze_settled(const struct process *process);
/* Resumes every thread from where it was: with its signal, its group stop, the kernel's restart of an
 * interrupted call. */
void thaw_process(struct process *process);

/* The registers to save in an image: as regs_get(), with the kernel's restart logic applied (-512, -513,
 * -514: back over the syscall instruction with the original number; -516: the remembered call). `call` gets
 * what was interrupted; call->left_ns what is left of a relative timeout (from the thread's time of falling
 * asleep, /proc/PID/task/TID/sched, se.exec_start, where the kernel has no other account of it). */
must_check int freeze_saved_registers(struct tracee *tracee, struct user_regs_struct *regs,
				      Pbeam__PendingCall *call, struct err *err);

#endif
