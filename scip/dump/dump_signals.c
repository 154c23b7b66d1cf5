/*
 * Collects pending signals and signal handlers.
 *
 * PTRACE_PEEKSIGINFO reads the queues and leaves them as they are. The signal of a signal-delivery-stop has
 * left its queue, and the kernel no longer knows whether that was the thread's or the process's. It is saved
 * as the thread's, where it would have been delivered.
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

/* True for the signal of a fault. The instruction pointer is at the instruction that faulted, which faults
 * again when the thread continues, or does not if another thread has removed the cause meanwhile (a JVM's
 * safepoint page). A restore must not queue the signal: it cannot be blocked, and would hit the thread while
 * it is being built. */
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
			int r = append_info(tracee->process->names, n, list, infos[i]);

			if (r < 0)
				return r;
		}
		args.off += (uint64_t)got;
	} while (got == PEEK_AT_ONCE && args.off < PEEK_MAX);
	return 0;
}

int dump_pending(const struct tracee *tracee, Pbeam__Thread *thread, Pbeam__Process *process, struct err *err)
{
	uint8_t info[SIGINFO_BYTES];
	int r;

	if (tracee->stop == TRACEE_SIGNAL_DELIVERY_STOP && tracee->signal) {
		memset(info, 0, sizeof(info));
		if (ptrace(PTRACE_GETSIGINFO, tracee->tid, 0, info) < 0)
			return err_sys(err, "held signal of thread %d", tracee->tid);
		r = append_info(tracee->process->names, &thread->n_pending, &thread->pending, info);
		if (r < 0)
			return r;
	}
	r = peek_queue(tracee, 0, &thread->n_pending, &thread->pending, err);
	if (r < 0 || !process)
		return r;
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

int dump_ask_actions(struct dump *dump, struct batch *batch, struct dump_asked *asked)
{
	int r = batch_data(batch, NULL, DUMP_SIGNALS * sizeof(struct kernel_action), &asked->at);

	for (int sig = 1; sig <= DUMP_SIGNALS && r >= 0; sig++) {
		uint64_t where = asked->at.a + (uint64_t)(sig - 1) * sizeof(struct kernel_action);

		if (sig != SIGKILL && sig != SIGSTOP)
			r = batch_add(batch, 0, SYS_rt_sigaction, remote_args((uint64_t)sig, 0, where, 8));
	}
	return r;
}

int dump_take_actions(struct dump *dump, struct batch *batch, const struct dump_asked *asked)
{
	const struct kernel_action *got = batch_local(batch, asked->at);
	int r = 0;

	for (int sig = 1; sig <= DUMP_SIGNALS && r >= 0; sig++)
		r = append_action(dump->out, sig, &got[sig - 1]);
	return r;
}
