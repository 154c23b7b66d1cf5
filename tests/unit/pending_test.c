/* Children in blocking calls are frozen and thawed several times while injected code runs: no call returns
 * EINTR, waits too long or too short, or has a short count. */
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "scip/dump/freeze.h"
#include "scip/tracee/pending.h"
#include "scip/tracee/regs.h"
#include "tests/unit/tracee_help.h"

enum { WAIT_MS = 700, LATE_MS = 350, BIG = 300000 };

/* One child's results, in shared memory. */
struct account {
	volatile int ready, finished;
	long ret;
	int error;
	uint64_t took_ns;
	int fd[2]; /* of the test and the child */
	int handled;
};

struct trial {
	const char *name;
	long (*body)(struct account *account);
	long ret;
	int error;
	int ms;						      /* duration, 0: until completed */
	void (*complete)(struct account *account, pid_t pid); /* ends the wait */
};

static uint64_t started;
static struct account *account_of_child;

static void begin(struct account *account)
{
	started = help_now();
	account->ready = 1;
}

static long do_nanosleep(struct account *a)
{
	struct timespec ts = {.tv_nsec = WAIT_MS * 1000000};

	begin(a);
	return nanosleep(&ts, NULL);
}

static long do_nanosleep_left(struct account *a)
{
	struct timespec ts = {.tv_nsec = WAIT_MS * 1000000};

	begin(a);
	return nanosleep(&ts, &ts);
}

static long do_clock_nanosleep_absolute(struct account *a)
{
	struct timespec ts;

	begin(a);
	clock_gettime(CLOCK_MONOTONIC, &ts);
	ts.tv_nsec += WAIT_MS * 1000000;
	ts.tv_sec += ts.tv_nsec / 1000000000;
	ts.tv_nsec %= 1000000000;
	return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
}

static long do_poll(struct account *a)
{
	struct pollfd fd = {.fd = a->fd[0], .events = POLLIN};

	begin(a);
	return poll(&fd, 1, WAIT_MS);
}

static long do_ppoll(struct account *a)
{
	struct pollfd fd = {.fd = a->fd[0], .events = POLLIN};
	struct timespec ts = {.tv_nsec = WAIT_MS * 1000000};
	sigset_t none;

	sigemptyset(&none);
	begin(a);
	return ppoll(&fd, 1, &ts, &none);
}

static long do_select(struct account *a)
{
	struct timeval tv = {.tv_usec = WAIT_MS * 1000};

	begin(a);
	return select(0, NULL, NULL, NULL, &tv);
}

static long do_epoll_wait(struct account *a)
{
	struct epoll_event event;
	int fd = epoll_create1(0);

	begin(a);
	return epoll_wait(fd, &event, 1, WAIT_MS);
}

/* The registers of the arguments must be unchanged when it returns. */
static long do_epoll_raw(struct account *a)
{
	struct epoll_event event;
	uint64_t fd = (uint64_t)epoll_create1(0), events = (uint64_t)(uintptr_t)&event, max = 1, ret;
	register uint64_t ms __asm__("r10");

	begin(a);
	ms = WAIT_MS;
	__asm__ volatile("syscall"
			 : "=a"(ret), "+r"(ms), "+D"(fd), "+S"(events), "+d"(max)
			 : "a"(SYS_epoll_wait)
			 : "rcx", "r11", "memory");
	return ret == 0 && ms == WAIT_MS && max == 1 ? 0 : -1;
}

static long do_epoll_pwait2(struct account *a)
{
	struct timespec ts = {.tv_nsec = WAIT_MS * 1000000};
	struct epoll_event event;
	int fd = epoll_create1(0);

	begin(a);
	return syscall(SYS_epoll_pwait2, fd, &event, 1, &ts, NULL, 0);
}

static long do_futex(struct account *a)
{
	struct timespec ts = {.tv_nsec = WAIT_MS * 1000000};
	uint32_t word = 0;

	begin(a);
	return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &ts, NULL, 0);
}

