/*
 * Hands a process from one scip to another; handoff.c describes how.
 */
#ifndef SCIP_SUPERVISOR_HANDOFF_H
#define SCIP_SUPERVISOR_HANDOFF_H

#include "scip/supervisor/handoff_message.h"
#include "scip/supervisor/supervisor.h"

/* The old side. `child` is a new process at its first stop, attached and in no list. Enters it in the name
 * table (BORN, vpid as claimed), parks it, detaches it, sends it. On failure the child has been killed and
 * err says why; it is detached in any case. `flags` may have HANDOFF_HELD and HANDOFF_DIVERGED. `parking`:
 * the address of a `syscall` instruction, 0 for the one that forked it. */
must_check int handoff_send(const struct seat *seat, const struct process *parent, pid_t child,
			    struct vpid vpid, uint32_t flags, struct taddr parking, struct err *err);

/* The new side: attaches the process of a message and restores it. *leader is stopped; the caller resumes
 * it unless it is held. -ESRCH: it was killed in between. On other failures it has been killed. */
must_check int handoff_take(struct process *process, const struct handoff *handoff, struct tracee **leader,
			    struct err *err);

#endif
