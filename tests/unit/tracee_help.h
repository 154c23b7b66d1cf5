/* Small children to be traced by the unit tests of scip/tracee. */
#ifndef TESTS_UNIT_TRACEE_HELP_H
#define TESTS_UNIT_TRACEE_HELP_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "scip/tracee/process.h"
#include "scip/tracee/procfs.h"
#include "scip/tracee/remote.h"
#include "scip/tracee/stops.h"
#include "tests/unit/unit.h"

/* Fails with the error's text. */
#define assert_ok(expression)                                                                                \
	do {                                                                                                 \
		struct err help_err = ERR_INIT;                                                              \
		struct err *err = &help_err;                                                                 \
		int help_code = (expression);                                                                \
		if (help_code < 0)                                                                           \
			fail_msg("%s: %d %s", #expression, help_code, err->text);                            \
	} while (0)

/* Forks a child that runs `body` and dies with us. */
static inline pid_t help_fork(void (*body)(void *), void *arg)
{
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		body(arg);
		_exit(0);
	}
	return pid;
}

/* In a child: waits until it is seized. */
static inline void help_await_tracer(void)
{
	char text[4096], *tracer;
	int n, fd;

	do {
		fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
		n = (int)read(fd, text, sizeof(text) - 1);
		close(fd);
		text[n > 0 ? n : 0] = 0;
		tracer = strstr(text, "TracerPid:");
	} while (!tracer || atoi(tracer + strlen("TracerPid:")) == 0);
}

/* Maps a page that child and test share. */
static inline void *help_shared(size_t size)
{
	void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(page != MAP_FAILED);
	return page;
}

/* Waits until the main thread sleeps in a call (state S). */
static inline void help_wait_asleep(pid_t pid)
{
	struct procfs_stat stat;

	for (int i = 0; i < 5000; i++) {
		assert_ok(procfs_stat_read(pid, 0, &stat, err));
		if (stat.state == 'S')
			return;
		usleep(1000);
	}
	fail_msg("%d does not fall asleep", pid);
}

static inline struct tracee *help_seize(struct process *process, pid_t pid)
{
	struct tracee *tracee;

	memset(process, 0, sizeof(*process));
	process->pid = pid;
	assert_ok(stops_seize(process, pid, &tracee, err));
	return tracee;
}

/* Resumes every stop until the process has ended; returns its wait status. */
static inline int help_run_to_end(struct process *process)
{
	struct tracee *tracee;
	int status, code;

	for (;;) {
		code = stops_wait(process, -1, 0, &tracee, &status);
		if (code == -ECHILD)
			return process->exit_status;
		assert_int_equal(code, 1);
		if (tracee->stop == TRACEE_EXITED) {
			bool leader = tracee->tid == process->pid;

			process_remove_tracee(process, tracee);
			if (leader) {
				process_clear(process);
				return status;
			}
			continue;
		}
		if (stops_resume(tracee, STOPS_CONT) < 0)
			tracee->stop = TRACEE_RUNNING;
	}
}

static inline void help_kill(struct process *process)
{
	kill(process->pid, SIGKILL);
	help_run_to_end(process);
	inject_forget(process);
}

static inline uint64_t help_now(void)
{
	return io_now_ns(CLOCK_MONOTONIC);
}

#endif
