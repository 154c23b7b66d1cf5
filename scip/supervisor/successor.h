/*
 * A keeper or scip becomes another version's program: it executes that program's file in its own process.
 *
 * execve() keeps what a job hangs on: the pid, the children and their waits, the place as subreaper,
 * descriptors without FD_CLOEXEC, blocked and pending signals, PR_SET_PDEATHSIG, and the tracees. (A tracee
 * is bound to the task of its tracer, which stays: ptrace_unlink() is called when that exits, not in
 * begin_new_exec(). So PTRACE_O_EXITKILL does not fire, and a stopped tracee stays in its stop. Linux 6.18.)
 * What is lost is memory. It is written as a message (proto/successor.proto) to a memory file whose
 * descriptor stays open.
 *
 *   the old program                                  the new program
 *   writes its state; execve(NEW, "succeed", ROLE,
 *     STATE, SELF)                  ---------------> reads and checks the state
 *                                                    goes on, and answers the request
 *   goes on, and refuses the request <-------------- if it cannot: execve(SELF, ..., REASON)
 *
 * If execve() fails, the old program goes on. SELF is a descriptor of the old program's file, so that the way
 * back does not depend on a path.
 */
#ifndef SCIP_SUPERVISOR_SUCCESSOR_H
#define SCIP_SUPERVISOR_SUCCESSOR_H

#include "proto/successor.pb-c.h"
#include "scip/supervisor/supervisor.h"

#define SUCCESSOR_VERSION 1u /* of the messages in proto/successor.proto */
#define SEAT_VERSION	  2u /* of struct seat_shared and message Handoff */

/* How the new program is called: `scip succeed ROLE STATE SELF [REASON]`. */
struct successor {
	const char *role;
	int state, self;     /* descriptors */
	const char *refused; /* why the other program has not gone on; NULL: this is the other program */
};
/* Parses these arguments, without `succeed`. */
must_check int successor_parse(struct successor *out, int argc, char **argv);

/* Asks the program, in a child, whether it can take over from this one: `scip succeed check SUCCESSOR_VERSION
 * SEAT_VERSION TABLE`. A program that cannot, or does not know the question, must not be executed. */
must_check int successor_check(const char *program, const struct seat *seat, struct err *err);
/* The answer to that: prints it, and returns the exit status. */
int successor_answer(int argc, char **argv);

/* Executes `program` with this state. The descriptors stay open in it. Does not return if it works. */
must_check int successor_exec(const char *program, const char *role, const ProtobufCMessage *state,
			      const int *fds, int nfds, struct err *err);
/* In the new program: unpacks the state; *out is freed with message_free(). */
must_check int successor_read(const struct successor *from, const ProtobufCMessageDescriptor *descriptor,
			      void *out, struct err *err);
/* In the new program: it cannot go on; executes the old one. Returns only if that fails. */
void successor_go_back(const struct successor *from, const char *reason);
/* There is no way back any more: closes what the exchange needed. */
void successor_close(const struct successor *from, const struct seat *seat);

/* Fills the message; it borrows. */
void successor_save_seat(const struct seat *seat, Pbeam__SeatState *out);
/* Checks the versions, and opens what the message names. */
must_check int successor_load_seat(const Pbeam__SeatState *saved, struct seat *out, struct err *err);

#endif
