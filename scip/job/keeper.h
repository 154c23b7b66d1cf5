/*
 * The keeper of a job, as its console sees it: how it is started, and its events.
 *
 * The keeper is one process that lives as long as the job does. It is started by the console (`scip run`,
 * `scip restore`), leaves the console's session, so that the console may be killed, and from then on holds
 * the job's standard streams (or its pty's master), is the real parent of the job's first process and the
 * subreaper of all others, keeps spare scips waiting (supervisor/pool.h), and forks a coordinator for a
 * checkpoint or a rollback, one at a time.
 *
 * Inside, nothing calls up:
 *
 *   keeper.c                              the loop, its children, beginning and end
 *     requests.c, interval.c              sources of requests: RUNTIME/job/PID, the clock
 *       coordinator.c (husk.c), viewer.c  what carries them out; the console, or the backlog
 *         launch.c, job.c, loop.c         what they share
 *
 * The console gets events over one seqpacket socket (event.h) and sends nothing but end of file. `pbeamctl
 * attach` gets such a socket through requests.c.
 */
#ifndef SCIP_JOB_KEEPER_H
#define SCIP_JOB_KEEPER_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/cluster.pb-c.h"

/* What a job is started with. The console fills it in; all of it is inherited by fork. */
struct keeper_options {
	char *const *argv;    /* the program and its arguments, NULL terminated; NULL for a restore */
	const char *image;    /* the image to restore, when argv is NULL */
	bool force;	      /* restore: go on although files changed */
	const char *name;     /* --name, or NULL */
	const char *group;    /* --group, or NULL */
	const char *dir;      /* --dir: where numbered checkpoints go, or NULL */
	uint64_t interval_ns; /* --interval, 0 for none */
	uint32_t keep;	      /* --keep */
	char **track;	      /* --track: directories, absolute */
	size_t ntrack;
	uint64_t save_files_max; /* --save-files: bytes of a file that are saved with an image */
	/* A guest keeper: processes of a job that was started on another host arrive over `channel`. */
	const Pbeam__MigrateBegin *begin; /* NULL otherwise */
	int channel;
	int console[3]; /* the job's standard streams: the pty's slave or what scip was given; -1 none */
	int pty_master; /* -1 when the job has no terminal */
	const sigset_t *signal_mask; /* for the program; NULL: the caller's own */
};

/* Forks the keeper and, under it, the job. Returns the console's end of the socket (the caller closes it), or
 * -errno. The events come over it, those of a failed start included. */
must_check int keeper_start(const struct keeper_options *options, struct err *err);

struct successor;
/* Goes on as the keeper that has executed this program (supervisor/successor.h). */
_Noreturn void keeper_take_over(const struct successor *from);

/* The calling process becomes a guest keeper (options->begin). */
_Noreturn void keeper_receive(const struct keeper_options *options);

#endif
