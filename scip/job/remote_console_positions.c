#include "scip/job/remote_console_positions.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>

/* The one before has ended with it: whatever it changed, it changed by whole numbers. */
static void lock_robust(pthread_mutex_t *mutex)
{
	if (pthread_mutex_lock(mutex) == EOWNERDEAD)
		pthread_mutex_consistent(mutex);
}

static bool trylock_robust(pthread_mutex_t *mutex)
{
	int r = pthread_mutex_trylock(mutex);

	if (r == EOWNERDEAD)
		pthread_mutex_consistent(mutex);
	return r == 0 || r == EOWNERDEAD;
}

struct console_positions *console_positions_make(struct err *err)
{
	struct console_positions *positions =
		mmap(NULL, sizeof(*positions), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_t shared;

	if (positions == MAP_FAILED) {
		err_code(err, -errno, "count the bytes of the console");
		return NULL;
	}
	pthread_mutexattr_init(&shared);
	pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&positions->lock, &shared);
	for (int i = 0; i < CONSOLE_PARTS_MAX; i++)
		pthread_mutex_init(&positions->parts[i].writer, &shared);
	pthread_mutexattr_destroy(&shared);
	return positions;
}

/* The part's own place, or a free one. *locked: its lock is held already. */
static struct console_part *choose_part(struct console_positions *positions, int32_t vpid, bool *locked)
{
	*locked = false;
	for (int i = 0; i < CONSOLE_PARTS_MAX; i++)
		if (positions->parts[i].vpid == vpid)
			return &positions->parts[i];
	for (int round = 0; round < 2; round++) /* free ones first */
		for (int i = 0; i < CONSOLE_PARTS_MAX; i++) {
			*locked = (round || !positions->parts[i].vpid) &&
				  trylock_robust(&positions->parts[i].writer);
			if (*locked)
				return &positions->parts[i];
		}
	return NULL;
}

struct console_part *console_positions_claim(struct console_positions *positions,
					     const Pbeam__RemoteConsole *hello)
{
	struct console_part *part;
	bool locked;

	lock_robust(&positions->lock);
	part = choose_part(positions, hello->vpid, &locked);
	if (part && locked) {
		part->vpid = hello->vpid;
		part->instance = 0;
	}
	pthread_mutex_unlock(&positions->lock);
	if (!part)
		return NULL;
	if (!locked)
		lock_robust(&part->writer);
	if (part->instance != hello->instance)
		for (size_t i = 0; i < CONSOLE_STREAMS; i++)
			atomic_store(&part->written[i], i < hello->n_written ? hello->written[i] : 0);
	part->instance = hello->instance;
	return part;
}
