/*
 * What a migration's target and a part of a rollback over several hosts have in common: processes come over a
 * channel, and do not run before it is decided that they are here.
 */
#ifndef SCIP_ARRIVAL_ARRIVAL_H
#define SCIP_ARRIVAL_ARRIVAL_H

#include "scip/ends/external.h"
#include "scip/ends/migration_record.h"
#include "scip/rebuild/rebuild.h"

struct arrival_options {
	int channel;
	const Pbeam__MigrateBegin *begin;
	const int *console; /* 3 descriptors */
	int keeper_socket;
	struct rpid keeper;
	/* Called after the commit, before the processes run. */
	void (*ours)(void *arg);
	void *ours_arg;
	bool joins;		  /* as in rebuild_options */
	struct vpid replace;	  /* as in rebuild_options: a part of a cut (begin->cut) */
	struct fill_signs *signs; /* as in rebuild_options */
};

struct arrival {
	const struct arrival_options *options;
	struct migrate_target target;
	struct object_external external; /* of the target */
	struct record record;
	bool expected; /* arrival_expect() was called */
	bool committed;
};

/* `patience_s`: how long the other side may be silent. */
void arrival_open(struct arrival *a, struct names *names, const struct arrival_options *options,
		  int patience_s);
/* Prepares for all descriptions of the image whose other end is elsewhere. */
must_check int arrival_expect(struct arrival *a, const Pbeam__Manifest *manifest, struct err *err);
/* All processes are made and held: reports MIGRATE_HELD and waits for the decision. Returns 0 when they are
 * here; the caller then lets them run. When the other side is lost the registry is asked until it answers. */
must_check int arrival_commit(struct arrival *a, struct err *err);
/* Takes back what arrival_expect() did unless it was committed, reports that the processes run or why they do
 * not (`r`), and closes. The image must still be open. */
void arrival_finish(struct arrival *a, int r, const struct err *err);

#endif
