/*
 * How a stopped tracee makes calls for scip without noticing, on 6.18:
 * - The kernel acts on the registers of an interrupted call (rax -512 to -516, orig_rax its number)
 *   when it leaves get_signal(). An event-stop, a group-stop and a signal-delivery stop are inside
 *   get_signal(), a syscall-exit stop is not. So after these registers have been restored at the exit
 *   stop of scip's call, PTRACE_INTERRUPT brings the tracee into an event-stop again. From there the
 *   kernel restarts the call with the time left. During scip's calls orig_rax is -1, so that nothing is
 *   restarted with their registers.
 * - A group-stop is left by resuming and entered again by PTRACE_INTERRUPT, whose stop reports it as
 *   long as the group is stopped.
 * - In a signal-delivery stop the signal is dropped by resuming without it. Afterwards a
 *   signal-delivery stop of another signal is turned into that stop again: its siginfo is replaced
 *   (PTRACE_SETSIGINFO), and resuming with the number in it delivers it unchanged.
 * - All signals are blocked meanwhile except for those that the processor raises: a blocked signal that
 *   is forced would lose its handler. SIGSTOP cannot be blocked. Signals of these that arrive are sent
 *   again.
 * - PTRACE_SETSIGMASK drops a saved mask (rt_sigsuspend, ppoll ...). PTRACE_GETSIGMASK has returned
 *   that mask, and a restarted call sets its own again, as the kernel does before it restarts one.
 * - waitid() without WEXITED takes stops only: if the tracee dies it fails with ECHILD, and the exit
 *   status stays for the loop.
 * - A thread stopped within an rseq critical section has it aborted first. Otherwise the kernel would
 *   see the instruction pointer of scip's call and forget the section, which would then continue
 *   unharmed.
 */
#include "scip/tracee/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/io.h"
#include "scip/tracee/procfs.h"
#include "scip/tracee/regs.h"
#include "scip/tracee/remote_arch.h"
#include "scip/tracee/remote_fault.h"
#include "scip/tracee/remote_frame.h"
#include "scip/tracee/stops.h"

#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif

static uint64_t signal_bit(int signal)
{
	return 1ull << (signal - 1);
}

/* Signals that the processor or the kernel forces on a thread. */
static uint64_t forced_signals(void)
{
	return signal_bit(SIGSEGV) | signal_bit(SIGBUS) | signal_bit(SIGILL) | signal_bit(SIGFPE) |
	       signal_bit(SIGTRAP) | signal_bit(SIGSYS);
}

static int get_mask(const struct tracee *tracee, uint64_t *mask)
{
	return ptrace(PTRACE_GETSIGMASK, tracee->tid, sizeof(*mask), mask) < 0 ? -errno : 0;
}

static int remote_set_mask(const struct tracee *tracee, uint64_t mask)
{
	return ptrace(PTRACE_SETSIGMASK, tracee->tid, sizeof(mask), &mask) < 0 ? -errno : 0;
}

/* Resumes and waits for this thread's next stop; statuses of other threads stay queued. */
static int resume_and_wait(struct tracee *tracee, int request, int signal, int *status)
{
	siginfo_t info;

	if (ptrace(request, tracee->tid, NULL, (long)signal) < 0)
		return -errno;
	while (waitid(P_PID, (id_t)tracee->tid, &info, WSTOPPED | __WALL) < 0)
		if (errno != EINTR)
			return errno == ECHILD ? -ESRCH : -errno;
	*status = info.si_status << 8 | 0x7f;
	return 0;
}

static void note_signal(struct remote_frame *frame, int signal)
{
	if (frame->nresent < sizeof(frame->resent) / sizeof(frame->resent[0]) &&
	    ptrace(PTRACE_GETSIGINFO, frame->tracee->tid, NULL, &frame->resent[frame->nresent]) == 0)
		frame->resent[frame->nresent++].si_signo = signal;
}

enum step { STEP_PASS, STEP_SYSCALL, STEP_TRAP };

