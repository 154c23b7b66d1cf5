/*
 * Writes shared memory in every possible way and verifies it: sharing READY MIB PROCESSES NAP_US PART WAYS.
 * All processes share MIB of anonymous memory and a memory file of MIB; each owns every PROCESSES-th page of
 * both. A page is all zero, or has its number, a count of writes, and a sum over its words; its owner stores
 * the count elsewhere as well. Only the first PART in 1,000 of each process's pages are written, in random
 * order, with a nap from time to time, by the WAYS:
 *
 *  s  through the mapping                      f  by a child that exits at once
 *  d  through a second mapping (mremap)        m  through a new mapping of the memory file
 *  w  by pwrite()                              p  discarded (a hole punched)
 *  t  the end of the memory file is truncated and extended: only the first process, which owns it
 *  c  not a way: the memory file's descriptor is closed at first
 *  v  not a way: a System V segment replaces the anonymous memory
 *
 * After SIGTERM each process verifies all of its pages and exits with 7, or with 1 at the first wrong one.
 * READY gets a byte from each process.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>

#include "verified_page.h"

enum { TAIL = 64 /* pages that are truncated */ };

static size_t pages, first, step;
static struct region {
	const char *name;
	char *at;
	uint32_t *times; /* each page was written; private */
	int fd;		 /* -1: none */
} regions[2] = {{.name = "anonymous", .fd = -1}, {.name = "memory file", .fd = -1}};

static void need(int good, const char *what)
{
	if (good)
		return;
	perror(what);
	_exit(2);
}

static void check(const struct region *region, size_t i, const char *when)
{
	page_check((const uint64_t *)(region->at + i * PAGE), i, region->times[i], region->name, when);
}

/* Writes one word, the first time the whole page. */
static void change(uint64_t *page, size_t i, uint32_t times)
{
	page_write(page, i, times, times == 1);
}

static void write_page(struct region *region, size_t i, char way)
{
	const uint32_t times = region->times[i] + 1;
	char *page = region->at + i * PAGE, *other;
	uint64_t copy[WORDS];
	int status;
	pid_t pid;

	switch (way) {
	case 'f':
		pid = fork();
		need(pid >= 0, "fork");
		if (pid == 0) {
			change((uint64_t *)page, i, times);
			_exit(0);
		}
		need(waitpid(pid, &status, 0) == pid && status == 0, "wait");
		break;
	case 'd':
		other = mremap(page, 0, PAGE, MREMAP_MAYMOVE);
		need(other != MAP_FAILED, "mremap");
		change((uint64_t *)other, i, times);
		need(munmap(other, PAGE) == 0, "munmap");
		break;
	case 'm':
		other = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd, (off_t)(i * PAGE));
		need(other != MAP_FAILED, "mmap");
		change((uint64_t *)other, i, times);
		need(munmap(other, PAGE) == 0, "munmap");
		break;
	case 'w':
		memcpy(copy, page, PAGE);
		change(copy, i, times);
		need(pwrite(region->fd, copy, PAGE, (off_t)(i * PAGE)) == PAGE, "pwrite");
		break;
	default:
		change((uint64_t *)page, i, times);
	}
	region->times[i] = times;
}

static void cut(struct region *region)
{
	const size_t from = pages - TAIL;

	need(ftruncate(region->fd, (off_t)(from * PAGE)) == 0, "ftruncate");
	if (next_random() % 2)
		usleep(2000);
	need(ftruncate(region->fd, (off_t)(pages * PAGE)) == 0, "ftruncate");
	memset(region->times + from, 0, TAIL * sizeof(*region->times));
}

/* The truncated end of a memory file belongs to the first process. */
static int is_own(const struct region *region, size_t i, const char *ways)
{
	if (region->fd >= 0 && strchr(ways, 't') && i >= pages - TAIL)
		return first == 0;
	return i % step == first;
}

static void work(const char *ways, unsigned nap_us, unsigned part)
{
	for (unsigned n = 0; !ending; n++) {
		struct region *region = &regions[n & 1];
		const char way = ways[next_random() % strlen(ways)];
		const size_t own = pages / step * part / 1000;
		size_t i = first + (own ? next_random() % own : 0) * step;

		if (region->fd >= 0 && first == 0 && strchr(ways, 't') && next_random() % 4 == 0)
			i = pages - 1 - next_random() % TAIL;
		if (!is_own(region, i, ways) || (region->fd < 0 && strchr("mwpt", way)))
			continue;
		check(region, i, " meanwhile");
		if (way == 't' && first == 0)
			cut(region);
		else if (way == 'p' && fallocate(region->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
						 (off_t)(i * PAGE), PAGE) == 0)
			region->times[i] = 0;
		else if (!strchr("ctv", way))
			write_page(region, i, way);
		if (nap_us && n % 16 == 0)
			usleep(nap_us);
	}
}

static int run(char **argv)
{
	const char *ways = argv[6];
	int fd;

	for (int r = 0; r < 2; r++) {
		regions[r].times = calloc(pages, sizeof(*regions[r].times));
		need(regions[r].times != NULL, "calloc");
		for (size_t i = 0; i < pages; i++)
			if (i % 16 && is_own(&regions[r], i, ways))
				write_page(&regions[r], i, 's');
	}
	fd = open(argv[1], O_WRONLY | O_APPEND | O_CREAT, 0600);
	need(fd >= 0 && write(fd, "r", 1) == 1, argv[1]);
	close(fd);
	work(ways, (unsigned)atol(argv[4]), (unsigned)atol(argv[5]));
	for (int r = 0; r < 2; r++)
		for (size_t i = 0; i < pages; i++)
			if (is_own(&regions[r], i, ways))
				check(&regions[r], i, " in the end");
	return 7;
}

int main(int argc, char **argv)
{
	int status, worst;
	pid_t pids[64];

	if (argc != 7)
		return 2;
	pages = (size_t)atol(argv[2]) << 8;
	step = (size_t)atol(argv[3]);
	signal(SIGTERM, on_signal);
	if (strchr(argv[6], 'v')) {
		const int segment = shmget(IPC_PRIVATE, pages * PAGE, IPC_CREAT | 0600);

		regions[0].name = "segment";
		regions[0].at = shmat(segment, NULL, 0);
		shmctl(segment, IPC_RMID, NULL);
	} else {
		regions[0].at =
			mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	}
	regions[1].fd = memfd_create("shared", 0);
	need(regions[1].fd >= 0 && ftruncate(regions[1].fd, (off_t)(pages * PAGE)) == 0, "memfd_create");
	regions[1].at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, regions[1].fd, 0);
	need(regions[0].at != MAP_FAILED && regions[1].at != MAP_FAILED, "mmap");
	if (strchr(argv[6], 'c')) {
		close(regions[1].fd);
		regions[1].fd = -1;
	}
	for (size_t i = 1; i < step; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			first = i;
			return run(argv);
		}
	}
	worst = run(argv);
	for (size_t i = 1; i < step; i++) {
		kill(pids[i], SIGTERM);
		if (waitpid(pids[i], &status, 0) != pids[i] || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
			worst = 1;
	}
	return worst;
}