static long do_sigtimedwait(struct account *a)
{
	struct timespec ts = {.tv_nsec = WAIT_MS * 1000000};
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	begin(a);
	return sigtimedwait(&set, NULL, &ts);
}

static long do_semtimedop(struct account *a)
{
	struct timespec ts = {.tv_nsec = WAIT_MS * 1000000};
	struct sembuf op = {.sem_op = -1};
	int id = semget(IPC_PRIVATE, 1, 0600), error;
	long ret;

	begin(a);
	ret = semtimedop(id, &op, 1, &ts);
	error = errno;
	semctl(id, 0, IPC_RMID);
	errno = error;
	return ret;
}

static long do_receive_with_timeout(struct account *a)
{
	struct timeval tv = {.tv_sec = 20};
	char c;

	setsockopt(a->fd[1], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	begin(a);
	return recv(a->fd[1], &c, 1, 0);
}

static long do_read(struct account *a)
{
	char c;

	begin(a);
	return read(a->fd[1], &c, 1);
}

static long do_receive_all(struct account *a)
{
	char text[10];
	long n;

	begin(a);
	n = recv(a->fd[1], text, sizeof(text), MSG_WAITALL);
	return n == 10 && !memcmp(text, "halfsecond", 10) ? n : -n;
}

static long do_receive_message(struct account *a)
{
	char one[3], two[7];
	struct iovec v[2] = {{one, 3}, {two, 7}};
	struct msghdr message = {.msg_iov = v, .msg_iovlen = 2};
	long n;

	begin(a);
	n = recvmsg(a->fd[1], &message, MSG_WAITALL);
	return n == 10 && !memcmp(one, "hal", 3) && !memcmp(two, "fsecond", 7) ? n : -n;
}

static char *big_block(void)
{
	char *block = malloc(BIG);

	for (int i = 0; i < BIG; i++)
		block[i] = (char)(i * 31 >> 4);
	return block;
}

static long do_write(struct account *a)
{
	char *block = big_block();

	begin(a);
	return write(a->fd[1], block, BIG);
}

static long do_writev(struct account *a)
{
	char *block = big_block();
	struct iovec v[3] = {{block, 1000}, {block + 1000, 150000}, {block + 151000, BIG - 151000}};

	begin(a);
	return writev(a->fd[1], v, 3);
}

static long do_sendmsg(struct account *a)
{
	char *block = big_block();
	struct iovec v[3] = {{block, 1000}, {block + 1000, 150000}, {block + 151000, BIG - 151000}};
	struct msghdr message = {.msg_iov = v, .msg_iovlen = 3};

	begin(a);
	return sendmsg(a->fd[1], &message, 0);
}

static long do_msgrcv(struct account *a)
{
	struct {
		long type;
		char text[8];
	} message;
	int id = a->fd[0];
	long ret;

	begin(a);
	ret = msgrcv(id, &message, 8, 0, 0);
	msgctl(id, IPC_RMID, NULL);
	return ret;
}

static void inotify_path(char *path, pid_t pid)
{
	sprintf(path, "/tmp/pbeam-pending-test-%d", pid);
}

static long do_inotify(struct account *a)
{
	char text[4096], path[64];
	int fd = inotify_init1(0);

	inotify_path(path, getpid());
	mkdir(path, 0700);
	inotify_add_watch(fd, path, IN_DELETE_SELF);
	begin(a);
	return read(fd, text, sizeof(text)) > 0;
}

static void handler(int signal)
{
	account_of_child->handled++;
}

static void catch_usr1(int flags)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = flags};

	sigaction(SIGUSR1, &action, NULL);
}

static long do_pause(struct account *a)
{
	catch_usr1(0);
	begin(a);
	return pause();
}

static long do_suspend(struct account *a)
{
	sigset_t usr1, none;

	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	sigemptyset(&none);
	sigprocmask(SIG_BLOCK, &usr1, NULL);
	catch_usr1(0);
	begin(a);
	return sigsuspend(&none);
}

