/* Processes that guard themselves against inspection: not dumpable, behind a filter of their own, traced
 * by one of their own. They fork, and remain so. */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "case.h"

enum { ROUNDS = 10 };

static void expect_exit(pid_t pid, int code)
{
	int status;

	CHECK(pid > 0);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status));
	CHECK(WEXITSTATUS(status) == code);
}

static void not_dumpable(void)
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (pid == 0) {
		pid_t inner;

		if (prctl(PR_SET_DUMPABLE, 0) < 0)
			_exit(90);
		inner = fork();
		if (inner == 0)
			_exit(prctl(PR_GET_DUMPABLE) == 0 ? 31 : 91);
		if (waitpid(inner, &status, 0) != inner || !WIFEXITED(status) || WEXITSTATUS(status) != 31)
			_exit(92);
		inner = vfork();
		if (inner == 0) {
			execl("/bin/true", "true", (char *)NULL);
			_exit(93);
		}
		if (waitpid(inner, &status, 0) != inner || status != 0)
			_exit(94);
		_exit(prctl(PR_GET_DUMPABLE) == 0 ? 32 : 95);
	}
	expect_exit(pid, 32);
}

/* Installs a filter with `action` for pause(), which also catches injected calls of pause(). */
static int forbid_pause(unsigned action)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pause, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, action),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0;
}

static void filtered(unsigned action)
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (pid == 0) {
		if (forbid_pause(action))
			_exit(90);
		for (int i = 0; i < 3; i++) {
			pid_t inner = i == 1 ? vfork() : fork();

			if (inner == 0)
				_exit(33);
			if (waitpid(inner, &status, 0) != inner)
				_exit(91);
			if (!WIFEXITED(status) || WEXITSTATUS(status) != 33)
				_exit(92);
		}
		_exit(34);
	}
	expect_exit(pid, 34);
}

static void all(void)
{
	for (int i = 0; i < ROUNDS; i++) {
		not_dumpable();
		filtered(SECCOMP_RET_ERRNO | EPERM);
		filtered(SECCOMP_RET_KILL_PROCESS);
	}
}

int main(void)
{
	all();
	case_wait();
	all();
	case_pass();
}
