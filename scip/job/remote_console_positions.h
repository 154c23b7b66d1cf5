/*
 * How far the console at home has got with what is elsewhere: what all processes of a home keeper see of it.
 *
 * The process that carries the job's links writes what comes (remote_console_home.c). Connections break, and
 * the process may be killed: the positions outlive it, so that the next one goes on at the very byte. Each
 * part of the job that is elsewhere has its own.
 */
#ifndef SCIP_JOB_REMOTE_CONSOLE_POSITIONS_H
#define SCIP_JOB_REMOTE_CONSOLE_POSITIONS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "proto/cluster.pb-c.h"

enum { CONSOLE_STREAMS = 3, CONSOLE_PARTS_MAX = 64 };

/* One part of the job that is elsewhere. */
struct console_part {
	int32_t vpid;	   /* 0: free */
	bool used;	   /* by a connection */
	uint64_t instance; /* of its guest's end */
	_Atomic uint64_t written[CONSOLE_STREAMS];
};

struct console_positions {
	_Atomic uint64_t taken; /* standard input has been read up to there */
	struct console_part parts[CONSOLE_PARTS_MAX];
	int wake;		       /* eventfd: see console_positions_end() */
	_Atomic uint32_t wanted, done; /* its calls */
	_Atomic int32_t wanted_vpid;
};

/* Shared memory for the keeper that calls this and its children. Never freed. NULL: *err says why. */
struct console_positions *console_positions_make(struct err *err);
/* In the process that carries the links, when it begins: no connection uses any. */
void console_positions_begin(struct console_positions *positions);
/* The positions of the part in the HELLO, which is in use until console_positions_release(). A new guest's
 * end starts at the positions in its HELLO. NULL: too many parts are in use. */
struct console_part *console_positions_claim(struct console_positions *positions,
					     const Pbeam__RemoteConsole *hello);
void console_positions_release(struct console_part *part);

/* In a coordinator: waits until nothing is read from the console, or written to it, for that part any more;
 * vpid 0: for any part. `carrier`: the process that carries the links, which is killed if it does not stop.
 */
void console_positions_end(struct console_positions *positions, int32_t vpid, pid_t carrier);
/* In that process: the descriptor that is readable when a coordinator waits, the part that it waits for, and
 * the reply. */
int console_positions_wake(const struct console_positions *positions);
int32_t console_positions_wanted(const struct console_positions *positions);
void console_positions_ended(struct console_positions *positions);

#endif