/* A signal with a handler must still interrupt. */
static long do_epoll_interrupted(struct account *a)
{
	struct epoll_event event;
	int fd = epoll_create1(0);

	catch_usr1(SA_RESTART);
	begin(a);
	return epoll_wait(fd, &event, 1, -1);
}

/* A write that a handler interrupts after part of it returns that part. */
static long do_write_interrupted(struct account *a)
{
	char *block = big_block();
	long n;

	catch_usr1(0);
	begin(a);
	n = write(a->fd[1], block, BIG);
	return n > 0 && n < BIG;
}

static void send_usr1(struct account *a, pid_t pid)
{
	kill(pid, SIGUSR1);
}

static void send_one(struct account *a, pid_t pid)
{
	assert_int_equal(write(a->fd[0], "x", 1), 1);
}

static void send_rest(struct account *a, pid_t pid)
{
	assert_int_equal(write(a->fd[0], "second", 6), 6);
}

static void send_message(struct account *a, pid_t pid)
{
	struct {
		long type;
		char text[8];
	} message = {.type = 1};

	assert_int_equal(msgsnd(a->fd[0], &message, 8, 0), 0);
}

static void remove_directory(struct account *a, pid_t pid)
{
	char path[64];

	inotify_path(path, pid);
	assert_int_equal(rmdir(path), 0);
}

static const struct trial trials[] = {
	{"nanosleep", do_nanosleep, 0, 0, WAIT_MS, NULL},
	{"nanosleep with rmtp", do_nanosleep_left, 0, 0, WAIT_MS, NULL},
	{"clock_nanosleep absolute", do_clock_nanosleep_absolute, 0, 0, WAIT_MS, NULL},
	{"poll", do_poll, 0, 0, WAIT_MS, NULL},
	{"ppoll", do_ppoll, 0, 0, WAIT_MS, NULL},
	{"select", do_select, 0, 0, WAIT_MS, NULL},
	{"epoll_wait", do_epoll_wait, 0, 0, WAIT_MS, NULL},
	{"epoll_wait, registers", do_epoll_raw, 0, 0, WAIT_MS, NULL},
	{"epoll_pwait2", do_epoll_pwait2, 0, 0, WAIT_MS, NULL},
	{"futex", do_futex, -1, ETIMEDOUT, WAIT_MS, NULL},
	{"sigtimedwait", do_sigtimedwait, -1, EAGAIN, WAIT_MS, NULL},
	{"semtimedop", do_semtimedop, -1, EAGAIN, WAIT_MS, NULL},
	{"recv with SO_RCVTIMEO", do_receive_with_timeout, 1, 0, 0, send_one},
	{"read", do_read, 1, 0, 0, send_one},
	{"recv MSG_WAITALL", do_receive_all, 10, 0, 0, send_rest},
	{"recvmsg MSG_WAITALL", do_receive_message, 10, 0, 0, send_rest},
	{"write", do_write, BIG, 0, 0, NULL},
	{"writev", do_writev, BIG, 0, 0, NULL},
	{"sendmsg", do_sendmsg, BIG, 0, 0, NULL},
	{"msgrcv", do_msgrcv, 8, 0, 0, send_message},
	{"inotify", do_inotify, 1, 0, 0, remove_directory},
	{"pause", do_pause, -1, EINTR, 0, send_usr1},
	{"sigsuspend", do_suspend, -1, EINTR, 0, send_usr1},
	{"epoll_wait, interrupted", do_epoll_interrupted, -1, EINTR, 0, send_usr1},
	{"write, interrupted", do_write_interrupted, 1, 0, 0, send_usr1},
};
enum { TRIALS = sizeof(trials) / sizeof(trials[0]) };

struct run {
	const struct trial *trial;
	struct account *account;
	struct process process;
	size_t drained;
	bool gone;
};

