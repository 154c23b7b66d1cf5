/*
 * The lock of the name table: a robust mutex, so that a writer that dies inside passes it on, with the table
 * to be repaired. A writer that is stopped inside (SIGSTOP, a debugger, a frozen cgroup) keeps it, and nobody
 * can take it away: the writer would go on in the middle of its change. Supervisors wait for it, since what
 * they record must not be lost. Programs that serve the user (names_limit_wait()) wait for some seconds and
 * then fail with a sentence that names the holder. They do not wait so long again for the same holder: a
 * daemon with many requests would stand still.
 */
#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <time.h>

#include "base/io.h"
#include "namespace/table.h"

enum { WAIT_MS = 4000, WAIT_AGAIN_MS = 50 };
#define MS 1000000ull

/* The word at the beginning of a robust mutex holds the number of the thread (the kernel reads it there:
 * Documentation/locking/robust-futex-ABI.rst). 0: none. */
static int32_t lock_holder(const struct table *table)
{
	const _Atomic uint32_t *word = (const void *)&table->mutex;

	return (int32_t)(atomic_load(word) & FUTEX_TID_MASK);
}

static int lock_within(struct names *names, int ms)
{
	const uint64_t until = io_now_ns(CLOCK_MONOTONIC) + (uint64_t)ms * MS;
	const struct timespec at = {(time_t)(until / (1000 * MS)), (long)(until % (1000 * MS))};

	return pthread_mutex_clocklock(&names->table->mutex, CLOCK_MONOTONIC, &at);
}

static int lock_late(struct names *names)
{
	const int32_t before = names->stuck;
	int r = lock_within(names, before && before == lock_holder(names->table) ? WAIT_AGAIN_MS : WAIT_MS);

	names->stuck = r == ETIMEDOUT ? lock_holder(names->table) : 0;
	return r;
}

int table_lock(struct names *names)
{
	int r = pthread_mutex_trylock(&names->table->mutex);

	if (r == EBUSY)
		r = names->limited ? lock_late(names) : pthread_mutex_lock(&names->table->mutex);
	if (r == EOWNERDEAD) {
		table_repair(names->table);
		r = pthread_mutex_consistent(&names->table->mutex);
	}
	return -r;
}

void table_unlock(struct names *names)
{
	pthread_mutex_unlock(&names->table->mutex);
}

int names_lock(struct names *names)
{
	return table_lock(names);
}

void names_unlock(struct names *names)
{
	table_unlock(names);
}

void names_limit_wait(struct names *names, bool limited)
{
	names->limited = limited;
}

int names_explain(const struct names *names, int r, struct err *err)
{
	const int32_t holder = names->stuck;
	uint64_t ticks;
	char state = 0;

	if (r != -ETIMEDOUT || !holder)
		return err_code(err, r, "lock the name table");
	if (table_start_and_state(holder, &ticks, &state) == 0 && (state == 'T' || state == 't'))
		return err_set(err, r,
			       "the name table is locked by process %d, which is stopped; continue it "
			       "(kill -CONT %d)",
			       holder, holder);
	return err_set(err, r, "the name table is locked by process %d, which has not released it for %d s",
		       holder, WAIT_MS / 1000);
}
