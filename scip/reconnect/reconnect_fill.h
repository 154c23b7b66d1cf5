/* Between end.c and fill.c. */
#ifndef SCIP_RECONNECT_FILL_H
#define SCIP_RECONNECT_FILL_H

#include "scip/reconnect/reconnect_end.h"

/* end->fresh is connected with the other end: afterwards its receive queue holds end->unread, and the other's
 * what that had not read. `connected`: this end has connected, and sends first. */
must_check int reconnect_fill(struct reconnect_end *end, bool connected, struct err *err);

#endif
