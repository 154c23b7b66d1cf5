/*
 * A console starts the keeper and from then on knows of the job only what comes over the keeper's socket. It
 * may be killed at any moment: the keeper then keeps what the job writes to its pty for the next console.
 */
#include "scip/job/console.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/daemon.h"
#include "scip/job/relay.h"
#include "scip/job/streams.h"
#include "scip/job/terminal.h"

enum { STATUS_SCIP = 125 };

int console_exit_status(int status)
{
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int fail(const struct err *err)
{
	fprintf(stderr, "scip: %s\n", err->text);
	return STATUS_SCIP;
}

/* Waits for the program to be executed. Returns 0 with its vpid, else the exit status, with the sentence
 * printed. */
static int wait_for_start(int events, struct vpid *vpid)
{
	struct keeper_event event;
	ssize_t n;

	do
		n = recv(events, &event, sizeof(event), 0);
	while (n < 0 && errno == EINTR);
	if (n != (ssize_t)sizeof(event)) {
		fprintf(stderr, "scip: the job's keeper was killed before the program was started\n");
		return STATUS_SCIP;
	}
	if (event.type != KEEPER_STARTED) {
		event.text[sizeof(event.text) - 1] = 0;
		fprintf(stderr, "scip: %s\n", event.text);
		return event.value > 0 ? event.value : STATUS_SCIP;
	}
	vpid->n = event.value;
	return 0;
}

static int report_vpid(struct vpid vpid)
{
	printf("%d\n", vpid.n);
	if (fflush(stdout) != 0) {
		fprintf(stderr, "scip: vpid %d runs, but standard output cannot be written\n", vpid.n);
		return STATUS_SCIP;
	}
	return 0;
}

static int show(int events, int master, struct vpid vpid)
{
	struct relay_options options = {.events = events, .master = master, .vpid = vpid};
	struct err err = ERR_INIT;
	int status = 0;

	if (names_open(&options.names, &err) < 0)
		return fail(&err);
	switch (relay_run(&options, &status)) {
	case RELAY_ENDED:
		return console_exit_status(status);
	case RELAY_TAKEN:
		fprintf(stderr, "scip: vpid %d goes on at another console\n", vpid.n);
		return STATUS_SCIP;
	case RELAY_HUNG_UP:
		return 128 + SIGHUP;
	case RELAY_LOST:
		fprintf(stderr, "scip: vpid %d: the job's keeper was killed and its processes with it\n",
			vpid.n);
		return STATUS_SCIP;
	case RELAY_DETACHED:
		break;
	}
	return 0;
}

int console_run(struct keeper_options *job, const struct console_options *options)
{
	auto_close int events = -1, master = -1;
	struct err err = ERR_INIT;
	struct vpid vpid;
	sigset_t before;
	int status;

	if (streams_choose(job, options, &err) < 0)
		return fail(&err);
	relay_block_signals(&before);
	job->signal_mask = &before;
	events = keeper_start(job, &err);
	if (events >= 0 && !options->detach && job->pty_master >= 0)
		master = dup(job->pty_master);
	streams_close(job);
	if (events < 0)
		return fail(&err);
	status = wait_for_start(events, &vpid);
	if (status)
		return status;
	daemon_start_quietly();
	return options->detach ? report_vpid(vpid) : show(events, master, vpid);
}
