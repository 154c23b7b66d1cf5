/* Requests that a keeper carries out. */
#ifndef PBEAMD_SERVICES_FORWARD_H
#define PBEAMD_SERVICES_FORWARD_H

#include "pbeamd/transport/server.h"

struct forward_request {
	struct rpid keeper;
	uint32_t type;
	const ProtobufCMessage *message;
	char who[128]; /* "vpid 7 (cat)": put in front of a refusal */
	/* Called instead of the refusal when the keeper, or the job, is gone; false: refuse after all. May be
	 * NULL. */
	bool (*gone)(struct connection *connection, void *arg);
	void (*release)(void *arg);
	void *arg; /* released with the forward */
};
must_check int forward_begin(struct connection *connection, const struct forward_request *request,
			     struct err *err);
void forward_end(struct forward *forward);

#endif
