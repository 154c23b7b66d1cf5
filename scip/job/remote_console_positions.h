/*
 * How far the console at home has got with what is elsewhere: what all processes of a home keeper see of it.
 *
 * A process of the keeper's serves each channel (remote_console_home.c), and a channel may break and come
 * again. The positions outlive these processes, so that the next one goes on at the very byte. Each part of
 * the job that is elsewhere has its own, and one process at a time writes what comes from it.
 */
#ifndef SCIP_JOB_REMOTE_CONSOLE_POSITIONS_H
#define SCIP_JOB_REMOTE_CONSOLE_POSITIONS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/cluster.pb-c.h"

enum { CONSOLE_STREAMS = 3, CONSOLE_PARTS_MAX = 64 };

/* One part of the job that is elsewhere. */
struct console_part {
	pthread_mutex_t writer; /* robust: held for life by the process that writes what comes from it */
	int32_t vpid;		/* 0: free */
	uint64_t instance;	/* of its guest's end */
	_Atomic uint64_t written[CONSOLE_STREAMS];
};

struct console_positions {
	_Atomic uint64_t taken; /* standard input has been read up to there */
	pthread_mutex_t lock;	/* robust: of the parts' numbers */
	struct console_part parts[CONSOLE_PARTS_MAX];
};

/* Shared memory for the keeper that calls this and its children. Never freed. NULL: *err says why. */
struct console_positions *console_positions_make(struct err *err);
/* Waits until no other process writes for that part, and makes the caller the one that does, until it ends.
 * A new guest's end starts at the positions in its HELLO. NULL: too many parts (logged by the caller). */
struct console_part *console_positions_claim(struct console_positions *positions,
					     const Pbeam__RemoteConsole *hello);

#endif
