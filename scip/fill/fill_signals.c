/*
 * Handlers, pending signals and timers.
 *
 * A thread may queue a siginfo with any si_code to itself: rt_tgsigqueueinfo() with its own tid, or
 * rt_sigqueueinfo() by the leader for the process. So pending signals become pending again exactly as they
 * were. Signals left over from the husk itself, such as SIGCHLD of zombies made for it, are consumed first.
 * All signals are blocked meanwhile.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#include "base/bytes.h"
#include "scip/fill/fill_batch.h"
#include "scip/syscall/syscall.h"
#include "scip/tracee/kernel_structs.h"
#include "syscalls/clock_id.h"

#ifndef PR_TIMER_CREATE_RESTORE_IDS
#define PR_TIMER_CREATE_RESTORE_IDS 77
#endif

enum { SIGNALS = 64, SIGINFO_BYTES = 128, KERNEL_SIGSET = 8, STALE_MAX = 4 };
enum { NOTIFY_THREAD_ID = 4 };

/* The kernel's struct sigevent. */
struct kernel_sigevent {
	uint64_t value;
	int32_t signo, notify, tid;
	int32_t pad[11];
};
_Static_assert(sizeof(struct kernel_sigevent) == 64, "struct sigevent");

int fill_signal_actions(struct fill *fill)
{
	struct kernel_action actions[SIGNALS + 1];
	uint64_t where;
	int r;

	memset(actions, 0, sizeof(actions));
	for (size_t i = 0; i < fill->saved->n_actions; i++) {
		const Pbeam__SignalAction *saved = fill->saved->actions[i];

		if (saved->signal < 1 || saved->signal > SIGNALS)
			return err_set(fill->err, -EINVAL, "handler of signal %u", saved->signal);
		actions[saved->signal] =
			(struct kernel_action){saved->handler, saved->flags, saved->restorer, saved->mask};
	}
	r = fill_reserve(fill, SIGNALS, sizeof(actions));
	if (r == 0)
		r = fill_data(fill, actions, sizeof(actions), &where);
	for (int sig = 1; sig <= SIGNALS && r == 0; sig++)
		if (sig != SIGKILL && sig != SIGSTOP)
			r = fill_do(fill, SYS_rt_sigaction,
				    remote_args((uint64_t)sig, where + (uint64_t)sig * sizeof(actions[0]), 0,
						KERNEL_SIGSET));
	return r;
}

/* The sender's number stays virtual, because a signalfd returns it unchanged; the trap at a handler's
 * delivery leaves a virtual number alone. It is made real only if it is the real number of another process.
 */
static void name_sender(struct names *names, uint8_t info[SIGINFO_BYTES])
{
	uint8_t copy[SIGINFO_BYTES] __attribute__((aligned(8)));

	memcpy(copy, info, sizeof(copy));
	if (names && syscall_siginfo_to_virtual(names, copy))
		syscall_siginfo_to_real(names, info);
}

/* Queues a signal to a thread, or with tid 0 to the process. fill->runner must be the thread itself, or the
 * leader for tid 0. */
int fill_signal_queue(struct fill *fill, pid_t tid, size_t n, Pbeam__SignalInfo *const *pending)
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		uint8_t info[SIGINFO_BYTES] __attribute__((aligned(8))) = {0};
		const ProtobufCBinaryData *saved = &pending[i]->siginfo;
		uint64_t where, sig;

		bytes_copy(info, saved->data, saved->len < sizeof(info) ? saved->len : sizeof(info));
		name_sender(fill->process->names, info);
		sig = (uint64_t)((siginfo_t *)(void *)info)->si_signo;
		if (sig < 1 || sig > SIGNALS || sig == SIGKILL)
			continue;
		r = fill_reserve(fill, 1, sizeof(info));
		if (r == 0)
			r = fill_data(fill, info, sizeof(info), &where);
		if (r < 0)
			break;
		if (tid)
			r = fill_do(fill, SYS_rt_tgsigqueueinfo,
				    remote_args((uint64_t)fill->process->pid, (uint64_t)tid, sig, where));
		else
			r = fill_do(fill, SYS_rt_sigqueueinfo,
				    remote_args((uint64_t)fill->process->pid, sig, where));
	}
	return r;
}

