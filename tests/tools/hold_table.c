/*
 * Locks the user's name table, as a program in the middle of a change, and prints its pid. SIGSTOP keeps the
 * table locked; the program unlocks it at the end of standard input.
 */
#include <stdio.h>
#include <unistd.h>

#include "namespace/names.h"

int main(void)
{
	struct err err = ERR_INIT;
	struct names *names;
	char c;

	if (names_open(&names, &err) < 0 || names_lock(names) < 0) {
		fprintf(stderr, "hold_table: %s\n", err.text);
		return 1;
	}
	printf("%d\n", (int)getpid());
	fflush(stdout);
	while (read(STDIN_FILENO, &c, 1) > 0)
		;
	names_unlock(names);
	names_close(names);
	return 0;
}
