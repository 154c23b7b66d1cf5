#include "channel/wire.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/cluster.pb-c.h"
#include "proto/frame.h"
#include "proto/rpc.h"

static const char other_host[] = "the other host";

int wire_received(int r, struct frame *frame, struct err *err)
{
	r = rpc_check_frame(r, other_host, frame, err);
	if (r < 0 || frame->type != PBEAM__CHANNEL_MESSAGE__MIGRATE_ABORT)
		return r;
	frame_free(frame);
	return err_set(err, -ECANCELED, "the other host has cancelled the migration");
}

int wire_take_any(int channel, struct frame *frame, struct err *err)
{
	return wire_received(frame_recv(channel, frame, err), frame, err);
}

int wire_is(struct frame *frame, uint32_t type, const ProtobufCMessageDescriptor *body, void *out,
	    struct err *err)
{
	return rpc_unpack(frame, other_host, type, body, out, err);
}

int wire_take(int channel, uint32_t type, const ProtobufCMessageDescriptor *body, void *out, struct err *err)
{
	struct frame frame = {0};
	int r = wire_take_any(channel, &frame, err);

	return r < 0 ? r : wire_is(&frame, type, body, out, err);
}

int wire_take_bytes(int channel, void *to, uint64_t bytes, struct err *err)
{
	uint64_t at = 0;

	while (at < bytes) {
		ssize_t n = recv(channel, (uint8_t *)to + at, bytes - at, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return err_set(err, n < 0 ? -errno : -EPIPE, "the connection ended within the image");
		at += (uint64_t)n;
	}
	return 0;
}

/* If sending failed because the other host has closed the channel: reads the reason that it sent before. */
static int explain_sent(int channel, int r, struct err *err)
{
	struct frame frame = {0};
	struct err said = ERR_INIT;

	if (r != -EPIPE && r != -ECONNRESET)
		return r;
	r = wire_take_any(channel, &frame, &said);
	if (r < 0)
		return err_set(err, r, "%s", said.text);
	frame_free(&frame);
	return err_set(err, -EPIPE, "the connection with %s has ended", other_host);
}

int wire_send(int channel, uint32_t type, const ProtobufCMessage *message, struct err *err)
{
	return explain_sent(channel, frame_send(channel, type, message, NULL, 0, err), err);
}

int wire_send_range(int channel, int file, uint64_t from, uint64_t bytes, const char *what, struct err *err)
{
	off_t at = (off_t)from;

	while ((uint64_t)at < from + bytes) {
		ssize_t n = sendfile(channel, file, &at, from + bytes - (uint64_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EPIPE || errno == ECONNRESET))
			return explain_sent(channel, -errno, err);
		if (n <= 0)
			return err_set(err, n < 0 ? -errno : -ESTALE, "send %s: %s", what,
				       n < 0 ? strerror(errno) : "it has become shorter");
	}
	return 0;
}

int wire_take_file(int channel, uint64_t bytes, struct err *err)
{
	auto_close int file = memfd_create("pbeam-image", MFD_CLOEXEC);
	uint8_t *map;
	int r;

	if (file < 0 || ftruncate(file, (off_t)bytes) < 0)
		return err_sys(err, "make room for an image of %llu bytes", (unsigned long long)bytes);
	map = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (map == MAP_FAILED)
		return err_sys(err, "map an image of %llu bytes", (unsigned long long)bytes);
	r = wire_take_bytes(channel, map, bytes, err);
	munmap(map, bytes ? bytes : 1);
	return r < 0 ? r : steal_fd(&file);
}