static int take_exec(struct remote_frame *frame)
{
	frame->executed = true;
	frame->insn.a = 0;
	frame->tracee->process->syscall_insn.a = 0;
	frame->tracee->process->scratch.a = 0;
	frame->tracee->process->timeouts.a = 0;
	inject_forget(frame->tracee->process);
	return STEP_PASS;
}

/*
 * The tracee may have stopped between a fault and its signal, which cannot be blocked and arrives as
 * soon as the tracee runs. It is dropped then: the restored instruction pointer is at the instruction
 * that faulted, which faults again. SIGTRAP and SIGSYS come after their instruction and are not of this
 * kind.
 */
static void peek_fault(struct remote_frame *frame)
{
	const uint64_t faults =
		signal_bit(SIGSEGV) | signal_bit(SIGBUS) | signal_bit(SIGILL) | signal_bit(SIGFPE);
	struct __ptrace_peeksiginfo_args args = {.nr = 1};
	siginfo_t info;

	for (; ptrace(PTRACE_PEEKSIGINFO, frame->tracee->tid, &args, &info) == 1; args.off++)
		if (info.si_code > 0 && (signal_bit(info.si_signo) & faults)) {
			frame->fault = info;
			return;
		}
}

static bool is_own_fault(struct remote_frame *frame, const siginfo_t *info)
{
	bool same = info->si_signo == frame->fault.si_signo && info->si_code == frame->fault.si_code &&
		    info->si_addr == frame->fault.si_addr;

	if (same)
		frame->fault.si_signo = 0; /* the next one would be scip's */
	return same;
}

/* A signal-delivery stop during a call: scip's own int3, a fault, or a signal sent to the thread. */
static int remote_take_signal(struct remote_frame *frame, int signal, struct err *err)
{
	pid_t tid = frame->tracee->tid;
	siginfo_t info;

	if (ptrace(PTRACE_GETSIGINFO, tid, NULL, &info) < 0)
		return err_sys(err, "read the signal of thread %d", tid);
	if (info.si_code <= 0 || !(signal_bit(signal) & forced_signals())) {
		note_signal(frame, signal);
		return STEP_PASS;
	}
	if (is_own_fault(frame, &info))
		return STEP_PASS;
	frame->at = REMOTE_AT_SIGNAL;
	if (signal == SIGTRAP)
		return STEP_TRAP;
	if (signal == SIGSYS)
		return err_set(err, -EPERM, "a seccomp filter of the program forbids call %d in thread %d",
			       info.si_syscall, tid);
	return err_set(err, -EFAULT, "thread %d got signal %d (at %p) in a call made for it", tid, signal,
		       info.si_addr);
}

/* Classifies a stop in the middle of scip's call. */
static int take_stop(struct remote_frame *frame, int status, struct err *err)
{
	struct stops_class class = stops_classify(status);
	unsigned long message = 0;

	switch (class.stop) {
	case TRACEE_SYSCALL_EXIT_STOP:
		frame->at = REMOTE_AT_EXIT;
		return STEP_SYSCALL;
	case TRACEE_SIGNAL_DELIVERY_STOP:
		return remote_take_signal(frame, class.signal, err);
	case TRACEE_GROUP_STOP:
		frame->group_stop = true;
		return STEP_PASS;
	case TRACEE_EVENT_STOP:
		if (class.event == PTRACE_EVENT_STOP) {
			frame->trapped = true;
		} else if (class.event == PTRACE_EVENT_EXEC) {
			return take_exec(frame);
		} else {
			if (ptrace(PTRACE_GETEVENTMSG, frame->tracee->tid, NULL, &message) < 0)
				return err_sys(err, "read the event of thread %d", frame->tracee->tid);
			frame->child = (pid_t)message;
		}
		return STEP_PASS;
	case TRACEE_SECCOMP_STOP:
		return STEP_PASS;
	case TRACEE_RUNNING:
	case TRACEE_EXITED:
		break;
	}
	return err_set(err, -ESRCH, "thread %d has ended", frame->tracee->tid);
}

