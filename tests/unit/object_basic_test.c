/* Files, pipes, devices, event, timer and signal descriptors, epoll: dumped and restored without a tracer. */
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

#include "tests/unit/object_world.h"

/* ---- regular files ---- */

static void make_files(void)
{
	int a = open("a", O_RDWR | O_CREAT | O_APPEND, 0640), b, c;

	MUST(a == 3 && write(a, "0123456789", 10) == 10 && lseek(a, 4, SEEK_SET) == 4);
	MUST(dup(a) == 4);
	b = open("gone", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	MUST(b == 5 && pwrite(b, "deep", 4, 1 << 20) == 4 && lseek(b, 7, SEEK_SET) == 7);
	MUST(open("gone", O_RDONLY) == 6 && unlink("gone") == 0);
	c = open("locked", O_RDWR | O_CREAT, 0444);
	MUST(c == 7 && write(c, "x", 1) == 1 && flock(c, LOCK_EX) == 0);
	MUST(open("a", O_RDONLY) == 8);
}

static void check_files(void)
{
	char text[16] = "";
	struct stat st, other;

	MUST(lseek(3, 0, SEEK_CUR) == 4 && fcntl(3, F_GETFL) & O_APPEND);
	MUST(lseek(4, 6, SEEK_SET) == 6 && lseek(3, 0, SEEK_CUR) == 6);
	MUST(fstat(3, &st) == 0 && st.st_size == 10 && (st.st_mode & 0777) == 0640);
	MUST(pread(8, text, 10, 0) == 10 && memcmp(text, "0123456789", 10) == 0);
	MUST(fcntl(5, F_GETFD) == FD_CLOEXEC && fcntl(3, F_GETFD) == 0);
	MUST(fstat(5, &st) == 0 && st.st_nlink == 0 && st.st_size == (1 << 20) + 4 && st.st_blocks < 100);
	MUST(fstat(6, &other) == 0 && other.st_ino == st.st_ino && lseek(5, 0, SEEK_CUR) == 7);
	MUST(pread(6, text, 4, 1 << 20) == 4 && memcmp(text, "deep", 4) == 0);
	MUST(fstat(7, &st) == 0 && (st.st_mode & 0777) == 0444);
	int again = open("locked", O_RDONLY);
	MUST(flock(again, LOCK_SH | LOCK_NB) < 0);
	/* Changes it before the next restore. */
	MUST(write(3, "more", 4) == 4 && unlink("locked") == 0);
}

static void test_files(void **state)
{
	world_cycle(make_files, check_files);
}

static void make_reader(void)
{
	int fd = open("r", O_RDWR | O_CREAT, 0600);

	MUST(write(fd, "text", 4) == 4);
	close(fd);
	MUST(open("r", O_RDONLY) == fd);
}

static void nothing(void)
{
}

static void test_changed(void **state)
{
	struct world world;
	struct err err = ERR_INIT;
	int fd;

	world_open(&world);
	world_run(&world, make_reader);
	assert_int_equal(world_dump(&world, &err), 0);
	world_kill(&world);
	fd = open("r", O_WRONLY | O_APPEND);
	assert_int_equal(write(fd, "!", 1), 1);
	close(fd);
	assert_true(world_restore(&world, nothing, &err) < 0);
	assert_non_null(strstr(err.text, "has changed"));
	unlink("r");
	assert_true(world_restore(&world, nothing, &err) < 0);
	assert_non_null(strstr(err.text, "is missing"));
	world_close(&world);
}

/* ---- pipes ---- */

static int ends[2];

static void hold(void)
{
	close(ends[1]);
}

static void make_pipes(void)
{
	int p[2];

	MUST(pipe(p) == 0 && p[0] == 3 && p[1] == 4);
	MUST(fcntl(4, F_SETPIPE_SZ, 1 << 18) == 1 << 18);
	for (int i = 0; i < 50000; i++)
		MUST(write(4, &i, 4) == 4);
	MUST(pipe2(p, O_DIRECT | O_NONBLOCK) == 0 && p[0] == 5);
	MUST(write(6, "one", 3) == 3 && write(6, "three", 5) == 5);
	MUST(pipe(p) == 0 && p[0] == 7 && write(8, "rest", 4) == 4 && close(8) == 0);
	MUST(pipe(p) == 0 && p[0] == 8 && p[1] == 9 && close(8) == 0);
	MUST(open("/dev/null", O_RDWR) == 8);
	/* One end is only in another process. */
	MUST(pipe(p) == 0 && p[0] == 10 && write(11, "far", 3) == 3);
	ends[1] = 11;
	world_fork(1, hold);
	MUST(close(10) == 0);
	MUST(mkfifo("fifo", 0600) == 0 && open("fifo", O_RDWR) == 10 && write(10, "named", 5) == 5);
}

static void check_pipes(void)
{
	struct pollfd poll_fd = {.fd = 7, .events = POLLIN};
	char text[32];
	int n;

	MUST(fcntl(3, F_GETPIPE_SZ) == 1 << 18 && fcntl(3, F_GETFL) == O_RDONLY);
	for (int i = 0; i < 50000; i++)
		MUST(read(3, &n, 4) == 4 && n == i);
	MUST(fcntl(3, F_SETFL, O_NONBLOCK) == 0 && read(3, &n, 4) < 0 && errno == EAGAIN);
	MUST(fcntl(6, F_GETFL) == (O_WRONLY | O_DIRECT | O_NONBLOCK));
	MUST(read(5, text, 32) == 3 && read(5, text, 32) == 5 && memcmp(text, "three", 5) == 0);
	MUST(read(5, text, 32) < 0 && errno == EAGAIN);
	MUST(poll(&poll_fd, 1, 0) == 1 && poll_fd.revents & POLLHUP);
	MUST(read(7, text, 32) == 4 && read(7, text, 32) == 0);
	signal(SIGPIPE, SIG_IGN);
	MUST(write(9, "x", 1) < 0 && errno == EPIPE);
	MUST(write(8, "x", 1) == 1);
	MUST(write(11, "x", 1) < 0 && errno == EPIPE); /* the process of its reader was not restored */
	MUST(read(10, text, 32) == 5 && memcmp(text, "named", 5) == 0);
}

static void test_pipes(void **state)
{
	world_cycle(make_pipes, check_pipes);
}

static void make_outside_pipe(void)
{
	int p[2];

	MUST(pipe(p) == 0);
	if (fork() == 0) {
		close(p[1]);
		alarm(5);
		pause();
	}
	close(p[0]);
}

static void test_outside_pipe(void **state)
{
	world_refused(make_outside_pipe, "a pipe whose read end is held by a process that is not saved");
}

/* ---- namespaces ---- */

static void make_namespaces(void)
{
	MUST(open("/proc/self/ns/net", O_RDONLY) == 3 && open("/proc/self/ns/uts", O_RDONLY) == 4);
}

static void check_namespaces(void)
{
	struct stat held, own;

	MUST(fstat(3, &held) == 0 && stat("/proc/self/ns/net", &own) == 0 && held.st_ino == own.st_ino);
	MUST(fstat(4, &held) == 0 && stat("/proc/self/ns/uts", &own) == 0 && held.st_ino == own.st_ino);
}

static void test_namespaces(void **state)
{
	world_cycle(make_namespaces, check_namespaces);
}

static void make_other_namespace(void)
{
	char path[32], ready = 0;
	int ready_pipe[2];
	pid_t pid;

	MUST(pipe(ready_pipe) == 0);
	pid = fork();
	if (pid == 0) {
		ready = unshare(CLONE_NEWUSER) == 0;
		_exit(write(ready_pipe[1], &ready, 1) != 1 || pause());
	}
	MUST(pid > 0 && read(ready_pipe[0], &ready, 1) == 1 && ready);
	snprintf(path, sizeof(path), "/proc/%d/ns/user", pid);
	MUST(open(path, O_RDONLY) == 5 && kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

static void test_other_namespace(void **state)
{
	pid_t probe = fork();
	int status;

	if (probe == 0)
		_exit(unshare(CLONE_NEWUSER) < 0);
	if (waitpid(probe, &status, 0) != probe || status != 0)
		skip(); /* user namespaces are not allowed here */
	world_refused(make_other_namespace, "a namespace that is not the program's own");
}

/* ---- event, timer, signal ---- */

static void make_events(void)
{
	struct itimerspec when = {.it_value = {.tv_sec = 1000}, .it_interval = {.tv_sec = 5}};
	uint64_t n = 41;
	sigset_t mask;

	MUST(eventfd(7, EFD_SEMAPHORE | EFD_NONBLOCK) == 3 && eventfd(0, EFD_CLOEXEC) == 4);
	MUST(write(4, &n, 8) == 8);
	MUST(timerfd_create(CLOCK_MONOTONIC, 0) == 5 && timerfd_settime(5, 0, &when, NULL) == 0);
	when = (struct itimerspec){.it_value = {.tv_nsec = 1000000}, .it_interval = {.tv_nsec = 1000000}};
	MUST(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK) == 6 && timerfd_settime(6, 0, &when, NULL) == 0);
	usleep(20000);
	when = (struct itimerspec){.it_value = {.tv_sec = time(NULL) + 500}};
	MUST(timerfd_create(CLOCK_REALTIME, 0) == 7 &&
	     timerfd_settime(7, TFD_TIMER_ABSTIME, &when, NULL) == 0);
	MUST(timerfd_create(CLOCK_BOOTTIME, 0) == 8);
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	sigaddset(&mask, SIGRTMIN + 3);
	MUST(signalfd(-1, &mask, SFD_NONBLOCK) == 9);
}

static void check_events(void)
{
	struct signalfd_siginfo info;
	struct itimerspec when;
	sigset_t mask;
	uint64_t n;

	for (int i = 0; i < 7; i++)
		MUST(read(3, &n, 8) == 8 && n == 1);
	MUST(read(3, &n, 8) < 0 && errno == EAGAIN);
	MUST(read(4, &n, 8) == 8 && n == 41);
	MUST(timerfd_gettime(5, &when) == 0 && when.it_interval.tv_sec == 5);
	MUST(when.it_value.tv_sec > 900 && when.it_value.tv_sec < 1000);
	MUST(read(6, &n, 8) == 8 && n >= 19 && n < 100000);
	MUST(timerfd_gettime(7, &when) == 0 && when.it_value.tv_sec > 400 && when.it_value.tv_sec <= 500);
	MUST(timerfd_gettime(8, &when) == 0 && when.it_value.tv_sec == 0 && when.it_value.tv_nsec == 0);
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	raise(SIGUSR1);
	MUST(read(9, &info, sizeof(info)) == sizeof(info) && info.ssi_signo == SIGUSR1);
}

static void test_events(void **state)
{
	world_cycle(make_events, check_events);
}

static void make_epoll(void)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x1122334455667788};
	int p[2];

	MUST(epoll_create1(0) == 3 && pipe(p) == 0 && p[0] == 4);
	MUST(epoll_ctl(3, EPOLL_CTL_ADD, 4, &event) == 0);
	event = (struct epoll_event){.events = EPOLLOUT | EPOLLET, .data.u64 = 5};
	MUST(epoll_ctl(3, EPOLL_CTL_ADD, 5, &event) == 0);
	MUST(epoll_wait(3, &event, 1, 0) == 1 && event.data.u64 == 5);
	/* One shot that has fired, and so is disabled. */
	event = (struct epoll_event){.events = EPOLLIN | EPOLLONESHOT, .data.u64 = 6};
	MUST(eventfd(1, 0) == 6 && epoll_ctl(3, EPOLL_CTL_ADD, 6, &event) == 0);
	MUST(epoll_wait(3, &event, 1, 0) == 1 && event.data.u64 == 6);
	/* Its number was closed and reused for another descriptor that is watched too. */
	event = (struct epoll_event){.events = EPOLLIN, .data.u64 = 70};
	MUST(eventfd(0, 0) == 7 && epoll_ctl(3, EPOLL_CTL_ADD, 7, &event) == 0 && dup(7) == 8 &&
	     close(7) == 0);
	event.data.u64 = 71;
	MUST(eventfd(0, 0) == 7 && epoll_ctl(3, EPOLL_CTL_ADD, 7, &event) == 0);
	/* An instance in another one. */
	event.data.u64 = 9;
	MUST(epoll_create1(EPOLL_CLOEXEC) == 9 && epoll_ctl(9, EPOLL_CTL_ADD, 3, &event) == 0);
}

