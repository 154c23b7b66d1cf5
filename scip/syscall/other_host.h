/* Processes of other hosts, for the handlers of calls. Private to scip/syscall/. */
#ifndef SCIP_SYSCALL_OTHER_HOST_H
#define SCIP_SYSCALL_OTHER_HOST_H

#include "proto/daemon.pb-c.h"
#include "scip/syscall/call.h"
#include "scip/syscall/other_host_group.h"

/* Sends one request to pbeamd and waits some seconds for the reply. *reply is freed with message_free(). */
must_check int other_host_request(uint32_t type, const ProtobufCMessage *request,
				  const ProtobufCMessageDescriptor *descriptor, void *reply, struct err *err);
/* The program's error for a failed request. If the host could not be asked it is not ESRCH, which would
 * mean that the process has ended. */
int other_host_errno(int code);

/* True if `number` belongs to another host. */
bool other_host_has(const struct call *call, int32_t number);

/* True if the process has a stub here, or is held for a moment. */
bool other_host_has_stub(const struct call *call, int32_t vpid);

/* ---- each answers the call ---- */
/* Sends a signal to a process, or to its thread `vtid`, with the program's siginfo if `info` is not 0. */
must_check int other_host_signal(struct call *call, int32_t vpid, int32_t vtid, int signal, uint64_t info);
/* Refuses a call with `code` if the process exists; otherwise answers why it cannot be reached. */
must_check int other_host_refuse(struct call *call, int32_t vpid, int code);
/* Makes the call on the other host if the table allows it (REMOTE) and it is about a process there; else
 * SYSCALL_CONTINUE. */
must_check int other_host_call(struct call *call);

/* ---- other_host_proc.c ---- */
/* Asks pbeamd for the processes of the job on other hosts and keeps the list. False if there are none. */
bool other_host_list(const struct call *call);
/* True if the process is in that list. */
bool other_host_is_listed(const struct call *call, int32_t vpid);
/* True if /proc/VPID shows a process of another host. */
bool other_host_proc(const struct call *call, int32_t vpid);
/* Reads a file below /proc/VPID, or the target of a link, into malloc'd *text. -errno is for the program. */
must_check int other_host_text(const struct call *call, int32_t vpid, const char *file, bool link,
			       char **text, size_t *len);

#endif