/* Resumes and takes the next stop. */
static int next_stop(struct remote_frame *frame, int request, struct err *err)
{
	int status, code = resume_and_wait(frame->tracee, request, 0, &status);

	if (code < 0)
		return err_code(err, code, "run thread %d", frame->tracee->tid);
	return take_stop(frame, status, err);
}

/* Lets a fork, clone or exec in its event-stop complete: its result is stored only then. */
static int finish_event(struct tracee *tracee, struct err *err)
{
	struct remote_frame passing = {.tracee = tracee};
	int code;

	if (tracee->event == PTRACE_EVENT_VFORK)
		return err_set(err, -EBUSY, "thread %d waits in vfork for its child", tracee->tid);
	do
		code = next_stop(&passing, PTRACE_SYSCALL, err);
	while (code == STEP_PASS);
	if (code < 0)
		return err_wrap(err, code, "finish the call in progress");
	tracee->stop = TRACEE_SYSCALL_EXIT_STOP;
	tracee->event = 0;
	if (passing.trapped || passing.group_stop)
		return stops_interrupt(tracee);
	return 0;
}

int remote_enter(struct remote_frame *frame, struct tracee *tracee, struct err *err)
{
	pid_t tid = tracee->tid;
	int code = 0;

	memset(frame, 0, sizeof(*frame));
	frame->tracee = tracee;
	if (tracee->stop == TRACEE_RUNNING || tracee->stop == TRACEE_EXITED)
		return err_set(err, -ESRCH, "thread %d is not stopped", tid);
	if (tracee->stop == TRACEE_EVENT_STOP && tracee->event != PTRACE_EVENT_STOP)
		code = finish_event(tracee, err);
	if (code < 0)
		return code;
	frame->from = tracee->stop;
	code = regs_get(tracee, &frame->saved);
	if (code == 0)
		code = get_mask(tracee, &frame->mask);
	if (code == 0 && frame->from == TRACEE_SIGNAL_DELIVERY_STOP &&
	    ptrace(PTRACE_GETSIGINFO, tid, NULL, &frame->siginfo) < 0)
		code = -errno;
	if (code < 0)
		return err_code(err, code, "read the registers of thread %d", tid);
	if (!remote_arch_can(&frame->saved))
		return err_set(err, -ENOEXEC, "thread %d runs 32-bit code, which is not supported", tid);
	if (frame->from == TRACEE_SECCOMP_STOP) {
		if ((int64_t)frame->saved.orig_rax != -1)
			return err_set(err, -EBUSY, "thread %d is about to make a call of its own", tid);
		frame->skip_exit = true;
	}
	regs_abort_rseq(tracee, &frame->saved);
	peek_fault(frame);
	code = remote_set_mask(tracee, ~forced_signals());
	return code < 0 ? err_code(err, code, "block the signals of thread %d", tid) : 0;
}

/* Makes a call at `insn`. */
static int call_at(struct remote_frame *frame, struct taddr insn, int64_t *ret, struct err *err, int64_t nr,
		   const uint64_t args[6])
{
	struct tracee *tracee = frame->tracee;
	struct user_regs_struct regs = frame->saved;
	struct inject_call fault = {.nr = nr};
	bool entered = false;
	int code;

	if (remote_fault_pick(&fault, 1) == 0) {
		*ret = fault.ret;
		return 0;
	}
	remote_arch_set_call(&regs, insn, nr, args);
	code = regs_set(tracee, &regs);
	if (code < 0)
		return err_code(err, code, "set the registers of thread %d", tracee->tid);
	while (code >= 0) {
		code = next_stop(frame, PTRACE_SYSCALL, err);
		if (code == STEP_TRAP)
			return err_set(err, -EFAULT, "thread %d trapped in a call made for it", tracee->tid);
		if (code != STEP_SYSCALL)
			continue;
		if (frame->skip_exit) {
			frame->skip_exit = false;
			continue;
		}
		entered = !entered;
		if (entered && frame->interrupt)
			code = stops_interrupt(tracee);
		if (code < 0)
			return err_code(err, code, "interrupt thread %d", tracee->tid);
		if (entered)
			continue;
		code = remote_arch_get_ret(tracee, ret);
		if (code < 0)
			return err_code(err, code, "read the registers of thread %d", tracee->tid);
		/* interrupted by a stop signal: the kernel restarts the call */
		if (!frame->executed && !frame->interrupt &&
		    (*ret == -512 || *ret == -513 || *ret == -514 || *ret == -516))
			continue;
		return 0;
	}
	return err_wrap(err, code, "make call %lld", (long long)nr);
}

