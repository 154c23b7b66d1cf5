/*
 * Probed on 6.18. In answer to PTRACE_INTERRUPT
 * - nanosleep, clock_nanosleep (relative), poll, futex (with any timeout) give -516 and the kernel keeps when
 *   they end;
 * - select, pselect6, ppoll give -514 and have written the time left to where the program keeps it;
 * - epoll_wait and its kin, semop and semtimedop, rt_sigtimedwait, io_getevents, io_uring_enter, and sockets
 *   with SO_RCVTIMEO or SO_SNDTIMEO give -EINTR. They are made to be restarted as well (with -514: a
 *   signal that has a handler gets its EINTR, everything else restarts).
 */
#include <errno.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>

#include "scip/tracee/memory.h"
#include "scip/tracee/pending_table.h"

enum { NSEC_PER_SEC = 1000000000, NSEC_PER_MSEC = 1000000, TIMER_ABSOLUTE = 1 };

struct pending_timeout pending_timeout_of(int64_t number, const uint64_t args[6])
{
	const struct pending_timeout none = {.arg = -1, .left = -1};

	switch (number) {
	case SYS_nanosleep:
		return (struct pending_timeout){.arg = 0, .kernel = true, .left = 1};
	case SYS_clock_nanosleep:
		if (args[1] & TIMER_ABSOLUTE)
			return none;
		return (struct pending_timeout){.arg = 2, .kernel = true, .left = 3};
	case SYS_poll:
		return (struct pending_timeout){.arg = 2, .ms = true, .kernel = true, .left = -1};
	case SYS_futex:
		if ((args[1] & FUTEX_CMD_MASK) != FUTEX_WAIT)
			return none;
		return (struct pending_timeout){.arg = 3, .kernel = true, .left = -1};
	case SYS_epoll_wait:
	case SYS_epoll_pwait:
		return (struct pending_timeout){.arg = 3, .ms = true, .left = -1};
	case SYS_epoll_pwait2:
	case SYS_semtimedop:
		return (struct pending_timeout){.arg = 3, .left = -1};
	case SYS_rt_sigtimedwait:
		return (struct pending_timeout){.arg = 2, .left = -1};
	case SYS_io_getevents:
	case SYS_io_pgetevents:
		return (struct pending_timeout){.arg = 4, .left = -1};
	default:
		return none;
	}
}

bool pending_says_eintr(int64_t number)
{
	switch (number) {
	case SYS_epoll_wait:
	case SYS_epoll_pwait:
	case SYS_epoll_pwait2:
	case SYS_semop:
	case SYS_semtimedop:
	case SYS_rt_sigtimedwait:
	case SYS_io_getevents:
	case SYS_io_pgetevents:
	case SYS_io_uring_enter:
	case SYS_read:
	case SYS_readv:
	case SYS_write:
	case SYS_writev:
	case SYS_recvfrom:
	case SYS_recvmsg:
	case SYS_recvmmsg:
	case SYS_sendto:
	case SYS_sendmsg:
	case SYS_sendmmsg:
	case SYS_accept:
	case SYS_accept4:
	case SYS_connect:
		return true;
	default:
		return false;
	}
}

static bool read_timespec(const struct process *process, uint64_t at, uint64_t *ns)
{
	struct timespec ts;

	if (!at || memory_read(process, (struct taddr){at}, &ts, sizeof(ts)) < 0)
		return false;
	if (ts.tv_sec < 0 || ts.tv_nsec < 0 || ts.tv_nsec >= NSEC_PER_SEC)
		return false;
	/* Some programs sleep for ever by the largest number there is. */
	if ((uint64_t)ts.tv_sec > INT64_MAX / NSEC_PER_SEC - 1)
		*ns = INT64_MAX;
	else
		*ns = (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
	return true;
}

bool pending_read_timeout(const struct process *process, struct pending_timeout where, const uint64_t args[6],
			  uint64_t *ns)
{
	if (where.arg < 0)
		return false;
	if (!where.ms)
		return read_timespec(process, args[where.arg], ns);
	if ((int32_t)args[where.arg] < 0)
		return false;
	*ns = (uint64_t)(uint32_t)args[where.arg] * NSEC_PER_MSEC;
	return true;
}

void pending_args(const struct user_regs_struct *regs, uint64_t args[6])
{
	args[0] = regs->rdi;
	args[1] = regs->rsi;
	args[2] = regs->rdx;
	args[3] = regs->r10;
	args[4] = regs->r8;
	args[5] = regs->r9;
}

void pending_set_args(struct user_regs_struct *regs, const uint64_t args[6])
{
	regs->rdi = args[0];
	regs->rsi = args[1];
	regs->rdx = args[2];
	regs->r10 = args[3];
	regs->r8 = args[4];
	regs->r9 = args[5];
}
