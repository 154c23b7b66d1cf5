/*
 * The threads. A batch of the leader creates each thread by clone(). The thread is stopped before it runs
 * and sets itself up by its own batch. Finally scip sets its registers from outside.
 *
 * Only the thread itself can set its tid address, robust list, rseq, alternate stack, name, parent-death
 * signal and its own pending signals. Scheduling, signal mask and registers are set from outside.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "scip/fill/fill_batch.h"
#include "scip/syscall/syscall.h"
#include "scip/tracee/kernel_structs.h"
#include "scip/tracee/pending.h"
#include "scip/tracee/regs.h"
#include "scip/tracee/stops.h"

enum { KERNEL_SIGSET = 8, COMM_BYTES = 16, IOPRIO_WHO_PROCESS = 1, THREADS_AT_ONCE = 2048 };
enum { ALTSTACK_ON = 1, ALTSTACK_DISABLED = 2 };

static const uint64_t thread_flags =
	CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;

/* Waits for a new thread's first stop, and looks up its tracee. */
static int catch_thread(struct fill *fill, pid_t tid, struct tracee **out)
{
	struct tracee *tracee = process_find_tracee(fill->process, tid);
	int status, r;

	if (!tracee) {
		r = process_add_tracee(fill->process, tid, &tracee);
		if (r < 0)
			return err_code(fill->err, r, "thread %d", tid);
	}
	if (tracee->stop == TRACEE_RUNNING) {
		r = stops_wait(fill->process, tid, 0, &tracee, &status);
		if (r < 0)
			return err_code(fill->err, r, "wait for thread %d", tid);
	}
	if (tracee->stop == TRACEE_EXITED)
		return err_set(fill->err, -ESRCH, "thread %d has ended", tid);
	*out = tracee;
	return 0;
}

static int bind_thread(struct fill *fill, struct tracee *tracee, int32_t vtid)
{
	int r;

	tracee->vtid.n = vtid;
	if (!fill->process->names)
		return 0;
	r = names_number_bind(fill->process->names, (struct vpid){vtid}, (struct rpid){tracee->tid},
			      fill->process->keeper);
	return r < 0 ? err_code(fill->err, r, "thread number %d", vtid) : 0;
}

/* Makes threads [from, to) of the image; tracees[i] becomes thread i's. */
static int make_threads(struct fill *fill, size_t from, size_t to, struct tracee **tracees)
{
	auto_free pid_t *tids = calloc(to - from, sizeof(*tids));
	int r = fill_flush(fill);

	if (r < 0)
		return r;
	if (!tids)
		return -ENOMEM;
	r = fill_reserve(fill, (int)(to - from), 0);
	for (size_t i = from; i < to && r >= 0; i++)
		r = fill_call(fill, INJECT_CALL_THREAD, SYS_clone, remote_args(thread_flags, 0, 0, 0, 0));
	if (r < 0)
		return r;
	r = batch_run(fill->batch, fill->runner, fill->err);
	for (size_t i = from; i < to && r == 0; i++)
		tids[i - from] = (pid_t)batch_call(fill->batch, (int)(i - from))->ret;
	batch_end(fill->batch);
	fill->batch = NULL;
	for (size_t i = from; i < to && r == 0; i++) {
		r = catch_thread(fill, tids[i - from], &tracees[i]);
		if (r == 0)
			r = bind_thread(fill, tracees[i], fill->saved->threads[i]->vtid);
	}
	return r;
}

static int set_altstack(struct fill *fill, const Pbeam__Thread *saved)
{
	stack_t stack = {.ss_sp = (void *)(uintptr_t)saved->altstack_sp,
			 .ss_flags = (int)(saved->altstack_flags & ~(uint32_t)ALTSTACK_ON),
			 .ss_size = saved->altstack_size};
	uint64_t where;
	int r;

	if (saved->altstack_flags & ALTSTACK_DISABLED || saved->altstack_size == 0)
		return 0;
	r = fill_data(fill, &stack, sizeof(stack), &where);
	return r < 0 ? r : fill_do(fill, SYS_sigaltstack, remote_args(where, 0));
}