static void child(void *arg)
{
	struct run *run = arg;
	struct account *a = run->account;
	int fd0 = a->fd[0];

	account_of_child = a;
	if (run->trial->body != do_msgrcv && run->trial->body != do_poll && run->trial->body != do_ppoll)
		close(fd0);
	a->ret = run->trial->body(a);
	a->error = a->ret < 0 ? errno : 0;
	a->took_ns = help_now() - started;
	a->finished = 1;
}

static void start(struct run *run, const struct trial *trial)
{
	struct tracee *tracee;
	pid_t pid;

	memset(run, 0, sizeof(*run));
	run->trial = trial;
	run->account = help_shared(4096);
	if (trial->body == do_msgrcv)
		run->account->fd[0] = msgget(IPC_PRIVATE, 0600);
	else
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, run->account->fd), 0);
	if (trial->body == do_receive_all || trial->body == do_receive_message)
		assert_int_equal(write(run->account->fd[0], "half", 4), 4);
	pid = help_fork(child, run);
	while (!run->account->ready)
		usleep(100);
	help_wait_asleep(pid);
	run->process.pid = pid;
	assert_ok(stops_seize(&run->process, pid, &tracee, err));
	assert_ok(stops_resume(tracee, STOPS_CONT));
}

/* Handles the stops so far; resumes threads that are not to be held. */
static void serve(struct run *run)
{
	struct tracee *tracee;
	int status, code;

	while (!run->gone &&
	       (code = stops_wait(&run->process, run->process.pid, WNOHANG, &tracee, &status)) != 0) {
		assert_int_equal(code, 1);
		if (tracee->stop == TRACEE_EXITED) {
			run->gone = true;
			process_clear(&run->process);
		} else if (!run->process.frozen || !freeze_hold(tracee)) {
			assert_ok(stops_resume(tracee, STOPS_CONT));
		}
	}
}

enum way { WAY_FREEZE, WAY_INJECT, WAY_IMAGE };

static void use(struct process *process, struct tracee *leader)
{
	struct batch *batch;
	int64_t ret;

	assert_ok(inject_open(leader, 4096, (struct taddr){0}, err));
	assert_ok(batch_begin(process, &batch, err));
	assert_true(batch_add(batch, 0, SYS_getpid, remote_args(0)) >= 0);
	assert_ok(batch_run(batch, leader, err));
	batch_end(batch);
	assert_ok(remote_call(leader, &ret, err, SYS_getppid, remote_args(0)));
	assert_ok(inject_withdraw(leader, err));
}

static unsigned waits_saved, waits_over;

/* As in another process: overwrites what scip and the kernel know of the interrupted call, so that only
 * the saved state remains. */
static void save_and_resume(struct process *process, struct tracee *leader)
{
	Pbeam__PendingCall call = PBEAM__PENDING_CALL__INIT;
	struct user_regs_struct regs;
	struct batch *batch;
	struct taddr ts;
	int64_t ret;

	assert_ok(pending_saved_registers(leader, &regs, &call, err));
	if (regs.orig_rax != UINT64_MAX) { /* the wait was over before the freeze: the machine is loaded */
		waits_over++;
		return;
	}
	waits_saved++;
	leader->restart_call = -1;
	leader->pending = (struct tracee_pending){.sampled_call = -1};
	assert_ok(inject_open(leader, 4096, (struct taddr){0}, err));
	assert_ok(batch_begin(process, &batch, err));
	assert_ok(batch_data(batch, (const uint64_t[]){0, 1}, 16, &ts));
	assert_ok(remote_call_interrupted(leader, &ret, err, SYS_nanosleep, remote_args(ts.a, 0)));
	assert_ok(inject_withdraw(leader, err));
	assert_ok(regs_set(leader, &regs));
	assert_ok(pending_resume(leader, &call, err));
	free(call.args);
}

