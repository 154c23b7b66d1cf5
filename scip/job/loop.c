#include "scip/job/loop.h"

#include <errno.h>
#include <poll.h>
#include <time.h>

#include "base/io.h"

#define MS 1000000ull

int loop_watch(struct loop *loop, int fd, short events, loop_ready_fn ready, void *arg)
{
	for (int i = 0; i < LOOP_WATCHES_MAX; i++) {
		if (loop->watches[i].ready)
			continue;
		loop->watches[i] = (struct loop_watch){fd, events, ready, arg};
		return 0;
	}
	return -ENOSPC;
}

void loop_unwatch(struct loop *loop, int fd)
{
	for (int i = 0; i < LOOP_WATCHES_MAX; i++)
		if (loop->watches[i].ready && loop->watches[i].fd == fd)
			loop->watches[i].ready = NULL;
}

int loop_alarm(struct loop *loop, uint64_t at_ns, loop_alarm_fn ring, void *arg)
{
	for (int i = 0; i < LOOP_ALARMS_MAX; i++) {
		if (loop->alarms[i].at_ns)
			continue;
		loop->alarms[i] = (struct loop_alarm){at_ns ? at_ns : 1, ring, arg};
		return 0;
	}
	return -ENOSPC;
}

int loop_alarm_in(struct loop *loop, uint64_t ns, loop_alarm_fn ring, void *arg)
{
	return loop_alarm(loop, io_now_ns(CLOCK_MONOTONIC) + ns, ring, arg);
}

void loop_alarm_cancel(struct loop *loop, loop_alarm_fn ring, void *arg)
{
	for (int i = 0; i < LOOP_ALARMS_MAX; i++)
		if (loop->alarms[i].at_ns && loop->alarms[i].ring == ring && loop->alarms[i].arg == arg)
			loop->alarms[i].at_ns = 0;
}

/* Milliseconds until the next alarm, -1 for none. */
static int patience(const struct loop *loop)
{
	uint64_t now = io_now_ns(CLOCK_MONOTONIC), left = UINT64_MAX;

	for (int i = 0; i < LOOP_ALARMS_MAX; i++) {
		uint64_t at = loop->alarms[i].at_ns;

		if (at && (at <= now || at - now < left))
			left = at <= now ? 0 : at - now;
	}
	if (left == UINT64_MAX)
		return -1;
	return left / MS > 1000000 ? 1000000 : (int)((left + MS - 1) / MS);
}

static void ring_alarms(struct loop *loop)
{
	uint64_t now = io_now_ns(CLOCK_MONOTONIC);

	for (int i = 0; i < LOOP_ALARMS_MAX; i++) {
		struct loop_alarm due = loop->alarms[i];

		if (!due.at_ns || due.at_ns > now)
			continue;
		loop->alarms[i].at_ns = 0;
		due.ring(due.arg);
	}
}

void loop_step(struct loop *loop)
{
	struct pollfd polls[LOOP_WATCHES_MAX];
	int slots[LOOP_WATCHES_MAX], n = 0;

	for (int i = 0; i < LOOP_WATCHES_MAX; i++) {
		if (!loop->watches[i].ready)
			continue;
		polls[n] = (struct pollfd){.fd = loop->watches[i].fd, .events = loop->watches[i].events};
		slots[n++] = i;
	}
	if (poll(polls, (nfds_t)n, patience(loop)) > 0)
		for (int i = 0; i < n; i++) {
			struct loop_watch watch = loop->watches[slots[i]];

			/* An earlier handler may have removed, or replaced, this one. */
			if (polls[i].revents && watch.ready && watch.fd == polls[i].fd)
				watch.ready(watch.arg, watch.fd, polls[i].revents);
		}
	ring_alarms(loop);
}
