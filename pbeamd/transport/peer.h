/* Channels to other daemons. */
#ifndef PBEAMD_TRANSPORT_PEER_H
#define PBEAMD_TRANSPORT_PEER_H

#include "pbeamd/transport/cluster.h"

/* Takes a channel of kind PEER. `address`: of the other end. */
void peer_open(struct cluster *cluster, int fd, const char *name, const char *address);
void peer_close(struct peer *peer);
/* Sends this host's description to all peers. */
void peers_say(struct cluster *cluster);
/* Twice a second: sends this host's description, and gives up silent peers. */
void peers_tick(struct cluster *cluster, uint64_t now_ns);
/* -EHOSTUNREACH without a channel. */
must_check int peer_send(struct host *host, uint32_t type, const ProtobufCMessage *message);

#endif
