/* Writes docs/SYSCALLS.md to standard output. */
#include <stdio.h>

#include "syscalls/syscall_table.h"

int main(void)
{
	syscall_write_document(stdout);
	return fflush(stdout) ? 1 : 0;
}
