/*
 * A scip's ear for the coordinator: RUNTIME/scip/PID, proto/control.proto. The loop is told by SIGIO that
 * something has come (the socket is O_ASYNC), so that listening costs nothing while nobody calls.
 *
 * What a connection froze is thawed when it ends; what it holds as a husk is killed. Requests are answered in
 * order, at once, but for those that need the loop (freeze, terminate): they are answered when the loop says
 * that it is so.
 */
#ifndef SCIP_SUPERVISOR_CONTROL_H
#define SCIP_SUPERVISOR_CONTROL_H

#include "proto/frame.h"
#include "scip/supervisor/supervisor.h"

struct control;

/* Binds the socket. Without one (err says why) the scip works but cannot be asked for checkpoints. */
must_check int control_open(struct control **out, const struct seat *seat, struct err *err);
/* Its file name is removed. */
void control_close(struct control *control);
/* Removes the socket of a scip that was killed. */
void control_clean_up(pid_t scip);
/* Something may have come: takes new connections and serves what requests there are. `process` NULL: the scip
 * is idle, and all connections are refused. */
void control_serve(struct control *control, struct process *process);
/* After each event of the process: answers a freeze that is complete now. */
void control_progress(struct control *control, struct process *process);
/* Whether anybody is connected, or has left something behind. */
bool control_has_callers(const struct control *control);
/* When to serve in any case, because a freeze request runs out, say: CLOCK_MONOTONIC ns, 0 for none. */
uint64_t control_deadline(const struct control *control);
/* The process is held for this coordinator, who is to call: it ends if he ends before. */
void control_await_coordinator(struct control *control, pid_t coordinator);
/* The process is gone: answers who waited for that, tells the others, ends the connections. */
void control_process_gone(struct control *control, struct process *process);

/* ---- restore_fork.c ---- */
/* The held or frozen process forks a child, which is handed over, held; *rpid is its number, bound to `vpid`
 * (0: whatever number it gets). Another scip has it soon: fill_signs.taken is rung then. Where that fails
 * *rpid is 0, or a child that has been killed. */
must_check int restore_fork(const struct seat *seat, struct process *process, struct vpid vpid,
			    int exit_signal, bool same_files, struct rpid *rpid, struct err *err);

#endif
