#include "base/bell.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void bell_ring(struct bell *bell)
{
	atomic_fetch_add(&bell->rings, 1);
	syscall(SYS_futex, &bell->rings, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

uint32_t bell_count(const struct bell *bell)
{
	return atomic_load(&bell->rings);
}

void bell_wait(const struct bell *bell, uint32_t seen, uint64_t most_ns)
{
	struct timespec most = {(time_t)(most_ns / 1000000000u), (long)(most_ns % 1000000000u)};

	syscall(SYS_futex, &bell->rings, FUTEX_WAIT, seen, &most, NULL, 0);
}
