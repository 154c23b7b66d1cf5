/*
 * Open file descriptions whose other end is outside the migrated tree: connections to processes elsewhere in
 * the name space (reconnect), pipes and connections whose other end stays (bridge). A provider handles one
 * sort of them: one struct external_provider, one row in scip/arrival/providers.c. The coordinators of a
 * migration call the providers in this order.
 *
 *   source, a child of the job's keeper           target, a child of the guest keeper
 *   ---------------------------------------------------------------------------------------
 *   prepare     the program still runs
 *   claim       frozen; all descriptions known
 *   dump        each description
 *                        -- MIGRATE_STATE (manifest) -->
 *                                                 expect      before anything is made
 *                                                 make        each, instead of its kind's restore
 *                                                 finish      each, instead of its kind's finish
 *                                                 ready       all is restored, held; rendezvous
 *                        <-- MIGRATE_HELD (rendezvous) --
 *   held        peers are switched over; can be undone
 *   check       the last step that may fail
 *                        == commit: migration/UUID in the registry ==
 *   committed   the processes are about to end    committed   the processes are about to run
 *   aborted     or this: about to run on          aborted     or this: about to be killed
 *   close       in any case                       close
 *
 * Every function may be NULL. All block: the coordinator is a process of its own that does nothing else. A
 * process that outlives the migration (a bridge) is forked in `committed`, with its own copies of what it
 * needs. `aborted` is not called if the coordinator is killed before the commit. Data that was taken out of a
 * kernel queue must therefore be in another process (the peer's `scip reconnect`), which puts it back.
 */
#ifndef SCIP_ENDS_EXTERNAL_H
#define SCIP_ENDS_EXTERNAL_H

#include "proto/cluster.pb-c.h"
#include "scip/capture/group.h"
#include "scip/object/object.h"

enum { EXTERNAL_PROVIDERS_MAX = 7 };

struct files_sender;
struct reconnect_ports;

/* A migration, on the source host. */
struct migrate_source {
	struct names *names;
	char uuid[40];		    /* of this migration: migration/UUID in the registry */
	const struct name_job *job; /* its uuid names the job on all hosts */
	const char *host;	    /* name of the target host */
	struct vpid target;	    /* the root of the migrated processes */
	const struct group
		*group;	   /* the frozen members, in the order of manifest->processes; before: empty */
	bool dry_run;	   /* only `prepare` is called: obstacles, nothing else */
	bool leave_shared; /* a description shared with a process that stays is left to that process */
	void (*note)(void *arg, const char *text); /* reports a sentence to the user; may be NULL */
	void *note_arg;
	struct address_entry *addresses; /* migrated bound sockets: end_address.h */
	uint64_t *address_inos;		 /* inode of each */
	size_t naddresses;
	const struct files_sender *files;    /* or NULL */
	const struct reconnect_ports *ports; /* UDP sockets whose peers are reconnected, or NULL */
	void *state[EXTERNAL_PROVIDERS_MAX];
	const char **peers; /* hosts of the peers; the strings belong to their provider */
	size_t npeers;
	bool unheard;	  /* a peer may not have received the commit; it will ask the registry */
	char **obstacles; /* with dry_run: migrate_obstacle() */
	size_t nobstacles;
};

/* A migration, on the target host. */
struct migrate_target {
	struct names *names;
	char uuid[40];
	const Pbeam__MigrateBegin *begin;
	const char *from; /* name of the source host */
	struct rpid keeper;
	const Pbeam__Manifest *manifest;
	Pbeam__AddressArrivals *arrivals; /* restored bound sockets: end_address.h */
	const Pbeam__MigrateState *links; /* connections to other parts of a cut; or NULL */
	struct acceptor *acceptor;	  /* accepts the ends of other parts that connect; or NULL */
	int channel; /* of a part of a cut: readable when the rollback is given up while it is made */
	void *state[EXTERNAL_PROVIDERS_MAX];
};

struct external_provider {
	const char *name; /* External.provider */

	/* ---- source. `*state` belongs to the provider and is NULL at first ---- */
	/* Before the freeze: looks up and connects what can be, refuses early. With source->dry_run it
	 * reports every obstacle by migrate_obstacle() and returns 0. */
	int (*prepare)(struct migrate_source *source, void **state, struct err *err);
	/* The processes are frozen, every description is known (object_dump_source(dump, i)), none is dumped.
	 * Finds the provider's descriptions and drains them together with their peers. */
	int (*claim)(struct migrate_source *source, void **state, struct object_dump *dump, struct err *err);
	/* Returns 1 if `of` belongs to the provider, 0 if not. With 1, `out` has its kind
	 * (object_dump_as_usual() may help) and out->external, set by external_mark(). */
	int (*dump)(struct migrate_source *source, void **state, struct object_dump *dump,
		    const struct object_source *of, Pbeam__Object *out, struct err *err);
	/* The target has made everything; `rendezvous` comes from its `ready`. Switches the peers over, in a
	 * way that `aborted` can undo. */
	int (*held)(struct migrate_source *source, void **state, const ProtobufCBinaryData *rendezvous,
		    struct err *err);
	/* Just before the commit: checks that the switched-over peers still exist. */
	int (*check)(struct migrate_source *source, void **state, struct err *err);
	void (*source_committed)(struct migrate_source *source, void **state);
	/* The processes are still frozen: puts back what was drained. Also called after a failed prepare or
	 * claim. */
	void (*source_aborted)(struct migrate_source *source, void **state);
	void (*source_close)(struct migrate_source *source, void **state);

	/* ---- target ---- */
	int (*expect)(struct migrate_target *target, void **state, struct err *err);
	int (*make)(struct migrate_target *target, void **state, struct object_restore *restore,
		    const Pbeam__Object *object, int *fd, struct err *err);
	int (*finish)(struct migrate_target *target, void **state, struct object_restore *restore,
		      const Pbeam__Object *object, int fd, struct err *err);
	/* Fills `rendezvous` (allocated data, freed by the caller) for the provider's `held` on the source.
	 */
	int (*ready)(struct migrate_target *target, void **state, ProtobufCBinaryData *rendezvous,
		     struct err *err);
	void (*target_committed)(struct migrate_target *target, void **state);
	void (*target_aborted)(struct migrate_target *target, void **state);
	void (*target_close)(struct migrate_target *target, void **state);
};

extern const struct external_provider pidfd_provider; /* pidfd_provider.c */

/* Sets out->external to this provider, with a copy of `data`. Returns 0 or -ENOMEM. */
must_check int external_mark(Pbeam__Object *out, const struct external_provider *provider, const void *data,
			     size_t len);
/* The same with a message, packed. */
must_check int external_mark_message(Pbeam__Object *out, const struct external_provider *provider,
				     const ProtobufCMessage *message);
/* Records one obstacle, a sentence for --dry-run. */
void migrate_obstacle(struct migrate_source *source, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Reports a sentence to the user, also if the migration succeeds, and to the log. */
void migrate_note(const struct migrate_source *source, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
