/*
 * The job's coordinator: a child of the keeper that makes one checkpoint, restore or migration, straight-line
 * blocking code. One at a time.
 */
#ifndef SCIP_JOB_COORDINATOR_H
#define SCIP_JOB_COORDINATOR_H

#include "proto/daemon.pb-c.h"
#include "scip/cut/cut.h"
#include "scip/job/job.h"
#include "scip/migrate/migrate.h"
#include "scip/rebuild/rebuild.h"

enum coordinator_kind {
	COORDINATOR_CHECKPOINT,
	COORDINATOR_RESTORE,  /* the first start of a restored job */
	COORDINATOR_ROLLBACK, /* the processes that are there are replaced */
	COORDINATOR_MIGRATE,  /* processes go to another host */
	COORDINATOR_RECEIVE,  /* ... and arrive there */
	COORDINATOR_PART,     /* a part of a cut over several hosts is saved */
	COORDINATOR_UPGRADE,  /* the scips change to this program */
	COORDINATOR_SETTLE,   /* ... its outcome is not known: the coordinator was killed */
};

/* Called in the keeper, with the argument of coordinator_start(). */
typedef void (*coordinator_progress_fn)(void *arg, const Pbeam__Progress *progress);

/* What it is to do. Inherited by fork: pointers need to live no longer than coordinator_start(). */
struct coordinator_wish {
	enum coordinator_kind kind;
	const char *path;	 /* of the image */
	struct vpid target;	 /* of a checkpoint or rollback: the process; 0: the whole job */
	bool kill, alone;	 /* checkpoint */
	bool numbered;		 /* checkpoint: the path is one of the job's own */
	uint64_t save_files_max; /* checkpoint */
	bool dry_run;		 /* rollback: only list what happens */
	bool force;		 /* restore, rollback: although files changed */
	bool replace;		 /* rollback: the old processes end before the new ones are made */
	const struct migrate_options *migrate;
	const struct migrate_settling *settling;
	int channel;			  /* receive, part */
	const Pbeam__CutRequest *save;	  /* part */
	const Pbeam__MigrateBegin *begin; /* receive */
	coordinator_progress_fn progress; /* migrate; may be NULL */
};

/* It has ended: err.code 0 when it worked. */
struct coordinator_outcome {
	struct err err;
	struct vpid root;   /* of a restore */
	uint32_t processes; /* as are the next ones: 0 where the kind has no such figure */
	uint32_t threads, rounds;
	uint64_t bytes, pause_ns, total_ns;
	char **obstacles; /* of a dry run; why a checkpoint is incomplete; what a restore has kept; valid
			     until `done` returns */
	size_t nobstacles;
	Pbeam__FileFate **files; /* of the dry run of a rollback; valid as long */
	size_t nfiles;
	bool killed; /* it ended without an outcome */
	bool moved;  /* settle, or a killed one: the processes are where they were to go */
};
/* Called in the keeper, once. */
typedef void (*coordinator_done_fn)(void *arg, const struct coordinator_outcome *outcome);

/* 0 when it has been started: `done` is called when it has ended. -EBUSY, with the sentence, when one is at
 * work already. */
must_check int coordinator_start(struct job *job, const struct coordinator_wish *wish,
				 coordinator_done_fn done, void *arg, struct err *err);
/* 0: another one can be started; one that has done its work is waited for, so its `done` may be called.
 * -EBUSY, with the sentence, when one is at work. */
must_check int coordinator_idle(struct job *job, struct err *err);
/* Asks the migration from here that is at work to give up, if it is not committed. -ESRCH: there is none. */
must_check int coordinator_cancel(const struct job *job);

/* For keeper.c: its child `pid` has ended: calls `done` if it was the coordinator, and links_settle() unless
 * another one is at work by then. True if it was. */
bool coordinator_reaped(struct job *job, pid_t pid, int status);

/* ---- coordinator_main.c ---- */
extern const char *const coordinator_kind_names[]; /* by enum coordinator_kind */
/* In the child: carries out the request, sends the outcome over `keeper_sock`, and exits. */
_Noreturn void coordinator_main(struct job *job, const struct coordinator_wish *wish, int keeper_sock);

#endif
