#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"
#include "image/store.h"
#include "proto/cluster.pb-c.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/cut/cut.h"

void cut_patience(int channel, int seconds)
{
	const struct timeval timeout = {.tv_sec = seconds};

	if (setsockopt(channel, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0)
		log_debug("cut: no time limit for the channel");
}

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

static void take_failure(const struct frame *frame, struct err *err)
{
	Pbeam__CutFailed *failed = (void *)frame_unpack(frame, &pbeam__cut_failed__descriptor, err);

	if (!failed)
		return;
	err_set(err, failed->code < 0 ? failed->code : -EIO, "%s", failed->text);
	message_free(failed);
}

Pbeam__CutReply *cut_receive(int channel, struct err *err)
{
	Pbeam__CutReply *reply = NULL;
	struct frame frame = {0};
	int r = frame_recv(channel, &frame, err);

	if (r == 0)
		err_set(err, -EPIPE, "it is lost, or its coordinator was killed");
	if (r <= 0)
		return NULL;
	if (frame.type == PBEAM__CHANNEL_MESSAGE__CUT_REPLY)
		reply = (void *)frame_unpack(&frame, &pbeam__cut_reply__descriptor, err);
	else if (frame.type == PBEAM__CHANNEL_MESSAGE__CUT_FAILED)
		take_failure(&frame, err);
	else
		err_set(err, -EPROTO, "it answers nonsense");
	frame_free(&frame);
	return reply;
}

Pbeam__CutReply *cut_ask(int channel, const Pbeam__CutRequest *request, struct err *err)
{
	return cut_send(channel, request, err) < 0 ? NULL : cut_receive(channel, err);
}

Pbeam__CutRequest *cut_take(int channel, struct err *err)
{
	Pbeam__CutRequest *request = NULL;
	struct frame frame = {0};
	int r = frame_recv(channel, &frame, err);

	if (r == 0)
		err_set(err, -EPIPE, "the checkpoint was given up by who leads it");
	if (r <= 0)
		return NULL;
	if (frame.type == PBEAM__CHANNEL_MESSAGE__CUT_REQUEST)
		request = (void *)frame_unpack(&frame, &pbeam__cut_request__descriptor, err);
	else
		err_set(err, -EPROTO, "message %u came when none such was to", frame.type);
	frame_free(&frame);
	return request;
}

int cut_reply(int channel, const Pbeam__CutReply *reply, struct err *err)
{
	return frame_send(channel, PBEAM__CHANNEL_MESSAGE__CUT_REPLY, &reply->base, NULL, 0, err);
}

void cut_refuse(int channel, const struct err *why)
{
	Pbeam__CutFailed failed = PBEAM__CUT_FAILED__INIT;

	failed.code = why->code;
	failed.text = (char *)(uintptr_t)why->text;
	if (frame_send(channel, PBEAM__CHANNEL_MESSAGE__CUT_FAILED, &failed.base, NULL, 0, NULL) < 0)
		log_debug("cut: the other side is gone");
}
