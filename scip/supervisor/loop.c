/*
 * The loop of a scip. All signals are blocked; SIGCHLD (a tracee has stopped or ended), SIGIO (somebody calls
 * at the control socket) and SEAT_KEEPER_GONE are taken by sigtimedwait(), and then waitpid(WNOHANG) until
 * nothing is left. So nothing is lost between looking and sleeping, and a scip never sleeps anywhere else
 * while it has a process.
 *
 * New children. A child starts attached to us and stops; its maker stops with an event. Whichever is seen
 * first, a process is handed over, and a thread gets its number, at the maker's event, before it goes on: so
 * both are in the name table before anybody can know of them.
 *
 * Exec. By whichever thread it is called, it is reported under the leader's id, and all other threads are
 * gone, the caller's old id without a word. What was kept for the old program (injected area, scratch page,
 * address of a syscall instruction) is forgotten.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/dirs.h"
#include "base/io.h"
#include "base/log.h"
#include "namespace/record.h"
#include "scip/checkpoint/freeze.h"
#include "scip/supervisor/control.h"
#include "scip/supervisor/decide.h"
#include "scip/supervisor/handoff.h"
#include "scip/supervisor/supervisor.h"
#include "scip/syscall/syscall.h"
#include "scip/tracee/remote.h"
#include "scip/tracee/stops.h"

struct supervisor {
	const struct seat *seat;
	struct control *control;
	struct process *process; /* NULL while idle */
	pid_t vfork_tid;	 /* the thread that waits in vfork */
	bool diverging; /* the filter is due at the exit stop of the call that made a diverged number */
};

/* ---- births ---- */

static void inject_restored_filter(struct process *process, struct tracee *tracee)
{
	struct err err = ERR_INIT;

	if (syscall_filter_inject(tracee, &err) < 0)
		log_error("vpid %d: install the filter for diverged names: %s", process->vpid.n, err.text);
}

static struct vpid claim_number(struct supervisor *s, pid_t number)
{
	struct vpid v = {number};
	int r = names_number_born(s->seat->names, (struct rpid){number}, (struct rpid){s->seat->keeper}, &v);

	if (r < 0) {
		log_error("claim number %d in the name space: %s", number, strerror(-r));
		v.n = number;
	}
	return v;
}

/* The thread has made one whose number differs, by a call that the born filter lets pass: its return is
 * translated, and there, where calls can be made in the thread, the process gets the other filter. */
static void expect_birth(struct supervisor *s, struct tracee *parent)
{
	if (s->process->diverged)
		return;
	if (syscall_expect_birth(parent) < 0)
		log_debug("thread %d is gone", parent->tid);
	s->diverging = true;
}

/* The new process is stopped and attached to us; nothing of it is in any list. `parent`: the forking thread
 * at its event, NULL when it has been killed. */
static void send_child(struct supervisor *s, pid_t child, struct tracee *parent)
{
	struct process *process = s->process;
	struct err err = ERR_INIT;
	struct vpid vpid = claim_number(s, child);
	uint32_t flags = process->diverged ? HANDOFF_DIVERGED : 0;

	if (process->filters &&
	    record_filter_inherit((struct rpid){s->seat->keeper}, process->vpid, vpid) < 0)
		log_warn("vpid %d: its seccomp filters could not be recorded", vpid.n);
	if (parent && parent->event == PTRACE_EVENT_VFORK)
		flags |= HANDOFF_SHARES_MEMORY;

	/* The first number that differs: from now on this process has names to translate; so has its child,
	 * which gets the filter from its own scip. */
	if (vpid.n != child) {
		if (parent)
			expect_birth(s, parent);
		if (syscall_newborn(process, child, vpid) < 0)
			log_debug("new process %d is gone", child);
	}
	if (handoff_send(s->seat, process, child, vpid, flags, (struct taddr){0}, &err) < 0)
		log_error("vpid %d: its child %d was killed: %s", process->vpid.n, vpid.n, err.text);
}

static void greet_thread(struct supervisor *s, struct tracee *thread)
{
	struct process *process = s->process;

	thread->vtid = claim_number(s, thread->tid);
	if (thread->vtid.n == thread->tid)
		return;
	if (syscall_newborn(process, thread->tid, thread->vtid) < 0)
		log_debug("new thread %d is gone", thread->tid);
}