static int set_comm(struct fill *fill, const Pbeam__Thread *saved)
{
	char comm[COMM_BYTES] = {0};
	uint64_t where;
	int r;

	if (!saved->comm.len)
		return 0;
	bytes_copy(comm, saved->comm.data, saved->comm.len < COMM_BYTES ? saved->comm.len : COMM_BYTES - 1);
	r = fill_data(fill, comm, sizeof(comm), &where);
	return r < 0 ? r : fill_do(fill, SYS_prctl, remote_args(PR_SET_NAME, where, 0, 0, 0));
}

/* Makes the thread set its own attributes, in one batch. */
static int set_up_inside(struct fill *fill, struct tracee *tracee, const Pbeam__Thread *saved)
{
	int r;

	fill->runner = tracee;
	r = fill_reserve(fill, 13, 768);
	if (r == 0)
		r = fill_do(fill, SYS_set_tid_address, remote_args(saved->clear_child_tid));
	if (r == 0 && saved->robust_head)
		r = fill_do(fill, SYS_set_robust_list, remote_args(saved->robust_head, saved->robust_len));
	if (r == 0 && saved->rseq_address)
		r = fill_do(fill, SYS_rseq,
			    remote_args(saved->rseq_address, saved->rseq_size, 0, saved->rseq_signature));
	if (r == 0)
		r = set_altstack(fill, saved);
	if (r == 0)
		r = set_comm(fill, saved);
	/* A husk that the keeper forked already has a parent-death signal (launch.c). */
	if (r == 0 && (saved->pdeath_signal || tracee->tid == tracee->process->pid))
		r = fill_try(fill, SYS_prctl, remote_args(PR_SET_PDEATHSIG, saved->pdeath_signal, 0, 0, 0));
	if (r == 0 && saved->timer_slack_ns)
		r = fill_try(fill, SYS_prctl, remote_args(PR_SET_TIMERSLACK, saved->timer_slack_ns, 0, 0, 0));
	if (r == 0 && saved->tsc_mode > PR_TSC_ENABLE)
		r = fill_do(fill, SYS_prctl, remote_args(PR_SET_TSC, saved->tsc_mode, 0, 0, 0));
	if (r == 0)
		r = fill_policy_thread(fill, saved);
	if (r == 0)
		r = fill_signal_queue(fill, tracee->tid, saved->n_pending, saved->pending);
	if (r == 0)
		r = fill_flush(fill);
	return r;
}

/* Sets only the values that differ: an ordinary user may not set all of them, and rarely has to. */
static void set_scheduling(const struct fill *fill, pid_t tid, const Pbeam__Scheduling *saved)
{
	struct kernel_scheduling now = {.size = sizeof(now)}, want = {.size = sizeof(want)};
	cpu_set_t cpus;
	size_t bytes;

	if (!saved)
		return;
	want.policy = (uint32_t)saved->policy;
	want.flags = saved->flags & 1;
	want.nice = saved->nice;
	want.priority = saved->priority;
	want.runtime = saved->runtime_ns;
	want.deadline = saved->deadline_ns;
	want.period = saved->period_ns;
	if (syscall(SYS_sched_getattr, tid, &now, sizeof(now), 0) == 0 &&
	    (now.policy != want.policy || now.nice != want.nice || now.priority != want.priority ||
	     (now.flags & 1) != want.flags) &&
	    syscall(SYS_sched_setattr, tid, &want, 0) < 0)
		log_warn("vpid %d: scheduling policy %u, nice %d: %s", fill->saved->vpid, want.policy,
			 want.nice, strerror(errno));
	CPU_ZERO(&cpus);
	bytes = saved->affinity.len < sizeof(cpus) ? saved->affinity.len : sizeof(cpus);
	bytes_copy(&cpus, saved->affinity.data, bytes);
	if (bytes) {
		cpu_set_t is;

		if (sched_getaffinity(tid, sizeof(is), &is) == 0 && !CPU_EQUAL(&is, &cpus) &&
		    sched_setaffinity(tid, sizeof(cpus), &cpus) < 0)
			log_warn("vpid %d: processors of thread %d: %s", fill->saved->vpid, tid,
				 strerror(errno));
	}
	if (saved->ioprio > 0 && syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, tid) != saved->ioprio &&
	    syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, tid, saved->ioprio) < 0)
		log_warn("vpid %d: I/O priority of thread %d: %s", fill->saved->vpid, tid, strerror(errno));
}

