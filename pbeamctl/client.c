#include "pbeamctl/client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/parse.h"
#include "pbeamctl/progress.h"
#include "proto/daemon.h"
#include "proto/frame.h"

enum { PROTOCOL_VERSION = 1, ATTEMPTS = 4 };

void client_target(const char *word, Pbeam__Target *target)
{
	uint64_t vpid;

	pbeam__target__init(target);
	if (parse_number(word, 1, INT32_MAX, &vpid, NULL) == 0)
		target->vpid = (int32_t)vpid;
	else
		target->name = (char *)(uintptr_t)word;
}

static int take_failure(const struct frame *frame, struct err *err)
{
	Pbeam__Failed *failed = (Pbeam__Failed *)frame_unpack(frame, &pbeam__failed__descriptor, err);
	int code = -EPROTO;

	if (failed) {
		code = failed->code < 0 ? failed->code : -EIO;
		err_set(err, code, "%s", failed->text);
		protobuf_c_message_free_unpacked(&failed->base, NULL);
	}
	return code;
}

static void take_progress(const struct frame *frame)
{
	Pbeam__Progress *progress =
		(Pbeam__Progress *)frame_unpack(frame, &pbeam__progress__descriptor, NULL);

	if (progress) {
		progress_show(progress->phase, progress->done, progress->total);
		protobuf_c_message_free_unpacked(&progress->base, NULL);
	}
}

/* One request on an open connection. -EPIPE when pbeamd went away before it answered. */
static int ask(int sock, uint32_t type, const ProtobufCMessage *request,
	       const ProtobufCMessageDescriptor *answer, ProtobufCMessage **reply, struct err *err)
{
	int r = frame_send(sock, type, request, NULL, 0, err);

	while (r == 0) {
		struct frame frame;

		r = frame_recv(sock, &frame, err);
		if (r <= 0)
			return r < 0 && r != -ECONNRESET ? r : -EPIPE;
		r = 0;
		switch (frame.type) {
		case PBEAM__DAEMON_REQUEST__DAEMON_PROGRESS:
			take_progress(&frame);
			frame_free(&frame);
			continue;
		case PBEAM__DAEMON_REQUEST__DAEMON_FAILED:
			r = take_failure(&frame, err);
			break;
		default:
			*reply = frame_unpack(&frame, answer, err);
			r = *reply ? 0 : -EPROTO;
			break;
		}
		frame_free(&frame);
		break;
	}
	return r;
}

/* A connection on which pbeamd has said hello. One that leaves as idle at this very moment is followed by the
 * next. */
static int connect_and_greet(struct err *err)
{
	Pbeam__Hello hello = PBEAM__HELLO__INIT;

	hello.version = PROTOCOL_VERSION;
	hello.program = (char *)(uintptr_t) "pbeamctl " PBEAM_VERSION;
	hello.pid = getpid();
	for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
		auto_close int sock = daemon_connect(err);
		ProtobufCMessage *reply = NULL;
		int r = sock;

		if (sock < 0)
			return sock;
		r = ask(sock, PBEAM__DAEMON_REQUEST__DAEMON_HELLO, &hello.base, &pbeam__hello__descriptor,
			&reply, err);
		if (reply)
			protobuf_c_message_free_unpacked(reply, NULL);
		if (r == 0)
			return steal_fd(&sock);
		if (r != -EPIPE)
			return r;
		err_clear(err);
	}
	return err_set(err, -EPIPE,
		       "pbeamd ends as soon as it is asked; run `pbeamd` in the foreground to see why");
}

int client_ask(uint32_t type, const ProtobufCMessage *request, const ProtobufCMessageDescriptor *answer,
	       ProtobufCMessage **reply, struct err *err)
{
	auto_close int sock = connect_and_greet(err);
	int r;

	if (sock < 0)
		return sock;
	*reply = NULL;
	r = ask(sock, type, request, answer, reply, err);
	progress_end();
	if (r == -EPIPE)
		r = err_set(err, -EPIPE,
			    "pbeamd was killed before it answered; what was asked for may be done or not, "
			    "look and ask again");
	return r;
}
