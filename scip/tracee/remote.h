/*
 * System calls made by a stopped tracee on our behalf.
 *
 * remote_call() drives one call through ptrace (two or three stops). A batch is run by the injected code
 * (inject/abi.h) with two stops altogether. Both leave registers, signal mask and restart state as they found
 * them; all signals are blocked while they run. The tracee must be in any ptrace stop but syscall-enter of a
 * call that is to go on (use them at exit or after regs_set_call(-1)); all other threads must be stopped or
 * harmless. If the process dies meanwhile: -ESRCH. Stops for seccomp traps that the calls themselves cause
 * are passed, untranslated.
 *
 * The stop afterwards: as before, with these exceptions, which tracee->stop then tells.
 * - An event-stop of a fork, clone or exec in progress becomes the syscall-exit stop of that call: its return
 *   is written only then. (A vfork cannot be left: -EBUSY.)
 * - The seccomp stop of a skipped call becomes its syscall-exit stop.
 * - A group-stop whose process was continued meanwhile becomes an event-stop, and an event-stop whose process
 *   was stopped meanwhile a group-stop.
 * - After an execve made as a remote call the tracee is in its exit stop, registers those of the new program.
 *   Only for a process with a single thread.
 */
#ifndef SCIP_TRACEE_REMOTE_H
#define SCIP_TRACEE_REMOTE_H

#include "inject/abi.h"
#include "scip/tracee/process.h"

/* One call. *ret is what the kernel returned (>= 0 or -errno of the tracee's call); the function's own return
 * tells whether it could be made at all. */
must_check int remote_call(struct tracee *tracee, int64_t *ret, struct err *err, int64_t nr,
			   const uint64_t args[6]);
#define remote_args(...) ((const uint64_t[6]){__VA_ARGS__})

/* A stopped thread's registers are set so that it makes the call `nr`, without arguments, when it is resumed
 * (by ptrace alone: its other state is not looked at). The process's syscall_insn is known. */
must_check int remote_aim(struct tracee *tracee, int64_t nr, struct err *err);

/* The leader of a stopped process is left about to make a call that it does not come back from: exit, or
 * pause in a process without handlers. */
must_check int remote_last_call(struct process *process, int64_t nr, struct err *err);

/* A call that makes a process (fork, or clone without CLONE_THREAD, CLONE_VFORK and CLONE_UNTRACED). *child
 * is its real number; it is attached to us and stopped before its first instruction, with the parent's
 * registers and mask as its own: resumed it goes on where the parent was. Not in any list: the caller hands
 * it over or kills it. */
must_check int remote_fork(struct tracee *tracee, pid_t *child, struct err *err, int64_t nr,
			   const uint64_t args[6]);

/* As remote_call() for a call that waits: it is interrupted before it can, so *ret may be a -51x of the
 * kernel. With -516 the thread's restart state is that of this call. */
must_check int remote_call_interrupted(struct tracee *tracee, int64_t *ret, struct err *err, int64_t nr,
				       const uint64_t args[6]);

/* Sets registers and brings the tracee into an event-stop with them, where the kernel still acts upon an
 * interrupted call when it is resumed. From any stop but a seccomp stop or one within fork, clone or exec. */
must_check int remote_settle(struct tracee *tracee, const struct user_regs_struct *regs, struct err *err);

/* After each of these -ESRCH means that the thread is dying: its exit status is still to be waited for. */

/* Maps the injected code and `data_size` bytes (rounded up to pages, at least one) for batches into the
 * process, through `tracee`. Opens no descriptor that stays. The area's address range is remembered in
 * process->area. No effect if it is there and large enough. `hint`: where to map (MAP_FIXED_NOREPLACE) or 0
 * for anywhere. */
must_check int inject_open(struct tracee *tracee, size_t data_size, struct taddr hint, struct err *err);
/* Unmaps it. The process is as before. */
must_check int inject_withdraw(struct tracee *tracee, struct err *err);
/* Drops our side only: the process is gone, or has executed another program. */
void inject_forget(struct process *process);
/* Where it lies in the tracee: the whole range, code and data. False when nothing is injected. */
bool inject_range(const struct process *process, struct taddr *start, struct taddr *end);
/* Bytes for calls and their data, as inject_open() was asked for or more; 0 if nothing is injected. */
size_t inject_room(const struct process *process);

/* A batch under construction; lives in the area, so one at a time for each process. */
struct batch;
must_check int batch_begin(struct process *process, struct batch **out, struct err *err);
/* Appends a call; returns its number or -ENOSPC (the area is full: run what is there and begin again). */
must_check int batch_add(struct batch *batch, uint32_t flags, int64_t nr, const uint64_t args[6]);
/* The appended call's FROM and EXACT fields. */
struct inject_call *batch_call(struct batch *batch, int number);
/* Copies bytes into the area; *where is their address in the tracee. -ENOSPC when full. `data` NULL reserves
 * room. */
must_check int batch_data(struct batch *batch, const void *data, size_t len, struct taddr *where);
/* The same memory on our side, for reading results. */
void *batch_local(struct batch *batch, struct taddr where);
/* Runs it through `tracee`, which must be in a ptrace stop. 0 when all calls were made; the failed call's
 * -errno, with err naming call and arguments, when one failed; -ESRCH when the process died. */
must_check int batch_run(struct batch *batch, struct tracee *tracee, struct err *err);
void batch_end(struct batch *batch);

#endif
