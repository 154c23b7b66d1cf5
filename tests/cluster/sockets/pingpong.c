/*
 * One number goes back and forth, incremented each time; both ends check it.
 *
 *     pingpong listen
 * connect tcp
 * udp ADDRESS PORT
 *
 * `connect` starts, and ends it when the file $GO exists. Both print "ready", and at the end "rounds N". With
 * UDP only `connect` repeats a number, after a second without an answer: packets may be lost on the way, but
 * an error or an unexpected number is a failure.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define END UINT64_MAX

static int udp, listening;
static uint64_t resent;

__attribute__((noreturn)) static void fail(const char *what, uint64_t got, uint64_t due)
{
	printf("failed: %s (%s): %llu, due %llu\n", what, strerror(errno), (unsigned long long)got,
	       (unsigned long long)due);
	fflush(stdout);
	_exit(1);
}

static int open_socket(const char *address, const char *port)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
	int fd = socket(AF_INET, udp ? SOCK_DGRAM : SOCK_STREAM, 0), on = 1, made;

	inet_pton(AF_INET, address, &at.sin_addr);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (!listening) {
		for (int i = 0; connect(fd, (struct sockaddr *)&at, sizeof(at)) < 0; i++) {
			if (errno != ECONNREFUSED || i > 200)
				fail("connect", 0, 0);
			usleep(20000);
		}
	} else if (bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0) {
		fail("bind", 0, 0);
	} else if (!udp) {
		if (listen(fd, 5) < 0 || (made = accept(fd, NULL, NULL)) < 0)
			fail("accept", 0, 0);
		close(fd);
		fd = made;
	}
	if (!udp)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	return fd;
}

static void put(int fd, uint64_t number)
{
	if (send(fd, &number, sizeof(number), MSG_NOSIGNAL) != sizeof(number))
		fail("send", number, 0);
}

/* A UDP datagram may be lost, so END is sent several times. Whoever has received it closes the port, which
 * refuses the rest. */
static void put_end(int fd)
{
	const uint64_t end = END;

	put(fd, END);
	for (int i = 0; udp && i < 4; i++)
		if (send(fd, &end, sizeof(end), MSG_NOSIGNAL) < 0 && errno != ECONNREFUSED)
			fail("send", END, 0);
}

/* Receives the next number. With UDP a number that was sent twice is received twice. */
static uint64_t get(int fd, uint64_t due)
{
	for (;;) {
		struct sockaddr_in from;
		socklen_t len = sizeof(from);
		uint64_t number = 0;
		ssize_t n = recvfrom(fd, &number, sizeof(number), udp ? 0 : MSG_WAITALL,
				     (struct sockaddr *)&from, &len);

		if (n < 0 && udp && errno == EAGAIN && !listening) {
			resent++;
			put(fd, due - 1);
			continue;
		}
		if (n != sizeof(number))
			fail("recv", (uint64_t)n, due);
		if (udp && listening && connect(fd, (struct sockaddr *)&from, len) < 0)
			fail("connect", number, due);
		if (udp && listening && due > 1 && number == due - 2) { /* a late answer */
			put(fd, due - 1);
			continue;
		}
		if (number != due && number != END && udp && resent) {
			if (number > due)
				fail("a number that nobody can know", number, due);
			continue;
		}
		if (number != due && number != END)
			fail("number", number, due);
		return number;
	}
}

int main(int argc, char **argv)
{
	const struct timeval second = {.tv_sec = 1};
	uint64_t due = 0, got;
	int fd;

	if (argc != 5)
		return 2;
	listening = !strcmp(argv[1], "listen");
	udp = !strcmp(argv[2], "udp");
	fd = open_socket(argv[3], argv[4]);
	if (udp && !listening)
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof(second));
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		if (!listening) {
			if (due % 64 == 0 && access(getenv("GO"), F_OK) == 0)
				break;
			put(fd, due++);
		}
		got = get(fd, due);
		due++;
		if (got == END)
			break;
		if (listening)
			put(fd, due++);
	}
	if (!listening)
		put_end(fd);
	printf("rounds %llu\n", (unsigned long long)due / 2);
	return 0;
}
