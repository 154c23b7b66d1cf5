/* Calls about one process, which may be on another host. */
#include <errno.h>

#include "scip/syscall/other_host.h"

/* The pidfd of a stub serves as well: the stub takes signals and ends as its process does. */
int enter_pidfd_open(struct call *call)
{
	int32_t vpid = (int32_t)call->args[0];

	if (other_host_has(call, vpid) && !other_host_has_stub(call, vpid))
		return other_host_refuse(call, vpid, -EREMOTE);
	return call_enter_regular(call);
}

/* Calls about memory and descriptors of a process; a stub has neither. */
int enter_inside(struct call *call)
{
	for (unsigned i = 0; i < 6 && call->row->args[i]; i++)
		if (call->row->args[i] == KIND_VPID && other_host_has(call, (int32_t)call->args[i]))
			return other_host_refuse(call, (int32_t)call->args[i], -EPERM);
	return call_enter_regular(call);
}

/* Calls about a process that its host can make for the caller. */
int enter_about(struct call *call)
{
	int r = other_host_call(call);

	return r == SYSCALL_CONTINUE ? call_enter_regular(call) : r;
}
