/* Stops and continues: the program and its parent see those of the program, once each, and no others.
 * Signals sent to a child at its birth all arrive. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "case.h"

enum { ROUNDS = 25 };

static volatile sig_atomic_t got;
static volatile int *continued; /* shared with the children */

static void on_usr1(int sig)
{
	got++;
}

static void on_cont(int sig)
{
	++*continued;
}

static void expect(pid_t pid, int how, int code, int value)
{
	siginfo_t info = {0};

	CHECK(waitid(P_PID, (id_t)pid, &info, how) == 0);
	CHECK(info.si_pid == pid);
	CHECK(info.si_code == code);
	CHECK(info.si_status == value);
}

static void expect_nothing(pid_t pid)
{
	siginfo_t info = {0};

	CHECK(waitid(P_PID, (id_t)pid, &info, WSTOPPED | WCONTINUED | WEXITED | WNOHANG) == 0);
	CHECK(info.si_pid == 0);
}

/* Stopped and continued from outside, several times; the handler of SIGCONT runs each time. */
static void stop_and_continue(int stop_signal)
{
	pid_t pid;

	*continued = 0;
	signal(SIGCONT, on_cont);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		while (*continued < 3)
			case_sleep_ms(1);
		_exit(11);
	}
	for (int i = 0; i < 3; i++) {
		expect_nothing(pid);
		CHECK(kill(pid, stop_signal) == 0);
		expect(pid, WSTOPPED, CLD_STOPPED, stop_signal);
		expect_nothing(pid);
		CHECK(kill(pid, SIGCONT) == 0);
		if (i < 2)
			expect(pid, WCONTINUED, CLD_CONTINUED, SIGCONT);
		while (*continued <= i) /* a stop signal would cancel the SIGCONT that is not handled yet */
			case_sleep_ms(1);
	}
	expect(pid, WEXITED, CLD_EXITED, 11);
	signal(SIGCONT, SIG_DFL);
}

/* It stops itself. */
static void stop_oneself(void)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		raise(SIGSTOP);
		_exit(12);
	}
	expect(pid, WSTOPPED, CLD_STOPPED, SIGSTOP);
	CHECK(kill(pid, SIGCONT) == 0);
	expect(pid, WEXITED, CLD_EXITED, 12);
}

/* A stopped child is killed. */
static void kill_stopped(void)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		raise(SIGTSTP);
		_exit(13);
	}
	expect(pid, WSTOPPED, CLD_STOPPED, SIGTSTP);
	CHECK(kill(pid, SIGKILL) == 0);
	expect(pid, WEXITED, CLD_KILLED, SIGKILL);
}

/* Signals sent at once, while the child may not have run its first instruction. */
static void signals_at_birth(void)
{
	sigset_t usr1, old;
	pid_t pid;

	signal(SIGUSR1, on_usr1);
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	sigprocmask(SIG_BLOCK, &usr1, &old);
	got = 0;
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		sigsuspend(&old);
		_exit(got == 1 ? 14 : 99);
	}
	CHECK(kill(pid, SIGUSR1) == 0);
	expect(pid, WEXITED, CLD_EXITED, 14);
	sigprocmask(SIG_SETMASK, &old, NULL);

	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		for (;;)
			pause();
	CHECK(kill(pid, SIGTERM) == 0);
	expect(pid, WEXITED, CLD_KILLED, SIGTERM);

	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		for (;;)
			pause();
	CHECK(kill(pid, SIGKILL) == 0);
	expect(pid, WEXITED, CLD_KILLED, SIGKILL);
}

static void stop_at_birth(void)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0)
		_exit(15);
	CHECK(kill(pid, SIGSTOP) == 0);
	CHECK(kill(pid, SIGCONT) == 0);
	/* The child may have exited before, and may have been stopped; it exits with its status. */
	for (;;) {
		siginfo_t info = {0};

		CHECK(waitid(P_PID, (id_t)pid, &info, WEXITED | WSTOPPED | WCONTINUED) == 0);
		if (info.si_code == CLD_EXITED) {
			CHECK(info.si_status == 15);
			break;
		}
		CHECK((info.si_code == CLD_STOPPED && info.si_status == SIGSTOP) ||
		      info.si_code == CLD_CONTINUED);
	}
}

/* A lasting stop: the child is stopped during the wait of the case and continued much later. */
static void stop_at_birth_and_stay(void)
{
	pid_t pid = fork();
	siginfo_t info = {0};

	CHECK(pid >= 0);
	if (pid == 0) {
		case_sleep_ms(1);
		_exit(16);
	}
	CHECK(kill(pid, SIGSTOP) == 0);
	CHECK(waitid(P_PID, (id_t)pid, &info, WEXITED | WSTOPPED) == 0);
	if (info.si_code == CLD_STOPPED) {
		case_sleep_ms(3);
		expect_nothing(pid);
		CHECK(kill(pid, SIGCONT) == 0);
		/* it may have exited before this wait: then the kernel has dropped the continue */
		CHECK(waitid(P_PID, (id_t)pid, &info, WCONTINUED | WEXITED) == 0 && info.si_pid == pid);
		if (info.si_code == CLD_CONTINUED)
			expect(pid, WEXITED, CLD_EXITED, 16);
		else
			CHECK(info.si_code == CLD_EXITED && info.si_status == 16);
	}
}

static void all(void)
{
	stop_and_continue(SIGSTOP);
	stop_and_continue(SIGTSTP);
	for (int i = 0; i < ROUNDS; i++) {
		stop_oneself();
		kill_stopped();
		signals_at_birth();
		stop_at_birth();
		stop_at_birth_and_stay();
	}
}

int main(void)
{
	continued = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(continued != MAP_FAILED);
	setpgid(0, 0); /* the group must not be orphaned: SIGTSTP would be dropped */
	if (fork() == 0) {
		/* A member of the session outside the group keeps the group from being orphaned. */
		setpgid(0, 0);
		all();
		case_wait();
		all();
		case_pass();
	}
	{
		int status;

		CHECK(wait(&status) > 0);
		return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	}
}
