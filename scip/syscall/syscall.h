/*
 * System calls: the one table, the filter built from it, what is done at a trap. docs/HOWTO_ADD_SYSCALL.md.
 *
 * Each row of the table (table.c, from table_x86_64.def) gives number, name, support level, argument kinds,
 * what a freeze does to the call, a note. The seccomp filters, the dispatch, docs/SYSCALLS.md and the tests
 * come from it.
 *
 * Filters. The *born* filter is loaded before the first exec: it traps what must be seen or translated even
 * when nothing has diverged (kill and its like where the pid is not 0, exec, SysV ids, seccomp, calls not in
 * the table). The *cluster* filter takes its place on a host of a cluster: it traps as well what may name
 * something of another host (filter_cluster.c). The *restored* filter traps every call that carries a name;
 * it is loaded for restored processes, and from inside (SECCOMP_FILTER_FLAG_TSYNC) into a process whose own
 * names diverge. In a cluster the latter is the *diverged* filter, which traps what carries transport
 * addresses too, as far as it matters to who has not moved; for restored processes it is the *moved* filter:
 * theirs are of datagrams as well. On a host where files of the job are under other paths that is the
 * *mapped* filter, which traps as well every other call that takes or gives a path. Two more come on top of
 * one of these: see SYSCALL_FILTER_HEARS.
 */
#ifndef SCIP_SYSCALL_SYSCALL_H
#define SCIP_SYSCALL_SYSCALL_H

#include <linux/filter.h>

#include "scip/tracee/process.h"

enum syscall_filter {
	SYSCALL_FILTER_BORN,
	SYSCALL_FILTER_CLUSTER,
	SYSCALL_FILTER_RESTORED,
	SYSCALL_FILTER_DIVERGED,
	SYSCALL_FILTER_MOVED,
	SYSCALL_FILTER_MAPPED,
	/* beside one of those, of who has not moved itself: who has sent a datagram that came, and to whom
	   one goes */
	SYSCALL_FILTER_HEARS,
	SYSCALL_FILTER_TALKS,
};
/* Which one newborns get, those whose names diverge, and those that come from an image. */
enum syscall_filter syscall_filter_born(struct names *names);
enum syscall_filter syscall_filter_diverged(struct names *names);
enum syscall_filter syscall_filter_restored(struct names *names);

/* The filter as a BPF program, malloc'd; for seccomp(SECCOMP_SET_MODE_FILTER). */
must_check int syscall_filter_build(enum syscall_filter which, struct sock_fprog *out, struct err *err);
/* Loads the diverged filter into a stopped process from inside, all threads (idempotent: process->diverged).
 */
must_check int syscall_filter_inject(struct tracee *tracee, struct err *err);

/* Likewise SYSCALL_FILTER_HEARS, or with `talks` SYSCALL_FILTER_TALKS, where what it has does not trap these
 * calls already. */
must_check int syscall_filter_datagrams(struct tracee *tracee, bool talks, struct err *err);

/* Traps the reads of the signalfds that a stopped, diverged process has: after a restore. */
must_check int syscall_filter_signalfds(struct tracee *tracee, struct err *err);

enum syscall_verdict {
	SYSCALL_CONTINUE,  /* resume; the call runs with the arguments as they are now */
	SYSCALL_WANT_EXIT, /* resume with PTRACE_SYSCALL: syscall_exit() is called at the exit stop */
	SYSCALL_SKIP,	   /* answered here: number set to -1, return set; resume */
};
/* At a seccomp stop. Returns a verdict, or -errno when the trap itself could not be handled (the tracee is
 * gone). */
must_check int syscall_enter(struct tracee *tracee);
/* At the exit stop that syscall_enter() asked for. */
must_check int syscall_exit(struct tracee *tracee);
/* At a signal-delivery stop: translates the sender's id in its siginfo when names have diverged. */
must_check int syscall_translate_siginfo(struct tracee *tracee);
/* At the first stop of a newborn thread or process (before it runs or is handed over) whose virtual number is
 * not its real one: the numbers that clone() has put into its memory become virtual. `process` is the one
 * that made it. */
must_check int syscall_newborn(const struct process *process, pid_t tid, struct vpid vtid);
/* At the event of a fork or clone whose child's number differs: its return is translated at the exit stop,
 * which is asked for if the filter has not trapped the call. */
must_check int syscall_expect_birth(struct tracee *parent);
/* The process id in a siginfo (the kernel's 128 bytes), where it carries one. True if it changed. Queued and
 * saved ones in an image hold virtual ids, the kernel's real ones. */
bool syscall_siginfo_to_virtual(struct names *names, void *siginfo);
bool syscall_siginfo_to_real(struct names *names, void *siginfo);
/* The tracee is gone or has executed another program: drops what is kept for it. */
void syscall_forget(struct tracee *tracee);

/* What a freeze does to an interrupted call. */
enum syscall_freeze { SYSCALL_FREEZE_REISSUE, SYSCALL_FREEZE_EINTR, SYSCALL_FREEZE_WAIT };
enum syscall_freeze syscall_freeze_of(int64_t nr);
const char *syscall_name(int64_t nr);

#endif
