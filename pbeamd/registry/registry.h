/*
 * The registry in pbeamd: the engine that answers (the database of the central daemon, or the way to it), a
 * copy of all entries in memory, and what of it goes into the name table for the programs of this host.
 */
#ifndef PBEAMD_REGISTRY_H
#define PBEAMD_REGISTRY_H

#include "namespace/registry.h"
#include "pbeamd/cluster/cluster.h"

struct registry_copy;

/* ---- store.c: SQLite under the state directory ---- */
must_check int registry_store_open(struct registry *out, struct err *err);
/* What is known of the central host: the zeroes while nothing is. */
must_check int registry_store_state(struct registry *store, struct registry_state *out, struct err *err);
/* Durable when it returns; the revision stays as it is. */
must_check int registry_store_know(struct registry *store, const struct registry_state *state,
				   struct err *err);
/* What is kept there becomes the registry, durably and whole or not at all, with `state` as what is known.
 * state->revision: the newest change heard of, and then the first of this host's; `numbers`: process numbers
 * below are taken. */
must_check int registry_store_take_over(struct registry *store, struct registry_state *state,
					uint64_t numbers, struct err *err);
/* On the other hosts: keeps changes that the central one has told; with `copy` instead everything that is
 * there. */
must_check int registry_store_keep(struct registry *store, const Pbeam__RegistryChanges *changes,
				   const struct registry_copy *copy, struct err *err);
/* All that is there, to be freed with message_free(); NULL with a sentence. */
Pbeam__RegistryChanges *registry_store_whole(struct registry *store, struct err *err);

/* ---- remote.c: asks the central daemon ---- */
must_check int registry_remote_open(struct registry *out, struct cluster *cluster, struct err *err);
/* Its answers (false: malformed) and the changes that it tells. */
bool registry_remote_reply(struct registry *remote, const struct frame *frame);
void registry_remote_changes(struct registry *remote, const Pbeam__RegistryChanges *changes);
/* There is no way to the central daemon any more: what was asked ends with -ECONNRESET. */
void registry_remote_lost(struct registry *remote);

/* ---- heard.c ---- */
/* registry_carry_out() for a host (NULL: this one), answered once all hosts have heard of it where that
 * matters. `arg` is malloc'd if it is for a peer: freed without an answer when that is lost. */
void heard_carry_out(struct cluster *cluster, const Pbeam__RegistryRequest *request, const struct peer *peer,
		     registry_done_fn done, void *arg);
/* A host has heard of all up to `revision`. */
void heard_of(struct peer *peer, uint64_t revision);
/* The channel to a host ends: it is still in the list of hosts, and has no peer any more. */
void heard_lose(struct cluster *cluster, const struct peer *peer);
/* `done` is called once all hosts that are up have heard of all that is there now, or after a while. */
void heard_of_all(struct cluster *cluster, unsigned patience_ms, registry_done_fn done, void *arg);
/* All who wait are answered: with `why` (NULL: it is done). */
void heard_close(struct cluster *cluster, const struct err *why);

/* ---- copy.c ---- */
struct registry_copy *registry_copy_new(void); /* NULL without memory */
void registry_copy_free(struct registry_copy *copy);
/* Brings it up to date. `seen` is called for every entry that has changed or (removed) is not there any more.
 * -EBADMSG: a change that no registry makes, and nothing has been taken; -ENOMEM. */
typedef void (*registry_seen_fn)(void *arg, const Pbeam__RegistryEntry *entry);
must_check int registry_copy_apply(struct registry_copy *copy, const Pbeam__RegistryChanges *changes,
				   registry_seen_fn seen, void *arg);
/* NULL when there is none. Valid until the next change. */
const Pbeam__RegistryEntry *registry_copy_get(const struct registry_copy *copy, const char *key);
/* All whose keys begin with `prefix`; `seen` must not change the copy. */
void registry_copy_each(const struct registry_copy *copy, const char *prefix, registry_seen_fn seen,
			void *arg);
/* All as one message, to be freed with message_free(); NULL without memory. */
Pbeam__RegistryChanges *registry_copy_whole(const struct registry_copy *copy);
/* True once it has been whole. */
bool registry_copy_ready(const struct registry_copy *copy);
uint64_t registry_copy_revision(const struct registry_copy *copy);

/* ---- names.c ---- */
/* What an entry says goes into the name table. */
void registry_names_seen(struct cluster *cluster, const Pbeam__RegistryEntry *entry);
/* After the first whole: what the table has of an earlier time and nobody says any more goes. */
void registry_names_settle(struct cluster *cluster);

/* ---- superseded.c ---- */
/* The central host is out of reach from now on, or was until this daemon was started. */
void superseded_away(struct cluster *cluster);
/* The copy is whole again. */
void superseded_look(struct cluster *cluster);
void superseded_tick(struct cluster *cluster, uint64_t now_ns);
void superseded_forget(struct cluster *cluster);

/* ---- settled.c ---- */
/* Removes the records of migrations that nobody asks for any more. */
void settled_tick(struct cluster *cluster, uint64_t now_ns);

/* ---- registry.c ---- */
/* central_open() has been called. */
must_check int registry_open(struct cluster *cluster, struct err *err);
void registry_close(struct cluster *cluster);
/* Everything as this host has it, also what an earlier daemon kept; to be freed with message_free(). */
Pbeam__RegistryChanges *registry_whole(struct cluster *cluster, struct err *err);
/* Takes the whole that another host has, instead of what this one has. */
must_check int registry_take_whole(struct cluster *cluster, const Pbeam__RegistryChanges *whole);
/* This host has become the central one, and its database the registry; or another one has. What was asked of
 * the one before and is not answered ends with -ECONNRESET. */
void registry_serve(struct cluster *cluster);
void registry_follow(struct cluster *cluster);
/* One more host: the central daemon tells it all. */
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
/* The connection is gone: nobody waits for its answer. */
void registry_forget_connection(struct connection *connection);

#endif
