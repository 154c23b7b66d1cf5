/* Threads made with an exit signal or CLONE_VFORK, which the kernel reports to a tracer as it reports
 * processes, are threads of their process: they run on, and no child appears. */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

enum { STACK = 1 << 16 };

static _Atomic uint32_t runs, stop;
static pid_t made[2], own[2];

static int run_on(void *arg)
{
	own[0] = (pid_t)syscall(SYS_gettid);
	while (!stop) {
		runs++;
		case_sleep_ms(1);
	}
	syscall(SYS_exit, 0);
	return 0;
}

/* Its maker waits meanwhile. */
static int end_soon(void *arg)
{
	own[1] = (pid_t)syscall(SYS_gettid);
	case_sleep_ms(20);
	syscall(SYS_exit, 0);
	return 0;
}

static pid_t make(int (*function)(void *), int flags)
{
	char *stack =
		mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);

	CHECK(stack != MAP_FAILED);
	return clone(function, stack + STACK,
		     CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | flags,
		     NULL);
}

static void check_threads(void)
{
	const uint32_t before = runs;
	char path[64];

	CHECK(made[0] == own[0] && made[1] == own[1]);
	for (int ms = 0; runs == before && ms < 10000; ms += 5)
		case_sleep_ms(5);
	CHECK(runs != before);
	snprintf(path, sizeof(path), "/proc/self/task/%d", made[0]);
	CHECK(access(path, F_OK) == 0);
	CHECK(syscall(SYS_tgkill, getpid(), made[0], 0) == 0);
	CHECK(waitpid(-1, NULL, __WALL) == -1 && errno == ECHILD);
}

int main(void)
{
	made[0] = make(run_on, SIGCHLD);
	CHECK(made[0] > 0);
	made[1] = make(end_soon, CLONE_VFORK);
	CHECK(made[1] > 0);
	check_threads();
	case_wait();
	check_threads();
	made[1] = make(end_soon, CLONE_VFORK | SIGUSR1);
	check_threads();
	stop = 1;
	case_pass();
}
