/* pbeamctl: the user's hand. Everything is in the table of command.c. */
#include <signal.h>

#include "base/log.h"
#include "pbeamctl/command.h"

int main(int argc, char **argv)
{
	/* a reader that has enough of our output (head, less) is an error to be told, not a death */
	signal(SIGPIPE, SIG_IGN);
	log_open("pbeamctl", NULL);
	return command_main(argc, argv);
}
