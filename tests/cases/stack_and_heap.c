/* A stack that must grow after the checkpoint, the program break, mapping attributes: locked, madvise, a
 * guard page, mremap, grows-down. */
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "tests/cases/case.h"

/* Uses `kib` of stack; returns a sum that depends on all of it. */
__attribute__((noinline)) static uint64_t deep(int kib)
{
	volatile uint64_t room[128];

	for (int i = 0; i < 128; i++)
		room[i] = (uint64_t)(kib * i);
	uint64_t below = kib > 1 ? deep(kib - 1) : 0;
	for (int i = 0; i < 128; i++)
		below += room[i];
	return below;
}

/* Returns the VmFlags line of smaps for the mapping that begins at `at`. */
static int has_flag(const void *at, const char *flag)
{
	char line[512], wanted[32];
	FILE *smaps = fopen("/proc/self/smaps", "r");
	int inside = 0, found = 0;

	snprintf(wanted, sizeof(wanted), "%lx-", (unsigned long)(uintptr_t)at);
	while (fgets(line, sizeof(line), smaps)) {
		if (strncmp(line, wanted, strlen(wanted)) == 0)
			inside = 1;
		else if (inside && strncmp(line, "VmFlags:", 8) == 0) {
			found = strstr(line, flag) != NULL;
			break;
		}
	}
	fclose(smaps);
	return found;
}

int main(void)
{
	static char out[256]; /* or stdio moves the break */
	uint64_t expected = 0;
	char *top = sbrk(0);

	setvbuf(stdout, out, _IOLBF, sizeof(out));
	for (uint64_t kib = 1; kib <= 4000; kib++)
		expected += kib * 127 * 64;
	CHECK(deep(100) > 0);
	char *heap = sbrk(1 << 20);
	CHECK(heap == top && heap != (void *)-1);
	memset(heap, 'h', 1 << 20);
	char *locked = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *advised = mmap(NULL, 1 << 22, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *nofork = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *moved = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mlock(locked, 65536) == 0 && madvise(advised, 1 << 22, MADV_HUGEPAGE) == 0 &&
	      madvise(nofork, 8192, MADV_DONTFORK) == 0 && madvise(nofork, 8192, MADV_DONTDUMP) == 0);
	memset(moved, 'm', 1 << 20);
	moved = mremap(moved, 1 << 20, 3 << 20, MREMAP_MAYMOVE);
	CHECK(moved != MAP_FAILED);
	memcpy(code, "\xb8\x39\x05\x00\x00\xc3", 6); /* mov $1337, %eax; ret */
	CHECK(mprotect(code, 4096, PROT_READ | PROT_EXEC) == 0);

	case_wait();
	CHECK(deep(4000) == expected);
	CHECK((char *)sbrk(0) == heap + (1 << 20));
	for (int i = 0; i < 1 << 20; i++)
		CHECK(heap[i] == 'h' && moved[i] == 'm' && moved[(1 << 20) + i] == 0);
	CHECK(sbrk(8192) == heap + (1 << 20));
	heap[(1 << 20) + 8191] = 'x';
	CHECK(has_flag(locked, " lo") && has_flag(advised, " hg") && has_flag(nofork, " dc") &&
	      has_flag(nofork, " dd"));
	CHECK(((int (*)(void))(uintptr_t)code)() == 1337);
	case_pass();
}
