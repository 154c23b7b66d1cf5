/*
 * The console of processes on another host.
 *
 * The guest keeper gives them a pseudo-terminal or pipes where the job has a terminal, pipes or sockets at
 * home. A process of its own at each end (remote_console_guest.c, home_name.c) carries what is written and
 * typed, over a channel like those of line.h. At home the terminal is raw meanwhile: the program's settings
 * are those of the guest's, where keys become signals.
 *
 * Each part of the job that is elsewhere has a console of its own there. Only that of the job's first process
 * is fed: of what is typed at home nobody could say whose it is.
 *
 * Nothing is lost or comes twice when the processes move on: what they wrote is flushed to home while they
 * are frozen (they stay when home does not take it), and again before their end is told (struct
 * remote_console_shared); what comes from a pipe or socket is only looked at (tee(2), MSG_PEEK) and taken
 * when the program has read it. What is typed ahead on a terminal is not.
 */
#ifndef SCIP_JOB_REMOTE_CONSOLE_H
#define SCIP_JOB_REMOTE_CONSOLE_H

#include <pthread.h>
#include <stdatomic.h>

#include "proto/cluster.pb-c.h"
#include "scip/job/job.h"

/* The guest's end, as all processes of its keeper see it. */
struct remote_console_shared {
	_Atomic uint32_t wanted, done; /* flushes */
	_Atomic bool leaving;	       /* home is not called any more: the next host does */
	_Atomic bool ended;	       /* all processes have, and home has what could be told */
	_Atomic bool listens;	       /* home does */
	_Atomic pid_t pid;	       /* of the guest's end */
	_Atomic uint32_t turn;	       /* home has been set so often: */
	char homes[2][64];	       /* where it is, by turn */
};

/* A channel on which several threads of one end send. */
struct remote_console_channel {
	int channel;
	pthread_mutex_t lock; /* of sending */
};

/* Sends one message of `type`; len bytes of data, count: see cluster.proto. False: the channel is gone. */
bool remote_console_send(struct remote_console_channel *line, uint32_t type, int stream, const void *data,
			 size_t len, uint64_t count);

/* In the guest keeper, before anything arrives: job->console, job->pty_master, and what the other end needs.
 */
must_check int remote_console_make_streams(struct job *job, const Pbeam__MigrateBegin *begin,
					   struct err *err);
/* The guest's end is started. No effect where no stream leads home. */
must_check int remote_console_start(struct job *job, struct err *err);
/* Waits until home has written all that was written here. Blocking, for coordinators and lines: some seconds
 * at most, or (last: those who wrote have ended) for as long as home listens. -ETIMEDOUT: it
 * has not, as when nobody reads there. */
must_check int remote_console_flush(const struct job *job, bool last, struct err *err);
/* In a coordinator: the processes are about to go on elsewhere (or stay after all). */
void remote_console_set_departing(const struct job *job, bool leaving);
/* In the guest keeper: the job's home is on this host from now on. */
void remote_console_set_home(struct job *job, const char *home);
/* ... or on this one, where the job's first process is to be; the one that had the console is lost. */
bool remote_console_moves_here(const struct job *job, const Pbeam__MigrateBegin *begin);
/* Then: streams that were pipes to the console lead nowhere. (In a coordinator those that it gives to what it
 * makes.) */
must_check int remote_console_cut_pipes(const struct job *job, struct err *err);
/* When it is: the keeper is a home keeper, the terminal of the processes here the job's. */
void remote_console_become_home(struct job *job, const Pbeam__MigrateBegin *begin);
/* The guest's end is no more. */
void remote_console_stop(struct job *job);
_Noreturn void remote_console_guest_main(const struct job *job, int keeper);
/* At home: how far standard input has been read from elsewhere, as all processes of the keeper see it. */
must_check int remote_console_make_positions(struct job *job, struct err *err);
/* At home: `channel` has said FAR_HELLO (hello). */
_Noreturn void remote_console_home_main(const struct job *job, int channel,
					const Pbeam__RemoteConsole *hello);

#endif
