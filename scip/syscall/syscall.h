/*
 * System calls of the programs: the seccomp filters and what is done at a trap. docs/HOWTO_ADD_SYSCALL.md.
 *
 * The table (syscalls/syscall_table.h) says of each call when the filters trap it:
 *
 * - born: of every new process. Traps what must be seen or translated although all names are still true: kill
 *   and others where the pid is not 0, SysV ids, seccomp, calls that are not in the table.
 * - cluster: replaces born on a host of a cluster. Also traps what may name something on another host, and
 *   calls that pass transport addresses.
 * - restored: of restored processes, and loaded from inside (SECCOMP_FILTER_FLAG_TSYNC) into a process whose
 *   own names diverge. Traps every call that carries a name.
 * - diverged: replaces restored in a cluster for processes that have not moved. Also traps calls that pass
 *   transport addresses, but no datagrams.
 * - moved: replaces restored in a cluster for processes made from an image. Also traps datagrams.
 * - mapped: replaces moved where files of the job have other paths. Also traps every call with a path.
 * - receive, send: added to one of those in a process that has not moved and exchanges datagrams with one
 * that has. The receive filter traps datagrams that arrive, the send filter both directions.
 *
 * Filters add up: a call that several of them trap is trapped once.
 */
#ifndef SCIP_SYSCALL_SYSCALL_H
#define SCIP_SYSCALL_SYSCALL_H

#include <linux/filter.h>

#include "proto/successor.pb-c.h"
#include "scip/tracee/process.h"

enum syscall_filter {
	SYSCALL_FILTER_BORN,
	SYSCALL_FILTER_CLUSTER,
	SYSCALL_FILTER_RESTORED,
	SYSCALL_FILTER_DIVERGED,
	SYSCALL_FILTER_MOVED,
	SYSCALL_FILTER_MAPPED,
	SYSCALL_FILTER_RECEIVE,
	SYSCALL_FILTER_SEND,
};
/* The filter of a new process, of one whose names diverge, and of one made from an image. */
enum syscall_filter syscall_filter_born(struct names *names);
enum syscall_filter syscall_filter_diverged(struct names *names);
enum syscall_filter syscall_filter_restored(struct names *names);

/* What the handlers keep for a process: allocated before its first trap (-ENOMEM), freed when it has ended.
 */
must_check int syscall_attach(struct process *process);
void syscall_detach(struct process *process);

/* What of that another version's scip needs (proto/successor.proto): into and out of the message. -ENOMEM,
 * -EPROTO. */
must_check int syscall_save(const struct process *process, Pbeam__ScipState *out);
must_check int syscall_load(struct process *process, const Pbeam__ScipState *saved);

/* The filter as a BPF program, malloc'd; for seccomp(SECCOMP_SET_MODE_FILTER). */
must_check int syscall_filter_build(enum syscall_filter which, struct sock_fprog *out, struct err *err);
/* Loads the diverged filter into all threads of a stopped process from inside. Does nothing if
 * process->diverged. */
must_check int syscall_filter_inject(struct tracee *tracee, struct err *err);

/* Likewise the receive filter, or with `send` the send filter. Does nothing where the filters of the process
 * trap these calls already. */
must_check int syscall_filter_datagrams(struct tracee *tracee, bool send, struct err *err);

/* Traps reads of the signalfds that a stopped, diverged process has, after a restore. */
must_check int syscall_filter_signalfds(struct tracee *tracee, struct err *err);

enum syscall_verdict {
	SYSCALL_CONTINUE,  /* resume; the call runs with the arguments as they are now */
	SYSCALL_WANT_EXIT, /* resume with PTRACE_SYSCALL: syscall_exit() is called at the exit stop */
	SYSCALL_SKIP,	   /* answered by scip: number set to -1, return set; resume */
};
/* At a seccomp stop. Returns a verdict, or -errno if the trap cannot be handled (the tracee is gone). */
must_check int syscall_enter(struct tracee *tracee);
/* At the exit stop that syscall_enter() asked for. */
must_check int syscall_exit(struct tracee *tracee);
/* At a signal-delivery stop: translates the sender's id in its siginfo when names have diverged. */
must_check int syscall_translate_siginfo(struct tracee *tracee);
/* At the first stop of a newborn thread or process whose numbers differ, before it runs or is handed over:
 * makes the numbers that clone() has stored in its memory virtual. `process` made the newborn. */
must_check int syscall_newborn(const struct process *process, pid_t tid, struct vpid vtid);
/* At the event of a fork or clone whose child's number differs: requests the exit stop, unless the filter
 * has trapped the call, and translates the result there. */
must_check int syscall_expect_birth(struct tracee *parent);
/* Translates the process id in a siginfo (the kernel's 128 bytes), if it has one. True if it changed. An
 * image holds virtual ids, the kernel real ones. */
bool syscall_siginfo_to_virtual(struct names *names, void *siginfo);
bool syscall_siginfo_to_real(struct names *names, void *siginfo);
/* The tracee is gone or has executed another program: drops the state of its call. */
void syscall_forget(struct tracee *tracee);

#endif