/* True after a fault of the fetch of `insn`: the program has unmapped it, or may not execute it any more. */
static bool cannot_fetch(const struct remote_frame *frame, struct taddr insn)
{
	struct user_regs_struct regs;

	return frame->at == REMOTE_AT_SIGNAL && regs_get(frame->tracee, &regs) == 0 && regs.rip == insn.a;
}

static int find_insn(struct remote_frame *frame, struct err *err)
{
	struct process *process = frame->tracee->process;
	int code = frame->insn.a ? 0 : remote_arch_find_insn(process, &frame->insn);

	return code < 0 ? err_code(err, code, "find a syscall instruction in %d", process->pid) : 0;
}

int remote_frame_call(struct remote_frame *frame, int64_t *ret, struct err *err, int64_t nr,
		      const uint64_t args[6])
{
	struct process *process = frame->tracee->process;
	struct taddr insn, other;
	int code = find_insn(frame, err);

	if (code < 0)
		return code;
	insn = frame->insn;
	code = call_at(frame, insn, ret, err, nr, args);
	if (code != -EFAULT || !cannot_fetch(frame, insn))
		return code;
	process->syscall_insn.a = frame->insn.a = 0;
	if (remote_arch_find_insn(process, &other) < 0 || other.a == insn.a)
		return code;
	err_clear(err);
	return call_at(frame, other, ret, err, nr, args);
}

/* The thread has trapped: after the call at `insn`, if that was the step. */
static int take_step(struct remote_frame *frame, struct taddr insn, int64_t *ret, struct err *err)
{
	struct user_regs_struct regs;
	int code = regs_get(frame->tracee, &regs);

	if (code < 0)
		return err_code(err, code, "read the registers of thread %d", frame->tracee->tid);
	if (regs.rip != insn.a + REMOTE_ARCH_INSN_LEN)
		return err_set(err, -EFAULT, "thread %d trapped at %#llx in a call made for it",
			       frame->tracee->tid, (unsigned long long)regs.rip);
	*ret = (int64_t)regs.rax;
	return 0;
}

int remote_frame_quick_call(struct remote_frame *frame, int64_t *ret, struct err *err, int64_t nr,
			    const uint64_t args[6])
{
	struct tracee *tracee = frame->tracee;
	struct user_regs_struct regs = frame->saved;
	struct inject_call fault = {.nr = nr};
	int code;

	/* The exit of a skipped call would end the step too early. */
	if (!tracee->process->trap_unignored || frame->skip_exit)
		return remote_frame_call(frame, ret, err, nr, args);
	if (remote_fault_pick(&fault, 1) == 0) {
		*ret = fault.ret;
		return 0;
	}
	code = find_insn(frame, err);
	if (code < 0)
		return code;
	remote_arch_set_call(&regs, frame->insn, nr, args);
	code = regs_set(tracee, &regs);
	if (code < 0)
		return err_code(err, code, "set the registers of thread %d", tracee->tid);
	do
		code = next_stop(frame, PTRACE_SINGLESTEP, err);
	while (code == STEP_PASS);
	if (code == STEP_TRAP)
		code = take_step(frame, frame->insn, ret, err);
	else if (code >= 0)
		code = err_set(err, -EIO, "thread %d stopped at a call instead of after it", tracee->tid);
	if (code == -EFAULT && cannot_fetch(frame, frame->insn)) { /* which looks elsewhere */
		err_clear(err);
		return remote_frame_call(frame, ret, err, nr, args);
	}
	return code < 0 ? err_wrap(err, code, "make call %lld", (long long)nr) : 0;
}

