/*
 * Inside control: what connections and handlers share. control.c has the sockets and what needs the loop
 * (freeze, stack, terminate); control_handlers.c what is answered at once on a process that stands still.
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
	bool keeps;	      /* ... or rather leave it to who freezes it next */
	bool silent;	      /* has not made a request yet; */
	bool drives;	      /* ... has made one of a restore: with either the husk dies */
	uint32_t waiting;     /* a request that the loop will answer, or SCIP_NONE */
	uint64_t deadline_ns; /* of a stop */
	struct vpid parent;   /* of SCIP_ORPHAN */
	struct control_trial {
		pid_t child; /* that the frozen process has on trial (adopt.c), 0 none */
		pid_t replaces;
		struct vpid vpid;
	} trial;
};

struct control {
	const struct seat *seat;
	int listener;
	char path[PATH_MAX];
	struct control_connection connections[CONTROL_CONNECTIONS_MAX];
	Pbeam__ScipFill *fill; /* of a restore, until it runs */
	pid_t coordinator;     /* whose husk the process is that nobody has called for yet, 0 none */
	uint64_t look_ns;      /* when to see whether he is there still */
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

/* Sends the answer; without it a handler that returns 0 is answered for by ScipDone. */
void control_answer(struct control_request *request, const ProtobufCMessage *message);
/* The state of the process in the name table. */
void control_set_state(struct control *control, struct process *process, enum name_state state);
/* What is kept for SCIP_RESTORE_RUN goes. */
void control_forget_fill(struct control *control);

/* Handlers. 0 when done; CONTROL_LATER when the loop will answer (connection->waiting says what to) or has;
 * -errno with the reason in err (its text may be empty). */
enum { CONTROL_LATER = 1 };
typedef int (*control_handler)(struct control_request *request, struct err *err);
must_check int control_dump(struct control_request *request, struct err *err);
must_check int control_dump_shared(struct control_request *request, struct err *err);
must_check int control_hear(struct control_request *request, struct err *err);
must_check int control_replace(struct control_request *request, struct err *err);
must_check int control_diverge(struct control_request *request, struct err *err);
must_check int control_restore_call(struct control_request *request, struct err *err);
must_check int control_restore_exec(struct control_request *request, struct err *err);
must_check int control_restore_fill(struct control_request *request, struct err *err);
must_check int control_restore_run(struct control_request *request, struct err *err);
must_check int control_restore_fork(struct control_request *request, struct err *err);
must_check int control_restore_exit(struct control_request *request, struct err *err);
/* Nobody drives it any more: it ends, or is the stub that it was. */
void control_give_up_husk(struct control *control, struct process *process);

/* ---- control_migrate.c ---- */
must_check int control_keep(struct control_request *request, struct err *err);
must_check int control_stub(struct control_request *request, struct err *err);
must_check int control_give_up(struct control_request *request, struct err *err);
must_check int control_hold(struct control_request *request, struct err *err);
must_check int control_stub_stop(struct control_request *request, struct err *err);

/* ---- orphan.c ---- */
/* The parent of the process, which stands still, was on another host and has ended: it has this one now, and
 * gets the signals that its threads want then (PR_SET_PDEATHSIG). */
must_check int orphan_adopted(struct process *process, struct vpid parent, struct err *err);
/* It has been made as it was saved, and is about to run. Where its parent has ended since: who comes back
 * into its stub gets the same signals; who was made ahead on another host has the parent that it had in the
 * end. */
void orphan_restored(const struct process *process, const Pbeam__Process *saved);
/* Those signals: a bit for each. */
uint64_t orphan_wants(const Pbeam__Process *saved);

/* ---- adopt.c ---- */
must_check int control_adopt(struct control_request *request, struct err *err);
/* The child on trial has never been. The process is still frozen. */
void adopt_undo(struct control_trial *trial, struct process *process);
/* ---- adopt_pidfd.c ---- */
/* Pidfds of `old`, which is not waited for yet, become those of `new` (real numbers). */
must_check int adopt_exchange_pidfds(struct tracee *tracee, pid_t old, pid_t new, struct err *err);

#endif
