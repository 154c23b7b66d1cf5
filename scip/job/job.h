/*
 * A job, as all parts of its keeper see it: state, and the few things done to it. The parts (coordinator.h,
 * viewer.h, requests.h, interval.h) keep what is theirs behind the pointers.
 */
#ifndef SCIP_JOB_JOB_H
#define SCIP_JOB_JOB_H

#include <sys/types.h>

#include "image/store.h"
#include "namespace/names.h"
#include "scip/job/keeper.h"
#include "scip/job/loop.h"

enum { JOB_KEEP_DEFAULT = 5 };

struct pool;
struct coordinator;
struct viewer;
struct requests;
struct interval;
struct links;
struct remote_console;
struct console_positions;

struct job {
	const struct keeper_options *options;
	struct loop loop;
	struct names *names;
	struct name_job entry; /* as in the table; change with names_job_update() */
	int console[3]; /* the job's standard streams, -1 none; closed when the first process is gone */
	int pty_master; /* -1 none */
	int arrival;  /* the channel that the first processes of a guest's come over; -1: not yet, or any more
		       */
	char **track; /* directories that its checkpoints save as a whole */
	size_t ntrack;
	sigset_t saved_mask;	    /* the console's, for the program */
	pid_t root;		    /* real pid of the job's first process, 0 before it is there */
	pid_t next_root;	    /* of a rollback: what takes its place, 0 none */
	struct vpid next_root_vpid; /* another one for an image of an earlier run of that name */
	bool root_gone;		    /* ... and root_status is its wait status */
	int root_status;
	const char *home; /* of a guest keeper: the host where the job was started; else NULL */
	bool rolls_back;  /* the coordinator's new first process takes the old one's place at the commit; that
			     of an arrival does at once, when the one made in advance was killed */
	bool arrives;	  /* the coordinator receives processes */
	bool replacing;	  /* a rollback is at work: deaths of the old processes are not the job's end */
	struct pool *pool;
	struct coordinator *coordinator; /* NULL when none is at work */
	pid_t coordinator_pid;		 /* its pid, 0 */
	/* A migration from here is at work, or is being settled: processes of the job may be elsewhere a
	 * moment later. */
	bool departing;
	struct viewer *viewer;
	struct requests *requests;
	int home_dir;	    /* the runtime directory, watched (home.h); -1 none */
	unsigned home_look; /* how often it was looked at since something was removed */
	struct interval *interval;
	int console_ends[3]; /* of a guest keeper: the other ends of its pipes, -1 none */
	struct console_positions *console_positions; /* at home: remote_console.h; NULL */
	struct remote_console *remote_console;	     /* of a guest keeper: its console */
	struct links *links;			     /* NULL: nothing of the job was ever on another host */
	int links_sock; /* to the process that carries them (link_process.h), -1 none */
	/* Of a job that was rolled back as a cut: the uuid of the last such rollback, the same in all its
	 * keepers; else "". */
	char incarnation[40];
};

/* The job's first process, from now on. */
must_check int job_set_root(struct job *job, pid_t root, struct vpid vpid);
/* job->next_root takes its place. */
must_check int job_replace_root(struct job *job);
/* Processes of it may be on other hosts from now on. */
must_check int job_spreads(struct job *job);
/* JOB of a target (image/store.h): the job's name for its first process, else the vpid. */
void job_store_name(const struct job *job, struct vpid target, char name[STORE_JOB_MAX]);
/* The cookie of the job's channels: its uuid as bytes. -EINVAL when it has none. */
must_check int job_cookie(const struct job *job, uint8_t cookie[16], struct err *err);
/* How many numbered checkpoints stay. */
uint32_t job_keep(const struct job *job);
/* True if the parent of the process is here and stays when the process goes to another host. */
bool job_wants_stub(const struct job *job, struct vpid vpid);
/* Closes the standard streams. */
void job_close_console(struct job *job);
/* In a new child: closes the descriptors that are the keeper's own (all that its loop watches, the streams,
 * the pty). */
void job_close_private(struct job *job);

#endif
