/* Groups and jobs with members on several hosts, for handlers and stubs. */
#ifndef SCIP_SYSCALL_OTHER_HOST_GROUP_H
#define SCIP_SYSCALL_OTHER_HOST_GROUP_H

#include "scip/tracee/process.h"

struct remote_members;

/* Sends a signal (0: none) in the name of `process` to members of a group or job on other hosts, except
 * for those in `except` (virtual). Returns their number, -errno of the kernel, or -EHOSTUNREACH if a host
 * has not answered and none was found. `out` may be NULL. */
must_check int other_host_members(const struct process *process, int32_t group, const char *job_uuid,
				  int signal, const int32_t *except, size_t nexcept,
				  struct remote_members *out);
/* True if members of the job, or of a group of it, may be on other hosts. */
bool other_host_spread(const struct process *process, int32_t group);
/* Lists the stubs on this host whose processes are members of the group (virtual). *out is malloc'd.
 * Returns their number or -errno. */
must_check int other_host_stubs(struct names *names, int32_t group, int32_t **out);

#endif
