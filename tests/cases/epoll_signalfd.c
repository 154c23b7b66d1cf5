/* An epoll instance that watches signalfds reports the signals of the process that added the entry: one
 * that arrives while it waits, one that was pending, each in parent and child; a duplicate of the set,
 * many other entries in it, a disabled one-shot entry. */
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

enum { OTHERS = 100 };

static int watch(int epoll, int signal, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.u64 = 1000 + (uint64_t)signal};
	sigset_t mask;
	int fd;

	sigemptyset(&mask);
	sigaddset(&mask, signal);
	CHECK(sigprocmask(SIG_BLOCK, &mask, NULL) == 0);
	fd = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
	CHECK(fd >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	return fd;
}

static void hear(int epoll, int fd, int signal, int from)
{
	struct signalfd_siginfo info;
	struct epoll_event got[8];

	CHECK(epoll_wait(epoll, got, 8, 5000) == 1 && got[0].data.u64 == 1000 + (uint64_t)signal);
	CHECK(read(fd, &info, sizeof(info)) == sizeof(info) && (int)info.ssi_signo == signal &&
	      (int)info.ssi_pid == from);
	CHECK(epoll_wait(epoll, got, 8, 0) == 0);
}

static int child(int other)
{
	int epoll = epoll_create1(0), urgent = watch(epoll, SIGURG, EPOLLIN);

	CHECK(eventfd_write(other, 1) == 0);
	hear(epoll, urgent, SIGURG, getppid());
	CHECK(kill(getppid(), SIGUSR2) == 0);
	hear(epoll, urgent, SIGURG, getppid());
	return 0;
}

int main(void)
{
	int epoll = epoll_create1(0), ready = eventfd(0, 0), status;
	int usual = watch(epoll, SIGUSR2, EPOLLIN), pending = watch(epoll, SIGUSR1, EPOLLIN | EPOLLET);
	int once = watch(epoll, SIGHUP, EPOLLIN | EPOLLONESHOT);
	struct epoll_event got[8];
	eventfd_t value;
	pid_t pid;

	for (int i = 0; i < OTHERS; i++) {
		struct epoll_event event = {.events = EPOLLIN};

		CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, eventfd(0, 0), &event) == 0);
	}
	CHECK(dup(epoll) > 0);
	CHECK(kill(getpid(), SIGHUP) == 0 && epoll_wait(epoll, got, 8, 0) == 1);
	pid = fork();
	if (pid == 0)
		return child(ready);
	CHECK(eventfd_read(ready, &value) == 0);
	CHECK(kill(getpid(), SIGUSR1) == 0);

	case_wait();
	hear(epoll, pending, SIGUSR1, getpid());
	CHECK(kill(pid, SIGURG) == 0);
	hear(epoll, usual, SIGUSR2, pid);
	CHECK(kill(pid, SIGURG) == 0);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	struct epoll_event again = {.events = EPOLLIN, .data.u64 = 1000 + SIGHUP};
	CHECK(epoll_ctl(epoll, EPOLL_CTL_MOD, once, &again) == 0);
	hear(epoll, once, SIGHUP, getpid());
	case_pass();
}
