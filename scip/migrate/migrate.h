/*
 * Live migration: the two coordinators. docs/MIGRATION.md.
 *
 * migrate_source.c runs in a child of the keeper that has the processes, migrate_target.c in a child of the
 * guest keeper (or of the keeper that has other processes of the job there already). They exchange
 * messages over one channel of kind MIGRATE (channel/wire.h). The image has the format of a checkpoint, in a
 * file without a name on either side.
 *
 * The migration happens when migration/UUID in the registry goes from PREPARED to COMMITTED
 * (scip/ends/migration_record.c), and at no other moment. A failure before the change leaves the processes on
 * the source; after the change they are on the target. A side that has lost the other queries the registry.
 */
#ifndef SCIP_MIGRATE_MIGRATE_H
#define SCIP_MIGRATE_MIGRATE_H

#include "channel/wire.h"
#include "namespace/names.h"
#include "proto/cluster.pb-c.h"
#include "scip/arrival/arrival.h"
#include "scip/ends/migration_record.h"
#include "scip/precopy/migrate_progress.h"
#include "scip/rebuild/rebuild.h"

struct group;

struct migrate_options {
	struct vpid target;
	const char *host;
	bool alone, dry_run, send_files, leave_shared;
	char *const *maps; /* FROM=TO */
	size_t nmaps;
	uint64_t max_pause_ns, bandwidth; /* 0: the default */
	uint64_t save_files_max;
	const int *console; /* 3 descriptors */
	const struct name_job *job;
	const char *incarnation; /* of the job, "" for none */
	/* Called when all processes are frozen: delivers their output to the console before they go on
	 * elsewhere. After an error they stay. */
	int (*flush)(void *arg, struct err *err);
	void (*stay)(void *arg); /* the processes stay after all */
	void *flush_arg;
	void (*gone)(void *arg); /* the migration is committed: do not ask the registry any more */
	void *gone_arg;
	void (*progress)(void *arg, const struct migrate_progress *progress); /* may be NULL */
	void *progress_arg;
	const char *uuid;      /* of the migration: a new one */
	const char *home;      /* host of the job's home keeper, NULL: this one */
	const char *stub_host; /* host of the first process's stub, "" none yet */
	bool stub;	       /* leave a stub of the first process for its parent, which stays */
	/* True for a process whose stub is on another host: it stays, unless it is the first process. */
	bool (*stays)(void *arg, struct vpid vpid);
	void *stays_arg;
};
struct migrate_result {
	uint64_t total_ns, pause_ns, bytes;
	uint32_t rounds, processes;
	char **obstacles; /* of a dry run: one sentence each; the coordinator ends with them */
	size_t nobstacles;
};
/* Moves the processes to the host. Returns 0 when they run there; after a failure they go on here as before.
 */
must_check int migrate_source_run(struct names *names, const struct migrate_options *options,
				  struct migrate_result *result, struct err *err);

/* Ends the processes here after they have moved, except the first one, which becomes a stub if `stub`. */
must_check int migrate_withdraw(struct group *group, bool stub, struct err *err);

/* After a coordinator was killed the registry decides where the processes are. */
struct migrate_settling {
	const char *uuid; /* of the migration */
	const struct name_job *job;
	bool arrival; /* this host was the target, else the source */
	bool known;   /* the processes have moved for certain; the record may be gone */
	bool part;    /* the arrival was that of a part of a cut: return_settle() */
	bool ends;    /* the part has no image */
	bool stub;
	struct vpid target;						      /* the first process */
	void (*progress)(void *arg, const struct migrate_progress *progress); /* may be NULL */
	void *progress_arg;
};
/* Returns 1 if the processes have moved, 0 if not. */
must_check int migrate_settle(struct names *names, const struct migrate_settling *settling, struct err *err);

/* Reports to the client that the outcome is unknown because the registry is unreachable. `progress` may be
 * NULL. */
void migrate_tell_undecided(void (*progress)(void *arg, const struct migrate_progress *progress), void *arg,
			    struct vpid target);

/* Receives the processes of a migration. Returns 0 when they run here; after a failure nothing of them is
 * left here. */
must_check int migrate_target_run(struct names *names, const struct arrival_options *options,
				  struct rebuild_result *result, struct err *err);

#endif
