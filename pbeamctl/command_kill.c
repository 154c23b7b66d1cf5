#include <signal.h>

#include "base/parse.h"
#include "pbeamctl/client.h"
#include "pbeamctl/command.h"

static int kill_run(const struct command_line *line)
{
	Pbeam__KillRequest request = PBEAM__KILL_REQUEST__INIT;
	const char *name = command_value(line, "signal");
	struct err err = ERR_INIT;
	Pbeam__Target target;

	request.signal = SIGTERM;
	if (name) {
		request.signal = parse_signal(name, &err);
		if (request.signal < 0)
			return command_misused(line->command, "%s", err.text);
	}
	client_target(line->words[0], &target);
	request.target = &target;
	return client_command(PBEAM__DAEMON_REQUEST__DAEMON_KILL, &request.base);
}

static const struct command_option kill_options[] = {
	{"signal", 's', "SIGNAL", "a name or number: TERM (default), SIGTERM or 15",
	 "HUP INT QUIT KILL USR1 USR2 TERM CONT STOP"},
	{NULL, 0, NULL, NULL, NULL},
};

const struct command kill_command = {
	.name = "kill",
	.synopsis = "[-s SIGNAL] VPID|NAME",
	.summary = "send a signal to a process",
	.text = "Sends a signal to the process with this vpid, on whichever host it is.",
	.options = kill_options,
	.words = WORDS_TARGET,
	.least = 1,
	.most = 1,
	.run = kill_run,
};
