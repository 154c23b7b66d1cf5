/* The one table, from table_x86_64.def. */
#include "syscalls/syscall_table.h"

#include <string.h>

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/ioprio.h>
#include <linux/sched.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

#include "syscalls/clock_id.h"

/* Sizes of the kernel's structures. */
enum { SCHED_PARAM = 4, SCHED_ATTR = 56 /* Linux 5.3 */, RLIMIT64 = 16 };

#define NEVER                                                                                                \
	{                                                                                                    \
		.op = COND_NEVER                                                                             \
	}
#define ALWAYS                                                                                               \
	{                                                                                                    \
		.op = COND_ALWAYS                                                                            \
	}
#define NOT(argument, value)                                                                                 \
	{                                                                                                    \
		.op = COND_NOT, .arg = argument, .mask = ~0u, .n = 1, .values = (const uint32_t[])           \
		{                                                                                            \
			value                                                                                \
		}                                                                                            \
	}
#define BITS(argument, bits)                                                                                 \
	{                                                                                                    \
		.op = COND_BITS, .arg = argument, .mask = bits                                               \
	}
#define COUNT(...) (sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))
#define IN_MASKED(argument, bits, ...)                                                                       \
	{                                                                                                    \
		.op = COND_IN, .arg = argument, .mask = bits, .n = COUNT(__VA_ARGS__),                       \
		.values = (const uint32_t[])                                                                 \
		{                                                                                            \
			__VA_ARGS__                                                                          \
		}                                                                                            \
	}
#define IN(argument, ...) IN_MASKED(argument, ~0u, __VA_ARGS__)

#define FCNTLS		  IN(1, F_SETOWN, F_GETOWN, F_SETOWN_EX, F_GETOWN_EX, F_GETLK, F_OFD_GETLK)
/* 0x890x: FIOSETOWN SIOCSPGRP FIOGETOWN SIOCGPGRP. PIDFD_GET_INFO (0xc0..ff0b) has its size in the middle:
 * what else ends so is no great harm, so only the low half is looked at. */
#define IOCTLS                                                                                               \
	IN_MASKED(1, 0xffff, TIOCGPGRP, TIOCSPGRP, TIOCGSID, TIOCGPTN & 0xffff, 0x8901, 0x8902, 0x8903,      \
		  0x8904, 0xff0b)
#define PRCTLS_BORN IN(0, PR_SET_SECCOMP, PR_SET_DUMPABLE, PR_GET_DUMPABLE)
#define PRCTLS                                                                                               \
	IN(0, PR_SET_SECCOMP, PR_SET_DUMPABLE, PR_GET_DUMPABLE, PR_SET_PTRACER, 62 /* PR_SCHED_CORE \
												      */)
/* Clocks of other processes and threads: clock_id.h. */
#define NAMED_CLOCKS                                                                                         \
	0x80000000, 0x80000000 | CLOCK_ID_VIRT, 0x80000000 | CLOCK_ID_SCHED, 0x80000000 | CLOCK_ID_THREAD,   \
		0x80000000 | CLOCK_ID_THREAD | CLOCK_ID_VIRT, 0x80000000 | CLOCK_ID_THREAD | CLOCK_ID_SCHED
#define NAMED_CLOCK   IN_MASKED(0, 0x80000000 | CLOCK_ID_LOW, NAMED_CLOCKS)
#define PROCESS_CLOCK IN_MASKED(0, 0x80000000 | CLOCK_ID_LOW, CLOCK_PROCESS_CPUTIME_ID, NAMED_CLOCKS)
#define RUSAGES	      IN(0, RUSAGE_SELF, (uint32_t)RUSAGE_CHILDREN)
#define FUTEX_PI                                                                                             \
	IN_MASKED(1, 0x7f, FUTEX_LOCK_PI, FUTEX_UNLOCK_PI, FUTEX_TRYLOCK_PI, FUTEX_WAIT_REQUEUE_PI,          \
		  FUTEX_CMP_REQUEUE_PI, 13 /* FUTEX_LOCK_PI2 */)

#define NONE			KIND_NONE
#define INT			KIND_INT
#define FD			KIND_FD
#define DIRFD			KIND_DIRFD
#define PATH			KIND_PATH
#define PATH_OUT		KIND_PATH_OUT
#define TEXT			KIND_TEXT
#define PTR			KIND_PTR
#define SIZE			KIND_SIZE
#define SIG			KIND_SIG
#define VPID			KIND_VPID
#define VTID			KIND_VTID
#define VPGID			KIND_VPGID
#define VPID_ALL		KIND_VPID_ALL
#define CLOCK			KIND_CLOCK
#define SOCKADDR_IN		KIND_SOCKADDR_IN
#define SOCKADDR_OUT		KIND_SOCKADDR_OUT
#define RET_FD			KIND_RET_FD
#define RET_VPID		KIND_RET_VPID

