/* pbeamctl, the user's command. The subcommands are in the table of command.c. */
#include <signal.h>

#include "base/log.h"
#include "pbeamctl/command.h"

int main(int argc, char **argv)
{
	/* When the reader of our output exits early (head, less), report EPIPE instead of dying. */
	signal(SIGPIPE, SIG_IGN);
	log_open("pbeamctl", NULL);
	return command_main(argc, argv);
}
