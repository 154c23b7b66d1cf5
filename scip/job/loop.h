/*
 * The keeper's event loop around poll(): descriptors and times that somebody waits for. Single-threaded; a
 * handler must not block. A leaf: it knows nothing of jobs.
 */
#ifndef SCIP_JOB_LOOP_H
#define SCIP_JOB_LOOP_H

#include <stdint.h>

#include "base/err.h"

/* `fd` is ready for `revents` (poll bits); a watch may remove itself. */
typedef void (*loop_ready_fn)(void *arg, int fd, short revents);
typedef void (*loop_alarm_fn)(void *arg);

enum { LOOP_WATCHES_MAX = 64, LOOP_ALARMS_MAX = 16 };
struct loop_watch {
	int fd;
	short events;
	loop_ready_fn ready; /* NULL = free */
	void *arg;
};
struct loop_alarm {
	uint64_t at_ns; /* CLOCK_MONOTONIC; 0 = free */
	loop_alarm_fn ring;
	void *arg;
};
/* Zeroed to begin with. */
struct loop {
	struct loop_watch watches[LOOP_WATCHES_MAX];
	struct loop_alarm alarms[LOOP_ALARMS_MAX];
};

/* poll() `fd` for `events` from now on. -ENOSPC when the table is full. The descriptor stays the caller's. */
must_check int loop_watch(struct loop *loop, int fd, short events, loop_ready_fn ready, void *arg);
void loop_unwatch(struct loop *loop, int fd);
/* Calls `ring` once at this CLOCK_MONOTONIC time. -ENOSPC when the table is full. */
must_check int loop_alarm(struct loop *loop, uint64_t at_ns, loop_alarm_fn ring, void *arg);
/* The same, `ns` from now. */
must_check int loop_alarm_in(struct loop *loop, uint64_t ns, loop_alarm_fn ring, void *arg);
void loop_alarm_cancel(struct loop *loop, loop_alarm_fn ring, void *arg);
/* Waits until something is ready or due and serves that. */
void loop_step(struct loop *loop);

#endif
