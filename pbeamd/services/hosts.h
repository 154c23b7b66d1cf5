/* pbeamctl hosts */
#ifndef PBEAMD_SERVICES_HOSTS_H
#define PBEAMD_SERVICES_HOSTS_H

#include "pbeamd/transport/cluster.h"

int handle_hosts(struct connection *connection, const ProtobufCMessage *message, struct err *err);

must_check int hosts_remove(struct connection *connection, const char *name, struct err *err);

#endif
