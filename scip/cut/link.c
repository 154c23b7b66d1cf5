#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"
#include "image/store.h"
#include "proto/cluster.pb-c.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/cut/cut.h"

int cut_check_name(const char *name, struct err *err)
{
	size_t len = strlen(name);

	if (len > 0 && len < 11 && strspn(name, "0123456789") == len)
		return 0; /* a vpid */
	return store_check_name(name, err);
}

int cut_send(int channel, const Pbeam__CutRequest *request, struct err *err)
{
	return frame_send(channel, PBEAM__CHANNEL_MESSAGE__CUT_REQUEST, &request->base, NULL, 0, err);
}

Pbeam__CutReply *cut_receive(int channel, struct err *err)
{
	Pbeam__CutReply *reply = NULL;
	int r = rpc_receive(channel, "the part", PBEAM__RPC__RPC_REPLY, &pbeam__cut_reply__descriptor, &reply,
			    err);

	if (r == -EPIPE)
		err_set(err, -EPIPE, "its host is lost, or its coordinator was killed");
	return reply;
}

Pbeam__CutReply *cut_ask(int channel, const Pbeam__CutRequest *request, struct err *err)
{
	return cut_send(channel, request, err) < 0 ? NULL : cut_receive(channel, err);
}

Pbeam__CutRequest *cut_take(int channel, struct err *err)
{
	Pbeam__CutRequest *request = NULL;
	int r = rpc_receive(channel, "the leader", PBEAM__CHANNEL_MESSAGE__CUT_REQUEST,
			    &pbeam__cut_request__descriptor, &request, err);

	if (r == -EPIPE)
		err_set(err, -EPIPE, "the leader of the checkpoint has cancelled it");
	return request;
}
