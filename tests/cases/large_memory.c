/* Much memory, some of it with holes, without permissions or with advice about huge pages: contents,
 * advice and holes are unchanged. Several threads fill it at the same time after a rollback. */
#include <stdint.h>
#include <sys/mman.h>

#include "tests/cases/case.h"

enum { MIB = 1 << 20, BYTES = 40 * MIB, PAGE = 4096 };
enum { PLAIN, HUGE, SMALL, READ, KINDS };

static uint64_t word(uint64_t i)
{
	return (i + 1) * 0x9e3779b97f4a7c15u;
}

static uint64_t *make(uint64_t which)
{
	uint64_t *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED);
	if (which == HUGE && madvise(at, BYTES, MADV_HUGEPAGE) < 0)
		CHECK(errno == EINVAL); /* a kernel without huge pages */
	if (which == SMALL && madvise(at, BYTES, MADV_NOHUGEPAGE) < 0)
		CHECK(errno == EINVAL);
	for (uint64_t i = 0; i < BYTES / 8; i++)
		at[i] = word(i ^ which << 40);
	/* Holes: one page, and several MiB at an odd address. */
	CHECK(madvise((char *)at + 5 * MIB + 3 * PAGE, PAGE, MADV_DONTNEED) == 0);
	CHECK(madvise((char *)at + 20 * MIB + 7 * PAGE, 5 * MIB, MADV_DONTNEED) == 0);
	if (which == READ)
		CHECK(mprotect(at, BYTES, PROT_READ) == 0);
	return at;
}

static int is_hole(uint64_t offset)
{
	return (offset >= 5 * MIB + 3 * PAGE && offset < 5 * MIB + 4 * PAGE) ||
	       (offset >= 20 * MIB + 7 * PAGE && offset < 25 * MIB + 7 * PAGE);
}

/* Returns the flags of the mapping at this address, and its resident size. */
static void look(const void *address, char *flags, size_t room, long *resident)
{
	char line[512], begin[32];
	FILE *smaps = fopen("/proc/self/smaps", "r");
	int here = 0;

	CHECK(smaps != NULL);
	snprintf(begin, sizeof(begin), "%lx-", (unsigned long)(uintptr_t)address);
	flags[0] = 0;
	*resident = -1;
	while (fgets(line, sizeof(line), smaps) && !flags[0]) {
		if (strchr(line, '-') && strstr(line, "p 00000000 "))
			here = !strncmp(line, begin, strlen(begin));
		if (here && !strncmp(line, "Rss:", 4))
			*resident = strtol(line + 4, NULL, 10);
		if (here && !strncmp(line, "VmFlags:", 8))
			snprintf(flags, room, "%.*s", (int)room - 1, line);
	}
	fclose(smaps);
}

int main(void)
{
	uint64_t *at[KINDS];
	char before[KINDS][256], after[256];
	long resident, now;

	for (uint64_t which = PLAIN; which < KINDS; which++) {
		at[which] = make(which);
		/* never merged with the next one */
		CHECK(mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
	}
	for (int which = PLAIN; which < KINDS; which++)
		look(at[which], before[which], sizeof(before[which]), &resident);
	case_wait();
	for (uint64_t which = PLAIN; which < KINDS; which++) {
		look(at[which], after, sizeof(after), &now);
		CHECK(!strcmp(before[which], after));
		CHECK(now <= BYTES / 1024);
		for (uint64_t i = 0; i < BYTES / 8; i++)
			if (at[which][i] != (is_hole(i * 8) ? 0 : word(i ^ which << 40)))
				case_fail("kind %d, offset %#lx", (int)which, (unsigned long)i * 8);
	}
	look(at[PLAIN], after, sizeof(after), &now);
	CHECK(now > 34 * 1024); /* the holes have been read before */
	case_pass();
}
