/*
 * `scip receive`: pbeamd starts it with a channel of kind MIGRATE as descriptor 3, the name of the
 * host that it comes from in PBEAM_PEER. It becomes the guest
 * keeper of the job whose processes arrive, or gives the channel to the keeper of that job that is here
 * already.
 */
#ifndef SCIP_JOB_RECEIVE_H
#define SCIP_JOB_RECEIVE_H

#include <protobuf-c/protobuf-c.h>
#include <sys/types.h>

#include "base/err.h"

/* Returns the exit status, or never: the guest keeper ends by itself. */
int receive_run(void);

/* ---- for part.c as well ---- */
/* The keeper on this host that has the job, 0 for none. */
pid_t receive_find_keeper(const char *uuid, struct err *err);
/* Gives the channel to the keeper with this request. 0: it has it in hand. */
must_check int receive_pass_on(pid_t keeper, int channel, uint32_t type, const ProtobufCMessage *message,
			       struct err *err);

#endif
