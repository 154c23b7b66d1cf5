/* Processes of other hosts, for the handlers of calls. Private to scip/syscall/. */
#ifndef SCIP_SYSCALL_ELSEWHERE_H
#define SCIP_SYSCALL_ELSEWHERE_H

#include "proto/daemon.pb-c.h"
#include "scip/syscall/call.h"
#include "scip/syscall/elsewhere_group.h"

/* One request of pbeamd, which is given some seconds; *reply is to be freed with message_free(). */
must_check int elsewhere_ask(uint32_t type, const ProtobufCMessage *request,
			     const ProtobufCMessageDescriptor *descriptor, void *reply, struct err *err);
/* What the program gets for a failed request: where nobody could be asked it is not ESRCH, which would say
 * that the process has ended. */
int elsewhere_errno(int code);

/* True if `number` is a process of another host, if it is one. */
bool elsewhere(const struct call *call, int32_t number);

/* ---- each answers the call ---- */
/* A signal for a process, or for its thread `vtid`, with the program's siginfo where that is not 0. */
must_check int elsewhere_signal(struct call *call, int32_t vpid, int32_t vtid, int signal, uint64_t info);
/* Something that cannot be had from another host: `code` if there is such a process, else why not. */
must_check int elsewhere_refuse(struct call *call, int32_t vpid, int code);
/* The call itself is made there, if it is one that can be (REMOTE in syscalls/table_x86_64.def) and about a
 * process of another host; SYSCALL_CONTINUE: it is not. */
must_check int elsewhere_call(struct call *call);

/* ---- elsewhere_proc.c ---- */
/* Asks who of the job is on other hosts, for what follows. False: nobody. */
bool elsewhere_list(const struct call *call);
/* True if the process was among those. */
bool elsewhere_listed(const struct call *call, int32_t vpid);
/* True if /proc/VPID of that number is another host's. */
bool elsewhere_proc(const struct call *call, int32_t vpid);
/* Text of a file below /proc/VPID, or the target of a link; malloc'd. -errno for the program. */
must_check int elsewhere_text(const struct call *call, int32_t vpid, const char *file, bool link, char **text,
			      size_t *len);

#endif
