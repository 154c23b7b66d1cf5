/*
 * Handing a process from one scip to another. handoff.c says how.
 */
#ifndef SCIP_SUPERVISOR_HANDOFF_H
#define SCIP_SUPERVISOR_HANDOFF_H

#include "scip/supervisor/supervisor.h"

/* Old side. `child` is a new process at its first stop, attached to us and not in any list. Enters it in the
 * name table (BORN, vpid as claimed), parks it, detaches it, sends it. On failure the child has been killed,
 * and the error says why; it is gone from us in any case. `flags`: HANDOFF_HELD and HANDOFF_DIVERGED as
 * wished. `parking`: the address of a `syscall` instruction, 0 for the one that it was forked by. */
must_check int handoff_send(const struct seat *seat, const struct process *parent, pid_t child,
			    struct vpid vpid, uint32_t flags, struct taddr parking, struct err *err);

/* New side: attaches the process of a message and puts it back as it was; *leader is stopped: the caller
 * resumes it unless it is held. -ESRCH: it is gone (it was killed in the window). On other failures it has
 * been killed. */
must_check int handoff_take(struct process *process, const struct handoff *handoff, struct tracee **leader,
			    struct err *err);

#endif
