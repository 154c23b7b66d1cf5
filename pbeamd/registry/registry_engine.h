/*
 * The registry in pbeamd: the engine that answers (the database of the central daemon, or the way to it), a
 * copy of all entries in memory, and what of it goes into the name table for the programs of this host.
 */
#ifndef PBEAMD_REGISTRY_REGISTRY_ENGINE_H
#define PBEAMD_REGISTRY_REGISTRY_ENGINE_H

#include "namespace/registry.h"
#include "pbeamd/transport/cluster.h"

/* central_open() has been called. */
must_check int registry_open(struct cluster *cluster, struct err *err);
void registry_close(struct cluster *cluster);
/* All entries that this host has, those that an earlier daemon kept included. Freed with message_free(). */
Pbeam__RegistryChanges *registry_whole(struct cluster *cluster, struct err *err);
/* Replaces all entries by those of another host. */
must_check int registry_take_whole(struct cluster *cluster, const Pbeam__RegistryChanges *whole);
/* This host, or another one, has become central. Requests to the one before that have no reply end with
 * -ECONNRESET. */
void registry_serve(struct cluster *cluster);
void registry_follow(struct cluster *cluster);
/* A new host: the central daemon sends it the whole registry. */
void registry_greet(struct peer *peer);
/* A frame of a peer that is the registry's. False: malformed. */
bool registry_frame(struct peer *peer, const struct frame *frame);
/* The channel to a host, perhaps the central one's, ends. */
void registry_lost(struct cluster *cluster, const struct peer *peer, bool central);
/* On behalf of this daemon itself. */
void registry_ask(struct cluster *cluster, const Pbeam__RegistryRequest *request, registry_done_fn done,
		  void *arg);
/* On behalf of a program of this host: `answer` is called with the reply unless its connection is gone by
 * then. */
typedef void (*registry_answer_fn)(struct connection *connection, const Pbeam__RegistryReply *reply);
must_check int registry_ask_for(struct connection *connection, const Pbeam__RegistryRequest *request,
				registry_answer_fn answer, struct err *err);
int handle_registry(struct connection *connection, const ProtobufCMessage *message, struct err *err);
/* The connection is gone: its request gets no reply. */
void registry_forget_connection(struct connection *connection);

#endif