int remote_frame_code(struct remote_frame *frame, struct taddr code_start, struct taddr code_end,
		      struct taddr stack, struct taddr batch, struct err *err)
{
	struct tracee *tracee = frame->tracee;
	struct user_regs_struct regs = frame->saved;
	int code;

	remote_arch_set_entry(&regs, code_start, stack, batch);
	code = regs_set(tracee, &regs);
	if (code < 0)
		return err_code(err, code, "set the registers of thread %d", tracee->tid);
	while (code >= 0) {
		code = next_stop(frame, PTRACE_CONT, err);
		if (code != STEP_TRAP)
			continue;
		frame->skip_exit = false;
		code = regs_get(tracee, &regs);
		if (code < 0)
			return err_code(err, code, "read the registers of thread %d", tracee->tid);
		if (regs.rip >= code_start.a && regs.rip < code_end.a)
			return 0;
		return err_set(err, -EFAULT, "thread %d trapped at %#llx in injected code", tracee->tid,
			       (unsigned long long)regs.rip);
	}
	return err_wrap(err, code, "run the injected code");
}

/* Resumes with PTRACE_INTERRUPT pending, so that the next stop is inside get_signal(). */
static int trap_again(struct remote_frame *frame)
{
	struct tracee *tracee = frame->tracee;
	struct stops_class class;
	int status, code;

	do {
		code = stops_interrupt(tracee);
		if (code == 0)
			code = resume_and_wait(tracee, PTRACE_CONT, 0, &status);
		if (code < 0)
			return code;
		class = stops_classify(status);
		if (class.stop == TRACEE_SIGNAL_DELIVERY_STOP)
			note_signal(frame, class.signal);
	} while (class.stop != TRACEE_GROUP_STOP && class.stop != TRACEE_EVENT_STOP);
	tracee->stop = class.stop;
	tracee->signal = class.signal;
	tracee->event = class.event;
	return 0;
}

/* Signals that are pending for the thread or its process, from /proc. */
static uint64_t pending_signals(const struct tracee *tracee)
{
	char path[64], *text;
	const char *private, *shared;
	uint64_t set = ~0ull;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/status", tracee->process->pid, tracee->tid);
	if (io_slurp(AT_FDCWD, path, 65536, &text, NULL) < 0)
		return set;
	private = procfs_field(text, "SigPnd");
	shared = procfs_field(text, "ShdPnd");
	if (private && shared)
		set = strtoull(private, NULL, 16) | strtoull(shared, NULL, 16);
	free(text);
	return set;
}

/* From an exit stop to a signal-delivery stop: sends a signal that is not pending already. */
static int raise_carrier(struct remote_frame *frame)
{
	static const int carriers[] = {SIGWINCH, SIGURG, SIGIO, SIGPROF, SIGVTALRM, SIGUSR2, SIGUSR1, SIGPWR};
	struct tracee *tracee = frame->tracee;
	uint64_t pending = pending_signals(tracee);
	int carrier = SIGSTKFLT, code, status, signal;

	for (size_t i = 0; i < sizeof(carriers) / sizeof(carriers[0]); i++) {
		if (!(pending & signal_bit(carriers[i]))) {
			carrier = carriers[i];
			break;
		}
	}
	code = remote_set_mask(tracee, ~signal_bit(carrier));
	signal = carrier;
	while (code == 0) {
		struct stops_class class;

		code = resume_and_wait(tracee, PTRACE_CONT, signal, &status);
		if (code < 0)
			break;
		signal = 0;
		class = stops_classify(status);
		if (class.stop == TRACEE_SIGNAL_DELIVERY_STOP && class.signal == carrier)
			return 0;
		if (class.stop == TRACEE_SIGNAL_DELIVERY_STOP)
			note_signal(frame, class.signal);
		else
			code = take_stop(frame, status, NULL);
	}
	return code < 0 ? code : -EIO;
}

