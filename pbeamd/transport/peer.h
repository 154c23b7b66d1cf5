/* Channels to other daemons. */
#ifndef PBEAMD_TRANSPORT_PEER_H
#define PBEAMD_TRANSPORT_PEER_H

#include "pbeamd/transport/cluster.h"

/* A channel of kind PEER, taken. `address`: where from or to. */
void peer_open(struct cluster *cluster, int fd, const char *name, const char *address);
void peer_close(struct peer *peer);
/* Says to all how we are, now. */
void peers_say(struct cluster *cluster);
/* Every second or so: says how we are, gives up who is silent. */
void peers_tick(struct cluster *cluster, uint64_t now_ns);
/* -EHOSTUNREACH when there is no channel. */
must_check int peer_send(struct host *host, uint32_t type, const ProtobufCMessage *message);

#endif
