#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "proto/daemon.h"

/* Signal 0 asks whether it is there, so that an unknown one is refused in this command's own words. */
static int check_target(const char *word, struct err *err)
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
		protobuf_c_message_free_unpacked(reply, NULL);
	return r;
}

static int run(const struct command_line *line)
{
	struct err err = ERR_INIT;
	char scip[PATH_MAX];

	if (check_target(line->words[0], &err) < 0 ||
	    daemon_find_program("scip", scip, sizeof(scip), &err) < 0)
		return command_failed(&err);
	execl(scip, "scip", "attach", "--", line->words[0], (char *)NULL);
	err_sys(&err, "execute %s", scip);
	return command_failed(&err);
}

static const struct command_option options[] = {{NULL, 0, NULL, NULL, NULL}};

const struct command attach_command = {
	.name = "attach",
	.synopsis = "VPID|NAME",
	.summary = "this terminal becomes its console",
	.text = "Shows what the job wrote to its terminal while nobody looked, then all it writes; what is "
		"typed\n"
		"goes to it. An earlier console is told and ends. Ctrl-] d leaves again, the job goes on. "
		"The exit\n"
		"status is the program's, 0 after Ctrl-] d.",
	.options = options,
	.words = WORDS_TARGET,
	.least = 1,
	.most = 1,
	.run = run,
};
