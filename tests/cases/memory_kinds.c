/* Anonymous, shared over fork, file-backed private (dirty and clean) and PROT_NONE mappings keep contents and
 * protection. */
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

enum { PAGES = 64, PAGE = 4096 };

static sigjmp_buf fault;

static void on_fault(int signal)
{
	siglongjmp(fault, signal);
}

/* Gives each page its own contents; every fourth stays zero. */
static void fill(uint8_t *p, uint32_t seed)
{
	for (size_t i = 0; i < (size_t)PAGES * PAGE; i++)
		if (i / PAGE % 4 != 3)
			p[i] = (uint8_t)(i * 2654435761u >> 13 ^ seed);
}

static void check(const uint8_t *p, uint32_t seed)
{
	for (size_t i = 0; i < (size_t)PAGES * PAGE; i++)
		if (p[i] != (i / PAGE % 4 != 3 ? (uint8_t)(i * 2654435761u >> 13 ^ seed) : 0))
			case_fail("byte %zu of mapping %u differs", i, seed);
}

static void *map(int prot, int flags, int fd)
{
	void *p = mmap(NULL, (size_t)PAGES * PAGE, prot, flags, fd, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

int main(void)
{
	char name[] = "memory.XXXXXX";
	int fd = mkstemp(name);

	CHECK(fd >= 0 && ftruncate(fd, (off_t)PAGES * PAGE) == 0);
	uint8_t *anon = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	uint8_t *shared = map(PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
	uint8_t *private_file = map(PROT_READ | PROT_WRITE, MAP_PRIVATE, fd);
	uint8_t *shared_file = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd);
	uint8_t *none = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	fill(anon, 1);
	fill(shared, 2);
	fill(shared_file, 3);
	fill(private_file, 4);
	fill(none, 5);
	CHECK(mprotect(none, (size_t)PAGES * PAGE, PROT_NONE) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		while (!case_going())
			case_sleep_ms(20);
		shared[0] = 77;
		private_file[0] = 78;
		_exit(0);
	}
	case_wait();
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(shared[0] == 77);
	shared[0] = 0 ^ 2;
	check(anon, 1);
	check(shared, 2);
	check(shared_file, 3);
	check(private_file, 4);
	signal(SIGSEGV, on_fault);
	if (sigsetjmp(fault, 1) == 0) {
		*(volatile uint8_t *)none = 1;
		case_fail("PROT_NONE was writable");
	}
	CHECK(mprotect(none, (size_t)PAGES * PAGE, PROT_READ) == 0);
	check(none, 5);
	CHECK(unlink(name) == 0);
	case_pass();
}
