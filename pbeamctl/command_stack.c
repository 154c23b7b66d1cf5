#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "pbeamctl/format.h"
#include "proto/daemon.h"
#include "proto/message.h"

/* scip unwinds the stacks, as it does for processes. */
static int show_image(const char *path)
{
	struct err err = ERR_INIT;
	char scip[PATH_MAX];

	if (daemon_find_program("scip", scip, sizeof(scip), &err) < 0)
		return command_failed(&err);
	execl(scip, "pbeamctl", "stack", "--", path, (char *)NULL);
	err_sys(&err, "execute %s", scip);
	return command_failed(&err);
}

static int stack_run(const struct command_line *line)
{
	struct err err = ERR_INIT;
	Pbeam__Target target;
	Pbeam__StackReply *reply;
	struct stat st;

	client_target(line->words[0], &target);
	if (!target.vpid && stat(line->words[0], &st) == 0 && S_ISREG(st.st_mode))
		return show_image(line->words[0]);
	if (client_ask(PBEAM__DAEMON_REQUEST__DAEMON_STACK, &target.base, &pbeam__stack_reply__descriptor,
		       &reply, &err) < 0)
		return command_failed(&err);
	format_lines(reply->text);
	message_free(reply);
	return STATUS_DONE;
}

const struct command stack_command = {
	.name = "stack",
	.synopsis = "VPID|NAME|IMAGE",
	.summary = "print the call stack of each thread",
	.text = "Prints the call stack of each thread of a running process, which continues at\n"
		"once, or of all processes in an image.",
	.options = command_no_options,
	.words = WORDS_TARGET_OR_FILE,
	.least = 1,
	.most = 1,
	.run = stack_run,
};
