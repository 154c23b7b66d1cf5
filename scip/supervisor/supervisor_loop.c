/*
 * The loop of a scip.
 *
 * With a process it blocks in one place, a wait4() that SIGIO (a request at the control socket),
 * SIGALRM (a request has expired) and SEAT_KEEPER_GONE end without a race; without one it blocks in
 * recv() in the same way (knock.h). So a trap costs no calls but the wait and those of its handler.
 * Requests are served with these signals blocked: the next request must not interrupt the many calls of
 * one.
 *
 * New children. A child starts attached and stops; its maker stops with an event. Whichever stop is
 * seen first, a process is handed over, and a thread gets its number, at the maker's event, before the
 * maker continues. So both are in the name table before another process can know of them.
 *
 * Exec. Whichever thread calls it, it is reported under the leader's id. All other threads are gone,
 * the caller's old id without a report. State of the old program (injected area, scratch page, address
 * of a syscall instruction) is forgotten.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/dirs.h"
#include "base/io.h"
#include "base/log.h"
#include "namespace/record.h"
#include "scip/dump/freeze.h"
#include "scip/supervisor/control.h"
#include "scip/supervisor/decide.h"
#include "scip/supervisor/handoff.h"
#include "scip/supervisor/handoff_message.h"
#include "scip/supervisor/scip_state.h"
#include "scip/supervisor/stub.h"
#include "scip/supervisor/supervisor.h"
#include "scip/syscall/syscall.h"
#include "scip/tracee/knock.h"
#include "scip/tracee/remote.h"
#include "scip/tracee/socket_wait.h"
#include "scip/tracee/stops.h"

enum { MET_MAX = 16, CONTROL_TRIES = 3 };

struct supervisor {
	const struct seat *seat;
	struct control *control;
	struct process *process; /* NULL while idle */
	struct handoff handoff;	 /* the last received */
	uint64_t armed;		 /* when the alarm rings, monotonic; 0: it is off */
	pid_t vfork_tid;	 /* the thread that waits in vfork */
	struct {		 /* threads that stopped before their maker's event; they may be gone */
		pid_t tid;
		struct vpid vtid;
	} met[MET_MAX];
	unsigned nmet;
	bool awaited;	/* a thread may have awaits_filter */
	bool diverging; /* load the filter at the exit stop of the call that made a diverged number */
};

/* ---- new processes and threads ---- */

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

/* The thread has made a child whose number differs, perhaps by a call that the born filter lets pass. Its
 * result is translated at the exit stop, where calls can be made in the thread and the process gets the other
 * filter. */
static void expect_birth(struct supervisor *s, struct tracee *parent)
{
	if (syscall_expect_birth(parent) < 0)
		log_debug("thread %d is gone", parent->tid);
	s->diverging = true;
}

/* Hands over a new process, which is stopped, attached and in no list. `parent`: the forking thread at its
 * event, NULL if it was killed. */
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

	/* The first number that differs: from now on this process has names to translate. So has its
	 * child, whose own scip loads the filter. */
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
	thread->awaits_filter = !process->diverged;
	s->awaited |= thread->awaits_filter;
	if (syscall_newborn(process, thread->tid, thread->vtid) < 0)
		log_debug("new thread %d is gone", thread->tid);
}

static void note_met(struct supervisor *s, const struct tracee *thread)
{
	if (s->nmet == MET_MAX)
		memmove(s->met, s->met + 1, sizeof(s->met[0]) * --s->nmet);
	s->met[s->nmet].tid = thread->tid;
	s->met[s->nmet++].vtid = thread->vtid;
}

/* True if the thread has been seen before; *vtid is its number. A maker that never reports has ended with
 * its process or by an execve; then all are forgotten. */
static bool take_met(struct supervisor *s, pid_t tid, struct vpid *vtid)
{
	for (unsigned i = s->nmet; i-- > 0;) {
		if (s->met[i].tid != tid)
			continue;
		*vtid = s->met[i].vtid;
		s->met[i] = s->met[--s->nmet];
		return true;
	}
	return false;
}

