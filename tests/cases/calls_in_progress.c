/* Calls that a freeze interrupts continue: none returns EINTR, none waits shorter or longer than the pause
 * explains, none loses data. */
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

enum { LONG_MS = 600 };

static int pipe_fds[2], pair[2], full[2];
static pid_t child;
static atomic_int done;
static uint32_t word;

/* Checks the seconds of `what`: at least its timeout; how much more depends on the checkpoints. */
static struct timespec begun(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now;
}

static void took_at_least(struct timespec from, long ms, const char *what)
{
	struct timespec now = begun();
	long took = (now.tv_sec - from.tv_sec) * 1000 + (now.tv_nsec - from.tv_nsec) / 1000000;

	if (took < ms - 5)
		case_fail("%s came back after %ld ms, %ld were asked for", what, took, ms);
}

static void *sleeps(void *arg)
{
	struct timespec ms = {.tv_nsec = LONG_MS * 1000000L}, left, from;

	do {
		from = begun();
		CHECK(nanosleep(&ms, &left) == 0);
		took_at_least(from, LONG_MS, "nanosleep");
	} while (!case_going());
	done++;
	return NULL;
}

static void *polls(void *arg)
{
	struct pollfd fd = {.fd = pipe_fds[0], .events = POLLIN};

	do {
		struct timespec from = begun();
		CHECK(poll(&fd, 1, LONG_MS) == 0);
		took_at_least(from, LONG_MS, "poll");
	} while (!case_going());
	done++;
	return NULL;
}

static void *selects(void *arg)
{
	do {
		struct timeval tv = {.tv_usec = LONG_MS * 1000};
		struct timespec from = begun();
		fd_set set;
		FD_ZERO(&set);
		FD_SET(pipe_fds[0], &set);
		CHECK(select(pipe_fds[0] + 1, &set, NULL, NULL, &tv) == 0);
		took_at_least(from, LONG_MS, "select");
	} while (!case_going());
	done++;
	return NULL;
}

static void *epolls(void *arg)
{
	struct epoll_event event = {.events = EPOLLIN};
	int epoll = epoll_create1(0);

	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, pipe_fds[0], &event) == 0);
	do {
		struct timespec from = begun();
		CHECK(epoll_wait(epoll, &event, 1, LONG_MS) == 0);
		took_at_least(from, LONG_MS, "epoll_wait");
	} while (!case_going());
	done++;
	return NULL;
}

static void *futexes(void *arg)
{
	do {
		struct timespec ms = {.tv_nsec = LONG_MS * 1000000L}, from = begun();
		CHECK(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &ms, NULL, 0) == -1 &&
		      errno == ETIMEDOUT);
		took_at_least(from, LONG_MS, "futex");
	} while (!case_going());
	done++;
	return NULL;
}

static void *waits_for_signal(void *arg)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	do {
		struct timespec ms = {.tv_nsec = LONG_MS * 1000000L}, from = begun();
		CHECK(sigtimedwait(&set, NULL, &ms) == -1 && errno == EAGAIN);
		took_at_least(from, LONG_MS, "sigtimedwait");
	} while (!case_going());
	done++;
	return NULL;
}

static void *reads(void *arg)
{
	char text[8];

	CHECK(read(pipe_fds[0], text, sizeof(text)) == 5 && memcmp(text, "piped", 5) == 0);
	done++;
	return NULL;
}

static void *receives(void *arg)
{
	char text[16];

	CHECK(recv(pair[0], text, 10, MSG_WAITALL) == 10 && memcmp(text, "halfwhole!", 10) == 0);
	done++;
	return NULL;
}

/* A write larger than the pipe: part of it is in the pipe when it is interrupted. */
static void *writes(void *arg)
{
	char *block = malloc(200000);

	for (int i = 0; i < 200000; i++)
		block[i] = (char)(i * 31 >> 3);
	CHECK(write(full[1], block, 200000) == 200000);
	free(block);
	done++;
	return NULL;
}

static void *waits_for_child(void *arg)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 23);
	done++;
	return NULL;
}

int main(void)
{
	void *(*const runs[])(void *) = {
		sleeps, selects, futexes, waits_for_signal, receives, writes, waits_for_child, polls, epolls};
	enum { RUNS = sizeof(runs) / sizeof(*runs) };
	pthread_t thread[RUNS], reader;
	sigset_t set;
	char c;

	CHECK(pipe(pipe_fds) == 0 && pipe(full) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	child = fork();
	if (child == 0) {
		while (!case_going())
			case_sleep_ms(20);
		_exit(23);
	}
	for (int i = 0; i < RUNS; i++)
		CHECK(pthread_create(&thread[i], NULL, runs[i], NULL) == 0);
	CHECK(send(pair[1], "half", 4, 0) == 4);
	case_sleep_ms(100);

	case_wait();
	for (int i = 0; i < 200000; i++)
		CHECK(read(full[0], &c, 1) == 1 && c == (char)(i * 31 >> 3));
	CHECK(send(pair[1], "whole!", 6, 0) == 6);
	for (int i = 0; i < RUNS; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
	CHECK(pthread_create(&reader, NULL, reads, NULL) == 0);
	case_sleep_ms(20);
	CHECK(write(pipe_fds[1], "piped", 5) == 5 && pthread_join(reader, NULL) == 0);
	CHECK(done == RUNS + 1);
	case_pass();
}
