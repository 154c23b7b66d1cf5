/*
 * Memory that changes its shape as fast as possible while its process moves between hosts.
 *
 *     churn SEED OUT
 *
 * Two arenas and the heap are written, unmapped, mapped again, moved, emptied, protected, advised and guarded
 * at random, in runs of a few pages; a model, one word for each page, holds their contents. Pages are checked
 * before they are changed, all of them from time to time, and a deep stack in between. Writes the number of
 * complete checks to OUT, one line each; ends with "result ok" when the file "go" exists.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE  103
#endif

#define PAGE	   4096ul
#define ARENA	   768ul /* pages of each arena, and of the heap at most */
#define RUN_MAX	   48ul
#define CHECK_EACH 300
#define WORDS	   (PAGE / sizeof(uint64_t))

enum state { GONE, OPEN, READABLE, CLOSED, GUARDED };

struct page {
	uint64_t word; /* its contents, 0 if it was never written */
	enum state state;
};

struct area {
	char *base;
	struct page pages[ARENA];
};

static struct area arenas[2];
static struct area heap; /* pages[0 .. heap_pages) exist */
static size_t heap_pages;
static uint64_t state, words_given;
static const char *doing = "begin";

static uint64_t random_below(uint64_t n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % n;
}

static void die(const char *what)
{
	fprintf(stderr, "%s: %s (%s)\n", doing, what, strerror(errno));
	exit(1);
}

static char *at(const struct area *area, size_t i)
{
	return area->base + i * PAGE;
}

static void check_page(const struct area *area, size_t i)
{
	const struct page *page = &area->pages[i];
	const volatile uint64_t *words = (const volatile uint64_t *)(const void *)at(area, i);

	if (page->state != OPEN && page->state != READABLE)
		return;
	if (words[0] == page->word && words[WORDS / 2] == page->word && words[WORDS - 1] == page->word)
		return;
	fprintf(stderr, "%s: page %zu at %p has %llx %llx %llx and not %llx\n", doing, i, at(area, i),
		(unsigned long long)words[0], (unsigned long long)words[WORDS / 2],
		(unsigned long long)words[WORDS - 1], (unsigned long long)page->word);
	exit(1);
}

static void check_run(const struct area *area, size_t from, size_t n)
{
	for (size_t i = from; i < from + n; i++)
		check_page(area, i);
}

static void set_run(struct area *area, size_t from, size_t n, enum state is, int empty)
{
	for (size_t i = from; i < from + n; i++) {
		area->pages[i].state = is;
		if (empty)
			area->pages[i].word = 0;
	}
}

static void write_run(struct area *area, size_t from, size_t n)
{
	for (size_t i = from; i < from + n; i++) {
		volatile uint64_t *words = (volatile uint64_t *)(void *)at(area, i);

		if (area->pages[i].state != OPEN)
			continue;
		area->pages[i].word = ++words_given * 0x9e3779b97f4a7c15u;
		words[0] = words[WORDS / 2] = words[WORDS - 1] = area->pages[i].word;
	}
}

static void map_run(struct area *area, size_t from, size_t n)
{
	if (mmap(at(area, from), n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		 -1, 0) == MAP_FAILED)
		die("mmap");
	set_run(area, from, n, OPEN, 1);
}

static int is_all_there(const struct area *area, size_t from, size_t n)
{
	for (size_t i = from; i < from + n; i++)
		if (area->pages[i].state == GONE || area->pages[i].state == GUARDED)
			return 0;
	return 1;
}

static void protect_run(struct area *area, size_t from, size_t n)
{
	static const struct {
		int prot;
		enum state is;
	} ways[] = {{PROT_READ | PROT_WRITE, OPEN}, {PROT_READ, READABLE}, {PROT_NONE, CLOSED}};
	size_t way = random_below(3);

	if (!is_all_there(area, from, n))
		return;
	if (mprotect(at(area, from), n * PAGE, ways[way].prot) < 0)
		die("mprotect");
	set_run(area, from, n, ways[way].is, 0);
}

/* To the other arena: one mapping, so all of one protection. */
static void move_run(struct area *from, size_t i, struct area *to, size_t j, size_t n)
{
	for (size_t k = 0; k < n; k++)
		if (from->pages[i + k].state != OPEN)
			return;
	for (size_t k = 0; k < n; k++) /* page by page: they may be of several mappings */
		if (mremap(at(from, i + k), PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at(to, j + k)) ==
		    MAP_FAILED)
			die("mremap");
	memcpy(&to->pages[j], &from->pages[i], n * sizeof(from->pages[0]));
	set_run(from, i, n, GONE, 1);
}

