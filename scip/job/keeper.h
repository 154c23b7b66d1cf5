/*
 * The keeper of a job: one process that lives as long as the job does.
 *
 * It is started by the console (`scip run`, `scip restore`), leaves the console's session, so that the
 * console may be killed, and from then on holds the job's standard streams (or its pty's master), is the real
 * parent of the job's first process and the subreaper of all others, keeps spare scips waiting
 * (supervisor/pool.h), and forks a coordinator for a checkpoint or a rollback, one at a time.
 *
 * It is single-threaded, a loop around poll(): whoever has a descriptor or a time to wait for registers it
 * with keeper_watch() or keeper_alarm() (requests.c: the socket RUNTIME/job/PID and the checkpoint interval).
 * A handler must not block.
 *
 * The console and its keeper talk over one seqpacket socket: struct keeper_event up, nothing down but end of
 * file (the console has gone; the job goes on). `pbeamctl attach` comes through requests.c and is told of the
 * end by requests_job_ended().
 */
#ifndef SCIP_JOB_KEEPER_H
#define SCIP_JOB_KEEPER_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "namespace/names.h"
#include "scip/checkpoint/checkpoint.h"
#include "scip/restore/restore.h"

/* What a job is started with. The console fills it in; all of it is inherited by fork. */
struct keeper_options {
	char *const *argv;	 /* the program and its arguments, NULL terminated; NULL for a restore */
	const char *image;	 /* the image to restore, when argv is NULL */
	bool force;		 /* restore: go on although files changed */
	const char *name;	 /* --name, or NULL */
	const char *dir;	 /* --dir: working directory of the program, or NULL */
	uint64_t interval_ns;	 /* --interval, 0 for none */
	uint32_t keep;		 /* --keep */
	uint64_t save_files_max; /* --save-files: bytes of a file that are saved with an image */
	int console[3]; /* the job's standard streams: the pty's slave or what scip was given; -1 none */
	int pty_master; /* -1 when the job has no terminal */
	const sigset_t *signal_mask; /* for the program; NULL: the caller's own */
};

/* keeper -> console */
enum keeper_event_type {
	KEEPER_STARTED = 1, /* the program has been executed (restored); value: its vpid */
	KEEPER_FAILED,	    /* value: scip's exit status (125, 126, 127); text: the sentence */
	KEEPER_ENDED,	    /* the job's first process is gone; value: its wait status */
	KEEPER_STOPPED,	    /* the job's first process was stopped by a signal; value: its wait status */
	KEEPER_TAKEN,	    /* another console has taken this one's place; nothing more comes */
};
struct keeper_event {
	uint32_t type;
	int32_t value;
	int32_t keeper; /* its pid: the job's socket is RUNTIME/job/PID */
	char text[ERR_TEXT_MAX];
};

struct keeper;
/* `fd` is ready for `revents` (poll bits); a watch may remove itself. */
typedef void (*keeper_ready_fn)(struct keeper *keeper, int fd, short revents, void *arg);
typedef void (*keeper_alarm_fn)(struct keeper *keeper, void *arg);
/* A checkpoint or rollback has ended: err->code 0 when it worked. Called in the keeper, once. */
struct keeper_outcome {
	struct err err;
	struct checkpoint_result checkpoint;
	struct restore_result restore;
	char path[4096];
};
typedef void (*keeper_done_fn)(struct keeper *keeper, const struct keeper_outcome *outcome, void *arg);

enum { KEEPER_WATCHES_MAX = 64, KEEPER_ALARMS_MAX = 8 };
struct keeper_watch {
	int fd;
	short events;
	keeper_ready_fn ready;
	void *arg;
};
struct keeper_alarm {
	uint64_t at_ns; /* CLOCK_MONOTONIC; 0 = free */
	keeper_alarm_fn ring;
	void *arg;
};

struct pool;
struct keeper {
	const struct keeper_options *options;
	struct names *names;
	struct name_job job; /* as in the table; change with names_job_update() */
	int console[3];	     /* the job's standard streams, -1 none; closed when the first process is gone */
	int pty_master;	     /* -1 none */
	int console_sock;    /* to the console that started us, -1 when it has gone */
	pid_t root;	     /* real pid of the job's first process, 0 before it is there */
	int report;	     /* tells whether the program could be executed; -1 once it was told */
	bool root_gone;	     /* ... and root_status is its wait status */
	int root_status;
	bool replacing; /* a rollback is at work: deaths of the old processes are not the job's end */
	struct pool *pool;
	sigset_t saved_mask;  /* the console's, for the program */
	pid_t coordinator;    /* 0 when none is at work */
	int coordinator_sock; /* requests for husks, then the outcome */
	bool coordinator_rolls_back;
	keeper_done_fn done;
	void *done_arg;
	struct keeper_outcome outcome;
	bool outcome_known;
	void *requests; /* of requests.c */
	struct keeper_watch watches[KEEPER_WATCHES_MAX];
	struct keeper_alarm alarms[KEEPER_ALARMS_MAX];
};

/* Forks the keeper and, under it, the job. Returns the console's end of the socket (the caller closes it), or
 * -errno. The events come over it; also the ones that tell of a failure to start. */
must_check int keeper_start(const struct keeper_options *options, struct err *err);

/* poll() `fd` for `events` from now on. -ENOSPC when the table is full. The descriptor stays the caller's. */
must_check int keeper_watch(struct keeper *keeper, int fd, short events, keeper_ready_fn ready, void *arg);
void keeper_unwatch(struct keeper *keeper, int fd);
/* Calls `ring` once at this CLOCK_MONOTONIC time. -ENOSPC when the table is full. */
must_check int keeper_alarm(struct keeper *keeper, uint64_t at_ns, keeper_alarm_fn ring, void *arg);
void keeper_alarm_cancel(struct keeper *keeper, keeper_alarm_fn ring, void *arg);

/* Starts a checkpoint (a rollback) in a coordinator. 0 when it has been started: `done` is called when it has
 * ended. -EBUSY, with the sentence, when one is at work already. Strings are copied. */
must_check int keeper_checkpoint(struct keeper *keeper, struct vpid target, const char *path, bool kill,
				 bool alone, uint64_t save_files_max, keeper_done_fn done, void *arg,
				 struct err *err);
must_check int keeper_rollback(struct keeper *keeper, const char *path, bool force, keeper_done_fn done,
			       void *arg, struct err *err);

/* ---- requests.c ---- */
/* Binds RUNTIME/job/PID, registers it, starts the interval. */
must_check int requests_open(struct keeper *keeper, struct err *err);
/* The console's socket has ended (keeper->console_sock is -1 already): from now on what the job writes to its
 * pty is kept here for the next console. */
void requests_console_gone(struct keeper *keeper);
/* The first process is gone with this wait status: attached consoles are told. */
void requests_job_ended(struct keeper *keeper, int status);
/* Removes the socket. */
void requests_close(struct keeper *keeper);

/* ---- terminal.c ---- */
/* In the job's first process, before it is executed: own session is made already; makes `slave` its terminal.
 */
must_check int terminal_adopt(int slave, struct err *err);

#endif
