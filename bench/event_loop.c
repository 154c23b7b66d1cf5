/*
 * The cost of one event in the two kinds of event loop of this tree: poll(2) over two descriptors, and
 * libevent.
 *
 * 64 bytes go to and fro in one process over a socketpair: an event is a read and a write, and the loop's
 * overhead. "changing" is a loop that waits for other events after each event, as a loop does that copies
 * between two descriptors: libevent then calls epoll_ctl(2), while poll gets the set of events anyway.
 *
 * Prints for each way the processor time of one event in nanoseconds: the least of ROUNDS.
 */
#include <event2/event.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 300000, ROUNDS = 7 };

static int pair[2];
static struct event *events[2];
static int left;

static double cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void bounce(int end)
{
	char bytes[64] = {0};

	if (read(pair[end], bytes, sizeof(bytes)) < 0 || write(pair[end], bytes, sizeof(bytes)) < 0)
		abort();
	left--;
}

static void with_none(int changing)
{
	for (int end = 0; left > 0; end = !end)
		bounce(end);
}

static void with_poll(int changing)
{
	while (left > 0) {
		struct pollfd fds[2] = {{.fd = pair[0], .events = POLLIN}, {.fd = pair[1], .events = POLLIN}};

		if (poll(fds, 2, -1) < 0)
			abort();
		for (int end = 0; end < 2; end++)
			if (fds[end].revents)
				bounce(end);
	}
}

static void on_event(evutil_socket_t fd, short what, void *base)
{
	int end = fd == pair[1];

	bounce(end);
	if (left <= 0)
		event_base_loopbreak(base);
}

static void on_event_changing(evutil_socket_t fd, short what, void *base)
{
	int end = fd == pair[1];

	on_event(fd, what, base);
	if (event_del(events[end]) < 0 || event_add(events[end], NULL) < 0)
		abort();
}

static void with_libevent(int changing)
{
	struct event_base *base = event_base_new();

	for (int end = 0; end < 2; end++) {
		events[end] = event_new(base, pair[end], EV_READ | EV_PERSIST,
					changing ? on_event_changing : on_event, base);
		event_add(events[end], NULL);
	}
	event_base_dispatch(base);
	for (int end = 0; end < 2; end++)
		event_free(events[end]);
	event_base_free(base);
}

static void measure(const char *name, void (*loop)(int), int changing)
{
	double least = 1e18;

	for (int round = 0; round < ROUNDS; round++) {
		double start = cpu_ns(), ns;

		left = EVENTS;
		loop(changing);
		ns = (cpu_ns() - start) / EVENTS;
		least = ns < least ? ns : least;
	}
	printf("%s %.0f\n", name, least);
}

int main(void)
{
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0 || write(pair[1], "start", 5) < 0)
		return 1;
	measure("none", with_none, 0);
	measure("poll", with_poll, 0);
	measure("libevent", with_libevent, 0);
	measure("libevent-changing", with_libevent, 1);
	return 0;
}
