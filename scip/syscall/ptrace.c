/* A process has one tracer, its scip: debuggers are refused inside a job. */
#include <errno.h>

#include "scip/syscall/call.h"

int enter_ptrace(struct call *call)
{
	return call_answer(call, -EPERM);
}
