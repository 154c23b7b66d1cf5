/* The requests of local programs, and of other hosts for them. */
#ifndef PBEAMD_HANDLERS_HANDLERS_H
#define PBEAMD_HANDLERS_HANDLERS_H

#include "pbeamd/transport/server.h"

/* Serves a request, or begins to. False: the frame is not allowed now, and the connection ends. */
bool handlers_dispatch(struct connection *connection, const struct frame *frame);

/* The connection is about to be freed: cancels its requests. */
void handlers_forget(struct connection *connection);

#endif
