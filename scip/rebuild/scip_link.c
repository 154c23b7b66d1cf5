#include "scip/rebuild/scip_link.h"

#include <errno.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/rpc.h"

int scip_link_connect(struct rpid scip, struct err *err)
{
	return frame_connect_to("scip", scip.n, err);
}

int scip_link_freeze(const struct name_process *process, uint32_t timeout_ms, struct err *err)
{
	Pbeam__ScipFreeze request = PBEAM__SCIP_FREEZE__INIT;
	auto_close int sock = scip_link_connect(process->scip, err);
	int r;

	if (sock < 0)
		return sock;
	request.timeout_ms = timeout_ms;
	r = scip_link_call(sock, PBEAM__SCIP_REQUEST__SCIP_FREEZE, &request.base,
			   &pbeam__scip_frozen__descriptor, NULL, err);
	return r < 0 ? r : steal_fd(&sock);
}

static int set_ended(struct err *err)
{
	return err_set(err, -ECONNRESET, "a process or its scip ended during the restore");
}

int scip_link_ask(int sock, uint32_t type, const ProtobufCMessage *message, const int *fds, int nfds,
		  struct err *err)
{
	int r = frame_send(sock, type, message, fds, nfds, err);

	return r == -EPIPE || r == -ECONNRESET ? set_ended(err) : r;
}

int scip_link_answer(int sock, const ProtobufCMessageDescriptor *kind, ProtobufCMessage **out,
		     struct err *err)
{
	ProtobufCMessage *reply = NULL;
	int r = rpc_receive(sock, "a scip", PBEAM__RPC__RPC_REPLY, kind, &reply, err);

	if (r == -EPIPE)
		return set_ended(err);
	if (r == 0 && out)
		*out = reply;
	else
		message_free(reply);
	return r;
}

int scip_link_call(int sock, uint32_t type, const ProtobufCMessage *message,
		   const ProtobufCMessageDescriptor *kind, ProtobufCMessage **out, struct err *err)
{
	int r = scip_link_ask(sock, type, message, NULL, 0, err);

	return r < 0 ? r : scip_link_answer(sock, kind, out, err);
}
