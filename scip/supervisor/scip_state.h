/* The state of a scip and its frozen process, for another version's scip (successor.h). */
#ifndef SCIP_SUPERVISOR_SCIP_STATE_H
#define SCIP_SUPERVISOR_SCIP_STATE_H

#include "scip/supervisor/control_request.h"
#include "scip/supervisor/successor.h"

/* Executes `program` with the state. Does not return if it works; else nothing has changed. All threads of
 * the process are held (freeze.h). */
must_check int scip_state_exec(const struct seat *seat, struct process *process,
			       const struct control *control, const char *program, struct err *err);
/* In the new program: makes the seat, the process (which is the caller's) and the control socket. On failure
 * the process is as it was. */
must_check int scip_state_take(const struct successor *from, struct seat *seat, struct process **process,
			       struct control **control, struct err *err);

#endif
