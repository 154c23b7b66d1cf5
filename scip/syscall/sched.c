/* Priorities, capabilities, performance counters: calls whose number has a meaning that another argument
 * gives. */
#include <errno.h>
#include <linux/capability.h>
#include <linux/ioprio.h>
#include <linux/perf_event.h>
#include <stddef.h>
#include <sys/resource.h>

#include "scip/syscall/other_host.h"

static int replace_number(struct call *call, unsigned arg)
{
	int32_t number = (int32_t)call->args[arg], real = number > 0 ? call_real(call, number) : number;

	return real == number ? SYSCALL_CONTINUE : call_set_arg(call, arg, (uint64_t)real);
}

int enter_priority(struct call *call)
{
	int which = (int)call->args[0], r = other_host_call(call);

	if (r != SYSCALL_CONTINUE)
		return r;
	return which == PRIO_PROCESS || which == PRIO_PGRP ? replace_number(call, 1) : SYSCALL_CONTINUE;
}

int enter_ioprio(struct call *call)
{
	int which = (int)call->args[0], r = other_host_call(call);

	if (r != SYSCALL_CONTINUE)
		return r;
	return which == IOPRIO_WHO_PROCESS || which == IOPRIO_WHO_PGRP ? replace_number(call, 1)
								       : SYSCALL_CONTINUE;
}

int enter_capability(struct call *call)
{
	struct __user_cap_header_struct head;
	int32_t real;

	if (call_read(call, call->args[0], &head, sizeof(head)) < 0 || head.pid <= 0)
		return SYSCALL_CONTINUE;
	real = call_real(call, head.pid);
	if (real == head.pid)
		return SYSCALL_CONTINUE;
	head.pid = real;
	return call_replace(call, 0, &head, sizeof(head));
}

int enter_perf_event_open(struct call *call)
{
	int32_t thread = (int32_t)call->args[1];

	if (call->args[4] & PERF_FLAG_PID_CGROUP)
		return SYSCALL_CONTINUE;
	return other_host_has(call, thread) ? other_host_refuse(call, thread, -EACCES)
					    : replace_number(call, 1);
}
