#include "scip/migrate/pages/lane_wire.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "proto/cluster.pb-c.h"
#include "scip/migrate/migrate.h"

int lane_wire_take_over(struct lane_wire *wire, struct err *err)
{
	struct err why = ERR_INIT;
	int r = records_take_over(wire->channel, &wire->records, &why);

	if (r == -EPIPE)
		return err_set(err, r, "%s", why.text);
	if (r < 0)
		log_info("migrate: a stream goes through a process more: %s", why.text);
	else
		wire->channel = records_socket(wire->records);
	return 0;
}

void lane_wire_close(struct lane_wire *wire)
{
	if (wire->records)
		records_close(wire->records);
	else if (wire->channel >= 0)
		close(wire->channel);
	*wire = (struct lane_wire){.channel = -1};
}

void lane_wire_set_patience(const struct lane_wire *wire, int seconds)
{
	const struct timeval patience = {.tv_sec = seconds};

	if (setsockopt(wire->channel, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) < 0)
		log_debug("migrate: no time limit for a stream");
}

/* ---- sending ---- */

int lane_wire_send(struct lane_wire *wire, uint32_t type, const ProtobufCMessage *message, struct err *err)
{
	auto_free uint8_t *bytes = NULL;
	size_t len;
	int r;

	if (!wire->records)
		return frame_send(wire->channel, type, message, NULL, 0, err);
	r = frame_encode(type, message, 0, &bytes, &len, err);
	return r < 0 ? r : lane_wire_send_bulk(wire, bytes, len, err);
}

int lane_wire_send_bulk(struct lane_wire *wire, const void *data, uint64_t len, struct err *err)
{
	const uint8_t *at = data;
	int r = wire->records ? records_put(wire->records, data, len) : 0;

	if (r < 0)
		return err_code(err, r, "send pages");
	while (!wire->records && len) {
		ssize_t n = send(wire->channel, at, len, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return err_sys(err, "send pages");
		at += n;
		len -= (uint64_t)n;
	}
	return 0;
}

int lane_wire_flush(struct lane_wire *wire, struct err *err)
{
	int r = wire->records ? records_flush(wire->records) : 0;

	return r < 0 ? err_code(err, r, "send pages") : 0;
}

void lane_wire_fail(struct lane_wire *wire, const struct err *why)
{
	Pbeam__MigrateFailed failed = PBEAM__MIGRATE_FAILED__INIT;

	failed.code = why->code;
	failed.text = (char *)(uintptr_t)why->text;
	if (lane_wire_send(wire, PBEAM__CHANNEL_MESSAGE__MIGRATE_FAILED, &failed.base, NULL) < 0 ||
	    lane_wire_flush(wire, NULL) < 0)
		log_debug("migrate: the other side is gone");
}

/* ---- receiving ---- */

static ssize_t read_records(void *arg, void *to, size_t len)
{
	return records_read(arg, to, len);
}

int lane_wire_take_any(struct lane_wire *wire, struct frame *frame, struct err *err)
{
	if (!wire->records)
		return wire_take_any(wire->channel, frame, err);
	return wire_received(frame_recv_from(read_records, wire->records, frame, err), frame, err);
}

int lane_wire_take(struct lane_wire *wire, uint32_t type, const ProtobufCMessageDescriptor *body, void *out,
		   struct err *err)
{
	struct frame frame = {0};
	int r = lane_wire_take_any(wire, &frame, err);

	return r < 0 ? r : wire_is(&frame, type, body, out, err);
}

int lane_wire_take_bytes(struct lane_wire *wire, void *to, uint64_t bytes, struct err *err)
{
	uint64_t at = 0;

	if (!wire->records)
		return wire_take_bytes(wire->channel, to, bytes, err);
	while (at < bytes) {
		ssize_t n = records_read(wire->records, (uint8_t *)to + at, bytes - at);

		if (n <= 0)
			return err_code(err, n < 0 ? (int)n : -EPIPE, "receive pages");
		at += (uint64_t)n;
	}
	return 0;
}
