#include "scip/job/loop.h"
#include "base/list.h"

#include <errno.h>
#include <event2/event.h>
#include <stdlib.h>
#include <sys/time.h>

enum { NS_PER_US = 1000, US_PER_S = 1000000 };

/* One watched descriptor, or (fd -1) one timer. */
struct loop_source {
	struct loop_source *next;
	struct loop *loop;
	struct event *event;
	int fd;
	loop_ready_fn ready;
	loop_timer_fn expired;
	void *arg;
};

int loop_open(struct loop *loop)
{
	static const char *const left_out[] = {"epoll", "select"};
	struct event_config *config = event_config_new();

	*loop = (struct loop){0};
	if (!config)
		return -ENOMEM;
	for (size_t i = 0; i < sizeof(left_out) / sizeof(left_out[0]); i++)
		if (event_config_avoid_method(config, left_out[i]) < 0)
			goto out;
	/* Timers are exact to the microsecond only on request, and nothing here needs that. */
	loop->base = event_base_new_with_config(config);
out:
	event_config_free(config);
	return loop->base ? 0 : -ENOMEM;
}

static void source_free(struct loop_source *source)
{
	list_remove(&source->loop->sources, source);
	if (source->event)
		event_free(source->event);
	free(source);
}

void loop_close(struct loop *loop)
{
	while (loop->sources)
		source_free(loop->sources);
	if (loop->base)
		event_base_free(loop->base);
	loop->base = NULL;
}

static void on_loop_ready(evutil_socket_t fd, short events, void *arg)
{
	const struct loop_source *source = arg;

	source->ready(source->arg, fd);
}

/* The source goes first: the callback may start the same timer again. */
static void on_expired(evutil_socket_t fd, short events, void *arg)
{
	struct loop_source *source = arg;
	const struct loop_source expired = *source;

	source_free(source);
	expired.expired(expired.arg);
}

static int source_add(struct loop *loop, const struct loop_source *from, short events,
		      const struct timeval *after)
{
	struct loop_source *source = malloc(sizeof(*source));

	if (!source)
		return -ENOMEM;
	*source = *from;
	source->loop = loop;
	source->next = loop->sources;
	loop->sources = source;
	source->event =
		event_new(loop->base, source->fd, events, source->ready ? on_loop_ready : on_expired, source);
	if (source->event && event_add(source->event, after) == 0)
		return 0;
	source_free(source);
	return -ENOMEM;
}

int loop_watch(struct loop *loop, int fd, loop_ready_fn ready, void *arg)
{
	const struct loop_source source = {.fd = fd, .ready = ready, .arg = arg};

	return source_add(loop, &source, EV_READ | EV_PERSIST, NULL);
}

void loop_unwatch(struct loop *loop, int fd)
{
	struct loop_source *next;

	for (struct loop_source *source = loop->sources; source; source = next) {
		next = source->next;
		if (source->ready && source->fd == fd)
			source_free(source);
	}
}

int loop_timer_start(struct loop *loop, uint64_t ns, loop_timer_fn expired, void *arg)
{
	const struct loop_source source = {.fd = -1, .expired = expired, .arg = arg};
	const uint64_t us = (ns + NS_PER_US - 1) / NS_PER_US;
	const struct timeval after = {(time_t)(us / US_PER_S), (suseconds_t)(us % US_PER_S)};

	return source_add(loop, &source, EV_TIMEOUT, &after);
}

void loop_timer_stop(struct loop *loop, loop_timer_fn expired, void *arg)
{
	struct loop_source *next;

	for (struct loop_source *source = loop->sources; source; source = next) {
		next = source->next;
		if (source->expired == expired && source->arg == arg)
			source_free(source);
	}
}

void loop_each_fd(const struct loop *loop, void (*visit)(void *arg, int fd), void *arg)
{
	for (const struct loop_source *source = loop->sources; source; source = source->next)
		if (source->ready)
			visit(arg, source->fd);
}

void loop_step(struct loop *loop)
{
	event_base_loop(loop->base, EVLOOP_ONCE);
}
