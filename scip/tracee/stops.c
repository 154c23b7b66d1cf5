/*
 * Wait statuses and what they mean, on 6.18 with PTRACE_SEIZE:
 *
 * - A stop's status carries the event in bits 16..23. PTRACE_EVENT_STOP with a stop signal is a group-stop,
 *   with SIGTRAP it is the answer to PTRACE_INTERRUPT, a new thread's first stop, or the end of a group-stop.
 * - A new thread's or process's first stop and its maker's PTRACE_EVENT_CLONE/FORK/VFORK come in any order;
 *   if the maker is killed in between the event never comes.
 * - execve by a thread that is not the leader: all others die (each reported), then the execing thread takes
 *   the leader's number without a word; PTRACE_EVENT_EXEC comes under that number and PTRACE_GETEVENTMSG
 *   gives the old one. What was in progress in the old thread (PTRACE_SYSCALL's exit stop too) goes on in it.
 * - Any stop uses up a pending PTRACE_INTERRUPT. One that is asked for in a stop stays for the next.
 * - A leader that exits while its threads live is not reported until they are gone too.
 */
#include "scip/tracee/stops.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "scip/tracee/knock.h"
#include "scip/tracee/pending.h"
#include "scip/tracee/procfs.h"

#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif

unsigned stops_options(void)
{
	return PTRACE_O_EXITKILL | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
	       PTRACE_O_TRACEEXEC | PTRACE_O_TRACESECCOMP | PTRACE_O_TRACESYSGOOD;
}

static bool is_stop_signal(int signal)
{
	return signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
}

struct stops_class stops_classify(int status)
{
	struct stops_class class = {.stop = TRACEE_EXITED};
	int signal, event;

	if (!WIFSTOPPED(status))
		return class;
	signal = WSTOPSIG(status);
	event = status >> 16;
	if (event == PTRACE_EVENT_SECCOMP) {
		class.stop = TRACEE_SECCOMP_STOP;
	} else if (event == PTRACE_EVENT_STOP && is_stop_signal(signal)) {
		class.stop = TRACEE_GROUP_STOP;
		class.signal = signal;
	} else if (event) {
		class.stop = TRACEE_EVENT_STOP;
		class.event = event;
	} else if (signal == (SIGTRAP | 0x80)) {
		class.stop = TRACEE_SYSCALL_EXIT_STOP;
	} else {
		class.stop = TRACEE_SIGNAL_DELIVERY_STOP;
		class.signal = signal;
	}
	return class;
}

/* True if a number is a thread of this process, dead or alive: signal 0 tests it. */
static bool is_thread_of(const struct process *process, pid_t tid)
{
	return syscall(SYS_tgkill, process->pid, tid, 0) == 0;
}

static int keep_newborn(struct process *process, pid_t child)
{
	pid_t *v = reallocarray(process->newborn, process->nnewborn + 1, sizeof(*v));

	if (!v)
		return -ENOMEM;
	process->newborn = v;
	v[process->nnewborn++] = child;
	return 0;
}

static bool drop_newborn(struct process *process, pid_t child)
{
	for (unsigned i = 0; i < process->nnewborn; i++) {
		if (process->newborn[i] != child)
			continue;
		process->newborn[i] = process->newborn[--process->nnewborn];
		return true;
	}
	return false;
}

/* After PTRACE_EVENT_EXEC: the leader's tracee stands for the thread that executed; the others are gone. */
static void take_over_after_exec(struct tracee *leader)
{
	struct process *process = leader->process;
	unsigned long old_tid = 0;

	if (ptrace(PTRACE_GETEVENTMSG, leader->tid, NULL, &old_tid) == 0 && (pid_t)old_tid != leader->tid) {
		struct tracee *old = process_find_tracee(process, (pid_t)old_tid);

		if (old) {
			void *frame = leader->frame;

			leader->frame = old->frame;
			old->frame = frame;
			leader->call = old->call;
			leader->want_exit_stop = old->want_exit_stop;
		}
	}
	for (struct tracee *t = process->tracees; t; t = t->next)
		if (t != leader)
			t->stop = TRACEE_EXITED;
	pending_forget(leader);
	process->syscall_insn.a = 0;
	process->scratch.a = 0;
	process->timeouts.a = 0;
}

/* A stop inside get_signal(), where the kernel decides whether to restart an interrupted call. */
static bool in_get_signal(const struct tracee *tracee)
{
	return tracee->stop == TRACEE_SIGNAL_DELIVERY_STOP || tracee->stop == TRACEE_GROUP_STOP ||
	       (tracee->stop == TRACEE_EVENT_STOP && tracee->event == PTRACE_EVENT_STOP);
}

/* 1: a known tracee was updated. 0: an internal stop, or the first stop of a forked process, which is
 * kept. */
static int take_status(struct process *process, pid_t tid, int status, struct tracee **out)
{
	struct stops_class class = stops_classify(status);
	struct tracee *tracee = process_find_tracee(process, tid);
	bool fresh = false; /* before its first instruction: nothing of it is interrupted */
	int code;

	if (!tracee) {
		if (class.stop == TRACEE_EXITED) { /* a thread that was dropped before its end was reported */
			drop_newborn(process, tid);
			return 0;
		}
		if (tid != process->pid && !is_thread_of(process, tid))
			return keep_newborn(process, tid);
		code = process_add_tracee(process, tid, &tracee);
		if (code < 0)
			return code;
		fresh = tid != process->pid;
	}
	tracee->stop = class.stop;
	tracee->signal = class.signal;
	tracee->event = class.event;
	if (class.stop == TRACEE_EXITED && tid == process->pid) {
		process->exiting = true;
		process->exit_status = status;
	}
	if (class.stop == TRACEE_EVENT_STOP && class.event == PTRACE_EVENT_EXEC)
		take_over_after_exec(tracee);
	if (in_get_signal(tracee) && !fresh && !process->parked)
		pending_note(tracee);
	if (class.stop == TRACEE_SYSCALL_EXIT_STOP && tracee->pending.active &&
	    pending_syscall_stop(tracee)) {
		tracee->stop = TRACEE_RUNNING;
		return 0;
	}
	*out = tracee;
	return 1;
}