/* At the event of a clone that made a thread: gives the thread its number. */
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
		return; /* killed */
	if (thread->stop == TRACEE_EXITED) {
		process_remove_tracee(process, thread);
		return;
	}
	greet_thread(s, thread);
	if (thread->vtid.n != tid)
		expect_birth(s, parent);
	if ((process->frozen && freeze_hold(thread)) || thread->awaits_filter)
		return;
	if (stops_resume(thread, STOPS_CONT) < 0)
		log_debug("thread %d is gone already", tid);
}

/* At the event of a fork or clone. The event does not tell a thread from a process: the kernel chooses it by
 * the exit signal and CLONE_VFORK (kernel/fork.c, kernel_clone()), which a thread may have too. */
static void find_child(struct supervisor *s, struct tracee *parent)
{
	struct process *process = s->process;
	unsigned long message;
	struct vpid vtid;
	int status;
	pid_t pid;

	if (ptrace(PTRACE_GETEVENTMSG, parent->tid, 0, &message) < 0)
		return;
	pid = (pid_t)message;
	if (parent->event == PTRACE_EVENT_VFORK)
		process->vfork_child = pid;
	if (take_met(s, pid, &vtid)) {
		if (vtid.n != pid)
			expect_birth(s, parent);
	} else if (process_find_tracee(process, pid) || syscall(SYS_tgkill, process->pid, pid, 0) == 0) {
		find_thread(s, parent, pid);
	} else if (stops_wait_child(process, pid, &status) == 0) {
		send_child(s, pid, parent);
	}
}

/* ---- processes and threads that end ---- */

static void forget_program(struct supervisor *s, struct tracee *leader)
{
	struct process *process = s->process;

	for (struct tracee *t = process->tracees, *next; t; t = next) {
		next = t->next;
		if (t != leader)
			supervisor_drop_thread(s->seat, t);
	}
	/* The execve continues in the leader, to its exit stop if that was requested. */
	inject_forget(process);
	leader->vtid = process->vpid;
	process->dumpable = 0; /* the kernel decides again */
	process->vfork_pending = false;
	s->vfork_tid = 0;
	s->nmet = 0;
}

/* ---- one event ---- */

static void supervisor_resume(struct tracee *tracee, enum stops_resume how)
{
	int r = stops_resume(tracee, how);

	if (r < 0 && r != -ESRCH)
		log_error("resume thread %d: %s", tracee->tid, strerror(-r));
}

/* At the exit stop of the call that made a child or thread with a diverged number: the process gets the
 * filter, and threads with such a number run. */
static void finish_birth(struct supervisor *s, struct tracee *maker)
{
	inject_restored_filter(s->process, maker);
	if (!s->awaited)
		return;
	s->awaited = false;
	for (struct tracee *t = s->process->tracees; t; t = t->next) {
		if (!t->awaits_filter)
			continue;
		t->awaits_filter = false;
		if (!t->frozen && t->stop == TRACEE_EVENT_STOP)
			supervisor_resume(t, STOPS_CONT);
	}
}

