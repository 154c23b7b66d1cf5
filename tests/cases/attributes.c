/* Working directory, umask, limits, nice, affinity, scheduling, names, personality, dumpable, timer slack,
 * oom score, descriptors' flags, registrations for memory barriers. */
/* case: root */
#include <fcntl.h>
#include <limits.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "tests/cases/case.h"

static int barrier(int command)
{
	return (int)syscall(SYS_membarrier, command, 0, 0);
}

int main(void)
{
	struct rlimit limit = {.rlim_cur = 77, .rlim_max = 99}, core = {0, 0};
	char before[PATH_MAX], now[PATH_MAX], name[16];
	cpu_set_t cpus;

	CHECK(mkdir("deep", 0700) == 0 && chdir("deep") == 0 && getcwd(before, sizeof(before)) != NULL);
	umask(027);
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0 && setrlimit(RLIMIT_CORE, &core) == 0);
	CHECK(setpriority(PRIO_PROCESS, 0, 7) == 0);
	CPU_ZERO(&cpus);
	CPU_SET(0, &cpus);
	CHECK(sched_setaffinity(0, sizeof(cpus), &cpus) == 0);
	CHECK(sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0}) == 0);
	CHECK(prctl(PR_SET_NAME, "renamed case") == 0 && prctl(PR_SET_TIMERSLACK, 12345) == 0 &&
	      prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
	CHECK(personality(ADDR_NO_RANDOMIZE) != -1);
	CHECK(dup2(1, 55) == 55 && fcntl(55, F_SETFD, FD_CLOEXEC) == 0);
	CHECK(barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0 &&
	      barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ) == 0);

	case_wait();
	CHECK(barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0 &&
	      barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ) == 0);
	CHECK(barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE) == -1 && errno == EPERM);
	CHECK(getcwd(now, sizeof(now)) != NULL && strcmp(now, before) == 0);
	CHECK(umask(0) == 027);
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == 77 && limit.rlim_max == 99);
	CHECK(getrlimit(RLIMIT_CORE, &core) == 0 && core.rlim_max == 0);
	CHECK(getpriority(PRIO_PROCESS, 0) == 7 && sched_getscheduler(0) == SCHED_BATCH);
	CHECK(sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) == 1 && CPU_ISSET(0, &cpus));
	CHECK(prctl(PR_GET_NAME, name) == 0 && strcmp(name, "renamed case") == 0 &&
	      prctl(PR_GET_TIMERSLACK) == 12345);
	int reaper = 0;
	CHECK(prctl(PR_GET_CHILD_SUBREAPER, &reaper) == 0 && reaper == 1);
	CHECK(personality(0xffffffff) == ADDR_NO_RANDOMIZE);
	CHECK(fcntl(55, F_GETFD) == FD_CLOEXEC && fcntl(56, F_GETFD) == -1);
	CHECK(chdir("..") == 0 && rmdir("deep") == 0);
	case_pass();
}
