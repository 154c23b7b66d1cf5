/*
 * The parts of a process's dump, inside scip/dump.
 *
 * Collecting has two halves. What /proc and ptrace tell is asked first, from outside. What only the process
 * itself may ask (its alternate stacks, clear_child_tid, handlers, timers) is asked by the injected code:
 * by one batch for the process and its first thread, and one for each further thread. So long as a batch runs
 * all other threads stand still. Nothing that is asked changes the process.
 */
#ifndef SCIP_DUMP_DUMP_PARTS_H
#define SCIP_DUMP_DUMP_PARTS_H

#include "image/image.h"
#include "proto/image.pb-c.h"
#include "scip/tracee/process.h"
#include "scip/tracee/procfs.h"
#include "scip/tracee/remote.h"

enum { DUMP_SIGNALS = 64, DUMP_AREA = 256 * 1024 };

struct prescan;
struct sock_filter;
struct seccomp_data;

/* Where the answers are, for the questions of a part. */
struct dump_asked {
	struct taddr at; /* in the batch's data */
	int calls[4];	 /* whose results are answers */
	size_t n;
};

struct dump {
	struct process *process;
	struct tracee
		*caller; /* a live thread: it makes the calls that concern the whole process, and /proc is
			  * asked by its number: that of a leader that has exited knows of no memory */
	Pbeam__Process *out;
	struct procfs_stat stat;
	char *status; /* text of /proc/PID/status */
	struct prescan *prescan;
};

/* ---- dump.c ---- */
/* A thread that can make calls: the leader while it lives. NULL when the process is gone. */
struct tracee *dump_caller(struct process *process);
/* Injects unless it is injected already; *opened says that it is ours to withdraw. */
must_check int dump_inject(struct process *process, struct tracee *caller, bool *opened, struct err *err);
/* Withdraws what dump_inject() opened. Returns r, or why the withdrawal failed. */
must_check int dump_withdraw(struct tracee *caller, bool opened, int r, struct err *err);

/* ---- dump_threads.c ---- */
/* Registers, extended state, masks, pending signals, scheduling: for every live thread one Thread, the leader
 * first. */
must_check int dump_threads(struct dump *dump, struct err *err);
/* From inside: names, alternate stacks, clear_child_tid and the like. dump_ask_thread() is for the caller;
 * dump_threads_inside() asks all others, each by a batch of its own, and goes last. */
must_check int dump_ask_thread(struct dump *dump, struct batch *batch, struct dump_asked *asked);
must_check int dump_take_thread(struct dump *dump, struct batch *batch, const struct dump_asked *asked);
must_check int dump_threads_inside(struct dump *dump, struct err *err);

/* ---- dump_vdso.c ---- */
/* Steps all threads out of the vdso. */
must_check int dump_leave_vdso(struct dump *dump, struct err *err);
/* Saves the text of a vdso that the program has changed. */
must_check int dump_vdso_text(const struct process *process, Pbeam__Mapping *out, struct err *err);

/* ---- dump_signals.c ---- */
/* The pending signals of a thread, and with `process` those of the whole process. The signal that a delivery
 * stop holds is the thread's first. */
must_check int dump_pending(const struct tracee *tracee, Pbeam__Thread *thread, Pbeam__Process *process,
			    struct err *err);
/* From inside: handlers that are not SIG_DFL. */
must_check int dump_ask_actions(struct dump *dump, struct batch *batch, struct dump_asked *asked);
must_check int dump_take_actions(struct dump *dump, struct batch *batch, const struct dump_asked *asked);

/* ---- dump_timers.c ---- */
/* From inside: interval timers. */
must_check int dump_ask_itimers(struct dump *dump, struct batch *batch, struct dump_asked *asked);
must_check int dump_take_itimers(struct dump *dump, struct batch *batch, const struct dump_asked *asked);
/* POSIX timers; from inside where there are any. */
must_check int dump_timers(struct dump *dump, struct err *err);
/* Text of /proc/PID/timers into `out->timers`, without times. Numbers of threads stay real. */
must_check int dump_parse_timers(const char *text, Pbeam__Process *out, struct err *err);

/* ---- dump_semaphores.c ---- */
/* From inside, after the filters: what the process's end does to semaphores that the job has made. */
must_check int dump_semaphores(struct dump *dump, struct err *err);

/* True if the program's own filters let it make this call; after dump_filters(). */
bool dump_may_call(const struct dump *dump, int nr);

/* ---- dump_policies.c ---- */
/* What get_mempolicy() writes: room for as many nodes as the kernel can be built for. */
#define DUMP_POLICY_NODES 1025u
struct dump_policy {
	int32_t mode, reserved;
	uint64_t nodes[DUMP_POLICY_NODES / 64];
};
/* NUMA policies of the mappings, from inside: of the first ones, and of the rest by further batches. */
must_check int dump_ask_policies(struct dump *dump, struct batch *batch, struct dump_asked *asked);
must_check int dump_take_policies(struct dump *dump, struct batch *batch, const struct dump_asked *asked);
must_check int dump_policies(struct dump *dump, struct err *err);
/* Into *out, if it is not the default. */
must_check int dump_add_policy(const struct dump_policy *got, Pbeam__MemoryPolicy **out);

/* ---- dump_attributes.c ---- */
/* Names of the process, credentials, limits, directories: what /proc and prlimit tell. */
must_check int dump_attributes(struct dump *dump, struct err *err);
/* And what prctl tells inside. */
must_check int dump_ask_attributes(struct dump *dump, struct batch *batch, struct dump_asked *asked);
must_check int dump_take_attributes(struct dump *dump, struct batch *batch, const struct dump_asked *asked);
/* The mm fields of /proc/PID/stat, brk, auxv. */
must_check int dump_memory_fields(struct dump *dump, struct err *err);

/* ---- dump_filters.c ---- */
/* The seccomp filters that the program installed; -ENOTSUP when one of them forbids what a dump needs. */
must_check int dump_filters(struct dump *dump, struct err *err);
/* What a filter of `n` instructions says to a call: SECCOMP_RET_*. */
uint32_t dump_run_filter(const struct sock_filter *filter, size_t n, const struct seccomp_data *data);

#endif
