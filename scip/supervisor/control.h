/*
 * The control socket of a scip, RUNTIME/scip/PID, proto/control.proto, for coordinators. SIGIO tells
 * the loop that data or a connection has arrived (the socket is O_ASYNC), so an idle socket costs
 * nothing.
 *
 * What a connection has frozen is thawed when the connection ends; a husk that it holds is killed.
 * Requests are served in order and at once, except for those that need the loop (freeze, terminate):
 * they are answered when the loop reports completion.
 */
#ifndef SCIP_SUPERVISOR_CONTROL_H
#define SCIP_SUPERVISOR_CONTROL_H

#include "proto/frame.h"
#include "scip/supervisor/supervisor.h"

struct control;

/* Binds the socket. If that fails (with the reason in err), the scip works but takes no requests. */
must_check int control_open(struct control **out, const struct seat *seat, struct err *err);
/* Closes the socket and removes its file. */
void control_close(struct control *control);
/* Removes the socket of a scip that was killed. */
void control_clean_up(pid_t scip);
/* Accepts connections and serves requests that have arrived. `process` NULL: the scip is idle, and all
 * connections are refused. */
void control_serve(struct control *control, struct process *process);
/* After each event of the process: answers a freeze that is complete now. */
void control_progress(struct control *control, struct process *process);
/* True if a connection is open or has left a husk behind. */
bool control_has_callers(const struct control *control);
/* The time by which control_serve() must be called, for example because a freeze request expires:
 * CLOCK_MONOTONIC ns, 0 for none. */
uint64_t control_deadline(const struct control *control);
/* The process is held for this coordinator, which will connect. The process ends if the coordinator ends
 * first. */
void control_await_coordinator(struct control *control, pid_t coordinator);
/* The process is gone: answers requests that waited for its end, fails the others, closes all connections. */
void control_process_gone(struct control *control, struct process *process);

/* The file that a request wants the scip to execute, NULL for none. */
const char *control_successor(const struct control *control);
/* It could not be executed. */
void control_refuse_successor(struct control *control, const struct err *why);
/* In the new program: it goes on. */
void control_confirm_successor(struct control *control);

/* ---- restore_fork.c ---- */
/* Makes the held or frozen process fork a child, which is handed over, held. *rpid is its number, bound to
 * `vpid` (0: any number). fill_signs.taken is rung when another scip has it. On failure *rpid is 0, or a
 * child that has been killed. */
must_check int restore_fork(const struct seat *seat, struct process *process, struct vpid vpid,
			    int exit_signal, bool same_files, struct rpid *rpid, struct err *err);

#endif
