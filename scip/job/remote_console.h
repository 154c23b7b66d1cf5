/*
 * The remote console: the standard streams of processes whose job has its console on another host.
 *
 * The guest keeper gives them a pseudo-terminal or pipes where the job has a terminal, pipes or sockets at
 * home. At each end the process that carries the job's links (link_process.h) carries what is written and
 * typed (remote_console_guest.c, remote_console_home.c). The terminal at home is raw meanwhile: the program's
 * settings are those of the guest's terminal, which turns keys into signals.
 *
 * Each part of the job that is elsewhere has a console of its own. Only that of the job's first process gets
 * input: nothing says which part typed bytes are for.
 *
 * Each byte arrives once, whatever breaks in between:
 *   - Output stays with the guest's end until home has written it (remote_console_output.h), and home counts
 *     what it has written in memory that outlives its process (remote_console_positions.h). A new connection
 *     goes on at that position.
 *   - Input from a pipe or socket is only looked at (tee(2), MSG_PEEK) and is read at home when the program
 *     has read it. Input from a terminal is read when it is typed. What is under way is lost with the
 *     connection.
 *   - Before processes move on, and before their end is reported, their output is flushed to home. They stay
 *     if home does not take it.
 */
#ifndef SCIP_JOB_REMOTE_CONSOLE_H
#define SCIP_JOB_REMOTE_CONSOLE_H

#include <stdatomic.h>

#include "proto/cluster.pb-c.h"
#include "scip/job/job.h"
#include "scip/job/remote_console_output.h"

/* The guest's end, as all processes of its keeper see it. */
struct remote_console_shared {
	_Atomic uint32_t wanted, done; /* flushes */
	_Atomic bool departing;	       /* home is not called any more: the next host calls it */
	_Atomic bool ended;	       /* the guest's end has, and home has what could be sent */
	_Atomic bool listens;	       /* home does */
	_Atomic pid_t pid;	       /* of the process that carries it */
	_Atomic uint32_t turn;	       /* home was set so often ... */
	char homes[2][64];	       /* ... and its name is the one of that turn */
	/* The state of the process that carries it, so that the next one goes on if it is killed. */
	uint64_t instance; /* a random number that distinguishes this console from another; 0: not begun */
	bool started;	   /* the position in standard input is known */
	uint64_t given;	   /* position in standard input up to which it was given to the program */
	struct console_output output[3];
};

/* What a guest keeper has of its console beside job->console. */
struct remote_console {
	int wake; /* eventfd: a flush is wanted */
	struct remote_console_shared *shared;
};

/* In the guest keeper, before anything arrives: makes job->console, job->pty_master and the other ends. */
must_check int remote_console_make_streams(struct job *job, const Pbeam__MigrateBegin *begin,
					   struct err *err);
/* The other end of that stream of the console is closed: so is this one. */
void remote_console_close(struct job *job, int stream);
/* Makes what the guest's end and the keeper share. 1; 0 where no stream leads home, or it was made before. */
must_check int remote_console_prepare(struct job *job, struct err *err);
/* Frees it, when the guest's end has ended. */
void remote_console_free(struct job *job);
/* The host that the guest's end calls. */
const char *remote_console_home(const struct remote_console_shared *shared);
/* Waits until home has written all that was written here. Blocks, so it is for coordinators and links: some
 * seconds at most, or (last: the writers have ended) for as long as home listens. -ETIMEDOUT: home has not
 * written it, as when its console is not read. */
must_check int remote_console_flush(const struct job *job, bool last, struct err *err);
/* In a coordinator: the processes are about to go on elsewhere, or stay after all. */
void remote_console_set_departing(const struct job *job, bool departing);
/* In the guest keeper: the job's home is that host from now on. */
void remote_console_set_home(struct job *job, const char *home);
/* True if the job's first process arrives here because the host that had the console is lost. */
bool remote_console_moves_here(const struct job *job, const Pbeam__MigrateBegin *begin);
/* Then: streams that were pipes to the console lead to /dev/null. In a coordinator: those that it gives to
 * the processes that it makes. */
must_check int remote_console_cut_pipes(const struct job *job, struct err *err);
/* When it has arrived: the keeper becomes the home keeper, and the terminal of the processes here is the
 * job's. */
void remote_console_become_home(struct job *job, const Pbeam__MigrateBegin *begin);
/* At home, before the first connection: job->console_positions. */
must_check int remote_console_make_positions(struct job *job, struct err *err);

#endif
