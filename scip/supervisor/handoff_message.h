/* What is sent on the hand-over socket of a job: one Handoff (proto/control.proto) in each datagram. */
#ifndef SCIP_SUPERVISOR_HANDOFF_MESSAGE_H
#define SCIP_SUPERVISOR_HANDOFF_MESSAGE_H

#include <stdint.h>
#include <sys/types.h>
#include <sys/user.h>

#include "base/err.h"

/* A process that a scip, or the keeper, gives to a scip; see Handoff in proto/control.proto. */
struct handoff {
	int32_t rpid;
	int32_t vpid;
	int32_t keeper;
	uint32_t flags;		/* HANDOFF_* */
	int32_t dumpable;	/* HANDOFF_DUMPABLE: the value to put back */
	int32_t asked_dumpable; /* process->dumpable */
	int32_t coordinator;	/* HANDOFF_HELD: whose husk it is */
	uint64_t sigmask;
	uint64_t scratch, timeouts; /* the areas of scip that its memory, a copy of its parent's, contains */
	uint64_t parking;	    /* address of the instruction it waits at */
	struct user_regs_struct regs;
};
enum {
	HANDOFF_FORKED = 1u << 0,   /* parked in pause(): put regs and mask back */
	HANDOFF_LAUNCH = 1u << 1,   /* the keeper's child, waiting in pause() before it executes the program:
				       its pause() returns 1 if it is to load the restored filter, else 0 */
	HANDOFF_HELD = 1u << 2,	    /* a husk: stays stopped until the coordinator resumes it */
	HANDOFF_DIVERGED = 1u << 3, /* runs behind the restored filter */
	HANDOFF_DUMPABLE = 1u << 4, /* was made dumpable for the hand-over */
	HANDOFF_SHARES_MEMORY =
		1u << 6,	   /* shares memory with its parent (vfork), including the areas of scip */
	HANDOFF_RETIRE = 1u << 7,  /* no process: the receiver is one spare too many, and ends */
	HANDOFF_FILTERS = 1u << 5, /* has seccomp filters of the program's own: process->filters */
};

/* Sends without blocking for a receiver: the socket's buffer holds it. 0 or -errno. */
must_check int handoff_message_send(int sock, const struct handoff *handoff);
/* Receives by `receive`, which returns the length of a datagram, 0, or -errno. 1; 0: the socket is gone; or
 * -errno: -EPROTO for a datagram that is not a Handoff. */
must_check int handoff_message_receive(ssize_t (*receive)(int sock, void *data, size_t len), int sock,
				       struct handoff *handoff);
/* Like handoff_message_receive(), but does not block: -EAGAIN if no datagram is queued. */
must_check int handoff_message_take(int sock, struct handoff *handoff);

#endif
