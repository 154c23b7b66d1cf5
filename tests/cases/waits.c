/* Results of wait() and similar calls: by group, without reaping, of zombies, with SIGCHLD ignored, of
 * orphans adopted by a subreaper. Many children at once. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "case.h"

enum { MANY = 60, BURST = 400 };

static void zombies(void)
{
	pid_t pid = fork();
	siginfo_t info = {0};
	int status;

	CHECK(pid >= 0);
	if (pid == 0)
		_exit(41);
	CHECK(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) == 0);
	CHECK(info.si_pid == pid && info.si_status == 41 && info.si_code == CLD_EXITED);
	CHECK(kill(pid, 0) == 0); /* still there */
	CHECK(waitid(P_ALL, 0, &info, WEXITED | WNOWAIT) == 0 && info.si_pid == pid);
	CHECK(waitpid(-1, &status, WNOHANG) == pid && WEXITSTATUS(status) == 41);
	CHECK(kill(pid, 0) == -1 && errno == ESRCH);
	CHECK(waitpid(-1, &status, WNOHANG) == -1 && errno == ECHILD);
}

static void groups(void)
{
	pid_t a = fork(), b;
	int status;

	CHECK(a >= 0);
	if (a == 0) {
		setpgid(0, 0);
		_exit(42);
	}
	setpgid(a, a);
	b = fork();
	CHECK(b >= 0);
	if (b == 0)
		_exit(43);
	CHECK(waitpid(-a, &status, 0) == a && WEXITSTATUS(status) == 42);
	CHECK(waitpid(-a, &status, 0) == -1 && errno == ECHILD);
	CHECK(waitpid(0, &status, 0) == b && WEXITSTATUS(status) == 43);
}

static void ignored(void)
{
	pid_t pid;
	int status;

	signal(SIGCHLD, SIG_IGN);
	for (int i = 0; i < 5; i++) {
		pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			_exit(44);
	}
	CHECK(wait(&status) == -1 && errno == ECHILD);
	signal(SIGCHLD, SIG_DFL);
}

static void orphans(void)
{
	int to_parent[2], status;
	pid_t child, orphan;

	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
	CHECK(pipe(to_parent) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		orphan = fork();
		if (orphan == 0) {
			case_sleep_ms(5);
			_exit(45);
		}
		_exit(write(to_parent[1], &orphan, sizeof(orphan)) != sizeof(orphan));
	}
	CHECK(read(to_parent[0], &orphan, sizeof(orphan)) == sizeof(orphan));
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(waitpid(orphan, &status, 0) == orphan && WEXITSTATUS(status) == 45);
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 0) == 0);
	close(to_parent[0]);
	close(to_parent[1]);
}

static void signalled(void)
{
	static const int signals[] = {SIGHUP, SIGKILL, SIGSEGV, SIGALRM, SIGTERM, SIGUSR2};

	for (unsigned i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
		pid_t pid = fork();
		int status;

		CHECK(pid >= 0);
		if (pid == 0) {
			raise(signals[i]);
			_exit(99);
		}
		CHECK(waitpid(pid, &status, 0) == pid);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == signals[i]);
	}
}

static void many(int n)
{
	static pid_t pids[BURST];
	int status, left = n;

	for (int i = 0; i < n; i++) {
		pids[i] = fork();
		CHECK(pids[i] >= 0);
		if (pids[i] == 0)
			_exit(i & 127);
	}
	while (left--) {
		pid_t pid = wait(&status);
		int i;

		CHECK(pid > 0 && WIFEXITED(status));
		for (i = 0; i < n && pids[i] != pid; i++)
			continue;
		CHECK(i < n && WEXITSTATUS(status) == (i & 127));
		pids[i] = 0;
	}
	CHECK(wait(&status) == -1 && errno == ECHILD);
}

static void all(void)
{
	for (int i = 0; i < 5; i++) {
		zombies();
		groups();
		ignored();
		orphans();
		signalled();
		many(MANY);
	}
	many(BURST);
}

int main(void)
{
	all();
	case_wait();
	all();
	case_pass();
}
