/*
 * A ring of processes, each connected to the next by TCP: a token goes round and is incremented at every
 * station.
 *
 *     ring LAPS ADDRESS
 *
 * The first process creates the sockets and forks the others; each holds two ends. A station sleeps a little
 * before it passes the token on. Prints "ready", then the final value, which must be LAPS times the number of
 * stations.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STATIONS 4

struct token {
	unsigned long value, laps;
	unsigned char padding[1000];
};

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void make_link(const char *address, int ends[2])
{
	struct sockaddr_in at = {.sin_family = AF_INET};
	socklen_t len = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	inet_pton(AF_INET, address, &at.sin_addr);
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(listener, 1) < 0 ||
	    getsockname(listener, (struct sockaddr *)&at, &len) < 0 ||
	    connect(ends[0], (struct sockaddr *)&at, sizeof(at)) < 0)
		die("connect");
	ends[1] = accept(listener, NULL, NULL);
	if (ends[1] < 0)
		die("accept");
	close(listener);
	setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static void take(int fd, struct token *token)
{
	size_t have = 0;

	while (have < sizeof(*token)) {
		ssize_t n = recv(fd, (char *)token + have, sizeof(*token) - have, 0);

		if (n <= 0)
			die("recv");
		have += (size_t)n;
	}
	for (size_t i = 0; i < sizeof(token->padding); i++)
		if (token->padding[i] != (unsigned char)(token->value + i))
			die("token");
}

static void give(int fd, struct token *token)
{
	for (size_t i = 0; i < sizeof(token->padding); i++)
		token->padding[i] = (unsigned char)(token->value + i);
	if (send(fd, token, sizeof(*token), MSG_NOSIGNAL) != sizeof(*token))
		die("send");
}

static void station(int in, int out, int first, unsigned long laps)
{
	const struct timespec pause = {.tv_nsec = 2000000};
	struct token token = {.value = 0};

	if (first) {
		token.laps = laps;
		give(out, &token);
	}
	for (unsigned long lap = 0; lap < laps; lap++) {
		take(in, &token);
		token.value++;
		nanosleep(&pause, NULL);
		if (!first || lap + 1 < laps)
			give(out, &token);
	}
	if (first) {
		printf("%lu\n", token.value);
		exit(token.value == laps * STATIONS ? 0 : 1);
	}
}

int main(int argc, char **argv)
{
	int links[STATIONS][2], status, wrong = 0;

	if (argc != 3)
		return 2;
	for (int i = 0; i < STATIONS; i++)
		make_link(argv[2], links[i]);
	printf("ready\n");
	fflush(stdout);
	/* Station i receives from link i and sends to link i + 1. */
	for (int i = 1; i < STATIONS; i++) {
		if (fork() != 0)
			continue;
		for (int k = 0; k < STATIONS; k++) {
			if (k != i)
				close(links[k][1]);
			if (k != (i + 1) % STATIONS)
				close(links[k][0]);
		}
		station(links[i][1], links[(i + 1) % STATIONS][0], 0, strtoul(argv[1], NULL, 10));
		_exit(0);
	}
	for (int k = 0; k < STATIONS; k++) {
		if (k != 0)
			close(links[k][1]);
		if (k != 1)
			close(links[k][0]);
	}
	if (fork() == 0)
		station(links[0][1], links[1][0], 1, strtoul(argv[1], NULL, 10));
	close(links[0][1]);
	close(links[1][0]);
	while (wait(&status) > 0)
		wrong |= status;
	return wrong ? 1 : 0;
}