/* The kernel accepts only a buffer of exactly the size of its register set. */
static int set_xstate(struct fill *fill, struct tracee *tracee, const ProtobufCBinaryData *saved)
{
	auto_free void *state = NULL;
	size_t len;
	int r;

	if (!saved->len)
		return 0;
	r = regs_get_xstate(tracee, &state, &len);
	if (r < 0)
		return err_code(fill->err, r, "extended registers");
	if (saved->len > len)
		return err_set(fill->err, -ENOTSUP,
			       "%zu bytes of extended registers do not fit this processor's %zu", saved->len,
			       len);
	memset(state, 0, len);
	bytes_copy(state, saved->data, saved->len);
	r = regs_set_xstate(tracee, state, len);
	return r < 0 ? err_code(fill->err, r, "extended registers") : 0;
}

static int set_registers(struct fill *fill, struct tracee *tracee, const Pbeam__Thread *saved)
{
	struct user_regs_struct regs;
	int r;

	if (saved->registers.len != sizeof(regs))
		return err_set(fill->err, -EINVAL, "registers of thread %d are %zu bytes", saved->vtid,
			       saved->registers.len);
	memcpy(&regs, saved->registers.data, sizeof(regs));
	regs.orig_rax = (uint64_t)-1;
	r = set_xstate(fill, tracee, &saved->xstate);
	if (r == 0) {
		r = regs_set(tracee, &regs);
		if (r < 0)
			err_code(fill->err, r, "registers");
	}
	if (r == 0)
		r = pending_resume(tracee, saved->call, fill->err);
	if (r == 0 && ptrace(PTRACE_SETSIGMASK, tracee->tid, (void *)KERNEL_SIGSET, &saved->sigmask) < 0)
		r = err_sys(fill->err, "signal mask");
	return r < 0 ? err_wrap(fill->err, r, "thread %d", saved->vtid) : 0;
}

static int set_up_all(struct fill *fill, struct tracee **tracees)
{
	size_t n = fill->saved->n_threads;
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		const Pbeam__Thread *saved = fill->saved->threads[i];

		r = set_up_inside(fill, tracees[i], saved);
		if (r < 0)
			err_wrap(fill->err, r, "thread %d", saved->vtid);
		else if (!(i == 0 && fill->saved->leader_exited))
			set_scheduling(fill, tracees[i]->tid, saved->sched);
	}
	fill->runner = fill->leader;
	return r;
}

int fill_threads(struct fill *fill)
{
	size_t n = fill->saved->n_threads;
	auto_free struct tracee **tracees = calloc(n, sizeof(struct tracee *));
	int r;

	if (!tracees)
		return err_code(fill->err, -ENOMEM, "threads");
	tracees[0] = fill->leader;
	fill->leader->vtid.n = fill->saved->threads[0]->vtid;
	r = 0;
	for (size_t from = 1; from < n && r == 0; from += THREADS_AT_ONCE)
		r = make_threads(fill, from, from + THREADS_AT_ONCE < n ? from + THREADS_AT_ONCE : n,
				 tracees);
	if (r == 0)
		r = fill_timers(fill);
	if (r == 0)
		r = set_up_all(fill, tracees);
	if (r == 0)
		r = fill_flush(fill);
	if (r == 0) /* before the program's own filters, which may forbid the calls */
		r = syscall_filter_signalfds(fill->leader, fill->err);
	if (r == 0)
		r = fill_filters(fill);
	if (r == 0)
		r = fill_limits(fill);
	for (size_t i = fill->saved->leader_exited ? 1 : 0; i < n && r == 0; i++)
		r = set_registers(fill, tracees[i], fill->saved->threads[i]);
	if (fill->batch) {
		batch_end(fill->batch);
		fill->batch = NULL;
	}
	return r < 0 ? r : inject_withdraw(fill->leader, fill->err);
}
