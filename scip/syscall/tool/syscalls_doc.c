/* Writes docs/SYSCALLS.md to standard output. */
#include <stdio.h>

#include "scip/syscall/table.h"

int main(void)
{
	syscall_write_document(stdout);
	return fflush(stdout) ? 1 : 0;
}
