#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "proto/daemon.h"

/* Unwinding is scip's: it does the same for processes. */
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

static int run(const struct command_line *line)
{
	struct err err = ERR_INIT;
	Pbeam__Target target;
	ProtobufCMessage *reply;
	const char *text;
	struct stat st;

	client_target(line->words[0], &target);
	if (!target.vpid && stat(line->words[0], &st) == 0 && S_ISREG(st.st_mode))
		return show_image(line->words[0]);
	if (client_ask(PBEAM__DAEMON_REQUEST__DAEMON_STACK, &target.base, &pbeam__stack_reply__descriptor,
		       &reply, &err) < 0)
		return command_failed(&err);
	text = ((const Pbeam__StackReply *)reply)->text;
	fputs(text, stdout);
	if (*text && text[strlen(text) - 1] != '\n')
		putchar('\n');
	protobuf_c_message_free_unpacked(reply, NULL);
	return STATUS_DONE;
}

static const struct command_option options[] = {{NULL, 0, NULL, NULL, NULL}};

const struct command stack_command = {
	.name = "stack",
	.synopsis = "VPID|NAME|IMAGE",
	.summary = "where each thread is",
	.text = "Prints the call stack of each thread of a process that runs (which goes on at once), or of "
		"all\n"
		"processes in an image.",
	.options = options,
	.words = WORDS_TARGET_OR_FILE,
	.least = 1,
	.most = 1,
	.run = run,
};