/* At the event of a clone that made a thread: it gets its number now. */
static void find_thread(struct supervisor *s, struct tracee *parent, pid_t tid)
{
	struct process *process = s->process;
	struct tracee *thread = process_find_tracee(process, tid);
	int status;

	if (thread) { /* its first stop came earlier */
		if (thread->vtid.n && thread->vtid.n != tid)
			expect_birth(s, parent);
		return;
	}
	if (stops_wait(process, tid, 0, &thread, &status) <= 0)
		return; /* killed meanwhile */
	if (thread->stop == TRACEE_EXITED) {
		process_remove_tracee(process, thread);
		return;
	}
	greet_thread(s, thread);
	if (thread->vtid.n != tid)
		expect_birth(s, parent);
	if (process->frozen && freeze_hold(thread))
		return;
	if (stops_resume(thread, STOPS_CONT) < 0)
		log_debug("thread %d is gone already", tid);
}

/* At the event of a fork or clone. */
static void find_child(struct supervisor *s, struct tracee *parent)
{
	struct process *process = s->process;
	unsigned long message;
	int status;
	pid_t pid;

	if (ptrace(PTRACE_GETEVENTMSG, parent->tid, 0, &message) < 0)
		return;
	pid = (pid_t)message;
	if (parent->event == PTRACE_EVENT_CLONE &&
	    (process_find_tracee(process, pid) || syscall(SYS_tgkill, process->pid, pid, 0) == 0))
		find_thread(s, parent, pid);
	else if (stops_wait_child(process, pid, &status) == 0)
		send_child(s, pid, parent);
}

/* ---- ends ---- */

static void release_number(struct supervisor *s, struct tracee *tracee)
{
	if (tracee->vtid.n && tracee->vtid.n != tracee->tid)
		names_number_release(s->seat->names, tracee->vtid);
}

static void drop_thread(struct supervisor *s, struct tracee *tracee)
{
	syscall_forget(tracee);
	if (tracee->tid != s->process->pid)
		release_number(s, tracee);
	process_remove_tracee(s->process, tracee);
}

static void forget_program(struct supervisor *s, struct tracee *leader)
{
	struct process *process = s->process;

	for (struct tracee *t = process->tracees, *next; t; t = next) {
		next = t->next;
		if (t != leader)
			drop_thread(s, t);
	}
	/* The execve call itself goes on in the leader, to its exit stop if that was asked for. */
	inject_forget(process);
	leader->vtid = process->vpid;
	process->dumpable = 0; /* the kernel decides anew */
	process->vfork_pending = false;
	s->vfork_tid = 0;
}

/* ---- one event ---- */

static void resume(struct tracee *tracee, enum stops_resume how)
{
	int r = stops_resume(tracee, how);

	if (r < 0 && r != -ESRCH)
		log_error("resume thread %d: %s", tracee->tid, strerror(-r));
}

static void act(struct supervisor *s, struct tracee *tracee, unsigned actions)
{
	struct process *process = s->process;
	enum stops_resume how = STOPS_CONT;
	int r = 0;

	if (actions & ACTION_DROP_THREAD) {
		drop_thread(s, tracee);
		return;
	}
	if (actions & ACTION_GREET_THREAD)
		greet_thread(s, tracee);
	if (actions & ACTION_ENTER_CALL) {
		r = syscall_enter(tracee);
		if (r == SYSCALL_WANT_EXIT)
			how = STOPS_SYSCALL;
		stops_follow_cpu(tracee);
	}
	if (actions & ACTION_LEAVE_CALL) {
		r = syscall_exit(tracee);
		if (r == 0 && s->diverging)
			inject_restored_filter(process, tracee);
		s->diverging = false;
	}
	if (actions & ACTION_TRANSLATE_SIGNAL)
		r = syscall_translate_siginfo(tracee);
	if (actions & ACTION_FIND_CHILD) {
		find_child(s, tracee);
		stops_follow_cpu(tracee);
	}
	if (actions & ACTION_NOTE_VFORK) {
		process->vfork_pending = true;
		s->vfork_tid = tracee->tid;
	}
	if (actions & ACTION_FORGET_PROGRAM)
		forget_program(s, tracee);
	if (tracee->stop == TRACEE_EVENT_STOP && tracee->want_exit_stop)
		how = STOPS_SYSCALL; /* an event in the middle of a call whose return is awaited */
	if (r == -ESRCH)
		return; /* killed: its end is on the way */
	if ((actions & ACTION_HOLD) && freeze_hold(tracee))
		return;
	if (actions & ACTION_RESUME)
		resume(tracee, how);
}

static struct event describe(const struct process *process, const struct tracee *tracee)
{
	return (struct event){
		.stop = tracee->stop,
		.event = tracee->event,
		.newcomer = tracee->vtid.n == 0,
		.leader = tracee->tid == process->pid,
		.freezing = process->frozen,
		.held = process->held,
		.diverged = process->diverged,
	};
}

