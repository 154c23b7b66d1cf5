/*
 * The cost of one operation: micro OPERATION... Prints its name, the median and the 10th percentile, over
 * batches, of nanoseconds for one operation. With --after FILE it first waits until FILE exists (it can be
 * saved and rolled back meanwhile): the same figures for a restored process. With --filter it installs a
 * seccomp filter that allows everything: the cost of any filter.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BATCHES 41

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void op_getpid(void)
{
	syscall(SYS_getpid);
}

static void op_gettid(void)
{
	syscall(SYS_gettid);
}

static void op_getppid(void)
{
	syscall(SYS_getppid);
}

static void op_openclose(void)
{
	int fd = open("/etc/passwd", O_RDONLY);

	if (fd < 0)
		fail("open");
	close(fd);
}

static void op_read(void)
{
	static int fd = -1;
	static char buf[4096];

	if (fd < 0)
		fd = open("/etc/passwd", O_RDONLY);
	if (pread(fd, buf, sizeof(buf), 0) < 0)
		fail("read");
}

static void wait_for(pid_t pid)
{
	if (pid < 0 || waitpid(pid, NULL, 0) != pid)
		fail("child");
}

static void op_fork(void)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	wait_for(pid);
}

/* Executes this program with an option to exit at once. */
static void op_exec(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		execl("/proc/self/exe", "micro", "nothing", (char *)NULL);
		_exit(127);
	}
	wait_for(pid);
}

static void *thread_main(void *arg)
{
	return arg;
}

static void op_thread(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, thread_main, NULL) || pthread_join(thread, NULL))
		fail("thread");
}

static void op_compute(void)
{
	static volatile double x = 1.000001;
	double y = x;

	for (int i = 0; i < 100000; i++)
		y = y * 1.0000001 + 0.5 / (y + 1.0);
	x = y > 1e6 ? 1.000001 : y;
}

/* A peer that echoes, on the other end of `theirs`. */
static int echo_out = -1, echo_in = -1;
static pid_t echo_pid;

static void start_echo(int their_in, int their_out)
{
	echo_pid = fork();
	if (echo_pid == 0) {
		char c;

		close(echo_in);
		if (echo_out != echo_in)
			close(echo_out);
		while (read(their_in, &c, 1) == 1)
			if (write(their_out, &c, 1) != 1)
				break;
		_exit(0);
	}
	close(their_in);
	if (their_out != their_in)
		close(their_out);
}

/* A datagram socket never sees the end of its peer. */
static void end_echo(void)
{
	kill(echo_pid, SIGKILL);
	wait_for(echo_pid);
	close(echo_out);
	if (echo_in != echo_out)
		close(echo_in);
}

static void setup_pipe(void)
{
	int there[2], back[2];

	if (pipe(there) < 0 || pipe(back) < 0)
		fail("pipe");
	echo_out = there[1];
	echo_in = back[0];
	start_echo(there[0], back[1]);
}

static void setup_tcp(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1, client = socket(AF_INET, SOCK_STREAM, 0),
	    server;

	if (bind(listener, (struct sockaddr *)&address, len) < 0 || listen(listener, 1) < 0 ||
	    getsockname(listener, (struct sockaddr *)&address, &len) < 0 ||
	    connect(client, (struct sockaddr *)&address, len) < 0 ||
	    (server = accept(listener, NULL, NULL)) < 0)
		fail("tcp");
	setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	close(listener);
	echo_in = echo_out = client;
	start_echo(server, server);
}

static int udp_socket(struct sockaddr_in *address)
{
	socklen_t len = sizeof(*address);
	int s = socket(AF_INET, SOCK_DGRAM, 0);

	*address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (s < 0 || bind(s, (struct sockaddr *)address, len) < 0 ||
	    getsockname(s, (struct sockaddr *)address, &len) < 0)
		fail("udp");
	return s;
}

static void setup_udp(void)
{
	struct sockaddr_in a, b;
	int here = udp_socket(&a), there = udp_socket(&b);

	if (connect(here, (struct sockaddr *)&b, sizeof(b)) < 0 ||
	    connect(there, (struct sockaddr *)&a, sizeof(a)) < 0)
		fail("udp connect");
	echo_in = echo_out = here;
	start_echo(there, there);
}

static void op_pingpong(void)
{
	char c = 'x';

	if (write(echo_out, &c, 1) != 1 || read(echo_in, &c, 1) != 1)
		fail("ping-pong");
}

static const struct operation {
	const char *name;
	void (*setup)(void);
	void (*run)(void);
	unsigned count; /* in one batch, at most */
} operations[] = {
	{"getpid", NULL, op_getpid, 10000},    {"gettid", NULL, op_gettid, 10000},
	{"getppid", NULL, op_getppid, 10000},  {"open+close", NULL, op_openclose, 2000},
	{"read", NULL, op_read, 10000},	       {"fork+wait", NULL, op_fork, 50},
	{"fork+exec+wait", NULL, op_exec, 20}, {"pthread", NULL, op_thread, 200},
	{"compute", NULL, op_compute, 10},     {"pipe", setup_pipe, op_pingpong, 1000},
	{"tcp", setup_tcp, op_pingpong, 1000}, {"udp", setup_udp, op_pingpong, 1000},
};

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Chooses the number of operations of a batch: short, so that other processes on this processor rarely run
 * within one. Warms up as well. */
static unsigned batch_count(const struct operation *operation)
{
	const double warm_ns = 2e7, batch_ns = 5e6;
	double start = now_ns(), took = 0;
	unsigned done = 0, count;

	while (done < operation->count && took < warm_ns) {
		operation->run();
		done++;
		if (done % 16 == 0 || took / done > 1e4)
			took = now_ns() - start;
	}
	took = now_ns() - start;
	count = (unsigned)(batch_ns / (took / done));
	return count < 4 ? 4 : count < operation->count ? count : operation->count;
}

static void measure(const struct operation *operation)
{
	unsigned count = batch_count(operation);
	double batches[BATCHES];

	for (unsigned b = 0; b < BATCHES; b++) {
		double start = now_ns();

		for (unsigned i = 0; i < count; i++)
			operation->run();
		batches[b] = (now_ns() - start) / count;
	}
	qsort(batches, BATCHES, sizeof(batches[0]), by_value);
	printf("%s %.1f %.1f\n", operation->name, batches[BATCHES / 2], batches[BATCHES / 10]);
	fflush(stdout);
}

static void install_empty_filter(void)
{
	struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = {1, &allow};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		fail("filter");
}

int main(int argc, char **argv)
{
	const struct timespec nap = {.tv_nsec = 2000000};
	int found = 0;

	if (argc > 1 && !strcmp(argv[1], "nothing"))
		return 0;
	if (argc > 3 && !strcmp(argv[1], "--after")) {
		while (access(argv[2], F_OK) < 0)
			nanosleep(&nap, NULL);
		argv += 2;
		argc -= 2;
	}
	if (argc > 2 && !strcmp(argv[1], "--filter")) {
		install_empty_filter();
		argv++;
		argc--;
	}
	for (int a = 1; a < argc; a++)
		for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++)
			if (!strcmp(argv[a], operations[i].name)) {
				if (operations[i].setup)
					operations[i].setup();
				measure(&operations[i]);
				if (operations[i].setup)
					end_echo();
				found++;
			}
	if (!found) {
		fprintf(stderr, "usage: micro [--after FILE] [--filter] OPERATION...\n");
		return 2;
	}
	return 0;
}
