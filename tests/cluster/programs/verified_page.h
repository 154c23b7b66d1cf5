/* Pages that can be verified: a page is all zero, or has its number, a count of writes, and a sum over its
 * words. */
#ifndef VERIFIED_PAGE_H
#define VERIFIED_PAGE_H

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

static volatile sig_atomic_t ending; /* set by SIGTERM */

static void on_signal(int sig)
{
	ending = 1;
}

static uint64_t next_random(void)
{
	static uint64_t state;

	if (!state)
		state = (uint64_t)getpid() * 0x9e3779b97f4a7c15u + 1;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static uint64_t page_sum(const uint64_t *page)
{
	uint64_t sum = 0;

	for (int i = 0; i < WORDS; i++)
		if (i != 2)
			sum = (sum << 7 | sum >> 57) ^ page[i];
	return sum;
}

/* Writes page number `i` for the `times`-th time: `whole`, or one word. */
static void page_write(uint64_t *page, size_t i, uint32_t times, int whole)
{
	for (int j = 3; j < WORDS && whole; j++)
		page[j] = next_random();
	page[0] = i;
	page[1] = times;
	page[3 + next_random() % (WORDS - 3)] = next_random();
	page[2] = page_sum(page);
}

/* Exits if page number `i` does not have the contents of `times` writes. */
static void page_check(const uint64_t *page, size_t i, uint32_t times, const char *what, const char *when)
{
	int bad = 0;

	if (times)
		bad = page[0] != i || page[1] != times || page[2] != page_sum(page);
	else
		for (int j = 0; j < WORDS; j++)
			bad |= page[j] != 0;
	if (!bad)
		return;
	printf("%d: %s page %zu%s: number %llu, written %llu times instead of %u, sum %s\n", getpid(), what,
	       i, when, (unsigned long long)page[0], (unsigned long long)page[1], times,
	       page[2] == page_sum(page) ? "right" : "wrong");
	fflush(stdout);
	_exit(1);
}

#endif
