/*
 * Many of one kind, for the table of times against n: many BEAT KIND N. N counts descriptors, mappings,
 * threads or processes. The file BEAT is mapped and gets the time as in hold.c: its first word is the time
 * (CLOCK_MONOTONIC, ns), its second the longest gap.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

struct beat {
	volatile uint64_t now, gap;
};

static void check(int bad, const char *what)
{
	if (!bad)
		return;
	perror(what);
	exit(1);
}

static void *sleeper(void *arg)
{
	for (;;)
		pause();
	return arg;
}

/* One end each: the other one is closed. */
static void make_pipe(long i)
{
	int ends[2];

	check(pipe(ends) < 0, "pipe");
	close(ends[i & 1]);
}

static void make_pipe_pair(long i)
{
	int ends[2];

	check(i % 2 == 0 && pipe(ends) < 0, "pipe");
}

static void make_unix(long i)
{
	int ends[2];

	check(i % 2 == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0, "socketpair");
}

static void make_tcp(long i)
{
	static struct sockaddr_in name = {.sin_family = AF_INET};
	static int listener = -1;
	socklen_t len = sizeof(name);
	int client;

	if (listener < 0) {
		listener = socket(AF_INET, SOCK_STREAM, 0);
		name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		check(bind(listener, (struct sockaddr *)&name, len) < 0 || listen(listener, 100) < 0 ||
			      getsockname(listener, (struct sockaddr *)&name, &len) < 0,
		      "listen");
	}
	if (i % 2)
		return;
	client = socket(AF_INET, SOCK_STREAM, 0);
	check(connect(client, (struct sockaddr *)&name, sizeof(name)) < 0 || accept(listener, NULL, NULL) < 0,
	      "connect");
}

static void make_udp(long i)
{
	check(socket(AF_INET, SOCK_DGRAM, 0) < 0, "socket");
}

static void make_eventfd(long i)
{
	check(eventfd((unsigned)i, 0) < 0, "eventfd");
}

static void make_timerfd(long i)
{
	check(timerfd_create(CLOCK_MONOTONIC, 0) < 0, "timerfd");
}

static void make_signalfd(long i)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	check(signalfd(-1, &set, 0) < 0, "signalfd");
}

static void make_epoll(long i)
{
	check(epoll_create1(0) < 0, "epoll");
}

/* One epoll instance that watches all others. */
static void make_watched(long i)
{
	static int epoll = -1;
	struct epoll_event event = {.events = EPOLLIN};
	int fd = eventfd(0, 0);

	if (epoll < 0)
		epoll = epoll_create1(0);
	event.data.fd = fd;
	check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0, "watch");
}

static void make_file(long i)
{
	char name[32];

	snprintf(name, sizeof(name), "many-%ld", i);
	check(open(name, O_RDWR | O_CREAT, 0600) < 0, name);
}

static void make_open(long i)
{
	check(open("/etc/passwd", O_RDONLY) < 0, "open");
}

static void make_unlinked(long i)
{
	char name[32] = "many-XXXXXX";
	int fd = mkstemp(name);

	check(fd < 0 || unlink(name) < 0 || write(fd, name, sizeof(name)) < 0, name);
}

static void make_memfd(long i)
{
	int fd = memfd_create("many", 0);

	check(fd < 0 || write(fd, "x", 1) < 0, "memfd");
}

static void make_thread(long i)
{
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 65536);
	check(pthread_create(&thread, &attributes, sleeper, NULL) != 0, "thread");
}

static void make_process(long i)
{
	pid_t pid = fork();

	check(pid < 0, "fork");
	if (pid == 0)
		sleeper(NULL);
}

/* Every second one is read-only, so that the kernel does not merge them. */
static void make_mapping(long i)
{
	check(mmap(NULL, 4096, i & 1 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		   0) == MAP_FAILED,
	      "mmap");
}

static const struct {
	const char *name;
	void (*make)(long i);
} kinds[] = {
	{"pipes", make_pipe},	     {"pipe-pairs", make_pipe_pair},
	{"unix", make_unix},	     {"tcp", make_tcp},
	{"udp", make_udp},	     {"eventfds", make_eventfd},
	{"timerfds", make_timerfd},  {"signalfds", make_signalfd},
	{"epolls", make_epoll},	     {"watched", make_watched},
	{"files", make_file},	     {"opens", make_open},
	{"unlinked", make_unlinked}, {"memfds", make_memfd},
	{"threads", make_thread},    {"processes", make_process},
	{"mappings", make_mapping},
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int main(int argc, char **argv)
{
	const struct timespec nap = {.tv_nsec = 200000};
	void (*make)(long i) = NULL;
	struct beat *beat;
	uint64_t last;
	int fd;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]) && argc == 4; i++)
		if (!strcmp(kinds[i].name, argv[2]))
			make = kinds[i].make;
	if (!make) {
		fprintf(stderr, "usage: many BEAT KIND N\n");
		return 2;
	}
	fd = open(argv[1], O_RDWR);
	beat = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	check(beat == MAP_FAILED, argv[1]);
	close(fd);
	for (long i = 0; i < atol(argv[3]); i++)
		make(i);
	for (last = now_ns();;) {
		uint64_t now = now_ns();

		if (now - last > beat->gap)
			beat->gap = now - last;
		beat->now = last = now;
		nanosleep(&nap, NULL);
	}
}
