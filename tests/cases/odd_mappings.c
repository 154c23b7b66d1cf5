/*
 * Special mappings: of unlinked files, guard ranges, advice, locks, a shared file without a descriptor, and a
 * limit of file sizes under which the process itself could not write an image.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "tests/cases/case.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

enum { PAGES = 16, PAGE = 4096 };
#define BYTES ((size_t)PAGES * PAGE)

static sigjmp_buf fault;

static void on_fault(int signal)
{
	siglongjmp(fault, signal);
}

static void fill(uint8_t *p, unsigned seed)
{
	for (size_t i = 0; i < BYTES; i++)
		p[i] = (uint8_t)(i * 2654435761u >> 13 ^ seed);
}

static void check(const volatile uint8_t *p, unsigned seed)
{
	for (size_t i = 0; i < BYTES; i++)
		if (p[i] != (uint8_t)(i * 2654435761u >> 13 ^ seed))
			case_fail("byte %zu of mapping %u differs", i, seed);
}

static uint8_t *map(int prot, int flags, int fd)
{
	uint8_t *p = mmap(NULL, BYTES, prot, flags, fd, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

static int file(const char *name, unsigned seed)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	uint8_t *p;

	CHECK(fd >= 0 && ftruncate(fd, (off_t)BYTES) == 0);
	p = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd);
	fill(p, seed);
	CHECK(munmap(p, BYTES) == 0);
	return fd;
}

/* Returns the letters of VmFlags of the mapping at `p`. */
static int flagged(const uint8_t *p, const char *flag)
{
	char line[512], start[32];
	FILE *f = fopen("/proc/self/smaps", "r");
	int inside = 0, found = 0;

	CHECK(f != NULL);
	snprintf(start, sizeof(start), "%lx-", (unsigned long)p);
	while (fgets(line, sizeof(line), f)) {
		if (!strncmp(line, start, strlen(start)))
			inside = 1;
		else if (inside && !strncmp(line, "VmFlags:", 8)) {
			found = strstr(line + 8, flag) != NULL;
			break;
		}
	}
	fclose(f);
	return found;
}

static int faults(const volatile uint8_t *p)
{
	struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};

	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	if (sigsetjmp(fault, 1))
		return 1;
	(void)*p;
	return 0;
}

int main(void)
{
	const struct rlimit small = {.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
	int fd = file("private", 1);
	uint8_t *gone = map(PROT_READ, MAP_PRIVATE, fd);

	CHECK(close(fd) == 0 && unlink("private") == 0);
	fd = file("both", 2);
	uint8_t *shared_gone = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd);
	uint8_t *private_copy = map(PROT_READ | PROT_WRITE, MAP_PRIVATE, fd);

	CHECK(close(fd) == 0 && unlink("both") == 0);
	private_copy[5 * PAGE] ^= 0xff;
	fd = file("shared", 3);
	uint8_t *shared = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd);

	CHECK(close(fd) == 0);
	fd = memfd_create("private", 0);
	CHECK(fd >= 0 && ftruncate(fd, (off_t)BYTES) == 0);
	uint8_t *memory = map(PROT_READ | PROT_WRITE, MAP_PRIVATE, fd);

	fill(memory, 4);
	CHECK(close(fd) == 0);
	uint8_t *advised = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	fill(advised, 5);
	CHECK(madvise(advised, BYTES, MADV_DONTFORK) == 0 && madvise(advised, BYTES, MADV_DONTDUMP) == 0);
	CHECK(mlock(advised, BYTES) == 0);
	uint8_t *guarded = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	int has_guards;

	fill(guarded, 6);
	has_guards = madvise(guarded + 4 * PAGE, PAGE, MADV_GUARD_INSTALL) == 0;
	uint8_t *sparse = mmap(NULL, (size_t)1 << 34, PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(sparse != MAP_FAILED);
	sparse[(size_t)3 << 30] = 42;
	signal(SIGXFSZ, SIG_DFL);
	CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);

	case_wait();
	check(gone, 1);
	check(shared_gone, 2);
	private_copy[5 * PAGE] ^= 0xff;
	check(private_copy, 2);
	check(shared, 3);
	check(memory, 4);
	check(advised, 5);
	CHECK(flagged(advised, " dc") && flagged(advised, " dd") && flagged(advised, " lo"));
	if (has_guards) {
		CHECK(faults(guarded + 4 * PAGE));
		CHECK(madvise(guarded + 4 * PAGE, PAGE, MADV_GUARD_INSTALL + 1) == 0);
		CHECK(guarded[4 * PAGE] == 0);
	}
	CHECK(!faults(guarded + 5 * PAGE) &&
	      guarded[5 * PAGE] == (uint8_t)(5 * PAGE * 2654435761u >> 13 ^ 6));
	CHECK(sparse[(size_t)3 << 30] == 42 && sparse[(size_t)5 << 30] == 0);
	shared_gone[0]++;
	CHECK(private_copy[0] == (uint8_t)(0 ^ 2) || private_copy[0] == shared_gone[0]);
	case_pass();
}
