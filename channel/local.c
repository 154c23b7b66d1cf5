/* For programs that do not have the cluster's key: pbeamd makes channels for them and passes the descriptors.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "channel/channel.h"
#include "proto/ask.h"
#include "proto/message.h"
#include "proto/rpc.h"

enum { RETRY_NS = 100000000, PATIENCE_LEAST_NS = 1000000 };

static const char program[] = "scip " PBEAM_VERSION;

static int take_descriptor(struct frame *frame, struct err *err)
{
	int fd = -1;

	if (frame->nfds == 1)
		fd = steal_fd(&frame->fds[0]);
	frame_free(frame);
	return fd >= 0 ? fd : err_set(err, -EPROTO, "pbeamd passed no channel");
}

int channel_open(const char *host, uint32_t kind, const uint8_t *cookie, struct err *err)
{
	Pbeam__ChannelRequest request = PBEAM__CHANNEL_REQUEST__INIT;
	auto_close int sock = ask_open(program, err);
	struct frame frame;
	int r;

	if (sock < 0)
		return sock;
	request.host = (char *)(uintptr_t)host;
	request.kind = kind;
	if (cookie) {
		request.cookie.data = (uint8_t *)(uintptr_t)cookie;
		request.cookie.len = CHANNEL_COOKIE_SIZE;
	}
	r = ask_frame(sock, PBEAM__DAEMON_REQUEST__DAEMON_CHANNEL, &request.base, NULL, &frame, err);
	if (r == -EPIPE)
		return err_set(err, r, "host %s: pbeamd ended before the channel was open", host);
	return r < 0 ? r : take_descriptor(&frame, err);
}

int channel_expect(const uint8_t cookie[CHANNEL_COOKIE_SIZE], struct err *err)
{
	Pbeam__ChannelRequest request = PBEAM__CHANNEL_REQUEST__INIT;
	auto_close int sock = ask_open(program, err);
	struct frame frame;
	int r;

	if (sock < 0)
		return sock;
	request.cookie.data = (uint8_t *)(uintptr_t)cookie;
	request.cookie.len = CHANNEL_COOKIE_SIZE;
	r = ask_frame(sock, PBEAM__DAEMON_REQUEST__DAEMON_EXPECT, &request.base, NULL, &frame, err);
	if (r == -EPIPE)
		return err_set(err, r, "pbeamd ended before it replied");
	if (r < 0)
		return r;
	frame_free(&frame);
	return steal_fd(&sock);
}

int channel_take(int expecting, int timeout_ms, struct err *err)
{
	struct pollfd ready = {.fd = expecting, .events = POLLIN};
	struct frame frame;
	int r;

	do
		r = poll(&ready, 1, timeout_ms);
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return err_sys(err, "wait for a channel");
	if (r == 0)
		return err_set(err, -ETIMEDOUT, "no channel came in time");
	r = frame_recv(expecting, &frame, err);
	if (r == 0)
		r = err_set(err, -EPIPE, "pbeamd ended");
	return r < 0 ? r : take_descriptor(&frame, err);
}

/* ---- the registry ---- */

static int call_registry_once(const Pbeam__RegistryRequest *request, uint64_t left_ns,
			      Pbeam__RegistryReply **reply, struct err *err)
{
	auto_close int sock = ask_open(program, err);
	ProtobufCMessage *message;
	int r;

	if (sock < 0)
		return sock;
	rpc_set_timeout(sock, (unsigned)(left_ns / 1000000u) + 1);
	r = ask_message(sock, PBEAM__DAEMON_REQUEST__DAEMON_REGISTRY, &request->base, NULL,
			&pbeam__registry_reply__descriptor, &message, err);
	if (r == -EPIPE)
		return err_set(err, r, "pbeamd ended before the registry answered");
	if (r < 0)
		return r;
	*reply = (Pbeam__RegistryReply *)message;
	return (*reply)->code < 0 ? err_set(err, (*reply)->code, "%s", (*reply)->text) : 0;
}

int registry_call(const Pbeam__RegistryRequest *request, int timeout_ms, Pbeam__RegistryReply **reply,
		  struct err *err)
{
	const uint64_t until = io_now_ns(CLOCK_MONOTONIC) + (uint64_t)timeout_ms * 1000000u;
	const struct timespec pause = {0, RETRY_NS};

	for (;;) {
		uint64_t now = io_now_ns(CLOCK_MONOTONIC);
		int r;

		*reply = NULL;
		err_clear(err);
		r = call_registry_once(request,
				       now + PATIENCE_LEAST_NS < until ? until - now : PATIENCE_LEAST_NS,
				       reply, err);
		if (r != -EHOSTUNREACH || now + RETRY_NS >= until)
			return r;
		message_free(*reply);
		nanosleep(&pause, NULL);
	}
}