static void expect(uint64_t data)
{
	struct epoll_event events[8];
	int n = epoll_wait(3, events, 8, 0);

	for (int i = 0; i < n; i++)
		if (events[i].data.u64 == data)
			return;
	MUST(!"event");
}

static void check_epoll(void)
{
	struct epoll_event event;
	uint64_t one = 1;

	/* The edge may be reported again, the fired one must not be. */
	while (epoll_wait(3, &event, 1, 0) == 1)
		MUST(event.data.u64 == 5);
	MUST(write(5, "x", 1) == 1);
	expect(0x1122334455667788);
	MUST(epoll_wait(9, &event, 1, 0) == 1 && event.data.u64 == 9);
	MUST(read(4, &one, 1) == 1);
	one = 1;
	MUST(write(8, &one, 8) == 8);
	expect(70);
	MUST(read(8, &one, 8) == 8 && one == 1 && write(7, &one, 8) == 8);
	expect(71);
	event.events = EPOLLIN;
	MUST(epoll_ctl(3, EPOLL_CTL_MOD, 4, &event) == 0 && epoll_ctl(3, EPOLL_CTL_DEL, 7, NULL) == 0);
	event = (struct epoll_event){.events = EPOLLIN | EPOLLONESHOT, .data.u64 = 66};
	MUST(epoll_ctl(3, EPOLL_CTL_MOD, 6, &event) == 0);
	expect(66);
}

static void test_epoll(void **state)
{
	world_cycle(make_epoll, check_epoll);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_files),	   cmocka_unit_test(test_changed),
		cmocka_unit_test(test_pipes),	   cmocka_unit_test(test_outside_pipe),
		cmocka_unit_test(test_namespaces), cmocka_unit_test(test_other_namespace),
		cmocka_unit_test(test_events),	   cmocka_unit_test(test_epoll),
	};

	alarm(60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
