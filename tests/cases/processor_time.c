/* The processor time used by the process and by children that it waited for never decreases, and grows
 * only a little. */
#include <sys/resource.h>
#include <sys/times.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

enum { USED_MS = 300, SLACK_MS = 5000 };

static long clock_ms(void)
{
	struct timespec ts;

	CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts) == 0);
	return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static long rusage_ms(int who)
{
	struct rusage usage;

	CHECK(getrusage(who, &usage) == 0);
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
	       (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
}

static long times_ms(int children)
{
	struct tms tms;
	long tick = 1000 / sysconf(_SC_CLK_TCK);

	CHECK(times(&tms) != (clock_t)-1);
	return (children ? tms.tms_cutime + tms.tms_cstime : tms.tms_utime + tms.tms_stime) * tick;
}

static void use(void)
{
	long until = clock_ms() + USED_MS;

	while (clock_ms() < until)
		continue;
}

int main(void)
{
	long clock, self, children, ticks, child_ticks;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		use();
		_exit(0);
	}
	CHECK(waitpid(pid, NULL, 0) == pid);
	use();
	clock = clock_ms();
	self = rusage_ms(RUSAGE_SELF);
	children = rusage_ms(RUSAGE_CHILDREN);
	ticks = times_ms(0);
	child_ticks = times_ms(1);
	CHECK(clock >= USED_MS && self >= USED_MS && children >= USED_MS / 2);
	case_wait();
	CHECK(clock_ms() >= clock && clock_ms() < clock + SLACK_MS);
	CHECK(rusage_ms(RUSAGE_SELF) >= self && rusage_ms(RUSAGE_SELF) < self + SLACK_MS);
	/* The children's times have a resolution of one clock tick. */
	CHECK(rusage_ms(RUSAGE_CHILDREN) >= children - 20 &&
	      rusage_ms(RUSAGE_CHILDREN) < children + SLACK_MS);
	CHECK(times_ms(0) >= ticks && times_ms(1) >= child_ticks - 20);
	case_pass();
}
