/*
 * Calls that the freeze interrupted and that have time left.
 *
 * The saved registers re-issue the call, with all of its time. Where less is left the call is entered here
 * with that time, PTRACE_INTERRUPT being asked for in its syscall-enter stop: so it comes back at once with
 * -ERESTART_RESTARTBLOCK, and the kernel now holds when it is to end. Then the program's own arguments are
 * put back; resumed, the kernel goes on with what it holds and does not look at them. If the call ends in
 * between (the futex has changed, a descriptor is ready) that is its result, as it would have been.
 *
 * It works for the calls that the kernel itself restarts so: nanosleep, clock_nanosleep, poll and futex.
 * select and its kin write the time that is left to the program's memory when they are interrupted.
 */
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "scip/restore/fill.h"
#include "scip/tracee/regs.h"
#include "scip/tracee/stops.h"

enum { KERNEL_SIGSET = 8, NS_PER_MS = 1000000 };

#define NS_PER_S 1000000000u

/* What is put into which register. */
struct substitute {
	bool in_memory; /* a struct timespec; else milliseconds */
	unsigned arg;
};

static bool takes_left(const Pbeam__PendingCall *call, struct substitute *out)
{
	if (!call || !call->has_left || call->n_args < 6)
		return false;
	switch (call->number) {
	case SYS_nanosleep:
		*out = (struct substitute){true, 0};
		return true;
	case SYS_clock_nanosleep:
		*out = (struct substitute){true, 2};
		return !(call->args[1] & TIMER_ABSTIME);
	case SYS_poll:
		*out = (struct substitute){false, 2};
		return (int32_t)call->args[2] > 0;
	case SYS_futex:
		*out = (struct substitute){true, 3};
		return (call->args[1] & FUTEX_CMD_MASK) == FUTEX_WAIT && call->args[3];
	default:
		return false;
	}
}

static unsigned long long *argument(struct user_regs_struct *regs, unsigned arg)
{
	unsigned long long *const args[6] = {&regs->rdi, &regs->rsi, &regs->rdx,
					     &regs->r10, &regs->r8,  &regs->r9};

	return args[arg];
}

static int resume_and_wait(struct tracee *tracee, int request, int *status)
{
	if (ptrace(request, tracee->tid, 0, 0) < 0)
		return -errno;
	while (waitpid(tracee->tid, status, __WALL) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFSTOPPED(*status) ? 0 : -ESRCH;
}

/* From its registers into the call and out again. */
static int enter_and_leave(struct tracee *tracee)
{
	struct stops_class class;
	int status, r;

	do {
		r = resume_and_wait(tracee, PTRACE_SYSCALL, &status);
		class = stops_classify(status);
	} while (r == 0 && class.stop != TRACEE_SYSCALL_EXIT_STOP);
	if (r == 0)
		r = stops_interrupt(tracee);
	while (r == 0) {
		r = resume_and_wait(tracee, PTRACE_CONT, &status);
		class = stops_classify(status);
		if (r == 0 && (class.stop == TRACEE_EVENT_STOP || class.stop == TRACEE_GROUP_STOP))
			break;
	}
	tracee->stop = r == 0 ? class.stop : TRACEE_RUNNING;
	tracee->signal = class.signal;
	tracee->event = class.event;
	return r;
}

int calls_continue(struct fill *fill, struct tracee *tracee, const Pbeam__Thread *saved)
{
	const Pbeam__PendingCall *call = saved->call;
	struct user_regs_struct regs, inside;
	struct substitute substitute;
	uint64_t all = ~0ull, value;
	int r;

	if (!takes_left(call, &substitute))
		return 0;
	r = regs_get(tracee, &regs);
	if (r < 0)
		return err_code(fill->err, r, "registers");
	value = (call->left_ns + NS_PER_MS - 1) / NS_PER_MS;
	if (substitute.in_memory) {
		struct timespec left = {(time_t)(call->left_ns / NS_PER_S), (long)(call->left_ns % NS_PER_S)};

		r = fill_data(fill, &left, sizeof(left), &value);
		if (r < 0)
			return r;
	}
	inside = regs;
	*argument(&inside, substitute.arg) = value;
	if (ptrace(PTRACE_SETSIGMASK, tracee->tid, (void *)KERNEL_SIGSET, &all) < 0)
		return err_sys(fill->err, "signal mask");
	r = regs_set(tracee, &inside);
	if (r == 0)
		r = enter_and_leave(tracee);
	if (r == 0)
		r = regs_get(tracee, &inside);
	if (r == 0) {
		*argument(&inside, substitute.arg) = *argument(&regs, substitute.arg);
		r = regs_set(tracee, &inside);
	}
	return r < 0 ? err_code(fill->err, r, "continue call %ld", (long)call->number) : 0;
}
