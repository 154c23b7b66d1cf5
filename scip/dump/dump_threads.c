/*
 * Collects the threads: from outside by ptrace and sched calls, from inside by a batch.
 *
 * A program may have a thousand threads, so a thread costs about ten system calls from outside and one batch
 * inside. The batch reads what the kernel returns to the thread itself only: sigaltstack, clear_child_tid,
 * the parent-death signal, the name, the securebits, the timer slack and the TSC mode.
 *
 * PTRACE_GETSIGMASK returns the mask that the thread will have. For a thread in ppoll or sigsuspend that is
 * the saved mask, not the temporary one (the kernel checks TIF_RESTORE_SIGMASK).
 */
#include "scip/dump/dump_parts.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "proto/message.h"
#include "scip/dump/dump.h"
#include "scip/tracee/kernel_structs.h"
#include "scip/tracee/memory.h"
#include "scip/tracee/pending.h"
#include "scip/tracee/regs.h"

enum { IOPRIO_WHO_PROCESS_THREAD = 1, AFFINITY_BYTES = 1024, KERNEL_SIGSET = 8 };

static int collect_scheduling(pid_t tid, Pbeam__Scheduling *out, struct err *err)
{
	struct kernel_scheduling attr = {.size = sizeof(attr)};
	uint8_t affinity[AFFINITY_BYTES];
	long n;

	if (syscall(SYS_sched_getattr, tid, &attr, sizeof(attr), 0) < 0)
		return err_sys(err, "scheduling of thread %d", tid);
	out->policy = (int32_t)attr.policy;
	out->nice = attr.nice;
	out->priority = attr.priority;
	out->flags = attr.flags;
	out->runtime_ns = attr.runtime;
	out->deadline_ns = attr.deadline;
	out->period_ns = attr.period;
	n = syscall(SYS_sched_getaffinity, tid, sizeof(affinity), affinity);
	if (n < 0)
		return err_sys(err, "affinity of thread %d", tid);
	out->ioprio = (int32_t)syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS_THREAD, tid);
	return message_bytes(&out->affinity, affinity, (size_t)n);
}

static int collect_registers(struct tracee *tracee, Pbeam__Thread *out, struct err *err)
{
	struct user_regs_struct regs;
	auto_free void *xstate = NULL;
	size_t len;
	int r;

	out->call = message_new(&pbeam__pending_call__descriptor);
	if (!out->call)
		return -ENOMEM;
	r = pending_saved_registers(tracee, &regs, out->call, err);
	if (r < 0)
		return r;
	if (!out->call->restart && !out->call->n_args) {
		message_free(out->call);
		out->call = NULL;
	}
	r = regs_get_xstate(tracee, &xstate, &len);
	if (r < 0)
		return err_code(err, r, "extended registers of thread %d", tracee->tid);
	while (len > 0 && !((const uint8_t *)xstate)[len - 1])
		len--;
	r = message_bytes(&out->registers, &regs, sizeof(regs));
	return r < 0 ? r : message_bytes(&out->xstate, xstate, len);
}

/* Mask, robust list and rseq. */
static int collect_kernel_pointers(const struct tracee *tracee, Pbeam__Thread *out, struct err *err)
{
	struct kernel_rseq rseq;
	void *head = NULL;
	size_t len = 0;

	if (ptrace(PTRACE_GETSIGMASK, tracee->tid, (void *)KERNEL_SIGSET, &out->sigmask) < 0)
		return err_sys(err, "signal mask of thread %d", tracee->tid);
	if (syscall(SYS_get_robust_list, tracee->tid, &head, &len) < 0)
		return err_sys(err, "robust list of thread %d", tracee->tid);
	out->robust_head = (uint64_t)head;
	out->robust_len = len;
	memset(&rseq, 0, sizeof(rseq));
	if (ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tracee->tid, (void *)sizeof(rseq), &rseq) < 0)
		return err_sys(err, "rseq of thread %d", tracee->tid);
	out->rseq_address = rseq.address;
	out->rseq_size = rseq.size;
	out->rseq_signature = rseq.signature;
	out->rseq_flags = rseq.flags;
	return 0;
}

