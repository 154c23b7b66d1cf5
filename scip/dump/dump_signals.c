/*
 * Signals: what is pending and who handles what.
 *
 * PTRACE_PEEKSIGINFO reads the queues without taking anything. A signal that a delivery stop holds has left
 * its queue already and whether it was the thread's or the process's is not known any more; it is the
 * thread's then, which is where it would have been delivered.
 */
#include "scip/dump/dump_parts.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#include "proto/message.h"
#include "scip/syscall/syscall.h"
#include "scip/tracee/kernel_structs.h"

enum { SIGINFO_BYTES = 128, PEEK_AT_ONCE = 32, PEEK_MAX = 1 << 16 };

/* True for the signal of a fault: the instruction pointer is at the instruction that made it, which makes it
 * again when the thread goes on, with the same memory; or not, if another thread has mended the cause (a
 * JVM's safepoint page). Such a signal is not queued by a restore: it cannot be blocked, and would hit the
 * thread while it is being built. */
static bool comes_again(const uint8_t bytes[SIGINFO_BYTES])
{
	siginfo_t info;

	memcpy(&info, bytes, sizeof(info));
	return info.si_code > 0 && (info.si_signo == SIGSEGV || info.si_signo == SIGBUS ||
				    info.si_signo == SIGFPE || info.si_signo == SIGILL);
}

static int append_info(struct names *names, size_t *n, Pbeam__SignalInfo ***list, uint8_t info[SIGINFO_BYTES])
{
	Pbeam__SignalInfo *out;

	if (comes_again(info))
		return 0;
	out = message_append_new(list, n, &pbeam__signal_info__descriptor);
	if (!out)
		return -ENOMEM;
	syscall_siginfo_to_virtual(names, info);
	return message_bytes(&out->siginfo, info, SIGINFO_BYTES);
}

static int peek_queue(const struct tracee *tracee, uint32_t flags, size_t *n, Pbeam__SignalInfo ***list,
		      struct err *err)
{
	struct __ptrace_peeksiginfo_args args = {.flags = flags, .nr = PEEK_AT_ONCE};
	uint8_t infos[PEEK_AT_ONCE][SIGINFO_BYTES];
	long got;

	do {
		got = ptrace(PTRACE_PEEKSIGINFO, tracee->tid, &args, infos);
		if (got < 0)
			return err_sys(err, "pending signals of thread %d", tracee->tid);
		for (long i = 0; i < got; i++) {
			int rc = append_info(tracee->process->names, n, list, infos[i]);

			if (rc < 0)
				return rc;
		}
		args.off += (uint64_t)got;
	} while (got == PEEK_AT_ONCE && args.off < PEEK_MAX);
	return 0;
}

int dump_pending(const struct tracee *tracee, Pbeam__Thread *thread, Pbeam__Process *process, struct err *err)
{
	uint8_t info[SIGINFO_BYTES];
	int rc;

	if (tracee->stop == TRACEE_SIGNAL_DELIVERY_STOP && tracee->signal) {
		memset(info, 0, sizeof(info));
		if (ptrace(PTRACE_GETSIGINFO, tracee->tid, 0, info) < 0)
			return err_sys(err, "held signal of thread %d", tracee->tid);
		rc = append_info(tracee->process->names, &thread->n_pending, &thread->pending, info);
		if (rc < 0)
			return rc;
	}
	rc = peek_queue(tracee, 0, &thread->n_pending, &thread->pending, err);
	if (rc < 0 || !process)
		return rc;
	return peek_queue(tracee, PTRACE_PEEKSIGINFO_SHARED, &process->n_pending, &process->pending, err);
}

static int append_action(Pbeam__Process *out, int sig, const struct kernel_action *action)
{
	Pbeam__SignalAction *to;

	if (!action->handler && !action->flags && !action->mask)
		return 0;
	to = message_add(out, actions, pbeam__signal_action__descriptor);
	if (!to)
		return -ENOMEM;
	to->signal = (uint32_t)sig;
	to->handler = action->handler;
	to->flags = action->flags;
	to->restorer = action->restorer;
	to->mask = action->mask;
	return 0;
}

int dump_actions(struct dump *dump, struct err *err)
{
	struct batch *batch;
	struct kernel_action *got;
	struct taddr at;
	int rc = batch_begin(dump->process, &batch, err);

	if (rc < 0)
		return rc;
	rc = batch_data(batch, NULL, DUMP_SIGNALS * sizeof(*got), &at);
	for (int sig = 1; sig <= DUMP_SIGNALS && rc >= 0; sig++) {
		uint64_t where = at.a + (uint64_t)(sig - 1) * sizeof(*got);

		if (sig != SIGKILL && sig != SIGSTOP)
			rc = batch_add(batch, 0, SYS_rt_sigaction, remote_args((uint64_t)sig, 0, where, 8));
	}
	if (rc >= 0) {
		got = batch_local(batch, at);
		memset(got, 0, DUMP_SIGNALS * sizeof(*got));
		rc = batch_run(batch, dump->caller, err);
	}
	for (int sig = 1; sig <= DUMP_SIGNALS && rc >= 0; sig++)
		rc = append_action(dump->out, sig, &got[sig - 1]);
	batch_end(batch);
	return rc < 0 ? err_wrap(err, rc, "signal handlers") : 0;
}
