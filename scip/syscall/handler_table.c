/* The handlers of each row, from the same table as its data. */
#include "scip/syscall/call.h"

#define PASS(...)
#define VIRT(...)
#define ROW(number, call, how, returns, arguments, at_birth, when_restored, on_enter, on_exit, ...)          \
	[number] = {.enter = on_enter, .exit = on_exit},

const struct syscall_handlers syscall_handlers[SYSCALL_ROWS] = {
#include "syscalls/table_x86_64.def"
};