static int collect_thread(struct dump *dump, struct tracee *tracee, bool first, struct err *err)
{
	Pbeam__Thread *out = message_add(dump->out, threads, pbeam__thread__descriptor);
	int r;

	if (!out)
		return -ENOMEM;
	out->vtid = tracee->vtid.n;
	out->sched = message_new(&pbeam__scheduling__descriptor);
	if (!out->sched)
		return -ENOMEM;
	r = collect_registers(tracee, out, err);
	if (r < 0)
		return r;
	r = collect_kernel_pointers(tracee, out, err);
	if (r < 0)
		return r;
	r = dump_pending(tracee, out, first ? dump->out : NULL, err);
	if (r < 0)
		return r;
	return collect_scheduling(tracee->tid, out->sched, err);
}

static bool is_alive(const struct tracee *tracee)
{
	return tracee->stop != TRACEE_RUNNING && tracee->stop != TRACEE_EXITED;
}

/* The leader has called pthread_exit(); it remains as a zombie until the last thread has ended. */
static int collect_exited_leader(struct dump *dump)
{
	Pbeam__Thread *out = message_add(dump->out, threads, pbeam__thread__descriptor);

	if (!out)
		return -ENOMEM;
	out->vtid = dump->process->vpid.n;
	dump->out->leader_exited = true;
	return message_text(&out->comm, dump->stat.comm);
}

int dump_threads(struct dump *dump, struct err *err)
{
	struct tracee *leader = process_leader(dump->process);
	bool first = true;
	int r = 0;

	if (!leader || !is_alive(leader))
		r = collect_exited_leader(dump);
	else {
		r = collect_thread(dump, leader, true, err);
		first = false;
	}
	for (struct tracee *t = dump->process->tracees; t && r >= 0; t = t->next) {
		if (t == leader || !is_alive(t))
			continue;
		r = collect_thread(dump, t, first, err);
		first = false;
	}
	return r < 0 ? err_wrap(err, r, "threads") : 0;
}

/* The results of one thread's batch. */
struct answers {
	struct dump_policy policy;
	stack_t altstack;
	uint64_t clear_child_tid;
	int32_t pdeath, tsc;
	char comm[16];
};

enum { ASKED_BITS, ASKED_SLACK };

int dump_ask_thread(struct dump *dump, struct batch *batch, struct dump_asked *asked)
{
	int r = batch_data(batch, NULL, sizeof(struct answers), &asked->at);
	const uint64_t at = asked->at.a;
	const uint64_t places[][2] = {{PR_GET_TID_ADDRESS, offsetof(struct answers, clear_child_tid)},
				      {PR_GET_PDEATHSIG, offsetof(struct answers, pdeath)},
				      {PR_GET_TSC, offsetof(struct answers, tsc)},
				      {PR_GET_NAME, offsetof(struct answers, comm)}};

	if (r >= 0)
		r = batch_add(batch, INJECT_CALL_ANY, SYS_sigaltstack,
			      remote_args(0, at + offsetof(struct answers, altstack)));
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && r >= 0; i++)
		r = batch_add(batch, INJECT_CALL_ANY, SYS_prctl,
			      remote_args(places[i][0], at + places[i][1]));
	if (r >= 0)
		r = asked->calls[ASKED_BITS] =
			batch_add(batch, INJECT_CALL_ANY, SYS_prctl, remote_args(PR_GET_SECUREBITS));
	if (r >= 0)
		r = asked->calls[ASKED_SLACK] =
			batch_add(batch, INJECT_CALL_ANY, SYS_prctl, remote_args(PR_GET_TIMERSLACK));
	if (r >= 0 && dump_may_call(dump, SYS_get_mempolicy))
		r = batch_add(batch, INJECT_CALL_ANY, SYS_get_mempolicy,
			      remote_args(at + offsetof(struct answers, policy.mode),
					  at + offsetof(struct answers, policy.nodes), DUMP_POLICY_NODES));
	return r;
}