/* Sends again the signals that were dropped, with their siginfo where the kernel permits. */
static void remote_send_again(struct remote_frame *frame)
{
	pid_t pid = frame->tracee->process->pid, tid = frame->tracee->tid;

	for (unsigned i = 0; i < frame->nresent; i++) {
		siginfo_t *info = &frame->resent[i];

		if (syscall(SYS_rt_tgsigqueueinfo, pid, tid, info->si_signo, info) < 0)
			syscall(SYS_tgkill, pid, tid, info->si_signo);
	}
}

static int leave_by_stop(struct remote_frame *frame)
{
	struct tracee *tracee = frame->tracee;
	int code = 0;

	if (frame->executed) {
		tracee->stop = TRACEE_SYSCALL_EXIT_STOP;
		tracee->event = 0;
		return 0;
	}
	if (frame->from == TRACEE_SIGNAL_DELIVERY_STOP) {
		if (frame->at == REMOTE_AT_EXIT)
			code = raise_carrier(frame);
		if (code == 0)
			code = regs_set(tracee, &frame->saved);
		if (code == 0 && frame->at != REMOTE_AT_START &&
		    ptrace(PTRACE_SETSIGINFO, tracee->tid, NULL, &frame->siginfo) < 0)
			code = -errno;
		return code;
	}
	code = regs_set(tracee, &frame->saved);
	if (code < 0 || frame->at == REMOTE_AT_START)
		return code;
	if (frame->from == TRACEE_SECCOMP_STOP)
		tracee->stop = TRACEE_SYSCALL_EXIT_STOP; /* the skipped call is over */
	if (frame->from == TRACEE_GROUP_STOP || frame->group_stop ||
	    (frame->at == REMOTE_AT_EXIT && remote_arch_in_restart(&frame->saved)))
		code = trap_again(frame);
	return code;
}

int remote_leave(struct remote_frame *frame, struct err *err)
{
	struct tracee *tracee = frame->tracee;
	int code = leave_by_stop(frame);

	if (code == 0)
		code = remote_set_mask(tracee, frame->mask);
	/* Scip's calls have used up a requested interrupt: it is requested again. */
	if (code == 0 && (frame->trapped || (frame->group_stop && tracee->stop != TRACEE_GROUP_STOP)))
		code = stops_interrupt(tracee);
	if (code < 0) {
		tracee->stop = TRACEE_RUNNING;
		return err_code(err, code, "restore the state of thread %d", tracee->tid);
	}
	remote_send_again(frame);
	return 0;
}

/* Leaves the frame. Returns `code`, or the error of leaving if `code` is 0. */
int remote_leave_after(struct remote_frame *frame, int code, struct err *err)
{
	int left;

	if (code == -ESRCH) {
		frame->tracee->stop = TRACEE_RUNNING; /* dying: the supervisor's loop takes its exit status */
		return code;
	}
	left = remote_leave(frame, code < 0 ? NULL : err);
	return code < 0 ? code : left;
}

int remote_call(struct tracee *tracee, int64_t *ret, struct err *err, int64_t nr, const uint64_t args[6])
{
	struct remote_frame frame;
	int code = remote_enter(&frame, tracee, err);

	if (code < 0)
		return code;
	code = remote_frame_call(&frame, ret, err, nr, args);
	return remote_leave_after(&frame, code, err);
}

/* Repeats a call from its `syscall` instruction, if the thread is in one that the kernel would restart. */
static int repeat_call(struct remote_frame *frame)
{
	struct user_regs_struct *regs = &frame->saved;

	if (!remote_arch_in_restart(regs))
		return 0;
	remote_arch_repeat(regs);
	return regs_set(frame->tracee, regs);
}

static int step_out(struct remote_frame *frame, struct taddr start, struct taddr end, unsigned most,
		    struct err *err)
{
	struct user_regs_struct *regs = &frame->saved;
	int code = repeat_call(frame);

