#include "scip/job/remote_console_positions.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

enum { END_MS = 1000, NAP_NS = 1000000 };

struct console_positions *console_positions_make(struct err *err)
{
	struct console_positions *positions =
		mmap(NULL, sizeof(*positions), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (positions == MAP_FAILED) {
		err_code(err, -errno, "count the bytes of the console");
		return NULL;
	}
	positions->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (positions->wake < 0) {
		err_code(err, -errno, "count the bytes of the console");
		munmap(positions, sizeof(*positions));
		return NULL;
	}
	return positions;
}

void console_positions_begin(struct console_positions *positions)
{
	for (int i = 0; i < CONSOLE_PARTS_MAX; i++)
		positions->parts[i].used = false;
	atomic_store(&positions->done, atomic_load(&positions->wanted));
}

/* The part's own place, a free one, or one that is not in use. */
static struct console_part *choose_part(struct console_positions *positions, int32_t vpid)
{
	struct console_part *unused = NULL;

	for (int i = 0; i < CONSOLE_PARTS_MAX; i++) {
		struct console_part *part = &positions->parts[i];

		if (part->vpid == vpid)
			return part;
		if (!part->used && (!unused || (unused->vpid && !part->vpid)))
			unused = part;
	}
	return unused;
}

struct console_part *console_positions_claim(struct console_positions *positions,
					     const Pbeam__RemoteConsole *hello)
{
	struct console_part *part = choose_part(positions, hello->vpid);

	if (!part)
		return NULL;
	if (part->vpid != hello->vpid || part->instance != hello->instance)
		for (size_t i = 0; i < CONSOLE_STREAMS; i++)
			atomic_store(&part->written[i], i < hello->n_written ? hello->written[i] : 0);
	part->vpid = hello->vpid;
	part->instance = hello->instance;
	part->used = true;
	return part;
}

void console_positions_release(struct console_part *part)
{
	part->used = false;
}

void console_positions_end(struct console_positions *positions, int32_t vpid, pid_t carrier)
{
	uint32_t wanted;

	atomic_store(&positions->wanted_vpid, vpid);
	wanted = atomic_fetch_add(&positions->wanted, 1) + 1;
	if (write(positions->wake, &(uint64_t){1}, sizeof(uint64_t)) < 0)
		log_error("console: eventfd: %s", "cannot be written");
	for (int ms = 0; ms < END_MS && kill(carrier, 0) == 0; ms++) {
		if ((int32_t)(atomic_load(&positions->done) - wanted) >= 0)
			return;
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
	kill(carrier, SIGKILL);
}

int console_positions_wake(const struct console_positions *positions)
{
	return positions->wake;
}

int32_t console_positions_wanted(const struct console_positions *positions)
{
	uint64_t rung;

	(void)!read(positions->wake, &rung, sizeof(rung));
	return atomic_load(&positions->wanted_vpid);
}

void console_positions_ended(struct console_positions *positions)
{
	atomic_store(&positions->done, atomic_load(&positions->wanted));
}