static void supervisor_act(struct supervisor *s, struct tracee *tracee, unsigned actions)
{
	struct process *process = s->process;
	enum stops_resume how = STOPS_CONT;
	int r = 0;

	if (actions & ACTION_DROP_THREAD) {
		supervisor_drop_thread(s->seat, tracee);
		return;
	}
	if (actions & ACTION_GREET_THREAD) {
		greet_thread(s, tracee);
		note_met(s, tracee);
	}
	if (actions & ACTION_ENTER_CALL) {
		r = syscall_enter(tracee);
		if (r == SYSCALL_WANT_EXIT)
			how = STOPS_SYSCALL;
		stops_follow_cpu(tracee);
	}
	if (actions & ACTION_LEAVE_CALL) {
		r = syscall_exit(tracee);
		if (r == 0 && s->diverging)
			finish_birth(s, tracee);
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
		how = STOPS_SYSCALL; /* an event in the middle of a call whose exit stop was requested */
	if (r == -ESRCH)
		return; /* killed: its exit status follows */
	if ((actions & ACTION_HOLD) && freeze_hold(tracee))
		return;
	if ((actions & ACTION_RESUME) && !tracee->awaits_filter)
		supervisor_resume(tracee, how);
}

static struct event supervisor_describe_event(const struct process *process, const struct tracee *tracee)
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
static bool supervisor_handle_stop(struct supervisor *s, struct tracee *tracee, int status)
{
	struct process *process = s->process;
	struct event event = supervisor_describe_event(process, tracee);
	unsigned actions = decide_actions(&event);

	if (tracee->tid == s->vfork_tid) {
		process->vfork_pending = false;
		s->vfork_tid = 0;
	}
	if (stub_is(process))
		stub_event(s->seat, tracee, status);
	if (actions & ACTION_END) {
		process->exiting = true;
		process->exit_status = status;
		return true;
	}
	supervisor_act(s, tracee, actions);
	return false;
}

/* ---- the process's life ---- */

static void mark_dead(struct supervisor *s)
{
	struct process *process = s->process;
	struct name_process entry;

	if (names_process_get_real(s->seat->names, process->vpid, (struct rpid){process->pid}, &entry) < 0)
		return;
	entry.state = NAME_STATE_DEAD;
	entry.scip.n = 0;
	if (names_process_update(s->seat->names, &entry) < 0)
		log_debug("vpid %d now belongs to another process", process->vpid.n);
}

/* The process is reaped, so its parent has been notified. The entry of a number that never diverged is
 * removed. A diverged entry stays, DEAD, until the parent has waited, or is removed now if no process
 * will. */
static void leave_names(struct supervisor *s)
{
	struct process *process = s->process;
	struct names *names = s->seat->names;
	struct name_process entry;

	if (names_process_get_real(names, process->vpid, (struct rpid){process->pid}, &entry) < 0)
		return;
	if (process->diverged && kill(process->pid, 0) == 0) {
		if (entry.state != NAME_STATE_DEAD)
			mark_dead(s);
		return;
	}
	if (!process->diverged && entry.scip.n != s->seat->scip)
		return; /* another process has the number */
	names_process_remove(names, process->vpid, entry.rpid);
	names_number_release(names, process->vpid, entry.rpid);
	if (process->filters && !entry.aside)
		record_filter_forget(process->keeper, process->vpid);
	seat_report_end(s->seat);
}

/* Blocks the signals around calls that must not be interrupted. */
static void block_calls(bool block)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGIO);
	sigaddset(&set, SIGALRM);
	sigaddset(&set, SEAT_KEEPER_GONE);
	sigprocmask(block ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

static void end_process(struct supervisor *s)
{
	struct process *process = s->process;
	pid_t orphan;

	/* Children of threads that were killed before they could report them. */
	while ((orphan = stops_take_orphan(process)) > 0)
		send_child(s, orphan, NULL);
	while (process->tracees)
		supervisor_drop_thread(s->seat, process->tracees);
	process_clear(process);
	inject_forget(process);
	leave_names(s);
	if (s->control && control_has_callers(s->control)) {
		block_calls(true);
		control_process_gone(s->control, process);
		block_calls(false);
	}
	syscall_detach(process);
	stub_detach(process);
	free(process);
	s->process = NULL;
}

static void keeper_gone(struct supervisor *s)
{
	struct handoff handoff;

	if (s->process)
		kill(s->process->pid, SIGKILL); /* as PTRACE_O_EXITKILL does when the scip ends */
	while (handoff_message_take(s->seat->take, &handoff) > 0)
		if (!(handoff.flags & HANDOFF_RETIRE))
			kill(handoff.rpid, SIGKILL);
	if (s->control)
		control_close(s->control);
	_exit(0);
}

/* Sets SIGALRM for the first request that waits for a stop, or the first wait on a socket that ends. */
static void arm_deadline(struct supervisor *s)
{
	uint64_t deadline = s->control ? control_deadline(s->control) : 0, now, left;
	uint64_t wait = socket_wait_deadline(s->process);
	struct itimerval timer = {0};

	if (wait && (!deadline || wait < deadline))
		deadline = wait;
	if (deadline == s->armed)
		return;
	if (deadline) {
		now = io_now_ns(CLOCK_MONOTONIC);
		left = deadline > now ? (deadline - now) / 1000u + 1 : 1;
		timer.it_value = (struct timeval){(time_t)(left / 1000000u), (suseconds_t)(left % 1000000u)};
	}
	setitimer(ITIMER_REAL, &timer, NULL);
	s->armed = deadline;
}

/* Every thread is held: no maker has an event to report, so those that were met are known by now. */
static void supervisor_succeed(struct supervisor *s)
{
	struct err err = ERR_INIT;

	if (!control_successor(s->control))
		return;
	if (s->vfork_tid || s->diverging)
		err_set(&err, -EBUSY, "vpid %d: it is making a process", s->process->vpid.n);
	else if (scip_state_exec(s->seat, s->process, s->control, control_successor(s->control), &err) == 0)
		err_set(&err, -EIO, "vpid %d: its supervisor has not been replaced", s->process->vpid.n);
	control_refuse_successor(s->control, &err);
}

static void answer_knock(struct supervisor *s)
{
	uint32_t knocks = knock_take();

	if (knocks & (1u << SEAT_KEEPER_GONE))
		keeper_gone(s);
	if (knocks & (1u << SIGALRM))
		s->armed = 0;
	if (s->process)
		socket_wait_expire(s->process);
	if (!knocks || !s->control)
		return;
	block_calls(true);
	control_serve(s->control, s->process);
	if (s->process)
		supervisor_succeed(s);
	block_calls(false);
}

static void supervisor_run(struct supervisor *s)
{
	struct process *process = s->process;
	struct tracee *tracee;
	int status, r;

	for (;;) {
		arm_deadline(s);
		r = stops_wait(process, -1, STOPS_OR_KNOCK, &tracee, &status);
		if (r == 1) {
			if (supervisor_handle_stop(s, tracee, status))
				break;
			if (s->control && process->frozen) {
				block_calls(true);
				control_progress(s->control, process);
				block_calls(false);
			}
		} else if (r == -ECHILD) {
			break;
		} else {
			answer_knock(s);
		}
	}
	end_process(s);
}

/* ---- between processes ---- */

static void supervisor_take_name(struct supervisor *s, const struct handoff *handoff)
{
	struct process *process = s->process;
	struct name_process entry;
	int r = names_process_get_real(s->seat->names, process->vpid, (struct rpid){process->pid}, &entry);

	if (r == 0) {
		entry.scip.n = s->seat->scip;
		entry.state = process->held ? NAME_STATE_FROZEN : NAME_STATE_RUNNING;
		entry.diverged = process->diverged;
		r = names_process_update(s->seat->names, &entry);
	}
	if (r < 0)
		log_error("vpid %d: enter its supervisor in the name table: %s", handoff->vpid, strerror(-r));
	if (process->held && s->control)
		control_await_coordinator(s->control, handoff->coordinator);
	if (process->held)
		bell_ring(&s->seat->shared->signs.taken);
}

static struct process *new_process(const struct supervisor *s, const struct handoff *handoff)
{
	struct process *process = calloc(1, sizeof(*process));

	if (!process)
		return NULL;
	if (syscall_attach(process) < 0 || stub_attach(process) < 0) {
		free(process->calls);
		free(process);
		return NULL;
	}
	process->pid = handoff->rpid;
	process->vpid.n = handoff->vpid;
	process->keeper.n = handoff->keeper;
	process->names = s->seat->names;
	process->held = (handoff->flags & HANDOFF_HELD) != 0;
	process->diverged = (handoff->flags & HANDOFF_DIVERGED) != 0;
	process->filters = (handoff->flags & HANDOFF_FILTERS) != 0;
	process->dumpable = handoff->asked_dumpable;
	return process;
}

static void supervisor_adopt(struct supervisor *s, const struct handoff *handoff)
{
	struct process *process = new_process(s, handoff);
	struct tracee *leader;
	struct err err = ERR_INIT;
	int r;

	if (!process) {
		log_error("vpid %d is killed: no memory to supervise it", handoff->vpid);
		kill(handoff->rpid, SIGKILL);
		return;
	}
	s->process = process;
	s->vfork_tid = 0;
	s->nmet = 0;
	s->diverging = false;
	r = handoff_take(process, handoff, &leader, &err);
	if (r < 0) {
		if (r != -ESRCH)
			log_error("vpid %d is killed: take it over: %s", handoff->vpid, err.text);
		names_process_remove(s->seat->names, process->vpid, (struct rpid){process->pid});
		names_number_release(s->seat->names, process->vpid, (struct rpid){process->pid});
		seat_report_end(s->seat);
		if (process->tracees)
			supervisor_run(s); /* still attached: wait for its end */
		else
			end_process(s);
		return;
	}
	if (!process->diverged && handoff->vpid != handoff->rpid)
		inject_restored_filter(process, leader);
	supervisor_take_name(s, handoff);
	if (!process->held)
		supervisor_resume(leader, STOPS_CONT);
	supervisor_run(s);
}

static void set_up_signals(void)
{
	struct sigaction dfl = {.sa_handler = SIG_DFL};
	sigset_t set;

	sigfillset(&set);
	sigprocmask(SIG_SETMASK, &set, NULL);
	for (int sig = 1; sig < _NSIG; sig++)
		if (sig != SIGKILL && sig != SIGSTOP)
			(void)sigaction(sig, &dfl, NULL);
	knock_quiet_children();
	knock_listen(SEAT_KEEPER_GONE);
	knock_listen(SIGIO);
	knock_listen(SIGALRM);
	/* SIGTERM and other fatal signals end a scip and its process, as SIGKILL does. Signals of
	 * terminals do not: a scip has none. */
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGSEGV);
	sigaddset(&set, SIGBUS);
	sigaddset(&set, SIGABRT);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
}

