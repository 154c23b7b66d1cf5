#include <limits.h>
#include <unistd.h>

#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "proto/daemon.h"
#include "proto/message.h"

/* Probes the target with signal 0, so that an unknown one is refused in pbeamctl's own words. */
static int command_attach_check_target(const char *word, struct err *err)
{
	Pbeam__KillRequest request = PBEAM__KILL_REQUEST__INIT;
	Pbeam__Target target;
	ProtobufCMessage *reply;
	int r;

	client_target(word, &target);
	request.target = &target;
	r = client_ask(PBEAM__DAEMON_REQUEST__DAEMON_KILL, &request.base, &pbeam__done__descriptor, &reply,
		       err);
	if (r == 0)
		message_free(reply);
	return r;
}

static int command_attach_run(const struct command_line *line)
{
	struct err err = ERR_INIT;
	char scip[PATH_MAX];

	if (command_attach_check_target(line->words[0], &err) < 0 ||
	    daemon_find_program("scip", scip, sizeof(scip), &err) < 0)
		return command_failed(&err);
	execl(scip, "scip", "attach", "--", line->words[0], (char *)NULL);
	err_sys(&err, "execute %s", scip);
	return command_failed(&err);
}

const struct command attach_command = {
	.name = "attach",
	.synopsis = "VPID|NAME",
	.summary = "make this terminal the console of a job",
	.text = "Prints what the job wrote to its terminal while it had no console, then\n"
		"everything it writes, and passes input to it. A console that is already attached\n"
		"is detached. Ctrl-] d detaches; the job continues. The exit status is the\n"
		"program's, or 0 after Ctrl-] d.",
	.options = command_no_options,
	.words = WORDS_TARGET,
	.least = 1,
	.most = 1,
	.run = command_attach_run,
};
