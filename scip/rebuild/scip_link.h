/* Requests of a coordinator to scips: one at a time over each connection. */
#ifndef SCIP_REBUILD_SCIP_LINK_H
#define SCIP_REBUILD_SCIP_LINK_H

#include "namespace/names.h"
#include "proto/control.pb-c.h"

/* Connects to a scip. Returns the descriptor or -errno. */
must_check int scip_link_connect(struct rpid scip, struct err *err);
/* Connects to the scip of a process and freezes it until the connection ends. Returns the descriptor or
 * -errno.
 */
must_check int scip_link_freeze(const struct name_process *process, uint32_t timeout_ms, struct err *err);
must_check int scip_link_ask(int sock, uint32_t type, const ProtobufCMessage *message, const int *fds,
			     int nfds, struct err *err);
/* Waits for the reply, which must be of this kind; *out (may be NULL) is the caller's. A refusal becomes the
 * error that it carries. */
must_check int scip_link_answer(int sock, const ProtobufCMessageDescriptor *kind, ProtobufCMessage **out,
				struct err *err);
must_check int scip_link_call(int sock, uint32_t type, const ProtobufCMessage *message,
			      const ProtobufCMessageDescriptor *kind, ProtobufCMessage **out,
			      struct err *err);

#endif
