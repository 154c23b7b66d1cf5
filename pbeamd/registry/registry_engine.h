/*
 * The registry in pbeamd: its engine (the database of the central daemon, or requests to that daemon), a copy
 * of all entries in memory, and the part of it that goes into the name table for this host's programs.
 */
#ifndef PBEAMD_REGISTRY_REGISTRY_ENGINE_H
#define PBEAMD_REGISTRY_REGISTRY_ENGINE_H

#include "namespace/registry.h"
#include "pbeamd/transport/cluster.h"

/* Called after central_open(). */
must_check int registry_open(struct cluster *cluster, struct err *err);
void registry_close(struct cluster *cluster);
/* Returns all entries that this host has, including those kept by an earlier daemon. The caller frees them
 * with message_free(). */
Pbeam__RegistryChanges *registry_whole(struct cluster *cluster, struct err *err);
/* Replaces all entries with those of another host. */
must_check int registry_take_whole(struct cluster *cluster, const Pbeam__RegistryChanges *whole);
/* This host, or another one, has become central. Open requests to the previous one end with -ECONNRESET. */
void registry_serve(struct cluster *cluster);
void registry_follow(struct cluster *cluster);
/* A new peer: the central daemon sends it the whole registry. */
void registry_greet(struct peer *peer);
/* Handles a peer's frame for the registry. False: malformed. */
bool registry_frame(struct peer *peer, const struct frame *frame);
/* The channel to a host, perhaps the central one, has ended. */
void registry_lost(struct cluster *cluster, const struct peer *peer, bool central);
/* Sends a request of this daemon itself. */
void registry_ask(struct cluster *cluster, const Pbeam__RegistryRequest *request, registry_done_fn done,
		  void *arg);
/* Sends a request of a program of this host. `answer` is called with the reply unless the connection has
 * ended by then. */
typedef void (*registry_answer_fn)(struct connection *connection, const Pbeam__RegistryReply *reply);
must_check int registry_ask_for(struct connection *connection, const Pbeam__RegistryRequest *request,
				registry_answer_fn answer, struct err *err);
int handle_registry(struct connection *connection, const ProtobufCMessage *message, struct err *err);
/* The connection has ended: its request gets no reply. */
void registry_forget_connection(struct connection *connection);

#endif
