/*
 * Traffic between two hosts, reported as it goes.
 *
 *   traffic serve tcp
 * udp
 * udp-connected PORT      answers pings, reads streams
 *   traffic ping tcp
 * udp
 * udp-connected HOST PORT  a line "ping NS" (the median round trip) for every 500
 *   traffic stream HOST PORT                      a line "stream MB/S" five times a second
 *
 * The client's socket is connected. With udp the server's socket serves all clients; with udp-connected the
 * server connects it to the first one.
 *
 * All of them run until they are killed.
 */
#include <arpa/inet.h>
#include <err.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PING = 32, BLOCK = 256 << 10, BATCH = 500, SLICE_NS = 200000000 };

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static struct sockaddr_in address(const char *host, const char *port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};

	if (inet_pton(AF_INET, host, &a.sin_addr) != 1)
		errx(2, "%s is no address", host);
	return a;
}

/* The first byte is the kind of the connection. */
static void *serve_one(void *arg)
{
	int fd = (int)(intptr_t)arg, one = 1;
	char *block = malloc(BLOCK);
	ssize_t n = read(fd, block, 1);
	char kind = n == 1 ? block[0] : 0;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	while (kind && (n = read(fd, block, kind == 'p' ? PING : BLOCK)) > 0)
		if (kind == 'p' && write(fd, block, (size_t)n) != n)
			break;
	close(fd);
	free(block);
	return NULL;
}

static int is_udp(const char *word)
{
	return !strcmp(word, "udp") || !strcmp(word, "udp-connected");
}

/* Connects to the first client. */
static int serve_connected(int fd)
{
	struct sockaddr_in from;
	socklen_t len = sizeof(from);
	char text[PING];
	ssize_t n = recvfrom(fd, text, sizeof(text), 0, (struct sockaddr *)&from, &len);

	if (n < 0 || connect(fd, (struct sockaddr *)&from, len) < 0)
		err(1, "connect");
	for (;;) {
		if (n >= 0 && send(fd, text, (size_t)n, 0) != n)
			warn("datagram");
		n = recv(fd, text, sizeof(text), 0);
	}
}

static int serve(const char *protocol, const char *port)
{
	struct sockaddr_in a = address("0.0.0.0", port);
	int udp = is_udp(protocol), fd = socket(AF_INET, udp ? SOCK_DGRAM : SOCK_STREAM, 0), one = 1;
	pthread_t thread;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || (!udp && listen(fd, 16) < 0))
		err(1, "port %s", port);
	puts("serving");
	fflush(stdout);
	if (!strcmp(protocol, "udp-connected"))
		return serve_connected(fd);
	for (;;) {
		char text[PING];
		struct sockaddr_in from;
		socklen_t len = sizeof(from);

		if (udp) {
			ssize_t n = recvfrom(fd, text, sizeof(text), 0, (struct sockaddr *)&from, &len);

			if (n < 0 || sendto(fd, text, (size_t)n, 0, (struct sockaddr *)&from, len) != n)
				warn("datagram");
			continue;
		}
		one = accept(fd, NULL, NULL);
		if (one < 0)
			err(1, "accept");
		pthread_create(&thread, NULL, serve_one, (void *)(intptr_t)one);
		pthread_detach(thread);
	}
}

static int reach(int udp, const char *host, const char *port, char kind)
{
	struct sockaddr_in a = address(host, port);
	int fd = socket(AF_INET, udp ? SOCK_DGRAM : SOCK_STREAM, 0), one = 1;
	struct timeval second = {.tv_sec = 1};

	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		err(1, "connect to %s:%s", host, port);
	if (udp)
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof(second));
	else if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) < 0 || write(fd, &kind, 1) != 1)
		err(1, "greet %s:%s", host, port);
	return fd;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static int ping(int udp, const char *host, const char *port)
{
	int fd = reach(udp, host, port, 'p');
	uint64_t took[BATCH], sent = 0, back;

	for (;;) {
		for (int i = 0; i < BATCH;) {
			char text[PING] = {0};
			uint64_t from = now();
			ssize_t got = 0, n;

			memcpy(text, &sent, sizeof(sent));
			if (send(fd, text, PING, 0) != PING && !udp)
				err(1, "ping %lu", sent);
			do { /* a late answer to an earlier ping may arrive */
				for (got = 0;
				     got < PING && (n = recv(fd, text + got, (size_t)(PING - got), 0)) > 0;)
					got += n;
				memcpy(&back, text, sizeof(back));
			} while (udp && got == PING && back < sent);
			if (got != PING && !udp)
				errx(1, "ping %lu: the connection has ended", sent);
			if (got == PING && back == sent)
				took[i++] = now() - from;
			else if (!udp)
				errx(1, "ping %lu: answered with %lu", sent, back);
			sent++;
		}
		qsort(took, BATCH, sizeof(took[0]), compare);
		printf("ping %lu\n", took[BATCH / 2]);
		fflush(stdout);
	}
}

static int stream(const char *host, const char *port)
{
	int fd = reach(0, host, port, 's');
	char *block = calloc(1, BLOCK);
	uint64_t from = now(), bytes = 0;

	for (;;) {
		ssize_t n = write(fd, block, BLOCK);

		if (n < 0)
			err(1, "stream");
		bytes += (uint64_t)n;
		if (now() - from < SLICE_NS)
			continue;
		printf("stream %.1f\n", (double)bytes * 1e3 / (double)(now() - from));
		fflush(stdout);
		from = now();
		bytes = 0;
	}
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "serve"))
		return serve(argv[2], argv[3]);
	if (argc == 5 && !strcmp(argv[1], "ping"))
		return ping(is_udp(argv[2]), argv[3], argv[4]);
	if (argc == 4 && !strcmp(argv[1], "stream"))
		return stream(argv[2], argv[3]);
	errx(2, "usage: traffic serve tcp|udp|udp-connected PORT | ping tcp|udp|udp-connected HOST PORT | "
		"stream HOST PORT");
}
