/*
 * Processes that have unmapped or moved their vdso, or a part of it, or have changed its protection: each
 * finds the same after a restore. The one that moved it calls it at its new place. The first two have
 * unmapped all of it; the second is the parent of the others, which thus are forked from one without a vdso.
 */
#include <elf.h>
#include <signal.h>
#include <stdint.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

struct part {
	unsigned long start, end;
	char prot[5], name[32];
};

enum { PARTS = 8 };

/* The kernel's mappings of this process. Returns their number. */
static int look(struct part parts[PARTS])
{
	char line[512];
	FILE *f = fopen("/proc/self/maps", "r");
	int n = 0;

	CHECK(f != NULL);
	memset(parts, 0, PARTS * sizeof(*parts));
	while (fgets(line, sizeof(line), f)) {
		struct part part = {0};

		if (sscanf(line, "%lx-%lx %4s %*s %*s %*s %31s", &part.start, &part.end, part.prot,
			   part.name) == 4 &&
		    (!strncmp(part.name, "[vvar", 5) || !strcmp(part.name, "[vdso]")) && n < PARTS)
			parts[n++] = part;
	}
	fclose(f);
	return n;
}

/* Unmaps the parts whose name begins with `name`. */
static void unmap(const char *name)
{
	struct part parts[PARTS];
	int n = look(parts);

	for (int i = 0; i < n; i++)
		if (!strncmp(parts[i].name, name, strlen(name)))
			CHECK(munmap((void *)parts[i].start, parts[i].end - parts[i].start) == 0);
}

static long moved_by;

/* Moves all of it to a place of which nothing else is near. */
static void move(void)
{
	struct part parts[PARTS];
	int n = look(parts);

	moved_by = (long)(0x300000000000ul - parts[0].start);
	for (int i = 0; i < n; i++)
		CHECK(mremap((void *)parts[i].start, parts[i].end - parts[i].start,
			     parts[i].end - parts[i].start, MREMAP_MAYMOVE | MREMAP_FIXED,
			     parts[i].start + (unsigned long)moved_by) ==
		      (void *)(parts[i].start + (unsigned long)moved_by));
}

static void protect(void)
{
	struct part parts[PARTS];
	int n = look(parts);

	for (int i = 0; i < n; i++)
		if (!strcmp(parts[i].name, "[vdso]"))
			CHECK(mprotect((void *)parts[i].start, parts[i].end - parts[i].start, PROT_READ) ==
			      0);
}

static void unmap_all(void)
{
	unmap("[v");
}

static void unmap_text(void)
{
	unmap("[vdso]");
}

static void unmap_data(void)
{
	unmap("[vvar");
}

static long clock_at; /* of clock_gettime, from the beginning of the vdso */

static void call_moved(void)
{
	struct part parts[PARTS];
	int (*get)(clockid_t, struct timespec *) = NULL;
	struct timespec there, here;
	int n = look(parts);
	void *at;

	for (int i = 0; i < n; i++)
		if (!strcmp(parts[i].name, "[vdso]")) {
			at = (void *)(parts[i].start + (unsigned long)clock_at);
			memcpy(&get, &at, sizeof(get));
		}
	CHECK(get && get(CLOCK_MONOTONIC, &there) == 0);
	CHECK(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &here) == 0);
	CHECK(here.tv_sec - there.tv_sec <= 2);
}

static void nothing(void)
{
}

static const struct {
	void (*change)(void), (*use)(void);
} KINDS[] = {
	{unmap_all, nothing},  {unmap_all, nothing}, {unmap_text, nothing},
	{unmap_data, nothing}, {protect, nothing},   {move, call_moved},
};

enum { NKINDS = sizeof(KINDS) / sizeof(KINDS[0]) };

static void be(int kind, int ready)
{
	struct part before[PARTS], after[PARTS];
	int n;

	KINDS[kind].change();
	KINDS[kind].use();
	n = look(before);
	CHECK(write(ready, "r", 1) == 1);
	while (!case_going())
		case_sleep_ms(20);
	CHECK(look(after) == n && !memcmp(before, after, sizeof(before)));
	KINDS[kind].use();
}

static void collect(int children)
{
	int status;

	for (int i = 0; i < children; i++)
		CHECK(wait(&status) > 0 && status == 0);
}

/* Finds clock_gettime among the vdso's symbols. */
static long find_clock(void)
{
	const char *base = (const char *)getauxval(AT_SYSINFO_EHDR);
	const Elf64_Ehdr *header = (const void *)base;
	const Elf64_Shdr *sections = (const void *)(base + header->e_shoff);

	for (int i = 0; i < header->e_shnum; i++) {
		const Elf64_Sym *symbols = (const void *)(base + sections[i].sh_offset);
		const char *names;

		if (sections[i].sh_type != SHT_DYNSYM)
			continue;
		names = base + sections[sections[i].sh_link].sh_offset;
		for (size_t n = 0; n < sections[i].sh_size / sizeof(*symbols); n++)
			if (!strcmp(names + symbols[n].st_name, "__vdso_clock_gettime"))
				return (long)symbols[n].st_value;
	}
	case_fail("no clock_gettime in the vdso");
}

/* Forks a child for each kind from `from` to `to`. */
static void make(int from, int to, int ready)
{
	for (int i = from; i <= to; i++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (child > 0)
			continue;
		if (i == 1)
			make(2, NKINDS - 1, ready);
		be(i, ready);
		if (i == 1)
			collect(NKINDS - 2);
		_exit(0);
	}
}

int main(void)
{
	int ready[2];
	char byte;

	clock_at = find_clock();
	CHECK(pipe(ready) == 0);
	make(1, 1, ready[1]);
	for (int i = 1; i < NKINDS; i++)
		CHECK(read(ready[0], &byte, 1) == 1);
	case_ready();
	be(0, ready[1]);
	collect(1);
	case_pass();
}
