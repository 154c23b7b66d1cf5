/* Transfers that were interrupted midway, for pending.c. */
#ifndef SCIP_TRACEE_TRANSFER_H
#define SCIP_TRACEE_TRANSFER_H

#include "scip/tracee/process.h"

/* `regs` are of a call that has returned fewer bytes than requested because of the stop. If the call is
 * continued: sets tracee->pending and changes `regs` to those of an interrupted call for the rest. */
bool transfer_begin(struct tracee *tracee, struct user_regs_struct *regs);
/* Puts the call for the rest of pending.number after pending.done bytes into `regs` (orig_rax and arguments).
 * False when nothing is left. */
bool transfer_piece(struct tracee *tracee, struct user_regs_struct *regs);

#endif
