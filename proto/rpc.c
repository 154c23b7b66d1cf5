#include "proto/rpc.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/log.h"
#include "proto/message.h"

void rpc_set_timeout(int sock, unsigned timeout_ms)
{
	const struct timeval timeout = {timeout_ms / 1000, (suseconds_t)(timeout_ms % 1000) * 1000};

	if (setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0)
		log_debug("descriptor %d has no time limit", sock);
}

int rpc_take_failure(const Pbeam__Failed *failed, struct err *err)
{
	const int code = failed->code < 0 && failed->code != -EPIPE ? failed->code : -EIO;

	return err_set(err, code, "%s", failed->text);
}

static int take_failed_frame(const struct frame *frame, struct err *err)
{
	Pbeam__Failed *failed = (void *)frame_unpack(frame, &pbeam__failed__descriptor, err);
	int r = failed ? rpc_take_failure(failed, err) : -EPROTO;

	message_free(failed);
	return r;
}

int rpc_check_frame(int r, const char *peer, struct frame *frame, struct err *err)
{
	if (r == 0 || r == -EPIPE || r == -ECONNRESET)
		return err_set(err, -EPIPE, "the connection with %s has ended", peer);
	if (r < 0)
		return err_wrap(err, r, "%s", peer);
	if (frame->type != PBEAM__RPC__RPC_FAILED)
		return 0;
	r = take_failed_frame(frame, err);
	frame_free(frame);
	return r;
}

int rpc_receive_frame(int sock, const char *peer, struct frame *out, struct err *err)
{
	return rpc_check_frame(frame_recv(sock, out, err), peer, out, err);
}

int rpc_unpack(struct frame *frame, const char *peer, uint32_t type,
	       const ProtobufCMessageDescriptor *descriptor, void *out, struct err *err)
{
	ProtobufCMessage **message = out;
	int r = 0;

	if (frame->type != type)
		r = err_set(err, -EPROTO, "unexpected message %u from %s instead of %u", frame->type, peer,
			    type);
	else if (message) {
		*message = frame_unpack(frame, descriptor, err);
		r = *message ? 0 : -EPROTO;
	}
	frame_free(frame);
	return r;
}

int rpc_receive(int sock, const char *peer, uint32_t type, const ProtobufCMessageDescriptor *descriptor,
		void *out, struct err *err)
{
	struct frame frame = {0};
	int r = rpc_receive_frame(sock, peer, &frame, err);

	return r < 0 ? r : rpc_unpack(&frame, peer, type, descriptor, out, err);
}

int rpc_call(int sock, const char *peer, uint32_t type, const ProtobufCMessage *request,
	     const ProtobufCMessageDescriptor *descriptor, void *out, struct err *err)
{
	int r = frame_send(sock, type, request, NULL, 0, err);

	if (r == -EPIPE || r == -ECONNRESET)
		return err_set(err, -EPIPE, "the connection with %s has ended", peer);
	return r < 0 ? r : rpc_receive(sock, peer, PBEAM__RPC__RPC_REPLY, descriptor, out, err);
}

int rpc_reply(int sock, const ProtobufCMessage *reply, struct err *err)
{
	return frame_send(sock, PBEAM__RPC__RPC_REPLY, reply, NULL, 0, err);
}

Pbeam__Failed rpc_failed(const struct err *why)
{
	Pbeam__Failed failed = PBEAM__FAILED__INIT;

	failed.code = why->code;
	failed.text = (char *)(uintptr_t)why->text;
	return failed;
}

void rpc_refuse(int sock, const struct err *why)
{
	const Pbeam__Failed failed = rpc_failed(why);

	if (frame_send(sock, PBEAM__RPC__RPC_FAILED, &failed.base, NULL, 0, NULL) < 0)
		log_debug("not delivered: %s", why->text);
}
