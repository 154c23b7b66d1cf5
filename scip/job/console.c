/*
 * A console starts the keeper and from then on learns of the job only over the keeper's socket. It may be
 * killed at any moment: the keeper then keeps the output of the job's pty for the next console.
 */
#include "scip/job/console.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/logout.h"
#include "base/text.h"
#include "proto/daemon.h"
#include "proto/message.h"
#include "scip/job/event.h"
#include "scip/job/inherited.h"
#include "scip/job/relay.h"
#include "scip/job/streams.h"
#include "scip/job/user_terminal.h"

enum { STATUS_SCIP = 125, START_STEP_MS = 200, START_PATIENCE_MS = 3000 };

static int console_fail(const struct err *err)
{
	fprintf(stderr, "scip: %s\n", err->text);
	return STATUS_SCIP;
}

/* A process has one tracer: under a scip there can be no second one. */
static int check_not_supervised(struct err *err)
{
	auto_free char *status = NULL, *comm = NULL;
	const char *at;
	char path[40];
	int tracer = 0;

	if (io_slurp(AT_FDCWD, "/proc/self/status", 1 << 16, &status, NULL) < 0)
		return 0;
	at = strstr(status, "TracerPid:");
	if (!at || sscanf(at, "TracerPid: %d", &tracer) != 1 || tracer <= 0)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/comm", tracer);
	if (io_slurp(AT_FDCWD, path, 64, &comm, NULL) < 0 || strcmp(comm, "scip\n") != 0)
		return 0;
	return err_set(
		err, -EPERM,
		"this runs under scip already, and a process has one supervisor; start the program itself");
}

/*
 * Signals are blocked and stay pending for the program. If it is not there some seconds after one that is
 * meant to end it, the console ends by that signal.
 */
static void console_await_event(int events)
{
	static const int ending[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
	struct pollfd ready = {.fd = events, .events = POLLIN};
	sigset_t pending, all;

	for (int waited = 0; poll(&ready, 1, START_STEP_MS) <= 0;) {
		bool asked = false;

		sigpending(&pending);
		for (size_t i = 0; i < sizeof(ending) / sizeof(ending[0]); i++)
			asked |= sigismember(&pending, ending[i]) > 0;
		waited += asked ? START_STEP_MS : 0;
		if (waited >= START_PATIENCE_MS) {
			sigemptyset(&all);
			sigprocmask(SIG_SETMASK, &all, NULL);
		}
	}
}

/* Waits until the program has been executed. Returns 0 with its vpid, or prints the reason and returns the
 * exit status. */
static int console_await_start(int events, struct vpid *vpid)
{
	Pbeam__KeeperEvent *event = NULL;
	int status = 0;

	console_await_event(events);
	if (event_receive(events, 0, &event) <= 0) {
		fprintf(stderr, "scip: the job's keeper was killed before the program was started\n");
		return STATUS_SCIP;
	}
	if (event->type == PBEAM__KEEPER_EVENT__TYPE__STARTED) {
		char *rest = NULL;

		vpid->n = event->value;
		for (char *line = strtok_r(event->text, "\n", &rest); line;
		     line = strtok_r(NULL, "\n", &rest))
			fprintf(stderr, "scip: %s\n", text_visible(line));
	} else {
		fprintf(stderr, "scip: %s\n", text_visible(event->text));
		status = event->value > 0 ? event->value : STATUS_SCIP;
	}
	message_free(event);
	return status;
}

static int console_print_vpid(struct vpid vpid)
{
	printf("%d\n", vpid.n);
	if (fflush(stdout) != 0) {
		fprintf(stderr, "scip: vpid %d runs, but standard output cannot be written\n", vpid.n);
		return STATUS_SCIP;
	}
	return 0;
}

int console_show(struct relay_options *options)
{
	struct err err = ERR_INIT;
	enum relay_end end;
	int status = 0;

	if (names_open(&options->names, &err) < 0)
		return console_fail(&err);
	end = relay_run(options, &status);
	names_close(options->names);
	switch (end) {
	case RELAY_ENDED:
		return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	case RELAY_DETACHED:
		fprintf(stderr, "\r\nscip: detached; vpid %d goes on\n", options->vpid.n);
		return 0;
	case RELAY_TAKEN:
		fprintf(stderr, "scip: vpid %d goes on at another console\n", options->vpid.n);
		return STATUS_SCIP;
	case RELAY_HUNG_UP:
		return 128 + SIGHUP;
	case RELAY_LOST:
		fprintf(stderr, "scip: vpid %d: the job's keeper was killed and its processes with it\n",
			options->vpid.n);
		return STATUS_SCIP;
	}
	return STATUS_SCIP;
}

int console_run(struct keeper_options *job, const struct console_options *options)
{
	struct relay_options relay = {.events = -1, .master = -1, .backlog = -1};
	struct err err = ERR_INIT;
	sigset_t before;
	int status;

	if (check_not_supervised(&err) < 0 || (options->close_inherited && inherited_close(&err) < 0))
		return console_fail(&err);
	if (job->argv)
		inherited_report();
	if (options->detach && !options->image_streams && logout_of_user() != LOGOUT_HARMLESS)
		fprintf(stderr, "scip: %s\n", logout_sentence(logout_of_user()));
	if (streams_choose(job, options, &err) < 0)
		return console_fail(&err);
	relay_block_signals(&before);
	job->signal_mask = &before;
	relay.events = keeper_start(job, &err);
	if (relay.events >= 0 && !options->detach && job->pty_master >= 0)
		relay.master = dup(job->pty_master);
	streams_close(job);
	if (relay.events < 0)
		return console_fail(&err);
	status = console_await_start(relay.events, &relay.vpid);
	if (status == 0) {
		streams_print_notes();
		daemon_start_quietly();
		status = options->detach ? console_print_vpid(relay.vpid) : console_show(&relay);
	}
	relay_close(&relay);
	return status;
}
