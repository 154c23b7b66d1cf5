#include "scip/job/launch.h"
#include "scip/job/event.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/io.h"
#include "scip/job/user_terminal.h"
#include "scip/syscall/syscall.h"

enum { STATUS_SCIP = 125, STATUS_NOT_EXECUTABLE = 126, STATUS_NOT_FOUND = 127 };

static void block_all_signals(void)
{
	sigset_t all;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
}

/* Until a scip supervises this process only the keeper knows of it, and must not end before it. */
static void end_with(pid_t keeper)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != keeper)
		_exit(STATUS_SCIP);
}

/* The scip that seizes this process lets the call return once: 1 if the process's pid is not its vpid, else
 * 0. Yama requires that the tracer is named first. */
static bool launch_await_scip(pid_t keeper)
{
	long r;

	(void)prctl(PR_SET_PTRACER, (unsigned long)keeper, 0, 0, 0);
	do
		r = syscall(SYS_pause);
	while (r < 0);
	return r == 1;
}

static int load_filter(const struct sock_fprog *filter)
{
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -errno;
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, filter) < 0 ? -errno : 0;
}

/* Without a reader the keeper has ended, and this process with it. */
static void report_event(int report, Pbeam__KeeperEvent__Type type, int status, const char *text)
{
	Pbeam__KeeperEvent event = PBEAM__KEEPER_EVENT__INIT;

	event.type = type;
	event.value = status;
	event.text = (char *)(uintptr_t)text;
	(void)!event_write(report, &event);
}

_Noreturn static void launch_fail(int report, int status, const struct err *err)
{
	report_event(report, PBEAM__KEEPER_EVENT__TYPE__FAILED, status, err->text);
	_exit(status);
}

static int set_streams(const int console[3], struct err *err)
{
	for (int i = 0; i < 3; i++) {
		if (console[i] < 0)
			close(i);
		else if (dup2(console[i], i) < 0)
			return err_sys(err, "give the program its stream %d", i);
	}
	return 0;
}

/* In the child. The console's descriptors are above 2: streams_choose() sees to that. */
_Noreturn static void become_program(struct job *job, const struct sock_fprog *filter, int report)
{
	const struct keeper_options *options = job->options;
	struct sock_fprog restored;
	struct err err = ERR_INIT;
	int r = 0;

	end_with(job->entry.keeper.n);
	setpgid(0, 0);
	if (set_streams(job->console, &err) < 0 || terminal_to_foreground(&err) < 0)
		launch_fail(report, STATUS_SCIP, &err);
	if (launch_await_scip(job->entry.keeper.n)) { /* from here on this process ends with its scip */
		r = syscall_filter_build(syscall_filter_diverged(job->names), &restored, &err);
		filter = &restored;
	}
	if (prctl(PR_SET_PDEATHSIG, 0) < 0 && r == 0)
		r = -errno;
	if (r == 0)
		r = load_filter(filter);
	if (r < 0) {
		err_code(&err, r, "load the system-call filter");
		launch_fail(report, STATUS_SCIP, &err);
	}
	sigprocmask(SIG_SETMASK, &job->saved_mask, NULL);
	report_event(report, PBEAM__KEEPER_EVENT__TYPE__EXECUTING, 0, "");
	execvp(options->argv[0], options->argv);
	if (errno == ENOENT || errno == ENOTDIR) {
		err_set(&err, -errno, "%s: %s", options->argv[0],
			strchr(options->argv[0], '/') ? "not found (or its interpreter is not)"
						      : "command not found");
		launch_fail(report, STATUS_NOT_FOUND, &err);
	}
	err_sys(&err, "%s: cannot be executed", options->argv[0]);
	launch_fail(report, STATUS_NOT_EXECUTABLE, &err);
}

/* A child with all signals blocked that has the write end of a pipe (`*end`), of which the parent has the
 * read end: 0 in the child, else its pid or a negative error. */
static pid_t fork_reporting(int *end, struct err *err)
{
	int pipe_fds[2], r;
	pid_t pid;

	if (pipe2(pipe_fds, O_CLOEXEC | O_DIRECT) < 0)
		return err_sys(err, "make a pipe");
	pid = fork();
	r = pid < 0 ? err_sys(err, "make the program's process") : pid;
	if (pid == 0)
		block_all_signals();
	*end = pipe_fds[pid == 0];
	close(pipe_fds[pid != 0]);
	if (pid < 0)
		close(*end);
	return r;
}

int launch_program(struct job *job, const struct sock_fprog *filter, int *report, struct err *err)
{
	pid_t pid = fork_reporting(report, err);

	if (pid == 0)
		become_program(job, filter, *report);
	return pid;
}

/* In the child: `ready` is the only descriptor left, and is closed when the husk is as good as waiting. */
_Noreturn static void become_husk(struct job *job, const struct sock_fprog *filter, unsigned ready)
{
	end_with(job->entry.keeper.n);
	if (ready > 0)
		(void)syscall(SYS_close_range, 0, ready - 1, 0);
	(void)syscall(SYS_close_range, ready + 1, ~0u, 0);
	if (load_filter(filter) < 0)
		_exit(STATUS_SCIP);
	close((int)ready);
	launch_await_scip(job->entry.keeper.n);
	_exit(STATUS_SCIP); /* not reached: a husk's call does not return */
}

int launch_husk(struct job *job, const struct sock_fprog *filter, int *ready, struct err *err)
{
	pid_t pid = fork_reporting(ready, err);

	if (pid == 0)
		become_husk(job, filter, (unsigned)*ready);
	return pid;
}