static void advise_run(struct area *area, size_t from, size_t n, int advice)
{
	if (!is_all_there(area, from, n))
		return;
	if (madvise(at(area, from), n * PAGE, advice) < 0 && errno != EINVAL)
		die("madvise");
}

static void empty_run(struct area *area, size_t from, size_t n)
{
	if (!is_all_there(area, from, n))
		return;
	if (madvise(at(area, from), n * PAGE, MADV_DONTNEED) < 0)
		die("madvise");
	for (size_t i = from; i < from + n; i++)
		area->pages[i].word = 0;
}

static void guard_run(struct area *area, size_t from, size_t n)
{
	map_run(area, from, n);
	write_run(area, from, n);
	if (madvise(at(area, from + n / 2), PAGE, MADV_GUARD_INSTALL) == 0)
		set_run(area, from + n / 2, 1, GUARDED, 1);
}

static void change_arena(struct area *area)
{
	size_t n = 1 + random_below(RUN_MAX), from = random_below(ARENA - n);
	struct area *other = area == &arenas[0] ? &arenas[1] : &arenas[0];

	check_run(area, from, n);
	switch (random_below(12)) {
	case 0:
		doing = "unmap";
		if (munmap(at(area, from), n * PAGE) < 0)
			die("munmap");
		set_run(area, from, n, GONE, 1);
		break;
	case 1:
	case 2:
		doing = "map";
		map_run(area, from, n);
		break;
	case 3:
		doing = "empty";
		empty_run(area, from, n);
		break;
	case 4:
		doing = "protect";
		protect_run(area, from, n);
		break;
	case 5:
		doing = "move";
		move_run(area, from, other, random_below(ARENA - n), n);
		break;
	case 6:
		doing = "advise";
		advise_run(area, from, n, random_below(2) ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
		break;
	case 7:
		doing = "guard";
		guard_run(area, from, n);
		break;
	default:
		doing = "write";
		write_run(area, from, n);
		break;
	}
	check_run(area, from, n);
}

static void change_heap(void)
{
	size_t n = 1 + random_below(RUN_MAX), now = heap_pages;

	doing = "heap";
	if (random_below(3) == 0 && now > n) {
		check_run(&heap, now - n, n);
		heap_pages -= n;
	} else if (now + n < ARENA) {
		heap_pages += n;
	}
	if (brk(at(&heap, heap_pages)) < 0)
		die("brk");
	if (heap_pages > now)
		set_run(&heap, now, heap_pages - now, OPEN, 1);
	n = n < heap_pages ? n : heap_pages;
	if (n) {
		size_t from = random_below(heap_pages - n + 1);

		check_run(&heap, from, n);
		write_run(&heap, from, n);
	}
}

static uint64_t descend(unsigned depth, uint64_t word)
{
	volatile uint64_t frame[WORDS];
	uint64_t below;

	frame[0] = frame[WORDS - 1] = word;
	below = depth ? descend(depth - 1, word * 31 + 7) : 0;
	if (frame[0] != word || frame[WORDS - 1] != word)
		die("the stack is wrong");
	return below + 1;
}

static void check_all(void)
{
	doing = "all";
	check_run(&arenas[0], 0, ARENA);
	check_run(&arenas[1], 0, ARENA);
	check_run(&heap, 0, heap_pages);
	if (descend((unsigned)random_below(200), state) == 0)
		die("descend");
}

int main(int argc, char **argv)
{
	static char buffer[4096]; /* for stdio, which would otherwise allocate it on the heap */
	FILE *out = argc == 3 ? fopen(argv[2], "w") : NULL;

	if (!out)
		die("usage: churn SEED OUT");
	setvbuf(out, buffer, _IOLBF, sizeof(buffer));
	state = strtoull(argv[1], NULL, 10) * 2 + 1;
	heap.base = sbrk(0);
	heap.base += -(uintptr_t)heap.base % PAGE;
	for (int i = 0; i < 2; i++) {
		arenas[i].base = mmap(NULL, ARENA * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (arenas[i].base == MAP_FAILED)
			die("mmap");
		map_run(&arenas[i], 0, ARENA);
		write_run(&arenas[i], 0, ARENA);
	}
	for (unsigned long round = 0; access("go", F_OK) < 0; round++) {
		for (int i = 0; i < CHECK_EACH; i++) {
			if (random_below(4) == 0)
				change_heap();
			else
				change_arena(&arenas[random_below(2)]);
		}
		check_all();
		fprintf(out, "tick %lu\n", round);
	}
	fprintf(out, "result ok\n");
	return 0;
}