/* Waits for a process to supervise. False: the scip is to end, or the hand-over socket is gone. */
static bool wait_for_process(struct supervisor *s)
{
	int r;

	while ((r = handoff_message_receive(knock_receive, s->seat->take, &s->handoff)) == -EINTR)
		answer_knock(s);
	return r > 0 && !(s->handoff.flags & HANDOFF_RETIRE);
}

/* A scip that would exceed the surplus leaves the pool. */
static bool back_to_pool(const struct seat *seat)
{
	if (atomic_fetch_add(&seat->shared->idle, 1) < (int32_t)atomic_load(&seat->shared->surplus) &&
	    atomic_load(&seat->shared->generation) == seat->generation)
		return true;
	atomic_fetch_sub(&seat->shared->idle, 1);
	return false;
}

/* Without its socket a process cannot be saved, and a restore cannot be completed. What was lacking may be
 * there when the next process comes. */
static void open_control(struct supervisor *s)
{
	struct err err = ERR_INIT;

	for (int tries = 0; !s->control && tries < CONTROL_TRIES; tries++) {
		err_clear(&err);
		if (control_open(&s->control, s->seat, &err) == 0)
			return;
	}
	if (!s->control)
		log_error("open the control socket; this scip cannot take checkpoints: %s", err.text);
}

