/*
 * Clock ids that name a process or thread, as clock_getcpuclockid() and pthread_getcpuclockid() make them in
 * user space: ~number << 3, with the kind of clock in the low three bits (linux/posix-timers.h).
 */
#ifndef SYSCALLS_CLOCK_ID_H
#define SYSCALLS_CLOCK_ID_H

#include <stdint.h>

enum {
	CLOCK_ID_KIND = 3, /* the bits that tell the time measured: */
	CLOCK_ID_PROF = 0, /* user and system */
	CLOCK_ID_VIRT = 1, /* user */
	CLOCK_ID_SCHED = 2,
	CLOCK_ID_FD = 3,     /* a clock device: no number */
	CLOCK_ID_THREAD = 4, /* of a thread */
	CLOCK_ID_LOW = 7,
	CLOCK_ID_SHIFT = 3,
};

/* The number of the process or thread that the id names; 0: the caller. -1: another clock. */
static inline int32_t clock_id_number(int32_t clock)
{
	if (clock >= 0 || (clock & CLOCK_ID_KIND) == CLOCK_ID_FD)
		return -1;
	return ~(clock >> CLOCK_ID_SHIFT);
}

/* The same clock of another process or thread. */
static inline int32_t clock_id_of(int32_t clock, int32_t number)
{
	return (int32_t)((uint32_t)~number << CLOCK_ID_SHIFT) | (clock & CLOCK_ID_LOW);
}

#endif
