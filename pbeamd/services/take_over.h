/* pbeamctl hosts --take-over */
#ifndef PBEAMD_SERVICES_TAKE_OVER_H
#define PBEAMD_SERVICES_TAKE_OVER_H

#include "pbeamd/transport/cluster.h"

must_check int take_over_begin(struct connection *connection, struct err *err);
int handle_copy(struct connection *connection, const ProtobufCMessage *message, struct err *err);
/* The connection has ended: its request gets no reply. */
void take_over_forget_connection(struct connection *connection);
void take_over_close(struct cluster *cluster);

#endif
