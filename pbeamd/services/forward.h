/* Requests that a keeper carries out. */
#ifndef PBEAMD_SERVICES_FORWARD_H
#define PBEAMD_SERVICES_FORWARD_H

#include "pbeamd/transport/server.h"

struct forward_request {
	struct rpid keeper;
	uint32_t type;
	const ProtobufCMessage *message;
	char who[128]; /* "vpid 7 (cat)": prefix of a refusal */
	/* Called when the keeper, or the job, is gone; false: refuse the request. May be NULL. */
	bool (*gone)(struct connection *connection, void *arg);
	void (*release)(void *arg);
	void *arg; /* passed to `gone`, and to `release` at the end */
};
must_check int forward_begin(struct connection *connection, const struct forward_request *request,
			     struct err *err);
void forward_end(struct forward *forward);

#endif
