/* Processes are created in every way, and their parents see the same as natively: one SIGCHLD for each
 * exit, exact statuses, no stop or continue. Before the wait and after it. */
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "case.h"

enum { ROUNDS = 12, THREADS = 4 };

static sigset_t chld;

/* Exactly one SIGCHLD from this child, with this status; then one wait succeeds. */
static void expect_exit(pid_t pid, int code)
{
	struct timespec soon = {.tv_nsec = 1000000}, late = {.tv_sec = 10};
	siginfo_t info;
	int status;

	CHECK(sigtimedwait(&chld, &info, &late) == SIGCHLD);
	CHECK(info.si_pid == pid);
	CHECK(info.si_code == CLD_EXITED);
	CHECK(info.si_status == code);
	CHECK(waitpid(pid, &status, WUNTRACED | WCONTINUED) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code);
	CHECK(waitpid(pid, &status, WNOHANG) == -1 && errno == ECHILD);
	CHECK(sigtimedwait(&chld, &info, &soon) == -1 && errno == EAGAIN);
}

static void by_fork(int code)
{
	pid_t parent = getpid(), pid = fork();

	CHECK(pid >= 0);
	if (pid == 0)
		_exit(getppid() == parent && getpid() != parent ? code : 99);
	expect_exit(pid, code);
}

static void by_vfork(int code)
{
	volatile int seen = 0;
	pid_t pid = vfork();

	CHECK(pid >= 0);
	if (pid == 0) {
		seen = 1;
		_exit(code);
	}
	CHECK(seen == 1);
	expect_exit(pid, code);
}

static void by_vfork_exec(int code)
{
	char script[32];
	pid_t pid;

	snprintf(script, sizeof(script), "exit %d", code);
	pid = vfork();
	CHECK(pid >= 0);
	if (pid == 0) {
		execl("/bin/sh", "sh", "-c", script, (char *)NULL);
		_exit(99);
	}
	expect_exit(pid, code);
}

static void by_spawn(int code)
{
	char script[32];
	char *argv[] = {(char *)"sh", (char *)"-c", script, NULL};
	pid_t pid;

	snprintf(script, sizeof(script), "(exit 1); exit %d", code);
	CHECK(posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, NULL) == 0);
	expect_exit(pid, code);
	CHECK(posix_spawn(&pid, "/nonexistent", NULL, NULL, argv, NULL) == ENOENT);
	while (sigtimedwait(&chld, NULL, &(struct timespec){.tv_nsec = 1000000}) == SIGCHLD)
		continue; /* glibc waits for the failed child itself */
}

static int clone_child(void *code)
{
	return *(int *)code;
}

static void by_clone_vm(int code)
{
	static char stack[65536];
	pid_t pid = clone(clone_child, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, &code);

	CHECK(pid > 0);
	expect_exit(pid, code);
}

static void by_clone3(int code)
{
	struct clone_args args = {.exit_signal = SIGCHLD};
	pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));

	if (pid < 0 && errno == ENOSYS) /* allowed: every libc then uses clone() */
		return;
	CHECK(pid >= 0);
	if (pid == 0)
		_exit(code);
	expect_exit(pid, code);
}

/* Another exit signal: no SIGCHLD, found only with __WCLONE. */
static void by_clone_silent(int code)
{
	pid_t pid = (pid_t)syscall(SYS_clone, 0, 0, 0, 0, 0);
	int status;

	CHECK(pid >= 0);
	if (pid == 0)
		_exit(code);
	CHECK(waitpid(pid, &status, 0) == -1 && errno == ECHILD);
	CHECK(waitpid(pid, &status, __WCLONE) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code);
	CHECK(sigtimedwait(&chld, NULL, &(struct timespec){0}) == -1);
}

static void nested(int code)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		int status, sum = 0;

		for (int i = 0; i < 3; i++) {
			pid_t inner = fork();

			if (inner == 0)
				_exit(i);
			if (waitpid(inner, &status, 0) != inner)
				_exit(98);
			sum += WEXITSTATUS(status);
		}
		_exit(sum == 3 ? code : 99);
	}
	expect_exit(pid, code);
}

/* Several threads fork at the same time. */
static void *forker(void *arg)
{
	for (volatile int i = 0; i < ROUNDS; i++) {
		pid_t pid = i & 1 ? vfork() : fork();
		int status;

		if (pid < 0)
			return (void *)1;
		if (pid == 0)
			_exit(i);
		if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != i)
			return (void *)1;
	}
	return NULL;
}

static void from_threads(void)
{
	pthread_t threads[THREADS];
	void *bad;

	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, forker, NULL) == 0);
	for (int i = 0; i < THREADS; i++) {
		CHECK(pthread_join(threads[i], &bad) == 0);
		CHECK(!bad);
	}
	while (sigtimedwait(&chld, NULL, &(struct timespec){0}) == SIGCHLD)
		continue; /* they run together */
}

static void all(void)
{
	for (int i = 1; i <= ROUNDS; i++) {
		by_fork(i);
		by_vfork(i + 20);
		by_vfork_exec(i + 40);
		by_spawn(i + 60);
		by_clone_vm(i + 80);
		by_clone3(i + 100);
		by_clone_silent(i + 120);
		nested(i + 140);
	}
	from_threads();
}

int main(void)
{
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigprocmask(SIG_BLOCK, &chld, NULL);
	all();
	case_wait();
	all();
	case_pass();
}
