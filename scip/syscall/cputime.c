/*
 * Processor time. A restored process continues from the time that it had used when it was saved. The
 * kernel starts at zero, so times(2), getrusage(2) and clock_gettime(2) of the process's own clock have
 * the difference added. Clocks of threads, timers on processor time and RLIMIT_CPU count from the
 * restore on.
 */
#include <sys/resource.h>
#include <sys/times.h>
#include <time.h>
#include <unistd.h>

#include "scip/syscall/call.h"
#include "syscalls/clock_id.h"

enum { NSEC_PER_SEC = 1000000000, NSEC_PER_USEC = 1000, USEC_PER_SEC = 1000000 };

int enter_cputime(struct call *call)
{
	const int64_t *before = call->process->cpu_before;

	return before[CPU_USER] || before[CPU_SYSTEM] || before[CPU_CHILDREN_USER] ||
			       before[CPU_CHILDREN_SYSTEM]
		       ? SYSCALL_WANT_EXIT
		       : SYSCALL_CONTINUE;
}

static void add_timeval(struct timeval *tv, int64_t ns)
{
	int64_t us = (int64_t)tv->tv_sec * USEC_PER_SEC + tv->tv_usec + ns / NSEC_PER_USEC;

	us = us < 0 ? 0 : us;
	tv->tv_sec = us / USEC_PER_SEC;
	tv->tv_usec = us % USEC_PER_SEC;
}

static void add_ticks(clock_t *ticks, int64_t ns)
{
	clock_t sum = *ticks + ns / (NSEC_PER_SEC / sysconf(_SC_CLK_TCK));

	*ticks = sum < 0 ? 0 : sum;
}

/* Ignores errors: another thread of the program has unmapped the buffer. */
static void write_back(const struct call *call, uint64_t address, const void *data, size_t len)
{
	(void)!call_write(call, address, data, len);
}

int exit_times(struct call *call)
{
	const int64_t *before = call->process->cpu_before;
	struct tms tms;

	if (call->rval < 0 || !call->args[0] || call_read(call, call->args[0], &tms, sizeof(tms)) < 0)
		return 0;
	add_ticks(&tms.tms_utime, before[CPU_USER]);
	add_ticks(&tms.tms_stime, before[CPU_SYSTEM]);
	add_ticks(&tms.tms_cutime, before[CPU_CHILDREN_USER]);
	add_ticks(&tms.tms_cstime, before[CPU_CHILDREN_SYSTEM]);
	write_back(call, call->args[0], &tms, sizeof(tms));
	return 0;
}

int exit_getrusage(struct call *call)
{
	const int64_t *before = call->process->cpu_before;
	bool children = (int)call->args[0] == RUSAGE_CHILDREN;
	struct timeval tv[2]; /* the first members of struct rusage: user, system */

	if (call->rval < 0 || call_read(call, call->args[1], tv, sizeof(tv)) < 0)
		return 0;
	add_timeval(&tv[0], before[children ? CPU_CHILDREN_USER : CPU_USER]);
	add_timeval(&tv[1], before[children ? CPU_CHILDREN_SYSTEM : CPU_SYSTEM]);
	write_back(call, call->args[1], tv, sizeof(tv));
	return 0;
}

/* The time that `clock` of this process had measured before the restore, 0 for all other clocks. */
static int64_t clock_before(const struct call *call, int32_t clock)
{
	const int64_t *before = call->process->cpu_before;
	const int32_t number = clock_id_number(clock);

	if (clock == CLOCK_PROCESS_CPUTIME_ID)
		return before[CPU_USER] + before[CPU_SYSTEM];
	if (number < 0 || clock & CLOCK_ID_THREAD || (number > 0 && number != call->process->vpid.n))
		return 0;
	return before[CPU_USER] + ((clock & CLOCK_ID_KIND) == CLOCK_ID_VIRT ? 0 : before[CPU_SYSTEM]);
}

int enter_clock_gettime(struct call *call)
{
	int r = call_enter_regular(call);

	return r == SYSCALL_CONTINUE && clock_before(call, (int32_t)call->args[0]) ? SYSCALL_WANT_EXIT : r;
}

int exit_clock_gettime(struct call *call)
{
	struct timespec ts;
	int64_t ns;

	if (call->rval < 0 || call_read(call, call->args[1], &ts, sizeof(ts)) < 0)
		return 0;
	ns = (int64_t)ts.tv_sec * NSEC_PER_SEC + ts.tv_nsec + clock_before(call, (int32_t)call->args[0]);
	ns = ns < 0 ? 0 : ns;
	ts.tv_sec = ns / NSEC_PER_SEC;
	ts.tv_nsec = ns % NSEC_PER_SEC;
	write_back(call, call->args[1], &ts, sizeof(ts));
	return 0;
}
