/* Channels for programs without the cluster's key: pbeamd makes the channels and passes the descriptors. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "channel/channel.h"
#include "proto/ask.h"

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
		return err_set(err, -ETIMEDOUT, "no channel arrived in time");
	r = frame_recv(expecting, &frame, err);
	if (r == 0)
		r = err_set(err, -EPIPE, "pbeamd ended");
	return r < 0 ? r : take_descriptor(&frame, err);
}
