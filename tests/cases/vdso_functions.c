/*
 * Calls every function of the vdso in three ways, before and after: through the C library, at the address
 * that it had, and looked up again by the auxiliary vector. A second thread does nothing else, so that it is
 * often stopped inside the vdso. With CASE_SHAPE the vdso is another one after the wait, and only the last
 * way counts.
 */
#include <elf.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include "tests/cases/case.h"

struct functions {
	int (*clock_gettime)(clockid_t, struct timespec *);
	int (*clock_getres)(clockid_t, struct timespec *);
	int (*gettimeofday)(struct timeval *, void *);
	time_t (*time)(time_t *);
	long (*getcpu)(unsigned *, unsigned *, void *);
	long (*from_future)(void); /* in the vdso of a test only */
};

static void *lookup(const char *name)
{
	uintptr_t base = getauxval(AT_SYSINFO_EHDR);
	const Elf64_Ehdr *header = (const void *)base;
	const Elf64_Shdr *sections = (const void *)(base + header->e_shoff);

	for (int i = 0; i < header->e_shnum; i++) {
		const Elf64_Sym *symbols = (const void *)(base + sections[i].sh_offset);
		const char *names;

		if (sections[i].sh_type != SHT_DYNSYM)
			continue;
		names = (const char *)(base + sections[sections[i].sh_link].sh_offset);
		for (size_t n = 1; n < sections[i].sh_size / sizeof(*symbols); n++)
			if (!strcmp(names + symbols[n].st_name, name))
				return (void *)(base + symbols[n].st_value);
	}
	return NULL;
}

static void look_up(struct functions *out)
{
	static const char *const names[] = {"clock_gettime", "clock_getres", "gettimeofday",
					    "time",	     "getcpu",	     "from_future"};
	void **to = (void **)(void *)out;
	char name[64];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(name, sizeof(name), "__vdso_%s", names[i]);
		to[i] = lookup(name);
		CHECK(to[i] || !strcmp(names[i], "from_future"));
	}
}

static int64_t nanoseconds(const struct timespec *t)
{
	return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

static void check_clock(int (*get)(clockid_t, struct timespec *), clockid_t clock)
{
	struct timespec before, at = {0, 0}, after;

	CHECK(syscall(SYS_clock_gettime, clock, &before) == 0);
	CHECK(get(clock, &at) == 0);
	CHECK(syscall(SYS_clock_gettime, clock, &after) == 0);
	if (nanoseconds(&at) < nanoseconds(&before) - 20000000 || nanoseconds(&at) > nanoseconds(&after))
		case_fail("clock %d is %ld not in %ld to %ld", clock, (long)nanoseconds(&at),
			  (long)nanoseconds(&before), (long)nanoseconds(&after));
}

static void check(const struct functions *f)
{
	static const clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE,
					   CLOCK_BOOTTIME, CLOCK_PROCESS_CPUTIME_ID};
	struct timespec resolution = {0, 0};
	struct timeval day = {0, 0};
	unsigned processor = 1u << 20;
	time_t now = (time_t)syscall(SYS_time, NULL), stored = 0;

	for (size_t i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++)
		check_clock(f->clock_gettime, clocks[i]);
	CHECK(f->clock_gettime(12345, &resolution) == -EINVAL);
	CHECK(f->clock_getres(CLOCK_MONOTONIC, &resolution) == 0 && resolution.tv_nsec > 0);
	CHECK(f->gettimeofday(&day, NULL) == 0 && day.tv_sec - now >= 0 && day.tv_sec - now < 5);
	CHECK(f->time(&stored) == stored && stored - now >= -1 && stored - now < 5);
	CHECK(f->getcpu(&processor, NULL, NULL) == 0 && processor < 1u << 16);
	CHECK(!f->from_future || f->from_future() == -ENOSYS);
}

static _Atomic int stop, stopped;

static void *spin(void *arg)
{
	struct timespec last = {0, 0}, now;

	(void)arg;
	while (!stop) {
		CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
		CHECK(nanoseconds(&now) >= nanoseconds(&last));
		last = now;
	}
	stopped = 1;
	return NULL;
}

int main(void)
{
	int other = getenv("CASE_SHAPE") != NULL;
	struct functions before, after;
	pthread_t thread;

	look_up(&before);
	check(&before);
	if (!other)
		CHECK(pthread_create(&thread, NULL, spin, NULL) == 0);
	case_wait();
	look_up(&after);
	check(&after);
	if (!other) {
		CHECK(!memcmp(&before, &after, sizeof(before)));
		check_clock(clock_gettime, CLOCK_REALTIME);
		check_clock(clock_gettime, CLOCK_MONOTONIC);
		stop = 1;
		CHECK(pthread_join(thread, NULL) == 0 && stopped);
	}
	case_pass();
}