/* True when the process has ended. */
static bool handle(struct supervisor *s, struct tracee *tracee, int status)
{
	struct process *process = s->process;
	struct event event = describe(process, tracee);
	unsigned actions = decide(&event);

	if (tracee->tid == s->vfork_tid) {
		process->vfork_pending = false;
		s->vfork_tid = 0;
	}
	if (actions & ACTION_END) {
		process->exiting = true;
		process->exit_status = status;
		return true;
	}
	act(s, tracee, actions);
	return false;
}

/* ---- the process's life ---- */

static void mark_dead(struct supervisor *s)
{
	struct process *process = s->process;
	struct name_process entry;

	if (names_process_get(s->seat->names, process->vpid, &entry) < 0 || entry.rpid.n != process->pid)
		return;
	entry.state = NAME_STATE_DEAD;
	entry.scip.n = 0;
	if (names_process_update(s->seat->names, &entry) < 0)
		log_warn("vpid %d: cannot be marked as dead", process->vpid.n);
}

/* The process is reaped, so its parent has been told. A number that never diverged needs no care: the entry
 * goes. A diverged one stays, DEAD, until the parent has waited; or goes now when nobody will. */
static void leave_names(struct supervisor *s)
{
	struct process *process = s->process;
	struct names *names = s->seat->names;
	struct name_process entry;

	if (names_process_get(names, process->vpid, &entry) < 0 || entry.rpid.n != process->pid)
		return;
	if (process->diverged && kill(process->pid, 0) == 0) {
		if (entry.state != NAME_STATE_DEAD)
			mark_dead(s);
		return;
	}
	if (!process->diverged && entry.scip.n != getpid())
		return; /* not ours any more: the number has been given again */
	names_process_remove(names, process->vpid);
	names_number_release(names, process->vpid);
	if (process->filters)
		record_filter_forget(process->keeper, process->vpid);
}

static void end_process(struct supervisor *s)
{
	struct process *process = s->process;
	pid_t orphan;

	/* Children of threads that were killed before they could tell of them. */
	while ((orphan = stops_take_orphan(process)) > 0)
		send_child(s, orphan, NULL);
	while (process->tracees)
		drop_thread(s, process->tracees);
	process_clear(process);
	inject_forget(process);
	leave_names(s);
	if (s->control)
		control_process_gone(s->control, process);
	free(process);
	s->process = NULL;
}

static void keeper_gone(struct supervisor *s)
{
	struct handoff handoff;

	if (s->process)
		kill(s->process->pid, SIGKILL); /* as PTRACE_O_EXITKILL does when we are gone */
	while (recv(s->seat->take, &handoff, sizeof(handoff), MSG_DONTWAIT) == (ssize_t)sizeof(handoff))
		kill(handoff.rpid, SIGKILL);
	if (s->control)
		control_close(s->control);
	_exit(0);
}

