/*
 * The keeper's event loop, on libevent: descriptors that are watched for input, and timers.
 *
 * libevent uses poll(2) here, not epoll(7). The keeper forks children that do not exec (scips, coordinators,
 * links), and an epoll instance is shared with them: freeing the base in a child would remove the parent's
 * interest. With poll a child can free its copy, and a keeper watches some ten descriptors.
 */
#ifndef SCIP_JOB_LOOP_H
#define SCIP_JOB_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct event_base;
struct loop_source;

/* `fd` is readable, at end of file, or in error. The callback may unwatch it and any other. */
typedef void (*loop_ready_fn)(void *arg, int fd);
typedef void (*loop_timer_fn)(void *arg);

struct loop {
	struct event_base *base;
	struct loop_source *sources; /* descriptors and timers, newest first */
};

/* -ENOMEM. */
must_check int loop_open(struct loop *loop);

/* Frees everything but the watched descriptors, which stay open. Also for a child's copy after fork. */
void loop_close(struct loop *loop);

/* Calls `ready` whenever `fd` has input, until loop_unwatch(). The descriptor stays the caller's. -ENOMEM. */
must_check int loop_watch(struct loop *loop, int fd, loop_ready_fn ready, void *arg);
/* To be called before `fd` is closed. No effect if it is not watched. */
void loop_unwatch(struct loop *loop, int fd);

/* Calls `expired` once, `ns` nanoseconds from now. -ENOMEM. */
must_check int loop_timer_start(struct loop *loop, uint64_t ns, loop_timer_fn expired, void *arg);
/* Stops all timers with this callback and argument. */
void loop_timer_stop(struct loop *loop, loop_timer_fn expired, void *arg);

/* Calls `visit` for each watched descriptor. */
void loop_each_fd(const struct loop *loop, void (*visit)(void *arg, int fd), void *arg);

/* Waits until something is ready or due, and runs its callback. */
void loop_step(struct loop *loop);

#endif