static int take_answers(struct batch *batch, const struct dump_asked *asked, Pbeam__Thread *out)
{
	const struct answers *got = batch_local(batch, asked->at);
	int r;

	out->altstack_sp = (uint64_t)got->altstack.ss_sp;
	out->altstack_flags = (uint32_t)got->altstack.ss_flags;
	out->altstack_size = got->altstack.ss_size;
	out->clear_child_tid = got->clear_child_tid;
	out->pdeath_signal = (uint32_t)got->pdeath;
	out->tsc_mode = (uint64_t)got->tsc;
	out->securebits = (uint32_t)batch_call(batch, asked->calls[ASKED_BITS])->ret;
	out->timer_slack_ns = (uint64_t)batch_call(batch, asked->calls[ASKED_SLACK])->ret;
	r = message_bytes(&out->comm, got->comm, strnlen(got->comm, sizeof(got->comm)));
	return r < 0 ? r : dump_add_policy(&got->policy, &out->policy);
}

int dump_take_thread(struct dump *dump, struct batch *batch, const struct dump_asked *asked)
{
	for (size_t i = 0; i < dump->out->n_threads; i++)
		if (dump->out->threads[i]->vtid == dump->caller->vtid.n)
			return take_answers(batch, asked, dump->out->threads[i]);
	return 0;
}

static int ask_other(struct dump *dump, struct tracee *tracee, Pbeam__Thread *out, struct err *err)
{
	struct dump_asked asked = {.n = 0};
	struct batch *batch;
	int r = batch_begin(dump->process, &batch, err);

	if (r < 0)
		return r;
	r = dump_ask_thread(dump, batch, &asked);
	if (r >= 0)
		r = batch_run(batch, tracee, err);
	if (r >= 0)
		r = take_answers(batch, &asked, out);
	batch_end(batch);
	return r < 0 ? err_wrap(err, r, "thread %d", tracee->tid) : 0;
}

int dump_threads_inside(struct dump *dump, struct err *err)
{
	for (size_t i = 0; i < dump->out->n_threads; i++) {
		Pbeam__Thread *thread = dump->out->threads[i];
		struct tracee *t = dump->process->tracees;
		int r;

		while (t && (t->vtid.n != thread->vtid || !is_alive(t)))
			t = t->next;
		if (!t || t == dump->caller)
			continue;
		r = ask_other(dump, t, thread, err);
		if (r < 0)
			return r;
	}
	dump->out->timer_slack_ns = dump->out->threads[0]->timer_slack_ns;
	return 0;
}

/* Needs nothing injected: the kernel writes the result to the top of the thread's stack, whose contents are
 * put back. */
static int ask_death_signal(struct tracee *tracee, uint64_t *signals, struct err *err)
{
	struct user_regs_struct regs;
	struct taddr at;
	uint64_t kept;
	int64_t ret;
	int32_t signal = 0;
	int r = regs_get(tracee, &regs);

	at.a = regs.rsp & ~7ull;
	if (r == 0)
		r = memory_read(tracee->process, at, &kept, sizeof(kept));
	if (r < 0)
		return err_code(err, r, "thread %d", tracee->tid);
	r = remote_call(tracee, &ret, err, SYS_prctl, remote_args(PR_GET_PDEATHSIG, at.a));
	if (r == 0 && ret == 0)
		r = memory_read(tracee->process, at, &signal, sizeof(signal));
	if (r == 0)
		r = memory_write(tracee->process, at, &kept, sizeof(kept));
	if (signal > 0 && signal <= 64)
		*signals |= 1ull << (signal - 1);
	return r;
}

int dump_death_signals(struct process *process, uint64_t *signals, struct err *err)
{
	Pbeam__Process *own = message_new(&pbeam__process__descriptor);
	struct dump dump = {.process = process, .out = own};
	int r = own ? dump_filters(&dump, err) : err_code(err, -ENOMEM, "ask for signals");

	*signals = 0;
	for (struct tracee *t = process->tracees; t && r == 0; t = t->next)
		if (is_alive(t))
			r = ask_death_signal(t, signals, err);
	message_free(own);
	return r;
}
