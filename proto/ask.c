#include "proto/ask.h"

#include <errno.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/daemon.h"
#include "proto/message.h"
#include "proto/rpc.h"

enum { ATTEMPTS = 4 };

static void take_progress(const struct frame *frame, ask_progress_fn show)
{
	Pbeam__Progress *progress =
		show ? (Pbeam__Progress *)frame_unpack(frame, &pbeam__progress__descriptor, NULL) : NULL;

	if (progress)
		show(progress);
	message_free(progress);
}

int ask_frame(int sock, uint32_t type, const ProtobufCMessage *request, ask_progress_fn progress,
	      struct frame *answer, struct err *err)
{
	int r = frame_send(sock, type, request, NULL, 0, err);

	while (r == 0) {
		r = rpc_receive_frame(sock, "pbeamd", answer, err);
		if (r < 0 || answer->type != PBEAM__RPC__RPC_PROGRESS)
			return r;
		take_progress(answer, progress);
		frame_free(answer);
	}
	return r;
}

int ask_message(int sock, uint32_t type, const ProtobufCMessage *request, ask_progress_fn progress,
		const ProtobufCMessageDescriptor *descriptor, void *out, struct err *err)
{
	ProtobufCMessage **reply = out;
	struct frame frame;
	int r = ask_frame(sock, type, request, progress, &frame, err);

	if (r < 0)
		return r;
	*reply = frame_unpack(&frame, descriptor, err);
	frame_free(&frame);
	return *reply ? 0 : -EPROTO;
}

/* A daemon that ends as idle at this moment is started again. */
int ask_open(const char *program, struct err *err)
{
	Pbeam__Hello hello = PBEAM__HELLO__INIT;

	hello.version = DAEMON_PROTOCOL;
	hello.program = (char *)(uintptr_t)program;
	hello.pid = getpid();
	for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
		auto_close int sock = daemon_connect(err);
		ProtobufCMessage *reply = NULL;
		int r = sock;

		if (sock < 0)
			return sock;
		r = ask_message(sock, PBEAM__DAEMON_REQUEST__DAEMON_HELLO, &hello.base, NULL,
				&pbeam__hello__descriptor, &reply, err);
		message_free(reply);
		if (r == 0)
			return steal_fd(&sock);
		if (r != -EPIPE)
			return r;
		err_clear(err);
	}
	return err_set(err, -EPIPE,
		       "pbeamd ends at every request; run `pbeamd` in the foreground to see why");
}

int ask_hosts(const char *program, Pbeam__HostList **out, struct err *err)
{
	Pbeam__HostsRequest request = PBEAM__HOSTS_REQUEST__INIT;
	auto_close int sock = ask_open(program, err);

	*out = NULL;
	return sock < 0 ? sock
			: ask_message(sock, PBEAM__DAEMON_REQUEST__DAEMON_HOSTS, &request.base, NULL,
				      &pbeam__host_list__descriptor, out, err);
}
