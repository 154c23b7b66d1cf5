/* What the two ends of a lane (lanes.h) send each other: frames, and pages in bulk. One thread at a time. */
#ifndef SCIP_MIGRATE_LANE_WIRE_H
#define SCIP_MIGRATE_LANE_WIRE_H

#include "channel/records.h"
#include "proto/frame.h"

struct lane_wire {
	int channel;		 /* or, with records, their connection; -1: none */
	struct records *records; /* NULL: over the process that speaks TLS */
};

/* Takes over the connection of the channel, on which the other side is silent, if that can be had. -EPIPE: it
 * has broken. */
must_check int lane_wire_take_over(struct lane_wire *wire, struct err *err);
void lane_wire_close(struct lane_wire *wire);
/* Nothing is waited for longer. */
void lane_wire_set_patience(const struct lane_wire *wire, int seconds);

/* Both may be held back until lane_wire_flush(). -EPIPE or -ECONNRESET: why is perhaps there to be read. */
must_check int lane_wire_send(struct lane_wire *wire, uint32_t type, const ProtobufCMessage *message,
			      struct err *err);
must_check int lane_wire_send_bulk(struct lane_wire *wire, const void *data, uint64_t len, struct err *err);
must_check int lane_wire_flush(struct lane_wire *wire, struct err *err);
/* As wire_take_any(), wire_take() and wire_take_bytes() (migrate.h). */
must_check int lane_wire_take_any(struct lane_wire *wire, struct frame *frame, struct err *err);
must_check int lane_wire_take(struct lane_wire *wire, uint32_t type, const ProtobufCMessageDescriptor *body,
			      void *out, struct err *err);
must_check int lane_wire_take_bytes(struct lane_wire *wire, void *to, uint64_t bytes, struct err *err);
/* Tells the other side why there will be nothing more. */
void lane_wire_fail(struct lane_wire *wire, const struct err *why);

#endif
