/* The one table, from table_x86_64.def. */
#include "scip/syscall/table.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <time.h>

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
		.op = COND_NOT, .arg = argument, .mask = ~0u, .n = 1, .values = { value }                    \
	}
#define SIGNALFD                                                                                             \
	{                                                                                                    \
		.op = COND_SIGNALFD                                                                          \
	}
#define BITS(argument, bits)                                                                                 \
	{                                                                                                    \
		.op = COND_BITS, .arg = argument, .mask = bits                                               \
	}
#define COUNT(...) (sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))
#define IN_MASKED(argument, bits, ...)                                                                       \
	{                                                                                                    \
		.op = COND_IN, .arg = argument, .mask = bits, .n = COUNT(__VA_ARGS__), .values = {           \
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
#define RUSAGES IN(0, RUSAGE_SELF, (uint32_t)RUSAGE_CHILDREN)
#define FUTEX_PI                                                                                             \
	IN_MASKED(1, 0x7f, FUTEX_LOCK_PI, FUTEX_UNLOCK_PI, FUTEX_TRYLOCK_PI, FUTEX_WAIT_REQUEUE_PI,          \
		  FUTEX_CMP_REQUEUE_PI, 13 /* FUTEX_LOCK_PI2 */)

#define NONE	     KIND_NONE
#define INT	     KIND_INT
#define FD	     KIND_FD
#define DIRFD	     KIND_DIRFD
#define PATH	     KIND_PATH
#define PTR	     KIND_PTR
#define SIZE	     KIND_SIZE
#define SIG	     KIND_SIG
#define VPID	     KIND_VPID
#define VTID	     KIND_VTID
#define VPGID	     KIND_VPGID
#define VPID_ALL     KIND_VPID_ALL
#define SOCKADDR_IN  KIND_SOCKADDR_IN
#define SOCKADDR_OUT KIND_SOCKADDR_OUT
#define RET_FD	     KIND_RET_FD
#define RET_VPID     KIND_RET_VPID

#define ARGS(...)                                                                                            \
	{                                                                                                    \
		__VA_ARGS__                                                                                  \
	}
#define CELL(number, call, how, returns, arguments, frozen, text)                                            \
	.name = #call, .level = LEVEL_##how, .args = ARGS arguments, .ret = returns,                         \
	.freeze = SYSCALL_FREEZE_##frozen, .note = text
#define ROW(number, call, how, returns, arguments, at_birth, when_restored, frozen, on_enter, on_exit, text) \
	[number] = {CELL(number, call, how, returns, arguments, frozen, text), .born = at_birth,             \
		    .restored = when_restored, .enter = on_enter, .exit = on_exit},
#define PASS(number, call, arguments, text)                                                                  \
	[number] = {CELL(number, call, PASS, NONE, arguments, REISSUE, text)},
#define VIRT(number, call, returns, arguments, when_restored, text)                                          \
	[number] = {CELL(number, call, VIRT, returns, arguments, REISSUE, text), .restored = when_restored},

const struct syscall_row syscall_table[SYSCALL_ROWS] = {
#include "scip/syscall/table_x86_64.def"
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

enum syscall_freeze syscall_freeze_of(int64_t nr)
{
	const struct syscall_row *row = syscall_row(nr);

	return row ? row->freeze : SYSCALL_FREEZE_REISSUE;
}
