/* Calls that a stop has interrupted: what they were, and how they go on. */
#ifndef SCIP_TRACEE_PENDING_H
#define SCIP_TRACEE_PENDING_H

#include "proto/image.pb-c.h"
#include "scip/tracee/process.h"

/* See freeze_saved_registers(). call->args is allocated as protobuf-c frees it. */
must_check int pending_saved_registers(struct tracee *tracee, struct user_regs_struct *regs,
				       Pbeam__PendingCall *call, struct err *err);

#endif
