/* Groups and jobs whose members are on several hosts: for the handlers of calls, and for stubs. */
#ifndef SCIP_SYSCALL_ELSEWHERE_GROUP_H
#define SCIP_SYSCALL_ELSEWHERE_GROUP_H

#include "scip/tracee/process.h"

struct remote_members;

/* Members of a group, or of a job, on other hosts get the signal (0: none); `process` is who sends it. Those
 * in `except` (virtual) do not. How many there are, or -errno: of the kernel, or -EHOSTUNREACH where a host
 * has not answered and nobody was found. */
must_check int elsewhere_members(const struct process *process, int32_t group, const char *job_uuid,
				 int signal, const int32_t *except, size_t nexcept,
				 struct remote_members *out);
/* Members of the job, or of a group of it, may be on other hosts. */
bool elsewhere_spread(const struct process *process, int32_t group);
/* The stubs that members of the group (virtual) have left here; *out is malloc'd. How many, or -errno. */
must_check int elsewhere_stubs(struct names *names, int32_t group, int32_t **out);

#endif
