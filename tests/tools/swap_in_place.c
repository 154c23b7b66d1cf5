/*
 * Reconnects TCP connections between supervised processes of this host in place: both ends through `scip
 * reconnect`, as a migration does with one end.
 *
 *     swap_in_place [-a] COUNT INTERVAL-MS PORT...
 *
 * COUNT times, for every connection of which one end has one of the ports; prints a line of JSON at the end.
 * -a: every second time aborts before the commit.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/ends/end_tcp.h"
#include "scip/object/common.h"
#include "scip/object/inet.h"
#include "scip/reconnect/reconnect.h"

struct pair {
	struct inet_address one, other;
};

static struct err err = ERR_INIT;
/* After a reconnection the accepting ends have the listener's port. */
static uint32_t swapped_port;

/* Finds established connections one end of which has this port, from /proc/net/tcp. */
static void find(struct pair **pairs, size_t *n, unsigned port)
{
	FILE *in = fopen("/proc/net/tcp", "r");
	char line[512];

	while (in && fgets(line, sizeof(line), in)) {
		unsigned own, own_port, peer, peer_port, state;
		struct pair pair = {0};

		if (sscanf(line, "%*d: %8X:%4X %8X:%4X %2X", &own, &own_port, &peer, &peer_port, &state) !=
			    5 ||
		    own_port != port || state == 10 || state == 6 || state == 7)
			continue;
		pair.one.v4 = (struct sockaddr_in){
			.sin_family = AF_INET, .sin_port = htons((uint16_t)own_port), .sin_addr = {own}};
		pair.other.v4 = (struct sockaddr_in){
			.sin_family = AF_INET, .sin_port = htons((uint16_t)peer_port), .sin_addr = {peer}};
		pair.one.len = pair.other.len = sizeof(struct sockaddr_in);
		if (object_append(*pairs, *n, pair) < 0)
			exit(1);
	}
	if (in)
		fclose(in);
}

static Pbeam__ReconnectRequest *new_request(int operation, const struct pair *pairs, size_t n, bool turned,
					    const uint8_t *cookies, uint32_t port)
{
	Pbeam__ReconnectRequest *request = message_new(&pbeam__reconnect_request__descriptor);
	struct sockaddr_in to = {.sin_family = AF_INET,
				 .sin_port = htons((uint16_t)port),
				 .sin_addr = {htonl(INADDR_LOOPBACK)}};

	request->operation = (Pbeam__ReconnectRequest__Operation)operation;
	for (size_t i = 0; i < n; i++) {
		Pbeam__ReconnectConnection *c =
			message_add(request, connections, pbeam__reconnect_connection__descriptor);
		const struct inet_address *own = turned ? &pairs[i].other : &pairs[i].one;
		const struct inet_address *peer = turned ? &pairs[i].one : &pairs[i].other;

		if (message_bytes(&c->own, &own->any, own->len) < 0 ||
		    message_bytes(&c->peer, &peer->any, peer->len) < 0 ||
		    (cookies && message_bytes(&c->cookie, cookies + 16 * i, 16) < 0) ||
		    (port && message_bytes(&c->address, &to, sizeof(to)) < 0))
			exit(1);
	}
	return request;
}

static Pbeam__ReconnectReply *ask(int channel, Pbeam__ReconnectRequest *request)
{
	Pbeam__ReconnectReply *reply =
		reconnect_send(channel, request, &err) < 0 ? NULL : reconnect_receive(channel, &err);

	message_free(request);
	return reply;
}

#define OP(name) PBEAM__RECONNECT_REQUEST__OPERATION__##name

static bool all_held(const Pbeam__ReconnectReply *reply)
{
	bool all = true;

	for (size_t i = 0; i < reply->n_ends; i++)
		all = all && reply->ends[i]->state == PBEAM__RECONNECT_END__STATE__HELD;
	return all;
}

static struct end_tcp_level level_of(const Pbeam__ReconnectEnd *end)
{
	return (struct end_tcp_level){.waiting = end->waiting, .queued = end->queued, .room = end->room};
}

/* Runs one round. Returns the number of connections still under way, or -1. */
static int64_t drain_round(const int channel[2])
{
	Pbeam__ReconnectReply *reply[2];
	int64_t waiting = 0;

	for (int k = 0; k < 2; k++)
		reply[k] = ask(channel[k], new_request(OP(DRAIN), NULL, 0, false, NULL, 0));
	for (size_t i = 0; reply[0] && reply[1] && i < reply[0]->n_ends; i++) {
		struct end_tcp_level one = level_of(reply[0]->ends[i]), other = level_of(reply[1]->ends[i]);

		waiting += (int64_t)(one.waiting + other.waiting);
		if (!end_tcp_fits(&one, &other) || !end_tcp_fits(&other, &one)) {
			waiting = err_set(&err, -ENOBUFS, "no room");
			break;
		}
	}
	if (!reply[0] || !reply[1])
		waiting = -1;
	message_free(reply[0]);
	message_free(reply[1]);
	return waiting;
}

