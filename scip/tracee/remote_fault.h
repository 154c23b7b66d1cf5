/* The tests' failures of calls that are made in a tracee (fault point "remote-call", base/fault.h). */
#ifndef SCIP_TRACEE_REMOTE_FAULT_H
#define SCIP_TRACEE_REMOTE_FAULT_H

#include <stddef.h>
#include <stdint.h>

#include "inject/abi.h"

/* The number, below `n`, of the call that is to fail, or `n`. Its `ret` is set then. The calls before it are
 * to be made, the others are not. */
size_t remote_fault_pick(struct inject_call *calls, size_t n);

#endif
