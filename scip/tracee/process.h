/*
 * The process that a scip supervises, and its threads.
 *
 * A tracee is one thread (the word of ptrace(2)); a process is the thread group. A scip has one process
 * at a time. The folders of scip/ see the structs; only scip/supervisor changes `stop` and the list.
 */
#ifndef SCIP_TRACEE_PROCESS_H
#define SCIP_TRACEE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/user.h>

#include "base/err.h"
#include "namespace/names.h"

/* Processor time, in the order of /proc/PID/stat. */
enum { CPU_USER, CPU_SYSTEM, CPU_CHILDREN_USER, CPU_CHILDREN_SYSTEM, CPU_TIMES };

/* PR_SET_PDEATHSIG of a stub: a signal of the C library's own, which no process sends to another. */
enum { PROCESS_STUB_ORPHANED = 32 };

/* An address in the tracee; scip never dereferences it. */
struct taddr {
	uint64_t a;
};

enum tracee_stop {
	TRACEE_RUNNING,		     /* not stopped: no ptrace request is allowed */
	TRACEE_SECCOMP_STOP,	     /* before a trapped call: the registers hold the call */
	TRACEE_SYSCALL_EXIT_STOP,    /* after a call whose exit stop was requested */
	TRACEE_SIGNAL_DELIVERY_STOP, /* `signal` is about to be delivered: resume with it */
	TRACEE_GROUP_STOP,	     /* stopped by job control: resume with PTRACE_LISTEN */
	TRACEE_EVENT_STOP, /* PTRACE_EVENT_*: `event`; EVENT_STOP after PTRACE_INTERRUPT or of a new thread */
	TRACEE_EXITED,
};

/* A call that a stop has interrupted, and how it continues: scip/tracee/pending.h, its only user. */
struct tracee_pending {
	int64_t sampled_call; /* seen asleep in this call before it was interrupted; -1 none */
	uint64_t sampled_timeout, sampled_switches, sampled_ns, asleep_ns;
	bool timed; /* the interrupted call has a relative timeout, which ends at deadline_ns (monotonic) */
	uint64_t deadline_ns, stopped_ns;
	bool expiring;	/* interrupted because the wait is over: socket_wait.h */
	bool active;	/* made again with other arguments, which are restored at its exit: */
	int64_t number; /* the program's own call */
	uint64_t args[6];
	uint64_t rip;	/* behind its syscall instruction */
	uint64_t done;	/* bytes that it had transferred when it was interrupted */
	uint64_t piece; /* bytes requested by the continued call */
};

struct tracee {
	struct tracee *next;   /* in process->tracees; the leader first */
	struct tracee *bucket; /* next in its bucket of process->buckets */
	struct process *process;
	pid_t tid; /* real */
	struct vpid vtid;
	enum tracee_stop stop;
	int signal;	      /* of a signal-delivery or group stop; delivered on resume */
	int event;	      /* PTRACE_EVENT_* of an event stop */
	bool frozen;	      /* stopped for a freeze: events are held until the thaw */
	int64_t call;	      /* number of the call between its seccomp stop and its exit stop, else -1 */
	int64_t restart_call; /* the program's call that this stop has interrupted (also behind
				 restart_syscall(219)), else -1 */
	struct tracee_pending pending;
	void *frame;	     /* state of a call between enter and exit; owned by scip/syscall */
	bool awaits_filter;  /* new, with a diverged number: stays stopped until the filter is loaded */
	bool want_exit_stop; /* the current call's handler requested the exit stop */
};

#define SCRATCH_BYTES 65536u

enum { PROCESS_BUCKETS = 64 };

struct process {
	pid_t pid; /* real; thread group id */
	struct vpid vpid;
	struct rpid keeper; /* of its job */
	struct names *names;
	struct tracee *tracees;
	unsigned ntracees;
	struct tracee *buckets[PROCESS_BUCKETS]; /* the same by tid */
	struct tracee *expected; /* while freezing: the next that is likely to stop; stops_wait() */
	bool diverged;		 /* runs behind the restored filter; names are translated */
	bool parked; /* its registers are saved and restored elsewhere: an interrupted call is not the
			program's */
	bool held;   /* a husk: only the coordinator's requests resume it */
	bool frozen;
	bool freezing; /* from freeze_begin() to thaw_process(): a thread that is resumed is interrupted again
			*/
	bool returning;	     /* a stub whose process is coming back: held, a husk */
	bool tracked;	     /* a migration watches its memory with a userfaultfd */
	bool trap_unignored; /* it stands still, and does not ignore SIGTRAP (remote_frame_call()) */
	bool vfork_pending;  /* a thread waits in vfork for its child */
	pid_t vfork_child;   /* that child, real; 0 before the event has told */
	bool exiting;
	int exit_status;	   /* wait status, once gone */
	struct taddr syscall_insn; /* of a `syscall` instruction (in the vdso), 0 = not looked up; forgotten
				      at exec */
	struct inject_area *area;  /* the injected code's area, NULL when nothing is injected */
	struct taddr scratch; /* SCRATCH_BYTES mapped by scip in the tracee for rewritten arguments, 0 = none;
				 never dumped; forgotten at exec */
	struct taddr timeouts; /* a page mapped by scip for timeouts of calls made again, 0 = none; never
				  dumped; forgotten at exec */
	bool socket_waits;     /* a thread may be in a wait of socket_wait.h */
	int dumpable; /* 1 + the program's value of PR_SET_DUMPABLE (answered without effect); 0 = none */
	bool filters; /* the program has installed seccomp filters: namespace/record.h has them */
	int64_t cpu_before[CPU_TIMES]; /* processor time in ns that it had used before it was restored, less
					  the time of the restore */
	pid_t *newborn;		       /* children whose first stop was taken while waiting for any tracee;
					  stops_wait_child() */
	unsigned nnewborn;
	struct syscall_state *calls; /* owned by scip/syscall */
	struct stub *stub;	     /* owned by scip/supervisor/stub.c */
};

/* Finds a thread, or adds it with stop = TRACEE_RUNNING. Fails with -ENOMEM only. */
must_check int process_add_tracee(struct process *process, pid_t tid, struct tracee **out);
struct tracee *process_find_tracee(const struct process *process, pid_t tid);
void process_remove_tracee(struct process *process, struct tracee *tracee);
struct tracee *process_leader(struct process *process);
/* A thread of a frozen or held process that can make calls: the leader, or another if that has ended. NULL
 * if all run. */
struct tracee *process_still(struct process *process);
/* Removes all threads and forgets the address space: the process is gone or handed over. Each `frame` must
 * have been dropped before. */
void process_clear(struct process *process);

#endif
