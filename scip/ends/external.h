/*
 * Descriptions whose other end is outside the tree that moves: connections with processes elsewhere in the
 * name space (reconnect), pipes and connections whose other end stays (bridge). Each is a provider: one
 * struct here, one row in the table of scip/migrate/providers.c. The coordinators of a migration call them in
 * this order.
 *
 *   source, a child of the job's keeper           target, a child of the guest keeper
 *   ---------------------------------------------------------------------------------------
 *   prepare     the program runs still
 *   claim       frozen; all descriptions known
 *   dump        each description
 *                        -- MIGRATE_STATE (manifest) -->
 *                                                 expect      before anything is made
 *                                                 make        each, in the place of its kind's restore
 *                                                 finish      each, in the place of its kind's finish
 *                                                 ready       all is restored, held; rendezvous
 *                        <-- MIGRATE_HELD (rendezvous) --
 *   held        all are switched over, and can be switched back
 *   check       the last that may fail
 *                        == commit: migration/UUID in the registry ==
 *   committed   the processes are about to end    committed   the processes are about to run
 *   aborted     or this: about to run on          aborted     or this: about to be killed
 *   close       in any case                       close
 *
 * Every function may be NULL. All are blocking code in a process of its own that does nothing else meanwhile;
 * what is to outlive the migration (a bridge) is forked off in `committed`, with its own copies of what it
 * needs. When a coordinator is killed before the commit nobody calls `aborted`: whatever was taken out of a
 * kernel queue must by then be safe with another process (the peer's `scip reconnect`), which gives it back.
 */
#ifndef SCIP_MIGRATE_EXTERNAL_H
#define SCIP_MIGRATE_EXTERNAL_H

#include "proto/cluster.pb-c.h"
#include "scip/checkpoint/group.h"
#include "scip/object/object.h"

enum { EXTERNAL_PROVIDERS_MAX = 7 };

struct files_sender;
struct reconnect_ports;

/* What a migration is, on the side that it leaves. */
struct migrate_source {
	struct names *names;
	char uuid[40];		    /* of this migration: migration/UUID in the registry */
	const struct name_job *job; /* its uuid names the job on all hosts */
	const char *host;	    /* where it goes, by name */
	struct vpid target;	    /* the first of the processes */
	const struct group
		*group;	   /* the frozen members, in the order of manifest->processes; before: empty */
	bool dry_run;	   /* only `prepare` is called: obstacles, nothing else */
	bool leave_shared; /* what would be in two places is left to who stays */
	void (*note)(void *arg, const char *text); /* a sentence for the user; may be NULL */
	void *note_arg;
	struct address_entry *addresses; /* bound sockets that go: address.h */
	uint64_t *address_inos;		 /* of each */
	size_t naddresses;
	const struct files_sender *files;    /* or NULL */
	const struct reconnect_ports *ports; /* UDP sockets whose peers are told of the move, or NULL */
	void *state[EXTERNAL_PROVIDERS_MAX];
	const char **peers; /* hosts that have connections for it; the names are their provider's */
	size_t npeers;
	bool unheard; /* who has a part in it may not have heard of the commit: it will ask the registry */
	char **obstacles; /* with dry_run: migrate_obstacle() */
	size_t nobstacles;
};

/* And on the side where it arrives. */
struct migrate_target {
	struct names *names;
	char uuid[40];
	const Pbeam__MigrateBegin *begin;
	const char *from; /* the host it comes from, by name */
	struct rpid keeper;
	const Pbeam__Manifest *manifest;
	Pbeam__AddressArrivals *arrivals; /* bound sockets that have come: address.h */
	const Pbeam__MigrateState *links; /* of a part of a cut */
	struct acceptor *acceptor;	  /* likewise, for ends that connect; or NULL */
	void *state[EXTERNAL_PROVIDERS_MAX];
};

struct external_provider {
	const char *name; /* External.provider */

	/* ---- source. `*state` is the provider's own: zero at first ---- */
	/* Before the freeze: what can be looked up, connected and refused early. With source->dry_run every
	 * obstacle goes into migrate_obstacle() and 0 comes back. */
	int (*prepare)(struct migrate_source *source, void **state, struct err *err);
	/* Frozen, every description known (object_dump_source(dump, i)), none dumped: finds those that are
	 * its own, drains them with their peers. */
	int (*claim)(struct migrate_source *source, void **state, struct object_dump *dump, struct err *err);
	/* 1: `of` is one of them. `out` then has its kind (object_dump_as_usual() may help) and
	 * out->external, made with external_mark(). 0: it is not. */
	int (*dump)(struct migrate_source *source, void **state, struct object_dump *dump,
		    const struct object_source *of, Pbeam__Object *out, struct err *err);
	/* The target has made everything. `rendezvous` is what its `ready` gave. Peers are switched over so
	 * that `aborted` could still take it back. */
	int (*held)(struct migrate_source *source, void **state, const ProtobufCBinaryData *rendezvous,
		    struct err *err);
	/* Just before the commit: those who have been switched over are there still. */
	int (*check)(struct migrate_source *source, void **state, struct err *err);
	void (*source_committed)(struct migrate_source *source, void **state);
	/* The processes are still frozen: what was drained goes back. Also after a failed prepare or claim.
	 */
	void (*source_aborted)(struct migrate_source *source, void **state);
	void (*source_close)(struct migrate_source *source, void **state);

	/* ---- target ---- */
	int (*expect)(struct migrate_target *target, void **state, struct err *err);
	int (*make)(struct migrate_target *target, void **state, struct object_restore *restore,
		    const Pbeam__Object *object, int *fd, struct err *err);
	int (*finish)(struct migrate_target *target, void **state, struct object_restore *restore,
		      const Pbeam__Object *object, int fd, struct err *err);
	/* Fills `rendezvous` (malloc'd data, freed by the caller) for its `held` on the source. */
	int (*ready)(struct migrate_target *target, void **state, ProtobufCBinaryData *rendezvous,
		     struct err *err);
	void (*target_committed)(struct migrate_target *target, void **state);
	void (*target_aborted)(struct migrate_target *target, void **state);
	void (*target_close)(struct migrate_target *target, void **state);
};

extern const struct external_provider pidfd_provider; /* pidfd.c */

/* out->external: this provider's, with a copy of `data`. -ENOMEM. */
must_check int external_mark(Pbeam__Object *out, const struct external_provider *provider, const void *data,
			     size_t len);
/* One sentence for --dry-run, formatted as err_set() does. */
void migrate_obstacle(struct migrate_source *source, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* One for the user that is said whatever comes of it; the log has it too. */
void migrate_note(const struct migrate_source *source, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
