/*
 * Channels by hand, for tests: what two local programs on two hosts do with a channel of kind SESSION.
 *   channel expect COOKIE SIZE   takes one channel, counts SIZE bytes, sends one back, prints MiB/s
 *   channel send HOST COOKIE SIZE
 *   channel echo COOKIE N        takes N channels, one after the other, sends back what comes until its end
 *   channel talk HOST COOKIE     standard input to the channel, what comes back to standard output
 * COOKIE is text of up to 16 bytes. Exit status 1 with a sentence where there is no channel.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "channel/channel.h"

enum { PIECE = 1 << 20, TAKE_MS = 20000 };

static char piece[PIECE];

static int fail(const struct err *err)
{
	fprintf(stderr, "%s\n", err->text);
	return 1;
}

static void cookie_of(const char *text, uint8_t cookie[CHANNEL_COOKIE_SIZE])
{
	memset(cookie, 0, CHANNEL_COOKIE_SIZE);
	memcpy(cookie, text, strnlen(text, CHANNEL_COOKIE_SIZE));
}

static int count(int fd, uint64_t size)
{
	uint64_t start = io_now_ns(CLOCK_MONOTONIC), done = 0;

	while (done < size) {
		ssize_t n = read(fd, piece, PIECE);

		if (n <= 0)
			return 1;
		done += (uint64_t)n;
	}
	printf("%.0f\n", (double)done / 1048576 / ((double)(io_now_ns(CLOCK_MONOTONIC) - start) / 1e9));
	return io_write_full(fd, "1", 1) < 0;
}

static int send_bytes(int fd, uint64_t size)
{
	while (size > 0) {
		size_t n = size < PIECE ? size : PIECE;

		if (io_write_full(fd, piece, n) < 0)
			return 1;
		size -= n;
	}
	return read(fd, piece, 1) != 1;
}

static int echo(int fd)
{
	ssize_t n;

	while ((n = read(fd, piece, PIECE)) > 0)
		if (io_write_full(fd, piece, (size_t)n) < 0)
			return 1;
	close(fd);
	return n < 0;
}

static int talk(int fd)
{
	ssize_t n;

	if (fork() == 0) {
		while ((n = read(0, piece, PIECE)) > 0)
			if (io_write_full(fd, piece, (size_t)n) < 0)
				_exit(1);
		shutdown(fd, SHUT_WR);
		_exit(0);
	}
	while ((n = read(fd, piece, PIECE)) > 0)
		if (io_write_full(1, piece, (size_t)n) < 0)
			return 1;
	return n < 0;
}

static int expect(const char *word, const char *how_many, bool counts)
{
	uint8_t cookie[CHANNEL_COOKIE_SIZE];
	struct err err = ERR_INIT;
	int expecting, r = 0;

	cookie_of(word, cookie);
	expecting = channel_expect(cookie, &err);
	if (expecting < 0)
		return fail(&err);
	fprintf(stderr, "expecting\n");
	for (int i = counts ? 1 : atoi(how_many); i > 0 && r == 0; i--) {
		int fd = channel_take(expecting, TAKE_MS, &err);

		if (fd < 0)
			return fail(&err);
		fprintf(stderr, "taken\n");
		r = counts ? count(fd, strtoull(how_many, NULL, 10)) : echo(fd);
	}
	return r;
}

int main(int argc, char **argv)
{
	uint8_t cookie[CHANNEL_COOKIE_SIZE];
	struct err err = ERR_INIT;
	int fd;

	if (argc == 4 && !strcmp(argv[1], "expect"))
		return expect(argv[2], argv[3], true);
	if (argc == 4 && !strcmp(argv[1], "echo"))
		return expect(argv[2], argv[3], false);
	if (argc < 4)
		return 2;
	cookie_of(argv[3], cookie);
	fd = channel_open(argv[2], PBEAM__CHANNEL_KIND__CHANNEL_SESSION, cookie, &err);
	if (fd < 0)
		return fail(&err);
	return argc > 4 ? send_bytes(fd, strtoull(argv[4], NULL, 10)) : talk(fd);
}
