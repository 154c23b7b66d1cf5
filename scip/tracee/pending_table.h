/* Which calls are interrupted how: for pending.c and continue.c. */
#ifndef SCIP_TRACEE_PENDING_TABLE_H
#define SCIP_TRACEE_PENDING_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "scip/tracee/process.h"

/* Where a call has its relative timeout. */
struct pending_timeout {
	int arg;     /* of the timeout, -1 none */
	bool ms;     /* the argument is milliseconds; else the address of a timespec */
	bool kernel; /* the kernel keeps the time left itself (-516, restart_syscall) */
	int left;    /* argument with an address where the kernel writes the time left, -1 none */
};
struct pending_timeout pending_timeout_of(int64_t number, const uint64_t args[6]);
/* True if the call answers -EINTR to PTRACE_INTERRUPT instead of asking to be restarted. */
bool pending_says_eintr(int64_t number);
/* Milliseconds or a timespec in the tracee, as nanoseconds. False: no timeout, or it cannot be read. */
bool pending_read_timeout(const struct process *process, struct pending_timeout where, const uint64_t args[6],
			  uint64_t *ns);

void pending_args(const struct user_regs_struct *regs, uint64_t args[6]);
void pending_set_args(struct user_regs_struct *regs, const uint64_t args[6]);

/* ---- continue.c: transfers that were interrupted midway ---- */
/* `regs` are of a call that returned fewer bytes than it was asked for, because of the stop. If it is one
 * that goes on: sets tracee->pending and `regs`, which then are of an interrupted call for the rest. */
bool continue_begin(struct tracee *tracee, struct user_regs_struct *regs);
/* The call for what is left of pending.number after pending.done bytes, into `regs` (orig_rax and arguments).
 * False when nothing is left. */
bool continue_piece(struct tracee *tracee, struct user_regs_struct *regs);

#endif