static int drain(const int channel[2])
{
	int64_t last = INT64_MAX;

	for (unsigned round = 0, stalled = 0; stalled < 400; round++) {
		int64_t waiting = drain_round(channel);

		if (waiting <= 0)
			return (int)waiting;
		stalled = waiting < last ? 0 : stalled + 1;
		last = waiting;
		if (round > 20)
			usleep(500);
	}
	return err_set(&err, -ENOBUFS, "not drained");
}

/* Returns 1: reconnected; 0: no connection, or busy; -1 with `err`. */
static int once(const struct pair *pairs, size_t n, bool give_up, const struct names *names)
{
	uint8_t *cookies = malloc(16 * n);
	int channel[2] = {-1, -1}, r = 0;
	Pbeam__ReconnectReply *reply;
	uint32_t port = 0;

	if (!cookies || getrandom(cookies, 16 * n, 0) < 0)
		return -1;
	for (int k = 0; k < 2 && r == 0; k++) {
		channel[k] = reconnect_fork((struct names *)(uintptr_t)names, &err);
		reply = channel[k] < 0 ? NULL
				       : ask(channel[k], new_request(OP(HOLD), pairs, n, k == 1, NULL, 0));
		if (!reply)
			r = -1;
		else if (!all_held(reply))
			r = err_set(&err, -EAGAIN, "not all are held");
		message_free(reply);
	}
	if (r == 0)
		r = drain(channel);
	if (r == 0) {
		reply = ask(channel[0], new_request(OP(LISTEN), NULL, 0, false, NULL, 0));
		port = reply ? reply->port4 : 0;
		r = reply ? 0 : -1;
		message_free(reply);
	}
	if (r == 0) {
		Pbeam__ReconnectRequest *request = new_request(OP(ACCEPT), pairs, n, false, cookies, 0);

		r = reconnect_send(channel[0], request, &err);
		message_free(request);
	}
	if (r == 0) {
		reply = ask(channel[1], new_request(OP(CONNECT), pairs, n, true, cookies, port));
		r = reply ? 0 : -1;
		message_free(reply);
	}
	if (r == 0) {
		reply = reconnect_receive(channel[0], &err);
		r = reply ? 0 : -1;
		message_free(reply);
	}
	for (int k = 0; k < 2 && r == 0 && !give_up; k++) {
		reply = ask(channel[k], new_request(OP(COMMIT), NULL, 0, false, NULL, 0));
		r = reply ? 0 : -1;
		message_free(reply);
	}
	if (r == 0 && !give_up)
		swapped_port = port;
	for (int k = 0; k < 2; k++)
		if (channel[k] >= 0)
			close(channel[k]);
	free(cookies);
	return r < 0 ? r : 1;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	struct names *names;
	bool alternate = argc > 1 && !strcmp(argv[1], "-a");
	int count, interval, done = 0, busy = 0, attempt = 0;
	double *ms;

	argv += alternate;
	argc -= alternate;
	if (argc < 4)
		return 2;
	log_open("swap_in_place", NULL);
	count = atoi(argv[1]);
	interval = atoi(argv[2]);
	ms = calloc((size_t)count, sizeof(*ms));
	if (!ms || names_open(&names, &err) < 0) {
		fprintf(stderr, "swap_in_place: %s\n", err.text);
		return 1;
	}
	while (done < count) {
		struct pair *pairs = NULL;
		uint64_t before;
		size_t n = 0;
		int r;

		if (swapped_port)
			find(&pairs, &n, swapped_port);
		for (int i = 3; i < argc && !swapped_port; i++)
			find(&pairs, &n, (unsigned)atoi(argv[i]));
		if (n == 0) {
			fprintf(stderr, "swap_in_place: no connection after %d\n", done);
			return 3;
		}
		err_clear(&err);
		before = io_now_ns(CLOCK_MONOTONIC);
		r = once(pairs, n, alternate && done % 2, names);
		free(pairs);
		if (r > 0) {
			ms[done++] = (double)(io_now_ns(CLOCK_MONOTONIC) - before) / 1e6;
			attempt = 0;
		} else if (err.code == -EBUSY || err.code == -EAGAIN || err.code == -ENOBUFS) {
			if (++busy > 1000 + 10 * count)
				break;
			reconnect_backoff((unsigned)attempt++);
		} else {
			fprintf(stderr, "swap_in_place: %s\n", err.text);
			return 1;
		}
		usleep((unsigned)interval * 1000);
	}
	qsort(ms, (size_t)done, sizeof(*ms), compare);
	if (done)
		printf("{\"swaps\": %d, \"busy\": %d, \"least_ms\": %.2f, \"median_ms\": %.2f, \"most_ms\": "
		       "%.2f}\n",
		       done, busy, ms[0], ms[done / 2], ms[done - 1]);
	return done < count;
}
