/*
 * What the keeper is asked for: by pbeamd and `scip attach` over the socket RUNTIME/job/PID
 * (proto/daemon.proto), and by the clock (interval.c). keeper.h declares what the keeper calls; this is what
 * the parts share.
 */
#ifndef SCIP_JOB_REQUESTS_H
#define SCIP_JOB_REQUESTS_H

#include "image/store.h"
#include "scip/job/keeper.h"

enum { REQUESTS_BACKLOG = 256 << 10, REQUESTS_KEEP_DEFAULT = 5 };

/* What the job wrote to its pty while no console was there: the newest REQUESTS_BACKLOG bytes. */
struct backlog {
	char *bytes;
	size_t len;
};

struct request; /* one connection */

struct requests {
	int listener;
	char path[PATH_MAX]; /* of the socket */
	struct request *list;
	struct backlog backlog;
	bool draining; /* the master is watched because no console is there */
	bool interval_running;
	char interval_path[PATH_MAX];
};

/* ---- backlog.c ---- */
/* From now on the pty's output is kept here. */
void backlog_start(struct keeper *keeper);
/* No more; what was kept goes into a memfd (-1: nothing was), for the new console. */
int backlog_take(struct keeper *keeper);

/* ---- interval.c ---- */
void interval_start(struct keeper *keeper);
void interval_stop(struct keeper *keeper);

/* JOB of a target: the job's name for its first process, else the vpid. */
void requests_store_job(const struct keeper *keeper, struct vpid target, char job[STORE_JOB_MAX]);

#endif
