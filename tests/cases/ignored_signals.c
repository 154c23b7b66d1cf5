/* Waits with a timeout end in time although ignored signals keep arriving, and continue with the time left.
 * A traced thread is woken by these signals; each wait would begin again. */
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "tests/cases/case.h"

enum { TIMEOUT_S = 2, PATIENCE_S = 25, EVERY_MS = 20 };

static const struct timespec timeout = {.tv_sec = TIMEOUT_S};
static int set, semaphores, datagrams, full, listener;

static long wait_epoll(void)
{
	struct epoll_event event;

	return epoll_wait(set, &event, 1, TIMEOUT_S * 1000);
}

static long wait_epoll_timespec(void)
{
	struct epoll_event event;

	return syscall(SYS_epoll_pwait2, set, &event, 1, &timeout, NULL, 0);
}

static long wait_signal(void)
{
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR2);
	return sigtimedwait(&signals, NULL, &timeout);
}

static long wait_semaphore(void)
{
	struct sembuf take = {.sem_op = -1};

	return semtimedop(semaphores, &take, 1, &timeout);
}

static long wait_read(void)
{
	char byte;

	return read(datagrams, &byte, 1);
}

static long wait_receive(void)
{
	char byte;

	return recv(datagrams, &byte, 1, 0);
}

static long wait_accept(void)
{
	return accept(listener, NULL, NULL);
}

/* The queue of a restored socket may have more room than the saved one had. */
static long wait_send(void)
{
	const long sent = send(full, "x", 1, 0);

	if (sent != 1)
		return sent;
	errno = EAGAIN;
	return -1;
}

static const struct {
	long (*wait)(void);
	int error; /* 0: the call returns 0 */
} calls[] = {
	{wait_epoll, 0},     {wait_epoll_timespec, 0}, {wait_signal, EAGAIN}, {wait_semaphore, EAGAIN},
	{wait_read, EAGAIN}, {wait_receive, EAGAIN},   {wait_accept, EAGAIN}, {wait_send, EAGAIN},
};
enum { CALLS = sizeof(calls) / sizeof(calls[0]) };

static pthread_t threads[CALLS];
static atomic_int ended;

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void *make_call(void *arg)
{
	const size_t i = (size_t)arg;
	const double begun = now_s();
	const long result = calls[i].wait();
	const int error = errno;

	if (result != (calls[i].error ? -1 : 0) || (result < 0 && error != calls[i].error))
		case_fail("call %zu returned %ld, %s", i, result, strerror(error));
	if (calls[i].wait != wait_send && now_s() - begun < TIMEOUT_S - 0.1)
		case_fail("call %zu ended after %.3f s", i, now_s() - begun);
	ended++;
	pause();
	return NULL;
}

__attribute__((noreturn)) static void *send_signals(void *arg)
{
	for (;;) {
		for (int i = 0; i < CALLS; i++)
			pthread_kill(threads[i], i % 2 ? SIGWINCH : SIGUSR1);
		case_sleep_ms(EVERY_MS);
	}
}

static void open_sockets(void)
{
	const struct timeval limit = {.tv_sec = TIMEOUT_S};
	const struct sockaddr_in loopback = {.sin_family = AF_INET,
					     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int pair[2];
	char block[4096] = {0};

	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	datagrams = pair[0];
	CHECK(setsockopt(datagrams, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	full = pair[0];
	CHECK(setsockopt(full, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0);
	while (send(full, block, sizeof(block), MSG_DONTWAIT) > 0)
		;
	listener = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(bind(listener, (const struct sockaddr *)&loopback, sizeof(loopback)) == 0);
	CHECK(listen(listener, 1) == 0);
	CHECK(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
}

int main(void)
{
	pthread_t sender;
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR2);
	CHECK(sigprocmask(SIG_BLOCK, &signals, NULL) == 0);
	signal(SIGUSR1, SIG_IGN);
	set = epoll_create1(EPOLL_CLOEXEC);
	semaphores = semget(IPC_PRIVATE, 1, 0600);
	CHECK(set >= 0 && semaphores >= 0);
	open_sockets();
	for (size_t i = 0; i < CALLS; i++)
		CHECK(pthread_create(&threads[i], NULL, make_call, (void *)i) == 0);
	CHECK(pthread_create(&sender, NULL, send_signals, NULL) == 0);
	case_wait();
	for (int ms = 0; ended < CALLS && ms < PATIENCE_S * 1000; ms += 10)
		case_sleep_ms(10);
	if (ended < CALLS)
		case_fail("%d of %d calls have ended", ended, CALLS);
	semctl(semaphores, 0, IPC_RMID);
	case_pass();
}
