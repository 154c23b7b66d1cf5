/*
 * System calls made by a stopped tracee for scip.
 *
 * remote_call() makes one call through ptrace (two or three stops). A batch is run by the injected code
 * (inject/abi.h) with two stops altogether. Both restore registers, signal mask and restart state, and
 * block all signals meanwhile. The tracee may be in any ptrace stop except for the syscall-enter stop
 * of a call that will continue (use them at exit or after regs_set_call(-1)). All other threads must be
 * stopped or harmless. If the process dies meanwhile: -ESRCH. Seccomp traps of these calls are passed,
 * untranslated.
 *
 * Afterwards the tracee is in the stop that it was in, as tracee->stop shows, with these exceptions:
 * - An event-stop of a fork, clone or exec in progress becomes the syscall-exit stop of that call: its
 *   result is stored only then. (A vfork cannot be left: -EBUSY.)
 * - The seccomp stop of a skipped call becomes its syscall-exit stop.
 * - A group-stop whose process was continued meanwhile becomes an event-stop, and an event-stop whose
 *   process was stopped meanwhile a group-stop.
 * - After an execve made as a remote call the tracee is in its exit stop, with the registers of the new
 *   program. Only for a process with a single thread.
 */
#ifndef SCIP_TRACEE_REMOTE_H
#define SCIP_TRACEE_REMOTE_H

#include "inject/abi.h"
#include "scip/tracee/process.h"

/* Makes one call. *ret is its result (>= 0 or -errno); the function's own result says whether the call
 * could be made. */
must_check int remote_call(struct tracee *tracee, int64_t *ret, struct err *err, int64_t nr,
			   const uint64_t args[6]);
#define remote_args(...) ((const uint64_t[6]){__VA_ARGS__})

/* Sets a stopped thread's registers so that it makes the call `nr`, without arguments, when it is resumed
 * by ptrace; its other state is ignored. The process's syscall_insn must be known. */
must_check int remote_aim(struct tracee *tracee, int64_t nr, struct err *err);

/* Leaves the leader of a stopped process about to make a call that does not return: exit, or pause in a
 * process without handlers. */
must_check int remote_last_call(struct process *process, int64_t nr, struct err *err);

/* Steps a thread out of the code in [start, end), with its signals blocked, and leaves it at the first
 * instruction outside. A call of that code which a stop has interrupted is made again. -EBUSY after `most`
 * steps (about 4 us each); -EFAULT at a fault: the thread is then where the fault is. */
must_check int remote_step_out(struct tracee *tracee, struct taddr start, struct taddr end, unsigned most,
			       struct err *err);

/* Makes a call that creates a process (fork, or clone without CLONE_THREAD, CLONE_VFORK and
 * CLONE_UNTRACED). *child is its real number. The child is attached and stopped before its first
 * instruction, with the parent's registers and mask: resumed, it continues where the parent was. It is in
 * no list; the caller hands it over or kills it. */
must_check int remote_fork(struct tracee *tracee, pid_t *child, struct err *err, int64_t nr,
			   const uint64_t args[6]);

/* As remote_call() for a call that would wait: the call is interrupted first, so *ret may be a -51x of the
 * kernel. With -516 the thread's restart state is that of this call. */
must_check int remote_call_interrupted(struct tracee *tracee, int64_t *ret, struct err *err, int64_t nr,
				       const uint64_t args[6]);

/* Sets registers and brings the tracee into an event-stop with them, where the kernel still acts on an
 * interrupted call when the tracee is resumed. From any stop except for a seccomp stop and one within
 * fork, clone or exec. */
must_check int remote_settle(struct tracee *tracee, const struct user_regs_struct *regs, struct err *err);

/* After each of these, -ESRCH means that the thread is dying: its exit status must still be waited for. */

/* Maps the injected code and `data_size` bytes for batches (rounded up to pages, at least one) through
 * `tracee`. No descriptor stays open. process->area remembers the address range. No effect if an area
 * exists that is large enough. `hint`: where to map (MAP_FIXED_NOREPLACE), or 0. */
must_check int inject_open(struct tracee *tracee, size_t data_size, struct taddr hint, struct err *err);
/* Unmaps the area. */
must_check int inject_withdraw(struct tracee *tracee, struct err *err);
/* Drops scip's side only: the process is gone or has executed another program. */
void inject_forget(struct process *process);
/* The range of the area in the tracee, code and data. False if nothing is injected. */
bool inject_range(const struct process *process, struct taddr *start, struct taddr *end);
/* Bytes for calls and their data, at least as many as requested; 0 if nothing is injected. */
size_t inject_room(const struct process *process);

/* A batch under construction. It is in the area, so a process has one at a time. */
struct batch;
must_check int batch_begin(struct process *process, struct batch **out, struct err *err);
/* Appends a call. Returns its number, or -ENOSPC if the area is full: run the batch and begin again. */
must_check int batch_add(struct batch *batch, uint32_t flags, int64_t nr, const uint64_t args[6]);
/* The appended call's FROM and EXACT fields. */
struct inject_call *batch_call(struct batch *batch, int number);
/* Copies bytes into the area, or reserves room if `data` is NULL. *where is their address in the tracee.
 * -ENOSPC if the area is full. */
must_check int batch_data(struct batch *batch, const void *data, size_t len, struct taddr *where);
/* The same memory in scip, for reading results. */
void *batch_local(struct batch *batch, struct taddr where);
/* Runs the batch through `tracee`, which must be in a ptrace stop. 0 if all calls were made; -errno of the
 * call that failed, with err naming call and arguments; -ESRCH if the process died. */
must_check int batch_run(struct batch *batch, struct tracee *tracee, struct err *err);
void batch_end(struct batch *batch);

#endif
