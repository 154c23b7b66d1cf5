/* Exchange of unread data over a new connection: reconnect_fill.c, for reconnect_end.c. */
#ifndef SCIP_RECONNECT_FILL_H
#define SCIP_RECONNECT_FILL_H

#include "scip/reconnect/reconnect_end.h"

/* Fills the receive queues of both ends of the new connection: that of end->fresh with end->unread, that of
 * the other end with its unread data. `connected`: this end has connected, and sends first. */
must_check int reconnect_fill(struct reconnect_end *end, bool connected, struct err *err);

#endif
