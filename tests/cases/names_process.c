/* Numbers of processes, groups and sessions: every call that returns or takes one uses the same number,
 * before and after. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

static volatile sig_atomic_t sender, child_of_signal, value;

static void on_signal(int sig, siginfo_t *info, void *context)
{
	if (sig == SIGCHLD)
		child_of_signal = info->si_pid;
	else
		sender = info->si_pid;
	value = info->si_value.sival_int;
}

static void catch (int sig)
{
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};

	CHECK(sigaction(sig, &action, NULL) == 0);
}

/* A child that reports its number and its parent's, and exits on request. */
struct child {
	pid_t pid;
	int to, from;
};
struct said {
	pid_t pid, ppid, pgid, sid, raw;
};

static struct child make_child(int group)
{
	int to[2], from[2];
	struct child child;

	CHECK(pipe(to) == 0 && pipe(from) == 0);
	child.pid = fork();
	CHECK(child.pid >= 0);
	if (child.pid == 0) {
		char c;

		close(to[1]);
		close(from[0]);
		if (group && setpgid(0, 0) < 0)
			_exit(1);
		while (read(to[0], &c, 1) == 1) {
			struct said said = {getpid(), getppid(), getpgrp(), getsid(0),
					    (pid_t)syscall(SYS_gettid)};

			if (c == 'k' && kill(getppid(), SIGUSR1) < 0)
				_exit(2);
			if (c == 'q' && sigqueue(getppid(), SIGUSR2, (union sigval){.sival_int = 77}) < 0)
				_exit(3);
			if (c == 'x')
				_exit(7);
			if (write(from[1], &said, sizeof(said)) != sizeof(said))
				_exit(4);
		}
		_exit(0);
	}
	close(to[0]);
	close(from[1]);
	child.to = to[1];
	child.from = from[0];
	return child;
}

static struct said ask(const struct child *child, char c)
{
	struct said said;

	CHECK(write(child->to, &c, 1) == 1);
	CHECK(read(child->from, &said, sizeof(said)) == sizeof(said));
	return said;
}

static void check_child(const struct child *child, int group)
{
	struct said said = ask(child, '?');
	struct rlimit limit;
	static char byte = 5; /* if it is the same in the child */
	char copy = 1;
	struct iovec local = {&copy, 1}, remote = {&byte, 1};
	int fd;

	CHECK(said.pid == child->pid && said.raw == child->pid);
	CHECK(said.ppid == getpid());
	CHECK(said.sid == getsid(0));
	CHECK(said.pgid == (group ? child->pid : getpgrp()));
	CHECK(getpgid(child->pid) == said.pgid);
	CHECK(getsid(child->pid) == said.sid);
	CHECK(kill(child->pid, 0) == 0);
	if (group)
		CHECK(kill(-child->pid, 0) == 0);
	CHECK(waitpid(child->pid, NULL, WNOHANG) == 0);
	CHECK(prlimit(child->pid, RLIMIT_NOFILE, NULL, &limit) == 0);
	errno = 0;
	CHECK(getpriority(PRIO_PROCESS, (id_t)child->pid) >= -20 && errno == 0);
	fd = (int)syscall(SYS_pidfd_open, child->pid, 0);
	CHECK(fd >= 0 && syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0) == 0);
	close(fd);
	CHECK(process_vm_readv(child->pid, &local, 1, &remote, 1, 0) == 1 && copy == 5);
	CHECK(syscall(SYS_kcmp, getpid(), child->pid, 1 /* KCMP_VM */, 0, 0) > 0);
	sender = value = 0;
	ask(child, 'k');
	CHECK(sender == child->pid);
	ask(child, 'q');
	CHECK(sender == child->pid && value == 77);
}

static void check_end(struct child child, int how)
{
	siginfo_t info = {0};
	struct pollfd poll_fd = {.events = POLLIN};
	int status = 0;

	child_of_signal = 0;
	poll_fd.fd = (int)syscall(SYS_pidfd_open, child.pid, 0);
	CHECK(poll_fd.fd >= 0 && write(child.to, "x", 1) == 1);
	CHECK(poll(&poll_fd, 1, 10000) == 1);
	switch (how) {
	case 0:
		CHECK(waitpid(child.pid, &status, 0) == child.pid);
		break;
	case 1:
		CHECK(wait(&status) == child.pid);
		break;
	case 2:
		CHECK(waitid(P_PID, (id_t)child.pid, &info, WEXITED | WNOWAIT) == 0 &&
		      info.si_pid == child.pid);
		CHECK(waitid(P_ALL, 0, &info, WEXITED) == 0);
		break;
	case 3:
		CHECK(waitid(P_PIDFD, (id_t)poll_fd.fd, &info, WEXITED) == 0);
		break;
	default:
		CHECK(waitpid(-child.pid, &status, 0) == child.pid);
	}
	if (how == 2 || how == 3)
		CHECK(info.si_pid == child.pid && info.si_code == CLD_EXITED && info.si_status == 7);
	else
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	CHECK(child_of_signal == child.pid);
	CHECK(kill(child.pid, 0) < 0 && errno == ESRCH);
	CHECK(waitpid(child.pid, &status, WNOHANG) < 0 && errno == ECHILD);
	close(poll_fd.fd);
	close(child.to);
	close(child.from);
}

