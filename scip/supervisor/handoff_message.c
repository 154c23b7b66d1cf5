#include "scip/supervisor/handoff_message.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/io.h"
#include "proto/control.pb-c.h"
#include "proto/message.h"

enum { HANDOFF_MAX = 512 }; /* bytes of a packed Handoff: twelve numbers, and 27 registers */

int handoff_message_send(int sock, const struct handoff *handoff)
{
	Pbeam__Handoff message = PBEAM__HANDOFF__INIT;
	uint8_t bytes[HANDOFF_MAX];
	ssize_t n;

	message.rpid = handoff->rpid;
	message.vpid = handoff->vpid;
	message.keeper = handoff->keeper;
	message.flags = handoff->flags;
	message.dumpable = handoff->dumpable;
	message.asked_dumpable = handoff->asked_dumpable;
	message.coordinator = handoff->coordinator;
	message.sigmask = handoff->sigmask;
	message.scratch = handoff->scratch;
	message.timeouts = handoff->timeouts;
	message.parking = handoff->parking;
	if (handoff->flags & HANDOFF_FORKED) {
		message.registers.data = (uint8_t *)(uintptr_t)&handoff->regs;
		message.registers.len = sizeof(handoff->regs);
	}
	if (pbeam__handoff__get_packed_size(&message) > sizeof(bytes))
		return -EMSGSIZE;
	n = io_send(sock, bytes, pbeam__handoff__pack(&message, bytes), MSG_NOSIGNAL);
	return n < 0 ? (int)n : 0;
}

static int handoff_unpack(const uint8_t *bytes, size_t len, struct handoff *handoff)
{
	Pbeam__Handoff *message = pbeam__handoff__unpack(NULL, len, bytes);
	int r = 1;

	if (!message)
		return -EPROTO;
	*handoff = (struct handoff){.rpid = message->rpid,
				    .vpid = message->vpid,
				    .keeper = message->keeper,
				    .flags = message->flags,
				    .dumpable = message->dumpable,
				    .asked_dumpable = message->asked_dumpable,
				    .coordinator = message->coordinator,
				    .sigmask = message->sigmask,
				    .scratch = message->scratch,
				    .timeouts = message->timeouts,
				    .parking = message->parking};
	if (message->registers.len == sizeof(handoff->regs))
		memcpy(&handoff->regs, message->registers.data, sizeof(handoff->regs));
	else if (message->flags & HANDOFF_FORKED)
		r = -EPROTO;
	message_free(message);
	return r;
}

int handoff_message_receive(ssize_t (*receive)(int sock, void *data, size_t len), int sock,
			    struct handoff *handoff)
{
	uint8_t bytes[HANDOFF_MAX];
	ssize_t n = receive(sock, bytes, sizeof(bytes));

	return n <= 0 ? (int)n : handoff_unpack(bytes, (size_t)n, handoff);
}

static ssize_t receive_now(int sock, void *data, size_t len)
{
	ssize_t n = recv(sock, data, len, MSG_DONTWAIT);

	return n < 0 ? -errno : n;
}

int handoff_message_take(int sock, struct handoff *handoff)
{
	return handoff_message_receive(receive_now, sock, handoff);
}
