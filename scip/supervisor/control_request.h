/*
 * Shared by control.c and the handlers. control.c has the sockets and the requests that need the loop
 * (freeze, stack, terminate); control_handlers.c those that are served at once on a stopped process.
 */
#ifndef SCIP_SUPERVISOR_CONTROL_REQUEST_H
#define SCIP_SUPERVISOR_CONTROL_REQUEST_H

#include <limits.h>

#include "proto/control.pb-c.h"
#include "scip/supervisor/control.h"

enum { CONTROL_CONNECTIONS_MAX = 8 };

struct control_connection {
	int sock;	      /* -1: free */
	bool froze;	      /* thaw when it ends */
	bool replaces;	      /* ... or kill, if it was condemned by then */
	bool keeps;	      /* ... or leave it to the next connection that freezes it */
	bool silent;	      /* has not made a request yet; */
	bool drives;	      /* has made a request of a restore: the husk dies with the connection */
	bool decides;	      /* ... or runs, if the processes that it replaces were condemned by then; the
			       * child on trial stays in that case */
	uint32_t waiting;     /* the request that the loop will reply to, or SCIP_NONE */
	uint64_t deadline_ns; /* of a stop */
	struct vpid parent;   /* of SCIP_ORPHAN */
	struct control_trial {
		pid_t child; /* that the frozen process has on trial (adopt.c), 0 none */
		pid_t replaces;
		struct vpid vpid;
	} trial;
};

/* The child that a process which is to stop waits for in vfork, as it was seen last. */
struct control_vfork {
	pid_t child;		    /* 0 none */
	uint64_t switches;	    /* how often it has slept or been preempted */
	uint64_t began_ns, look_ns; /* when it was seen first; when to look again */
};

struct control {
	const struct seat *seat;
	int listener;
	char path[PATH_MAX];
	struct control_connection connections[CONTROL_CONNECTIONS_MAX];
	Pbeam__ScipFill *fill; /* of a restore, until it runs */
	pid_t coordinator; /* the coordinator whose husk the process is and that has not connected yet, 0 none
			    */
	uint64_t look_ns;  /* when to check again that it exists */
	uint64_t accept_ns; /* when to accept a connection again, after a failure; 0: at once */
	struct control_vfork vfork;
	char *successor; /* the file that the scip is to execute (control_succeed.c), NULL none */
};

/* A request on its way through its handler. */
struct control_request {
	struct control *control;
	struct control_connection *connection;
	struct process *process;
	struct frame *frame;	   /* its descriptors may be taken */
	ProtobufCMessage *message; /* the body, NULL where the request has none; may be taken (set to NULL) */
	bool answered;
};

/* Sends the reply. If a handler returns 0 without a reply, control.c sends ScipDone. */
void control_answer(struct control_request *request, const ProtobufCMessage *message);
/* The state of the process in the name table. */
void control_set_state(struct control *control, struct process *process, enum name_state state);
/* Frees the state for SCIP_RESTORE_RUN. */
void control_forget_fill(struct control *control);

/* Handlers. 0 when done; CONTROL_LATER when the loop will reply (to the request in connection->waiting) or
 * has replied; -errno with the reason in err (its text may be empty). */
enum { CONTROL_LATER = 1 };
typedef int (*control_handler)(struct control_request *request, struct err *err);
must_check int control_dump(struct control_request *request, struct err *err);
must_check int control_dump_shared(struct control_request *request, struct err *err);
must_check int control_trap_datagrams(struct control_request *request, struct err *err);
must_check int control_replace(struct control_request *request, struct err *err);
must_check int control_diverge(struct control_request *request, struct err *err);
must_check int control_restore_call(struct control_request *request, struct err *err);
must_check int control_restore_exec(struct control_request *request, struct err *err);
must_check int control_restore_fill(struct control_request *request, struct err *err);
must_check int control_restore_take(struct control_request *request, struct err *err);
must_check int control_restore_run(struct control_request *request, struct err *err);
must_check int control_restore_fork(struct control_request *request, struct err *err);
must_check int control_restore_exit(struct control_request *request, struct err *err);
/* Lets the filled process run. */
must_check int control_run_filled(struct control *control, struct process *process, struct err *err);
/* No connection drives the husk any more: it ends, or becomes the stub again. */
void control_give_up_husk(struct control *control, struct process *process);

/* ---- control_succeed.c ---- */
must_check int control_succeed(struct control_request *request, struct err *err);
/* In a new program: the control socket, and the connection that waits for the reply. -errno; the text may be
 * empty. */
must_check int control_inherit(struct control **out, const struct seat *seat, int listener, int connection,
			       const char *path, struct err *err);

/* ---- control_vfork.c ---- */
/* Called while a request waits for the process to stop. True with the reason in err if a thread waits in
 * vfork for a child that does not run towards its execve or end. */
bool control_vfork_blocks(struct control_vfork *vfork, const struct process *process, struct err *err);
/* When to call control_vfork_blocks() next; 0 if the process does not wait in vfork. */
uint64_t control_vfork_deadline(const struct control_vfork *vfork);

/* ---- control_migrate.c ---- */
must_check int control_decide(struct control_request *request, struct err *err);
must_check int control_keep(struct control_request *request, struct err *err);
must_check int control_stub(struct control_request *request, struct err *err);
must_check int control_give_up(struct control_request *request, struct err *err);
must_check int control_hold(struct control_request *request, struct err *err);
must_check int control_stub_stop(struct control_request *request, struct err *err);

/* ---- orphan.c ---- */
/* The parent of the stopped process was on another host and has ended. Sets the new parent and sends the
 * signals that the process's threads want then (PR_SET_PDEATHSIG). */
must_check int orphan_adopted(struct process *process, struct vpid parent, struct err *err);
/* The process has been rebuilt as it was saved and is about to run. If its parent has ended since, a
 * process that returns to its stub gets these signals; a process that was pre-copied to another host gets
 * its last parent. */
void orphan_restored(const struct process *process, const Pbeam__Process *saved);
/* The set of these signals. */
uint64_t orphan_wants(const Pbeam__Process *saved);

/* ---- adopt.c ---- */
must_check int control_adopt(struct control_request *request, struct err *err);
/* The coordinator was killed after the commit: makes the child on trial permanent. */
void adopt_finish(const struct control_trial *trial, struct process *process);
/* Removes the child on trial as if it had never been. The process stays frozen. */
void adopt_undo(struct control_trial *trial, struct process *process);
/* ---- adopt_pidfd.c ---- */
/* Exchanges pidfds of `old`, which has not been waited for, for those of `new` (real numbers). */
must_check int adopt_exchange_pidfds(struct tracee *tracee, pid_t old, pid_t new, struct err *err);

#endif
