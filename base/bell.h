/*
 * A bell in shared memory: processes sleep until another one has rung it. A futex; no ring is lost to who
 * read the count before looking at what the ring is about.
 */
#ifndef BASE_BELL_H
#define BASE_BELL_H

#include <stdatomic.h>
#include <stdint.h>

struct bell {
	_Atomic uint32_t rings; /* zeroed to begin with */
};

/* Wakes all who wait. */
void bell_ring(struct bell *bell);
uint32_t bell_count(const struct bell *bell);
/* Sleeps while the count is `seen`, at most `most_ns`; may return early. */
void bell_wait(const struct bell *bell, uint32_t seen, uint64_t most_ns);

#endif
