/*
 * State to save: hold BEAT memory MIB | writing MIB | mapped MIB | threads N | processes N | shared MIB.
 * Random contents, so that zero pages save nothing. `shared` is memory that 100 processes share
 * copy-on-write, `mapped` one object that 4 map. Once set up it writes the time (CLOCK_MONOTONIC, ns) into
 * the mapped file BEAT over and over: the first new value after a restore shows when the program ran again,
 * the longest gap how long it was stopped. `writing` is memory of which a tenth is written over and over,
 * each word with itself. `memory` and `mapped` check their contents at the end of each 100th beat if BEAT's
 * second word requests it.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SHARERS = 100, MAPPERS = 4 };

struct beat {
	volatile uint64_t now, gap, check, checked, bad;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void fill(uint64_t *words, size_t n)
{
	uint64_t state = 88172645463325252u;

	for (size_t i = 0; i < n; i++)
		words[i] = next_random(&state);
}

static uint64_t count_bad(const uint64_t *words, size_t n)
{
	uint64_t state = 88172645463325252u, bad = 0;

	for (size_t i = 0; i < n; i++)
		bad += words[i] != next_random(&state);
	return bad;
}

static void *sleeper(void *arg)
{
	for (;;)
		pause();
	return arg;
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* Writes one more page of the first tenth. */
static void write_some(uint64_t *words, size_t n)
{
	static size_t at;
	volatile uint64_t *word = words + at;

	*word = *word;
	at = at + 512 < n / 10 ? at + 512 : 0;
}

int main(int argc, char **argv)
{
	const struct timespec nap = {.tv_nsec = 200000};
	struct beat *beat;
	uint64_t *words = NULL, last;
	size_t n = 0;
	long amount, children = 0;
	int fd;

	if (argc != 4) {
		fprintf(stderr, "usage: hold BEAT memory|writing|mapped|threads|processes|shared N\n");
		return 2;
	}
	amount = atol(argv[3]);
	fd = open(argv[1], O_RDWR);
	beat = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (beat == MAP_FAILED)
		fail(argv[1]);
	close(fd);
	if (!strcmp(argv[2], "memory") || !strcmp(argv[2], "writing") || !strcmp(argv[2], "shared") ||
	    !strcmp(argv[2], "mapped")) {
		const int flags = strcmp(argv[2], "mapped") ? MAP_PRIVATE : MAP_SHARED;

		n = (size_t)amount << 17;
		words = mmap(NULL, n * 8, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
		if (words == MAP_FAILED)
			fail("memory");
		fill(words, n);
	}
	for (long i = 0; !strcmp(argv[2], "threads") && i < amount; i++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, sleeper, NULL))
			fail("thread");
	}
	if (!strcmp(argv[2], "processes"))
		children = amount;
	else if (!strcmp(argv[2], "shared"))
		children = SHARERS;
	else if (!strcmp(argv[2], "mapped"))
		children = MAPPERS - 1;
	for (long i = 0; i < children; i++) {
		pid_t pid = fork();

		if (pid < 0)
			fail("fork");
		if (pid == 0)
			sleeper(NULL);
	}
	for (last = now_ns();;) {
		uint64_t now = now_ns();

		if (now - last > beat->gap)
			beat->gap = now - last;
		beat->now = last = now;
		if (beat->check != beat->checked) {
			beat->bad = words ? count_bad(words, n) : 0;
			beat->checked = beat->check;
			last = now_ns();
		}
		for (int i = 0; i < 64 && !strcmp(argv[2], "writing"); i++)
			write_some(words, n);
		if (strcmp(argv[2], "writing") != 0)
			nanosleep(&nap, NULL);
	}
}