	for (unsigned steps = 0; code == 0 && regs->rip >= start.a && regs->rip < end.a; steps++) {
		if (steps == most)
			return err_set(err, -EBUSY, "thread %d does not leave the code at %#lx; try again",
				       frame->tracee->tid, (unsigned long)start.a);
		do
			code = next_stop(frame, PTRACE_SINGLESTEP, err);
		while (code == STEP_PASS || code == STEP_SYSCALL);
		if (code < 0)
			return code;
		code = regs_get(frame->tracee, regs);
	}
	return code < 0 ? err_code(err, code, "registers of thread %d", frame->tracee->tid) : 0;
}

int remote_step_out(struct tracee *tracee, struct taddr start, struct taddr end, unsigned most,
		    struct err *err)
{
	struct remote_frame frame;
	int code = remote_enter(&frame, tracee, err);

	if (code < 0)
		return code;
	return remote_leave_after(&frame, step_out(&frame, start, end, most, err), err);
}

/* Gives a new child, which is a copy of the parent in the middle of scip's call, the parent's own state. */
static int settle_child(const struct remote_frame *frame, pid_t child, struct err *err)
{
	struct tracee as_tracee = {.tid = child};
	int code, status;

	code = stops_wait_child(frame->tracee->process, child, &status);
	if (code < 0)
		return err_code(err, code, "wait for the new process %d", child);
	code = regs_set(&as_tracee, &frame->saved);
	if (code == 0)
		code = remote_set_mask(&as_tracee, frame->mask);
	return code < 0 ? err_code(err, code, "set the registers of the new process %d", child) : 0;
}

int remote_fork(struct tracee *tracee, pid_t *child, struct err *err, int64_t nr, const uint64_t args[6])
{
	struct remote_frame frame;
	int64_t ret = 0;
	int code = remote_enter(&frame, tracee, err);

	if (code < 0)
		return code;
	code = remote_frame_call(&frame, &ret, err, nr, args);
	if (code == 0 && ret < 0)
		code = err_code(err, (int)ret, "fork in thread %d", tracee->tid);
	else if (code == 0 && frame.child == 0)
		code = err_set(err, -EINVAL, "call %lld made no process", (long long)nr);
	if (code == 0)
		code = settle_child(&frame, frame.child, err);
	if (code == 0)
		*child = frame.child;
	return remote_leave_after(&frame, code, err);
}

int remote_call_interrupted(struct tracee *tracee, int64_t *ret, struct err *err, int64_t nr,
			    const uint64_t args[6])
{
	struct remote_frame frame;
	int code = remote_enter(&frame, tracee, err);

	if (code < 0)
		return code;
	frame.interrupt = true;
	code = remote_frame_call(&frame, ret, err, nr, args);
	return remote_leave_after(&frame, code, err);
}

int remote_settle(struct tracee *tracee, const struct user_regs_struct *regs, struct err *err)
{
	struct remote_frame frame = {.tracee = tracee};
	int code = regs_set(tracee, regs);

	if (code == 0)
		code = trap_again(&frame);
	if (code < 0) {
		tracee->stop = TRACEE_RUNNING;
		return err_code(err, code, "stop thread %d in its call", tracee->tid);
	}
	remote_send_again(&frame);
	return 0;
}

int remote_aim(struct tracee *tracee, int64_t nr, struct err *err)
{
	struct user_regs_struct regs;
	int r = regs_get(tracee, &regs);

	if (r == 0) {
		regs.rip = tracee->process->syscall_insn.a;
		regs.rax = (uint64_t)nr;
		regs.rdi = 0;
		regs.orig_rax = ~0ull; /* no call to restart */
		r = regs_set(tracee, &regs);
	}
	return r < 0 ? err_code(err, r, "set the registers of thread %d", tracee->tid) : 0;
}

int remote_last_call(struct process *process, int64_t nr, struct err *err)
{
	struct tracee *leader = process_leader(process);
	int64_t ret;
	/* any call: afterwards a leader is outside of a call, and the instruction has been looked up */
	int r = remote_call(leader, &ret, err, SYS_getpid, remote_args(0));

	return r < 0 ? r : remote_aim(leader, nr, err);
}
