/*
 * A bell in shared memory: processes sleep until another one has rung it. A futex; no ring is lost if the
 * count is read before the shared state is examined.
 */
#ifndef BASE_BELL_H
#define BASE_BELL_H

#include <stdatomic.h>
#include <stdint.h>

struct bell {
	_Atomic uint32_t rings; /* zeroed to begin with */
};

/* Wakes all waiters. */
void bell_ring(struct bell *bell);
uint32_t bell_count(const struct bell *bell);
/* Sleeps while the count is `seen`, at most `most_ns`; may return early. */
void bell_wait(const struct bell *bell, uint32_t seen, uint64_t most_ns);

#endif