#define CLUSTER(condition)	.cluster = condition
#define DIVERGED(condition)	.diverged = condition
#define MOVED(condition)	.moved = condition
#define RECEIVE(condition)	.receive = condition
#define SEND(condition)		.send = condition
#define ON_SIGNALFD		.on_signalfd = true
#define ANSWERS_EINTR		.eintr = true
#define TIMEOUT(what, argument) .timeout = {.unit = TIMEOUT_UNIT_##what, .arg = argument, .relative = ALWAYS}
#define KERNEL_TIMEOUT(what, argument, when, rest)                                                           \
	.timeout = {.unit = TIMEOUT_UNIT_##what,                                                             \
		    .arg = argument,                                                                         \
		    .relative = when,                                                                        \
		    .left = rest,                                                                            \
		    .kernel_keeps = true}
#define TRANSFER(how, which, descriptor, memory, bytes, when)                                                \
	.transfer = {.shape = TRANSFER_##how,                                                                \
		     .file = TRANSFER_FILE_##which,                                                          \
		     .fd = descriptor,                                                                       \
		     .buffer = memory,                                                                       \
		     .count = bytes,                                                                         \
		     .waits = when}
#define TRANSFER_PIECES(how, which, by, when)                                                                \
	.transfer = {.shape = TRANSFER_##how, .file = TRANSFER_FILE_##which, .piece = by, .waits = when}
#define WAITALL(argument)    IN_MASKED(argument, MSG_DONTWAIT | MSG_WAITALL | MSG_PEEK, MSG_WAITALL)
#define NO_SIGPIPE(argument) .no_sigpipe = argument
#define REMOTE(...)	     .remote = {.when = __VA_ARGS__}
#define CHANGES_FILE	     .file_use = FILE_USE_CHANGE
#define LOOKS_AT_FILE	     .file_use = FILE_USE_LOOK
#define EXECUTES_FILE	     .file_use = FILE_USE_EXECUTE

#define ARGS(...)                                                                                            \
	{                                                                                                    \
		__VA_ARGS__                                                                                  \
	}
/* PASS and VIRT do not expand to ROW: a condition has commas, which the second expansion would split. */
#define CELL(call, how, returns, arguments)                                                                  \
	.name = #call, .level = LEVEL_##how, .ret = returns, .args = ARGS arguments
#define ROW(number, call, how, returns, arguments, at_birth, when_restored, enter, exit, ...)                \
	[number] = {CELL(call, how, returns, arguments), .born = at_birth, .restored = when_restored,        \
		    .note = __VA_ARGS__},
#define PASS(number, call, arguments, ...)                                                                   \
	[number] = {CELL(call, PASS, NONE, arguments), .note = __VA_ARGS__},
#define VIRT(number, call, returns, arguments, when_restored, ...)                                           \
	[number] = {CELL(call, VIRT, returns, arguments), .restored = when_restored, .note = __VA_ARGS__},

const struct syscall_row syscall_table[SYSCALL_ROWS] = {
#include "syscalls/table_x86_64.def"
};

const struct syscall_row *syscall_row(int64_t nr)
{
	if (nr < 0 || nr >= SYSCALL_ROWS || !syscall_table[nr].name)
		return NULL;
	return &syscall_table[nr];
}

const char *syscall_name(int64_t nr)
{
	const struct syscall_row *row = syscall_row(nr);

	return row ? row->name : "unknown";
}

int64_t syscall_number(const char *name)
{
	for (int64_t nr = 0; nr < SYSCALL_ROWS; nr++)
		if (syscall_table[nr].name && !strcmp(syscall_table[nr].name, name))
			return nr;
	return -1;
}

bool syscall_condition_holds(const struct syscall_condition *condition, const uint64_t args[6])
{
	uint32_t value = (uint32_t)args[condition->arg] & condition->mask;

	switch ((enum condition_op)condition->op) {
	case COND_NEVER:
		return false;
	case COND_ALWAYS:
		return true;
	case COND_NOT:
		return value != condition->values[0];
	case COND_BITS:
		return value != 0;
	case COND_IN:
		for (unsigned i = 0; i < condition->n; i++)
			if (value == condition->values[i])
				return true;
		return false;
	}
	return false;
}

bool syscall_has_path(const struct syscall_row *row)
{
	for (unsigned i = 0; i < 6; i++)
		if (row->args[i] == KIND_PATH || row->args[i] == KIND_PATH_OUT)
			return true;
	return false;
}

const struct syscall_timeout *syscall_timeout(int64_t nr, const uint64_t args[6])
{
	const struct syscall_row *row = syscall_row(nr);

	if (!row || !row->timeout.unit || !syscall_condition_holds(&row->timeout.relative, args))
		return NULL;
	return &row->timeout;
}

bool syscall_timeout_is_of_socket(const struct syscall_timeout *timeout)
{
	return timeout->unit >= TIMEOUT_UNIT_RECEIVE;
}
