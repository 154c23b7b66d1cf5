/*
 * Waits on sockets with SO_RCVTIMEO or SO_SNDTIMEO.
 *
 * The kernel reads such a timeout from the socket when a call begins, so a call that is made again would wait
 * the whole time again. It cannot be shortened: other threads and processes use the same socket. The scip
 * keeps the end of the wait instead (pending.c), interrupts the thread then, and answers for the kernel.
 */
#ifndef SCIP_TRACEE_SOCKET_WAIT_H
#define SCIP_TRACEE_SOCKET_WAIT_H

#include "scip/tracee/process.h"
#include "syscalls/syscall_table.h"

/* The timeout, in nanoseconds, of the process's socket `fd` for receiving (TIMEOUT_UNIT_RECEIVE) or sending;
 * socket(7). False: it has none, or the descriptor is no socket. */
bool socket_wait_timeout(const struct process *process, int fd, enum timeout_unit unit, uint64_t *ns);

/* The first end of such a wait of a running thread, in monotonic nanoseconds; 0 if no thread waits. */
uint64_t socket_wait_deadline(struct process *process);
/* Interrupts the threads whose wait has ended. */
void socket_wait_expire(struct process *process);
/* At a stop within get_signal() of a thread whose continued call, with these registers, was interrupted: if
 * the wait has ended, sets *regs to those of the returned call, and returns true. */
bool socket_wait_ended(const struct tracee *tracee, struct user_regs_struct *regs);

#endif
