/*
 * The program of the images in this directory (tools/save_image.sh): it makes some state of many kinds,
 * prints "ready", waits for a line, checks the state, and prints "pass". It needs no file when it is
 * restored: it is static, its file is gone when it is saved, and its standard streams are pipes.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                                          \
	do {                                                                                                 \
		if (!(what))                                                                                 \
			fail(#what);                                                                         \
	} while (0)

enum { PATTERN = 3 << 12, HOUR = 3600 };

static volatile sig_atomic_t caught;
static volatile long counted;
static __thread int in_thread = 7;

static void fail(const char *what)
{
	printf("%s (errno %d)\n", what, errno);
	exit(1);
}

static void on_signal(int sig)
{
	caught = sig;
}

static void *count(void *arg)
{
	in_thread = *(int *)arg;
	for (;;) {
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		if (in_thread != 8)
			return NULL;
		counted++;
	}
}

/* The child: answers each byte with the next one, and adds to the shared page. */
static void serve(int sock, int *shared)
{
	char byte;

	while (read(sock, &byte, 1) == 1) {
		++*shared;
		byte++;
		if (write(sock, &byte, 1) != 1)
			break;
	}
	_exit(9);
}

static void check_child(pid_t child, int sock, const int *shared)
{
	char byte = 'a';
	int status;

	CHECK(write(sock, &byte, 1) == 1 && read(sock, &byte, 1) == 1 && byte == 'b');
	CHECK(*shared == 43);
	close(sock);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 9);
}

static void check_descriptors(int pipes[2], int event, int timer, int memory, int set)
{
	struct epoll_event ready;
	struct itimerspec left;
	uint64_t value;
	char bytes[8];

	CHECK(epoll_wait(set, &ready, 1, 0) == 1 && ready.data.u32 == 4711 && ready.events == EPOLLIN);
	CHECK(read(pipes[0], bytes, sizeof(bytes)) == 5 && !memcmp(bytes, "bytes", 5));
	CHECK(fcntl(pipes[1], F_GETFD) == FD_CLOEXEC);
	CHECK(read(event, &value, sizeof(value)) == sizeof(value) && value == 12);
	CHECK(timerfd_gettime(timer, &left) == 0 && left.it_value.tv_sec > 0 && left.it_value.tv_sec <= HOUR);
	CHECK(lseek(memory, 0, SEEK_CUR) == 3 && read(memory, bytes, sizeof(bytes)) == 3 &&
	      !memcmp(bytes, "ory", 3));
}

static void check_signals(void)
{
	struct itimerval left;
	sigset_t set;

	CHECK(caught == 0);
	CHECK(sigpending(&set) == 0 && sigismember(&set, SIGUSR1));
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0 && caught == SIGUSR1);
	CHECK(getitimer(ITIMER_REAL, &left) == 0 && left.it_value.tv_sec > 0 && left.it_value.tv_sec <= HOUR);
}

int main(void)
{
	static unsigned char pattern[PATTERN];
	const int timer = timerfd_create(CLOCK_MONOTONIC, 0), event = eventfd(12, 0);
	const int memory = memfd_create("state", 0), set = epoll_create1(0);
	int *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int pipes[2], pair[2], eight = 8;
	struct epoll_event wish = {.events = EPOLLIN, .data.u32 = 4711};
	pthread_t thread;
	sigset_t block;
	pid_t child, self = getpid();
	char line[8];
	long before;

	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(pipe2(pipes, O_CLOEXEC) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(write(pipes[1], "bytes", 5) == 5 && write(memory, "memory", 6) == 6 &&
	      lseek(memory, 3, 0) == 3);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &wish) == 0);
	CHECK(timerfd_settime(timer, 0, &(struct itimerspec){.it_value = {HOUR, 0}}, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {HOUR, 0}}, NULL) == 0);
	CHECK(shared != MAP_FAILED);
	*shared = 42;
	child = fork();
	if (child == 0) {
		close(pair[0]);
		serve(pair[1], shared);
	}
	close(pair[1]);
	signal(SIGUSR1, on_signal);
	sigemptyset(&block);
	sigaddset(&block, SIGUSR1);
	CHECK(sigprocmask(SIG_BLOCK, &block, NULL) == 0 && raise(SIGUSR1) == 0);
	CHECK(pthread_create(&thread, NULL, count, &eight) == 0);
	for (int i = 0; i < PATTERN; i++)
		pattern[i] = (unsigned char)(i % 251);
	puts("ready");
	CHECK(fgets(line, sizeof(line), stdin));
	CHECK(getpid() == self && in_thread == 7);
	for (int i = 0; i < PATTERN; i++)
		CHECK(pattern[i] == i % 251);
	check_descriptors(pipes, event, timer, memory, set);
	check_signals();
	check_child(child, pair[0], shared);
	before = counted;
	while (counted < before + 5)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	puts("pass");
	return 0;
}