/* Lists the signals of a set, at most `most` of them. */
static int discard_signals(struct fill *fill, uint64_t set, int most)
{
	const struct {
		uint64_t set;
		struct timespec zero;
	} args = {set, {0, 0}};
	uint64_t where;
	int r = fill_reserve(fill, (unsigned)most, sizeof(args));

	if (r == 0)
		r = fill_data(fill, &args, sizeof(args), &where);
	for (int i = 0; i < most && r == 0; i++)
		r = fill_try(fill, SYS_rt_sigtimedwait, remote_args(where, 0, where + 8, KERNEL_SIGSET));
	return r;
}

static int discard_stale(struct fill *fill)
{
	int r = 0;

	if (fill->process->returning)
		r = fill_try(fill, SYS_prctl, remote_args(PR_SET_PDEATHSIG, 0, 0, 0, 0));
	if (r == 0 && fill->process->returning)
		r = discard_signals(fill, 1ull << (PROCESS_STUB_ORPHANED - 1), 2);
	return r < 0 ? r : discard_signals(fill, ~0ull, STALE_MAX);
}

/* An interval timer whose expiry signal is still pending has no time left; the kernel rearms the timer when
 * the signal is dequeued. Setting the time to zero would disarm the timer. So the timer is set to expire at
 * once, which makes its signal pending again. */
static int fill_itimers(struct fill *fill)
{
	int r = 0;

	for (size_t i = 0; i < fill->saved->n_itimers && r == 0; i++) {
		const Pbeam__IntervalTimer *saved = fill->saved->itimers[i];
		uint64_t left = saved->value_us || !saved->interval_us ? saved->value_us : 1, where;
		struct itimerval value = {
			{(time_t)(saved->interval_us / 1000000), (suseconds_t)(saved->interval_us % 1000000)},
			{(time_t)(left / 1000000), (suseconds_t)(left % 1000000)}};

		r = fill_reserve(fill, 1, sizeof(value));
		if (r == 0)
			r = fill_data(fill, &value, sizeof(value), &where);
		if (r == 0)
			r = fill_do(fill, SYS_setitimer, remote_args(saved->which, where, 0));
	}
	return r;
}

static int fill_posix_timer(struct fill *fill, const Pbeam__PosixTimer *saved)
{
	struct {
		struct kernel_sigevent event;
		struct itimerspec value;
		int32_t id, pad;
	} args = {.event = {.value = saved->sigev_value, .signo = saved->signal, .notify = saved->notify},
		  .value = {{(time_t)(saved->interval_ns / 1000000000),
			     (long)(saved->interval_ns % 1000000000)},
			    {(time_t)(saved->value_ns / 1000000000), (long)(saved->value_ns % 1000000000)}},
		  .id = saved->id};
	int32_t clock = saved->clock;
	uint64_t where;
	int r = fill_reserve(fill, 2, sizeof(args));

	if (saved->notify & NOTIFY_THREAD_ID && fill->process->names)
		args.event.tid = names_real(fill->process->names, (struct vpid){saved->notify_vtid}).n;
	if (clock_id_number(clock) > 0 && fill->process->names)
		clock = clock_id_of(
			clock, names_real(fill->process->names, (struct vpid){clock_id_number(clock)}).n);
	if (r == 0)
		r = fill_data(fill, &args, sizeof(args), &where);
	if (r == 0)
		r = fill_do(fill, SYS_timer_create,
			    remote_args((uint64_t)(int64_t)clock, where,
					where + ((uintptr_t)&args.id - (uintptr_t)&args)));
	if (r == 0 && (saved->value_ns || saved->interval_ns))
		r = fill_do(fill, SYS_timer_settime,
			    remote_args((uint64_t)saved->id, 0, where + sizeof(args.event), 0));
	return r;
}

int fill_timers(struct fill *fill)
{
	int r = discard_stale(fill);

	if (r == 0)
		r = fill_signal_queue(fill, 0, fill->saved->n_pending, fill->saved->pending);
	if (r == 0 && fill->saved->n_timers)
		r = fill_do(fill, SYS_prctl, remote_args(PR_TIMER_CREATE_RESTORE_IDS, 1, 0, 0, 0));
	for (size_t i = 0; i < fill->saved->n_timers && r == 0; i++)
		r = fill_posix_timer(fill, fill->saved->timers[i]);
	if (r == 0 && fill->saved->n_timers)
		r = fill_do(fill, SYS_prctl, remote_args(PR_TIMER_CREATE_RESTORE_IDS, 0, 0, 0, 0));
	if (r == 0)
		r = fill_itimers(fill);
	if (r == 0)
		r = fill_flush(fill);
	return r < 0 ? err_wrap(fill->err, r, "pending signals and timers") : 0;
}
