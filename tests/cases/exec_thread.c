/* exec by a thread that is not the leader, while others run; a leader that exits before its threads;
 * threads that start and exit while others fork. */
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "case.h"

enum { ROUNDS = 15, SPINNERS = 5 };

static char self[4096]; /* not /proc/self/exe, which does not exist once the leader has exited */

static void *spin(void *arg)
{
	for (;;)
		getppid();
	return NULL;
}

static void *execute(void *arg)
{
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", getpid());
	execl(self, self, "executed", pid, (char *)NULL);
	_exit(98);
}

static void exec_by_thread(void)
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (pid == 0) {
		pthread_t t;

		for (int i = 0; i < SPINNERS; i++)
			if (pthread_create(&t, NULL, spin, NULL) != 0)
				_exit(97);
		if (pthread_create(&t, NULL, execute, NULL) != 0)
			_exit(97);
		for (;;)
			pause();
	}
	CHECK(waitpid(pid, &status, WUNTRACED) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 21);
}

static void *outlive(void *arg)
{
	case_sleep_ms(5);
	_exit(22);
}

static void leader_goes(void)
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (pid == 0) {
		pthread_t t;

		if (pthread_create(&t, NULL, outlive, NULL) != 0)
			_exit(97);
		syscall(SYS_exit, 5);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 22);
}

static void *exec_after_leader(void *arg)
{
	case_sleep_ms(3);
	return execute(arg);
}

static void leader_goes_then_exec(void)
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (pid == 0) {
		pthread_t t;

		if (pthread_create(&t, NULL, exec_after_leader, NULL) != 0)
			_exit(97);
		syscall(SYS_exit, 5);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 21);
}

static void *nothing(void *arg)
{
	return arg;
}

static void *churn(void *arg)
{
	for (int i = 0; i < 40; i++) {
		pthread_t t;
		int token = i;
		void *back;

		if (pthread_create(&t, NULL, nothing, &token) != 0 || pthread_join(t, &back) != 0 ||
		    back != &token)
			return (void *)1;
	}
	return NULL;
}

static void threads_and_forks(void)
{
	pthread_t t[3];
	void *bad;
	int status;

	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&t[i], NULL, churn, NULL) == 0);
	for (int i = 0; i < 10; i++) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(churn(NULL) ? 1 : i);
		CHECK(waitpid(pid, &status, 0) == pid);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == i);
	}
	for (int i = 0; i < 3; i++) {
		CHECK(pthread_join(t[i], &bad) == 0);
		CHECK(!bad);
	}
}

/* All threads are killed at once, while they create others. */
static void *breed(void *arg)
{
	for (;;) {
		pthread_t t;
		pid_t pid;

		if (pthread_create(&t, NULL, nothing, NULL) == 0)
			pthread_join(t, NULL);
		pid = fork();
		if (pid == 0)
			_exit(0);
		if (pid > 0)
			waitpid(pid, NULL, 0);
	}
	return NULL;
}

static void killed_while_breeding(int ms)
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (pid == 0) {
		pthread_t t;

		for (int i = 0; i < 3; i++)
			pthread_create(&t, NULL, breed, NULL);
		breed(NULL);
	}
	case_sleep_ms(ms);
	CHECK(kill(pid, SIGKILL) == 0);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void all(void)
{
	for (int i = 0; i < ROUNDS; i++) {
		exec_by_thread();
		leader_goes();
		leader_goes_then_exec();
		killed_while_breeding(1 + i % 7);
	}
	threads_and_forks();
}

int main(int argc, char **argv)
{
	if (argc == 3)
		return getpid() == atoi(argv[2]) && syscall(SYS_gettid) == getpid() ? 21 : 99;
	CHECK(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
	all();
	case_wait();
	all();
	case_pass();
}