/* One process after the other. */
_Noreturn static void supervisor_serve(struct supervisor *s)
{
	do {
		if (!wait_for_process(s))
			break;
		open_control(s);
		atomic_fetch_add(&s->seat->shared->handed, 1);
		supervisor_adopt(s, &s->handoff);
	} while (back_to_pool(s->seat));
	if (s->control)
		control_close(s->control);
	_exit(0);
}

_Noreturn void supervisor_main(const struct seat *seat)
{
	static struct supervisor s;
	struct seat own = *seat;

	own.scip = getpid();
	s.seat = &own;
	set_up_signals();
	open_control(&s);
	block_calls(false);
	supervisor_serve(&s);
}

void supervisor_take_over(const struct successor *from)
{
	static struct supervisor s;
	static struct seat seat;
	struct err err = ERR_INIT;
	int r;

	prctl(PR_SET_NAME, "scip");
	set_up_signals();
	r = scip_state_take(from, &seat, &s.process, &s.control, &err);
	if (r < 0) {
		successor_go_back(from, err.text);
		_exit(1); /* the process ends with it (PTRACE_O_EXITKILL) */
	}
	successor_close(from, &seat);
	if (from->refused) /* still the old program */
		seat.generation--;
	s.seat = &seat;
	if (getppid() != seat.keeper)
		keeper_gone(&s);
	if (from->refused) {
		err_set(&err, -ENOTSUP, "%s", from->refused);
		control_refuse_successor(s.control, &err);
	} else {
		control_confirm_successor(s.control);
	}
	block_calls(false);
	kill(getpid(), SIGIO); /* what came meanwhile may have been noted by no signal */
	supervisor_run(&s);
	if (back_to_pool(s.seat))
		supervisor_serve(&s);
	control_close(s.control);
	_exit(0);
}
