/*
 * A tree of N processes (argument, 1000 by default), up to ten children each. Every process keeps its ids; at
 * the end each checks them, waits for its children, and exits with 0 only if all below it did.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FANOUT = 10 };

static int gate[2]; /* never written to: end of file is the signal to continue */

static void wait_for_the_gate(void)
{
	char c;

	if (read(gate[0], &c, 1) != 0)
		_exit(9);
}

/* The process numbered `index` has the children index * FANOUT + 1 ... Returns its exit status. */
static int grow(int index, int total)
{
	pid_t child[FANOUT], me = getpid(), parent = getppid(), group = getpgrp(), session = getsid(0);
	int children = 0, status;

	for (int i = 1; i <= FANOUT && index * FANOUT + i < total; i++) {
		pid_t pid = fork();
		if (pid < 0)
			return 8;
		if (pid == 0) {
			close(gate[1]);
			_exit(grow(index * FANOUT + i, total));
		}
		child[children++] = pid;
	}
	if (index == 0) {
		printf("tick 1\n");
		fflush(stdout);
		while (access("go", F_OK) != 0) {
			usleep(50000);
			printf("tick\n");
			fflush(stdout);
		}
		close(gate[1]);
	} else {
		wait_for_the_gate();
	}
	if (getpid() != me || getppid() != parent || getpgrp() != group || getsid(0) != session)
		return 7;
	for (int i = 0; i < children; i++)
		if (waitpid(child[i], &status, 0) != child[i] || status != 0)
			return WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : 6;
	return 0;
}

int main(int argc, char **argv)
{
	int total = argc > 1 ? atoi(argv[1]) : 1000;

	if (pipe(gate) < 0)
		return 2;
	int status = grow(0, total);
	printf(status == 0 ? "result ok\n" : "result wrong: %d\n", status);
	return status;
}
