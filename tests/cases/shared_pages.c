/* Memory that a family of processes shares copy-on-write: every process keeps its contents, whichever
 * process has written since the fork, and whichever parts each has mapped, unmapped or protected. */
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

enum { CHILDREN = 6, PAGE = 4096, PAGES = 600, PART = 100, EXTRA = 40 };

static struct {
	int ready, go;
} * shared;
static uint8_t *memory, *extra;

/* Fills page i with `tag` and its own number. */
static void put(uint8_t *at, int from, int to, int tag)
{
	for (int i = from; i < to; i++) {
		memset(at + i * PAGE, tag, PAGE);
		*(uint64_t *)(void *)(at + i * PAGE) = (uint64_t)i;
	}
}

static int is(const uint8_t *at, int from, int to, int tag)
{
	for (int i = from; i < to; i++) {
		const uint8_t *page = at + i * PAGE;

		if (*(const uint64_t *)(const void *)page != (uint64_t)i)
			return 0;
		for (int j = 8; j < PAGE; j++)
			if (page[j] != tag)
				return 0;
	}
	return 1;
}

static void until_going(void)
{
	__atomic_add_fetch(&shared->ready, 1, __ATOMIC_SEQ_CST);
	while (!__atomic_load_n(&shared->go, __ATOMIC_SEQ_CST))
		case_sleep_ms(20);
}

static void check_at(int line, int which, int good)
{
	if (!good) {
		fprintf(stderr, "shared_pages.c:%d: process %d has lost something\n", line, which);
		_exit(1);
	}
}
#define HAS(condition) check_at(__LINE__, which, condition)

/* Child `which`, forked after the parent wrote the first `which` parts of the memory. */
static void child(int which)
{
	uint8_t *own = memory + (200 + which * 10) * PAGE, *gone = memory + 300 * PAGE;
	int status, first = which < 3 ? 1 : 2;
	pid_t grandchild;

	put(memory, 200 + which * 10, 210 + which * 10, 0x40 + which); /* its own, shared with its child */
	if (which % 2)
		CHECK(munmap(gone, 20 * PAGE) == 0);
	else
		CHECK(mprotect(gone, 20 * PAGE, PROT_READ) == 0);
	if (which == 2)
		CHECK(madvise(memory + 400 * PAGE, 50 * PAGE, MADV_DONTNEED) == 0);
	if (which == 3) { /* another mapping at the same address */
		CHECK(mmap(memory + 500 * PAGE, 10 * PAGE, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory + 500 * PAGE);
		put(memory, 500, 505, 0x33);
	}
	grandchild = fork();
	if (grandchild == 0)
		put(memory, 0, 5, 0x70 + which);
	until_going();
	HAS(is(memory, 200 + which * 10, 210 + which * 10, 0x40 + which));
	HAS(is(memory, 0, 5, grandchild ? first : 0x70 + which) && is(memory, 5, PART, first));
	HAS(is(memory, PART, 200, 1) && is(memory, 350, 400, 1) && is(memory, 550, PAGES, 1));
	HAS(is(extra, 0, EXTRA, 5));
	if (which % 2)
		HAS(mincore(gone, 20 * PAGE, (unsigned char[20]){0}) < 0 && errno == ENOMEM);
	else
		HAS(is(memory, 300, 320, 1));
	for (int i = 0; i < 50 * PAGE && which == 2; i += 64)
		HAS(memory[400 * PAGE + i] == 0);
	if (which != 2)
		HAS(is(memory, 400, 450, 1));
	if (which == 3)
		HAS(is(memory, 500, 505, 0x33) && memory[506 * PAGE] == 0);
	else
		HAS(is(memory, 500, 510, 1));
	memset(own, 0, PAGE); /* no other process may see this */
	case_sleep_ms(50);
	HAS(is(memory, PART, 200, 1) && own[0] == 0);
	if (grandchild)
		HAS(waitpid(grandchild, &status, 0) == grandchild && status == 0);
	_exit(0);
}

int main(void)
{
	pid_t children[CHILDREN];
	int status;

	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	extra = mmap(NULL, EXTRA * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED && memory != MAP_FAILED && extra != MAP_FAILED);
	put(memory, 0, PAGES, 1);
	put(extra, 0, EXTRA, 5);
	for (int i = 0; i < CHILDREN; i++) {
		if (i == 3)
			put(memory, 0, PART, 2);
		children[i] = fork();
		CHECK(children[i] >= 0);
		if (children[i] == 0)
			child(i);
	}
	put(memory, 50, PART, 3); /* the parent no longer has the pages that three children share */
	CHECK(munmap(extra, EXTRA * PAGE) == 0);
	while (__atomic_load_n(&shared->ready, __ATOMIC_SEQ_CST) < 2 * CHILDREN)
		case_sleep_ms(5);
	case_wait();
	CHECK(is(memory, 50, PART, 3) && is(memory, 0, 50, 2) && is(memory, PART, PAGES, 1));
	__atomic_store_n(&shared->go, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < CHILDREN; i++)
		CHECK(waitpid(children[i], &status, 0) == children[i] && status == 0);
	CHECK(is(memory, 50, PART, 3) && is(memory, 0, 50, 2) && is(memory, PART, PAGES, 1));
	case_pass();
}