/* Threads of a freezing process stop in the order in which they were interrupted. Waiting for each by
 * number is much cheaper than for any: the kernel then searches all that are attached. */
static pid_t wait_expected(struct process *process, int *taken)
{
	for (; process->expected; process->expected = process->expected->next) {
		pid_t tid;

		if (process->expected->stop != TRACEE_RUNNING)
			continue;
		tid = waitpid(process->expected->tid, taken, WNOHANG | __WALL);
		if (tid > 0)
			process->expected = process->expected->next;
		return tid > 0 ? tid : 0;
	}
	return 0;
}

int stops_wait(struct process *process, pid_t pid, int flags, struct tracee **out, int *status)
{
	for (;;) {
		int taken = 0, code;
		pid_t tid = pid == -1 ? wait_expected(process, &taken) : 0;

		if (tid == 0 && (flags & STOPS_OR_KNOCK))
			tid = knock_wait(pid, &taken);
		else if (tid == 0 && (tid = waitpid(pid, &taken, flags | __WALL)) < 0)
			tid = -errno;
		if (tid < 0)
			return tid;
		if (tid == 0)
			return 0;
		code = take_status(process, tid, taken, out);
		if (code == 0)
			continue;
		if (status)
			*status = taken;
		return code;
	}
}

int stops_wait_child(struct process *process, pid_t child, int *status)
{
	int taken;

	if (drop_newborn(process, child))
		return 0;
	for (;;) {
		struct stops_class class;

		if (waitpid(child, &taken, __WALL) < 0) {
			if (errno == EINTR)
				continue;
			return errno == ECHILD ? -ESRCH : -errno;
		}
		class = stops_classify(taken);
		if (class.stop == TRACEE_EXITED) {
			if (status)
				*status = taken;
			return -ESRCH;
		}
		return 0;
	}
}

pid_t stops_take_orphan(struct process *process)
{
	return process->nnewborn ? process->newborn[--process->nnewborn] : 0;
}

int stops_resume(struct tracee *tracee, enum stops_resume how)
{
	int request = how == STOPS_SYSCALL ? PTRACE_SYSCALL : PTRACE_CONT;
	long signal = tracee->stop == TRACEE_SIGNAL_DELIVERY_STOP ? tracee->signal : 0;

	if (in_get_signal(tracee))
		pending_before_resume(tracee);
	if (tracee->pending.active)
		request = PTRACE_SYSCALL;
	if (tracee->stop == TRACEE_GROUP_STOP)
		request = PTRACE_LISTEN;
	if (tracee->process->freezing && stops_interrupt(tracee) < 0)
		return -ESRCH;
	if (ptrace(request, tracee->tid, NULL, signal) < 0)
		return -errno;
	tracee->stop = TRACEE_RUNNING;
	return 0;
}

int stops_interrupt(struct tracee *tracee)
{
	return ptrace(PTRACE_INTERRUPT, tracee->tid, NULL, NULL) < 0 ? -errno : 0;
}

/* Waits for the stop after PTRACE_INTERRUPT; any stop will do. */
static int seize_wait(struct process *process, pid_t tid, struct tracee **out, struct err *err)
{
	int code, status;

	do
		code = stops_wait(process, tid, 0, out, &status);
	while (code == -EINTR);
	if (code < 0)
		return err_code(err, code, "wait for %d to stop", tid);
	if ((*out)->stop == TRACEE_EXITED) {
		process_remove_tracee(process, *out);
		return err_set(err, -ESRCH, "%d has ended", tid);
	}
	return 0;
}

int stops_seize(struct process *process, pid_t tid, struct tracee **out, struct err *err)
{
	bool known = process_find_tracee(process, tid);
	int code;

	if (ptrace(PTRACE_SEIZE, tid, NULL, stops_options()) < 0)
		return err_sys(err, "seize %d", tid);
	/* In the list from now on: the thread is no newborn, and may be anywhere. */
	code = process_add_tracee(process, tid, out);
	if (code < 0)
		err_code(err, code, "seize %d", tid);
	else if (ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) < 0)
		code = err_sys(err, "interrupt %d", tid);
	else
		code = seize_wait(process, tid, out, err);
	if (code < 0 && code != -ESRCH)
		ptrace(PTRACE_DETACH, tid, NULL, NULL);
	if (code < 0 && !known && process_find_tracee(process, tid))
		process_remove_tracee(process, process_find_tracee(process, tid));
	return code;
}

enum { FOLLOW_EVERY_NS = 20 * 1000 * 1000 };

void stops_follow_cpu(const struct tracee *tracee)
{
	static _Thread_local uint64_t last_ns;
	static _Thread_local int last_cpu = -1;
	struct procfs_stat stat;
	uint64_t now = io_now_ns(CLOCK_MONOTONIC_COARSE);
	cpu_set_t set;

	if (now - last_ns < FOLLOW_EVERY_NS)
		return;
	last_ns = now;
	if (procfs_stat_read(tracee->process->pid, tracee->tid, &stat, NULL) < 0 || stat.processor < 0 ||
	    stat.processor >= CPU_SETSIZE || stat.processor == last_cpu)
		return;
	CPU_ZERO(&set);
	CPU_SET(stat.processor, &set);
	if (sched_setaffinity(0, sizeof(set), &set) == 0)
		last_cpu = stat.processor;
}