static void sleep_for_event(struct supervisor *s)
{
	uint64_t deadline = s->control ? control_deadline(s->control) : 0;
	struct timespec timeout;
	sigset_t set;
	int sig;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGIO);
	sigaddset(&set, SEAT_KEEPER_GONE);
	if (deadline) {
		uint64_t now = io_now_ns(CLOCK_MONOTONIC), left = deadline > now ? deadline - now : 0;

		timeout = (struct timespec){(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
	}
	sig = sigtimedwait(&set, NULL, deadline ? &timeout : NULL);
	if (sig == SEAT_KEEPER_GONE)
		keeper_gone(s);
	if (s->control && (sig == SIGIO || (sig < 0 && errno == EAGAIN)))
		control_serve(s->control, s->process);
}

static void supervise(struct supervisor *s)
{
	struct process *process = s->process;
	struct tracee *tracee;
	int status, r;

	for (;;) {
		r = stops_wait(process, -1, WNOHANG, &tracee, &status);
		if (r == 1) {
			bool alone = process->ntracees == 1;

			if (handle(s, tracee, status))
				break;
			if (s->control && process->frozen)
				control_progress(s->control, process);
			/* It was the only one, it runs again: nobody is there who could have stopped
			 * meanwhile. (A look is a system call.) */
			if (alone && process->ntracees == 1 && !process->nnewborn &&
			    process->tracees->stop == TRACEE_RUNNING)
				sleep_for_event(s);
		} else if (r == -ECHILD) {
			break;
		} else {
			sleep_for_event(s);
		}
	}
	end_process(s);
}

/* ---- between processes ---- */

static void take_name(struct supervisor *s, const struct handoff *handoff)
{
	struct process *process = s->process;
	struct name_process entry;
	int r = names_process_get(s->seat->names, process->vpid, &entry);

	if (r == 0) {
		entry.scip.n = getpid();
		entry.state = process->held ? NAME_STATE_FROZEN : NAME_STATE_RUNNING;
		entry.diverged = process->diverged;
		r = names_process_update(s->seat->names, &entry);
	}
	if (r < 0)
		log_error("vpid %d: enter its supervisor in the name table: %s", handoff->vpid, strerror(-r));
}

static void adopt(struct supervisor *s, const struct handoff *handoff)
{
	struct process *process = calloc(1, sizeof(*process));
	struct tracee *leader;
	struct err err = ERR_INIT;
	int r;

	if (!process) {
		log_error("vpid %d is killed: no memory to supervise it", handoff->vpid);
		kill(handoff->rpid, SIGKILL);
		return;
	}
	process->pid = handoff->rpid;
	process->vpid.n = handoff->vpid;
	process->keeper.n = handoff->keeper;
	process->names = s->seat->names;
	process->held = (handoff->flags & HANDOFF_HELD) != 0;
	process->diverged = (handoff->flags & HANDOFF_DIVERGED) != 0;
	process->filters = (handoff->flags & HANDOFF_FILTERS) != 0;
	process->dumpable = handoff->asked_dumpable;
	s->process = process;
	s->vfork_tid = 0;
	s->diverging = false;
	r = handoff_take(process, handoff, &leader, &err);
	if (r < 0) {
		if (r != -ESRCH)
			log_error("vpid %d is killed: take it over: %s", handoff->vpid, err.text);
		names_process_remove(s->seat->names, process->vpid);
		names_number_release(s->seat->names, process->vpid);
		if (process->tracees)
			supervise(s); /* it is ours still: see its end */
		else
			end_process(s);
		return;
	}
	if (!process->diverged && handoff->vpid != handoff->rpid)
		inject_restored_filter(process, leader);
	take_name(s, handoff);
	if (!process->held)
		resume(leader, STOPS_CONT);
	supervise(s);
}

/* Idle, the signals are open: nothing else goes on that a handler could disturb. */
static struct supervisor *idle_supervisor;

static void on_keeper_gone(int sig)
{
	keeper_gone(idle_supervisor);
}

static void on_call(int sig)
{
	int saved = errno;

	control_serve(idle_supervisor->control, NULL);
	errno = saved;
}

static void open_signals(struct supervisor *s, bool idle)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SEAT_KEEPER_GONE);
	if (s->control)
		sigaddset(&set, SIGIO);
	idle_supervisor = s;
	sigprocmask(idle ? SIG_UNBLOCK : SIG_BLOCK, &set, NULL);
}

static void set_up_signals(void)
{
	struct sigaction keeper = {.sa_handler = on_keeper_gone},
			 call = {.sa_handler = on_call, .sa_flags = SA_RESTART},
			 dfl = {.sa_handler = SIG_DFL};
	sigset_t all;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	for (int sig = 1; sig < _NSIG; sig++)
		if (sig != SIGKILL && sig != SIGSTOP)
			(void)sigaction(sig, &dfl, NULL);
	sigaction(SEAT_KEEPER_GONE, &keeper, NULL);
	sigaction(SIGIO, &call, NULL);
	/* SIGTERM and its like end a scip, and so its process, as kill -9 does; not one of a terminal: we
	 * have none. */
	sigemptyset(&all);
	sigaddset(&all, SIGTERM);
	sigaddset(&all, SIGSEGV);
	sigaddset(&all, SIGBUS);
	sigaddset(&all, SIGABRT);
	sigprocmask(SIG_UNBLOCK, &all, NULL);
}

/* One more than the surplus leaves the pool. */
static bool back_to_pool(const struct seat *seat)
{
	if (atomic_fetch_add(&seat->shared->idle, 1) < (int32_t)atomic_load(&seat->shared->surplus))
		return true;
	atomic_fetch_sub(&seat->shared->idle, 1);
	return false;
}

_Noreturn void supervisor_main(const struct seat *seat)
{
	struct supervisor s = {.seat = seat};
	struct handoff handoff;
	struct err err = ERR_INIT;

	set_up_signals();
	if (control_open(&s.control, seat, &err) < 0)
		log_error("no checkpoints of what this scip supervises: %s", err.text);
	do {
		ssize_t n;

		open_signals(&s, true);
		do
			n = recv(seat->take, &handoff, sizeof(handoff), 0);
		while (n < 0 && errno == EINTR);
		open_signals(&s, false);
		if (n != (ssize_t)sizeof(handoff))
			break;
		atomic_fetch_add(&seat->shared->handed, 1);
		adopt(&s, &handoff);
	} while (back_to_pool(seat));
	if (s.control)
		control_close(s.control);
	_exit(0);
}
