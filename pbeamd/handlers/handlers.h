/* The requests of local programs, and of other hosts for them. */
#ifndef PBEAMD_HANDLERS_HANDLERS_H
#define PBEAMD_HANDLERS_HANDLERS_H

#include "pbeamd/transport/server.h"

/* Answers, or begins to answer. False: the frame is none that may come now, the connection ends. */
bool handlers_dispatch(struct connection *connection, const struct frame *frame);

/* Called by the transport: what no connection waits for any more. */
void handlers_forget(struct connection *connection);

#endif