static void freeze_thaw(struct run *run, enum way way)
{
	serve(run);
	if (run->gone)
		return;
	freeze_begin(&run->process);
	run->process.frozen = true;
	while (!run->gone && !freeze_settled(&run->process)) {
		serve(run);
		usleep(50);
	}
	if (run->gone)
		return;
	if (way == WAY_INJECT)
		use(&run->process, process_leader(&run->process));
	else if (way == WAY_IMAGE)
		save_and_resume(&run->process, process_leader(&run->process));
	thaw_process(&run->process);
}

/* Reads what a writer has sent: all, or (`some`) a little. */
static void drain(struct run *run, bool some)
{
	static char text[65536];
	ssize_t n;

	while ((n = recv(run->account->fd[0], text, sizeof(text), MSG_DONTWAIT)) > 0) {
		for (ssize_t i = 0; i < n; i++)
			assert_int_equal(text[i], (char)((run->drained + (size_t)i) * 31 >> 4));
		run->drained += (size_t)n;
		if (some)
			return;
	}
}

static bool is_writer(const struct run *run)
{
	return run->trial->ret == BIG;
}

static void check(const struct run *run)
{
	const struct account *a = run->account;
	const struct trial *trial = run->trial;
	long ms = (long)(a->took_ns / 1000000);

	if (a->ret != trial->ret || (trial->error && a->error != trial->error))
		fail_msg("%s returned %ld, errno %d", trial->name, a->ret, a->error);
	if (trial->ms && (ms < trial->ms || ms > trial->ms + LATE_MS))
		fail_msg("%s took %ld ms instead of %d", trial->name, ms, trial->ms);
	if (trial->complete == send_usr1 && a->handled != 1)
		fail_msg("%s: the handler ran %d times", trial->name, a->handled);
	if (trial->ret == BIG)
		assert_int_equal(run->drained, BIG);
}

static void freeze_all(struct run *runs, int times, enum way way)
{
	for (int i = 0; i < times; i++) {
		for (int t = 0; t < TRIALS; t++) {
			freeze_thaw(&runs[t], way);
			if (is_writer(&runs[t]))
				drain(&runs[t], true);
			if (runs[t].account->finished && !runs[t].trial->ms && !is_writer(&runs[t]))
				fail_msg("%s came back too early: %ld, errno %d", runs[t].trial->name,
					 runs[t].account->ret, runs[t].account->error);
		}
		for (int j = 0; j < 10; j++) {
			for (int t = 0; t < TRIALS; t++)
				serve(&runs[t]);
			usleep(5000);
		}
	}
}

static void run_trials(enum way way)
{
	static struct run runs[TRIALS];
	uint64_t end;
	int left = TRIALS;

	for (int t = 0; t < TRIALS; t++)
		start(&runs[t], &trials[t]);
	freeze_all(runs, 5, way);
	for (int t = 0; t < TRIALS; t++)
		if (trials[t].complete)
			trials[t].complete(runs[t].account, runs[t].process.pid);
	for (end = help_now() + 5000000000ull; left && help_now() < end;) {
		left = 0;
		for (int t = 0; t < TRIALS; t++) {
			serve(&runs[t]);
			if (is_writer(&runs[t]))
				drain(&runs[t], false);
			left += !runs[t].gone;
		}
		usleep(1000);
	}
	for (int t = 0; t < TRIALS; t++) {
		if (!runs[t].gone)
			fail_msg("%s hangs", trials[t].name);
		check(&runs[t]);
		close(runs[t].account->fd[0]);
		close(runs[t].account->fd[1]);
		munmap(runs[t].account, 4096);
	}
}

static void test_freeze_and_thaw(void **state)
{
	run_trials(WAY_FREEZE);
}

static void test_inject_in_between(void **state)
{
	run_trials(WAY_INJECT);
}

static void test_image(void **state)
{
	run_trials(WAY_IMAGE);
	assert_true(waits_saved > 4 * waits_over);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_freeze_and_thaw),
		cmocka_unit_test(test_inject_in_between),
		cmocka_unit_test(test_image),
	};

	alarm(60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
