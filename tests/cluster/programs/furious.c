/*
 * Writes its memory as fast as possible and verifies it: furious READY MIB PROCESSES NAP_US PART. Each
 * process has MIB of private memory, and all share MIB, of which each owns every PROCESSES-th page. A page is
 * all zero, or has its number, a count of writes, and a sum over its words; its owner stores the count
 * elsewhere as well. Pages are rewritten, changed in one word, discarded (MADV_DONTNEED), moved (mremap) and
 * read, in random order; only the first PART in 1,000 of them, with a nap from time to time. After SIGTERM
 * each process verifies all of its pages and exits with 7, or with 1 at the first wrong one. READY gets a
 * byte from each process.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "verified_page.h"

enum { CHUNK = 64 /* pages that move together */ };

struct region {
	uint64_t *words;
	uint32_t *times; /* each page was written; private */
	size_t pages;
	size_t first, step; /* pages of this process */
};

static void check(const struct region *region, size_t i, const char *what)
{
	page_check(region->words + i * WORDS, i, region->times[i], what, "");
}

static void write_page(struct region *region, size_t i, int whole)
{
	page_write(region->words + i * WORDS, i, ++region->times[i], whole);
}

static void give_back(struct region *region, size_t i)
{
	if (madvise(region->words + i * WORDS, PAGE, MADV_DONTNEED) < 0)
		_exit(2);
	region->times[i] = 0;
}

/* Moves pages away and back, over a hole. */
static void move_chunk(struct region *region, size_t i)
{
	char *at = (char *)(region->words + i / CHUNK * CHUNK * WORDS), *there;

	there = mmap(NULL, CHUNK * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (there == MAP_FAILED ||
	    mremap(at, CHUNK * PAGE, CHUNK * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, there) != there ||
	    mremap(there, CHUNK * PAGE, CHUNK * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at) != at)
		_exit(3);
}

static void step(struct region *region, unsigned part, int private)
{
	const uint64_t chance = next_random() % 1000;
	const size_t own = region->pages / region->step * part / 1000;
	const size_t i = region->first + (own ? next_random() % own : 0) * region->step;

	check(region, i, private ? "private" : "shared");
	if (chance < 5 && private)
		give_back(region, i);
	else if (chance == 5 && private && i / CHUNK * CHUNK + CHUNK <= region->pages)
		move_chunk(region, i);
	else if (chance < 300)
		write_page(region, i, 1);
	else if (chance < 900)
		write_page(region, i, 0);
}

static void make(struct region *region, size_t mib, int flags, size_t step)
{
	region->pages = mib << 8;
	region->step = step;
	region->words =
		mmap(NULL, region->pages * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
	region->times = calloc(region->pages + 1, sizeof(*region->times));
	if (region->words == MAP_FAILED || !region->times)
		_exit(4);
}

static void see_children(void)
{
	int status;
	pid_t pid = ending ? 0 : waitpid(-1, &status, WNOHANG);

	if (pid <= 0)
		return;
	printf("%d ended with wait status %#x\n", pid, status);
	fflush(stdout);
	_exit(1);
}

static int work(struct region regions[2], const char *ready, unsigned nap_us, unsigned part)
{
	int fd;

	for (int r = 0; r < 2; r++)
		for (size_t i = regions[r].first; i < regions[r].pages; i += regions[r].step)
			if (i % 16)
				write_page(&regions[r], i, 1);
	fd = open(ready, O_WRONLY | O_APPEND | O_CREAT, 0600);
	if (fd < 0 || write(fd, "r", 1) != 1)
		_exit(5);
	close(fd);
	for (unsigned n = 0; !ending; n++) {
		step(&regions[n & 1], part, n & 1);
		if (nap_us && n % 64 == 0)
			usleep(nap_us);
		if (n % 4096 == 0)
			see_children();
	}
	for (int r = 0; r < 2; r++)
		for (size_t i = regions[r].first; i < regions[r].pages; i += regions[r].step)
			check(&regions[r], i, "in the end");
	return 7;
}

int main(int argc, char **argv)
{
	struct region regions[2] = {{0}};
	long processes, mib;
	int status, worst = 7;

	if (argc != 6)
		return 2;
	mib = atol(argv[2]);
	processes = atol(argv[3]);
	signal(SIGTERM, on_signal);
	make(&regions[0], (size_t)mib, MAP_SHARED, (size_t)processes);
	for (long i = 1; i < processes; i++) {
		regions[0].first = (size_t)i;
		if (fork() == 0) {
			make(&regions[1], (size_t)mib, MAP_PRIVATE, 1);
			return work(regions, argv[1], (unsigned)atol(argv[4]), (unsigned)atol(argv[5]));
		}
	}
	regions[0].first = 0;
	make(&regions[1], (size_t)mib, MAP_PRIVATE, 1);
	worst = work(regions, argv[1], (unsigned)atol(argv[4]), (unsigned)atol(argv[5]));
	kill(0, SIGTERM);
	while (wait(&status) > 0)
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 7)
			worst = 1;
	return worst;
}