/* SIGCHLD received by sigwaitinfo(), and a signal with a value. */
static void check_waiting_for_signals(void)
{
	siginfo_t info;
	sigset_t set, old;
	pid_t pid;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGUSR2);
	CHECK(sigprocmask(SIG_BLOCK, &set, &old) == 0);
	pid = fork();
	if (pid == 0)
		_exit(3);
	CHECK(sigwaitinfo(&set, &info) == SIGCHLD && info.si_pid == pid && info.si_status == 3);
	CHECK(waitpid(pid, NULL, 0) == pid);
	CHECK(sigqueue(getpid(), SIGUSR2, (union sigval){.sival_int = 5}) == 0);
	CHECK(sigwaitinfo(&set, &info) == SIGUSR2 && info.si_pid == getpid() && info.si_value.sival_int == 5);
	memset(&info, 0, sizeof(info));
	info.si_signo = SIGUSR2;
	info.si_code = SI_QUEUE;
	info.si_pid = getpid();
	CHECK(syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), SIGUSR2, &info) == 0);
	CHECK(sigwaitinfo(&set, &info) == SIGUSR2 && info.si_pid == getpid());
	CHECK(sigprocmask(SIG_SETMASK, &old, NULL) == 0);
}

static void check_vfork_and_spawn(void)
{
	static char *const argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)"exit $((($$ == $0) ? 5 : 6))",
				     NULL, NULL};
	char *args[5];
	char number[16];
	int fds[2], status;
	pid_t pid, told;

	CHECK(pipe(fds) == 0);
	pid = vfork();
	if (pid == 0) {
		told = getpid();
		_exit(write(fds[1], &told, sizeof(told)) == sizeof(told) ? 0 : 1);
	}
	CHECK(read(fds[0], &told, sizeof(told)) == sizeof(told) && told == pid);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	/* a shell's own number is the one that its parent got */
	memcpy(args, argv, sizeof(argv));
	args[2] = (char *)"read n; exit $((($$ == n) ? 5 : 6))";
	CHECK(dup2(fds[0], 0) == 0 || 1);
	{
		posix_spawn_file_actions_t actions;

		CHECK(posix_spawn_file_actions_init(&actions) == 0);
		CHECK(posix_spawn_file_actions_adddup2(&actions, fds[0], 0) == 0);
		CHECK(posix_spawn(&pid, "/bin/sh", &actions, NULL, args, environ) == 0);
		posix_spawn_file_actions_destroy(&actions);
	}
	snprintf(number, sizeof(number), "%d\n", pid);
	CHECK(write(fds[1], number, strlen(number)) == (ssize_t)strlen(number));
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 5);
	close(fds[0]);
	close(fds[1]);
}

/* clone3 with a pidfd, the child's number in the parent's memory. */
static void check_clone3(void)
{
	int pidfd = -1, status;
	pid_t told = 0, pid;
	uint64_t args[8] = {0x00001000 /* PIDFD */ | 0x00100000 /* PARENT_SETTID */, (uint64_t)&pidfd, 0,
			    (uint64_t)&told, SIGCHLD};

	pid = (pid_t)syscall(SYS_clone3, args, sizeof(args));
	if (pid == 0)
		_exit((int)syscall(SYS_getpid) == (int)syscall(SYS_gettid) ? 9 : 8);
	CHECK(pid > 0 && told == pid && pidfd >= 0);
	CHECK(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 9);
	close(pidfd);
}

static void check_session(void)
{
	int status;
	pid_t pid = fork();

	if (pid == 0)
		_exit(setsid() == getpid() && getsid(0) == getpid() && getpgrp() == getpid() &&
				      getpgid(getpid()) == getpid() && setsid() == -1
			      ? 0
			      : 1);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void check_all(struct child *plain, struct child *group)
{
	check_child(plain, 0);
	check_child(group, 1);
	CHECK(setpgid(plain->pid, group->pid) == 0 && getpgid(plain->pid) == group->pid);
	CHECK(setpgid(plain->pid, getpgrp()) == 0 && getpgid(plain->pid) == getpgrp());
	CHECK(setpgid(plain->pid, 2147480000) < 0);
	CHECK(kill(2147480000, 0) < 0 && errno == ESRCH);
	check_vfork_and_spawn();
	check_clone3();
	check_session();
	for (int how = 0; how < 4; how++)
		if (how != 1 && how != 2) /* any child: there must be exactly one */
			check_end(make_child(0), how);
	check_end(make_child(1), 4);
}

int main(void)
{
	pid_t pid = getpid(), parent = getppid(), group = getpgrp(), session = getsid(0);
	struct child a, b;

	CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
	catch (SIGUSR1);
	catch (SIGUSR2);
	catch (SIGCHLD);
	CHECK(pid == syscall(SYS_gettid) && pid > 0);
	check_waiting_for_signals();
	check_end(make_child(0), 1);
	check_end(make_child(0), 2);
	a = make_child(0);
	b = make_child(1);
	ask(&b, '?');
	check_all(&a, &b);
	case_wait();
	CHECK(getpid() == pid && getppid() == parent && getpgrp() == group && getsid(0) == session);
	CHECK(syscall(SYS_gettid) == pid && syscall(SYS_set_tid_address, NULL) == pid);
	CHECK(sender == b.pid && child_of_signal > 0);
	check_all(&a, &b);
	check_end(a, 0);
	check_end(b, 1);
	check_waiting_for_signals();
	check_end(make_child(0), 1);
	check_end(make_child(0), 2);
	case_pass();
}
