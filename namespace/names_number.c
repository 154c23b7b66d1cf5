/* Diverged numbers: the map virtual <-> real. Read without a lock, see table.h. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "namespace/table.h"

enum { LEASE_LOOKS = 200, LEASE_LOOK_NS = 2000000 };

uint64_t names_generation(struct names *names)
{
	return atomic_load_explicit(&names->table->generation, memory_order_acquire);
}

struct rpid names_real(struct names *names, struct vpid vpid)
{
	const struct table *table = names->table;
	uint32_t found, n = vpid.n < 0 ? -(uint32_t)vpid.n : (uint32_t)vpid.n;

	/* -1 is "all" to kill() and wait4(), never a group */
	if (vpid.n == 0 || vpid.n == -1 || names_generation(names) == 0)
		return (struct rpid){vpid.n};
	found = map_get(&table->forward, n);
	if (!found) /* no object has this name; the process with this real number has another name */
		found = map_get(&table->backward, n) ? NAMES_NOBODY : n;
	return (struct rpid){vpid.n < 0 ? -(int32_t)found : (int32_t)found};
}

struct vpid names_virtual(struct names *names, struct rpid rpid)
{
	const struct table *table = names->table;
	uint32_t found, n = rpid.n < 0 ? -(uint32_t)rpid.n : (uint32_t)rpid.n;

	if (rpid.n == 0 || rpid.n == -1 || names_generation(names) == 0)
		return (struct vpid){rpid.n};
	found = map_get(&table->backward, n);
	if (!found || number_is_aside(found)) /* a process outside the name space, whose number is a virtual
		       number: 0, as in the kernel's pid namespaces */
		found = map_get(&table->forward, n) ? 0 : n;
	return (struct vpid){rpid.n < 0 ? -(int32_t)found : (int32_t)found};
}

void table_number_drop(struct table *table, uint32_t virtual, uint32_t real)
{
	map_remove(&table->forward, virtual);
	if (map_get(&table->backward, real) == virtual)
		map_remove(&table->backward, real);
	if (table->nnumbers)
		table->nnumbers--;
	atomic_fetch_add(&table->generation, 1);
}

/* True if the number still belongs to a group or thread. */
static bool number_is_busy(uint32_t real)
{
	return kill((pid_t)real, 0) == 0 || errno == EPERM || kill(-(pid_t)real, 0) == 0 || errno == EPERM;
}

static int number_insert(struct table *table, uint32_t virtual, uint32_t real, int32_t keeper)
{
	uint32_t before = map_get(&table->forward, virtual), stale = map_get(&table->backward, real);
	int at;

	if (!before && table->nnumbers >= TABLE_NUMBERS)
		return -ENOSPC;
	if (stale && stale != virtual)
		table_number_drop(table, stale,
				  real); /* its real number was given to a new process: it has ended */
	at = slots_place(table->forward.slots, MAP_BITS, virtual);
	if (at < 0)
		return at;
	table->owner[at] = keeper;
	table->released[at] = 0;
	slots_put(table->forward.slots, at, virtual, real);
	if (before && before != real && map_get(&table->backward, before) == virtual)
		map_remove(&table->backward, before);
	if (!before)
		table->nnumbers++;
	at = map_set(&table->backward, real, virtual);
	atomic_fetch_add(&table->generation, 1);
	return at < 0 ? at : 0;
}

void table_drop_numbers(struct table *table, int32_t keeper)
{
	for (uint32_t i = 0; i < MAP_SLOTS && table->nnumbers; i++) {
		uint64_t word = atomic_load(&table->forward.slots[i]);

		if (map_used(word) && (table->owner[i] == keeper || table->owner[i] == -keeper))
			table_number_drop(table, map_key(word), map_value(word));
	}
}

static uint32_t number_seconds_now(void)
{
	return (uint32_t)(io_now_ns(CLOCK_BOOTTIME) / 1000000000u) + 1;
}

/* Removes numbers that were released some time ago. */
static void drop_released(struct table *table, uint32_t age)
{
	uint32_t now = number_seconds_now(), left = 0;

	for (uint32_t i = 0; i < MAP_SLOTS && table->nnumbers; i++) {
		uint64_t word = atomic_load(&table->forward.slots[i]);

		if (!map_used(word) || !table->released[i])
			continue;
		if (now - table->released[i] >= age && !number_is_busy(map_value(word)))
			table_number_drop(table, map_key(word), map_value(word));
		else
			left++;
	}
	table->nreleased = left;
}

static void number_make_room(struct table *table)
{
	if (table->nnumbers < TABLE_NUMBERS)
		return;
	drop_released(table, RELEASED_AGE);
	if (table->nnumbers >= TABLE_NUMBERS)
		drop_released(table, 0);
}

/* Returns another free number, from the range that the kernel never uses. */
static int number_choose(struct table *table, uint32_t *out)
{
	const uint32_t block = 1u << NAMES_BLOCK_BITS;

	for (uint32_t tries = 0; tries <= NUMBER_OWN_LAST - NUMBER_OWN_FIRST; tries++) {
		uint32_t n = (uint32_t)table->next_own;

		if (!table_block_ours(table, n)) { /* none of its numbers is free */
			tries += block - 1 - n % block;
			n |= block - 1;
			table->next_own = n >= NUMBER_OWN_LAST ? NUMBER_OWN_FIRST : (int32_t)n + 1;
			continue;
		}
		table->next_own = n >= NUMBER_OWN_LAST ? NUMBER_OWN_FIRST : (int32_t)n + 1;
		if (map_find(&table->forward, n) < 0 && map_find(&table->by_vpid, n) < 0 &&
		    table_number_ours(table, n)) {
			*out = n;
			return 0;
		}
	}
	return -ENOSPC;
}

/* Returns the kernel's number if that is free, else another one. Under the lock. */
static int give_number(struct names *names, uint32_t *n, int32_t keeper)
{
	struct table *table = names->table;
	uint32_t real = *n, stale = map_get(&table->backward, real);
	int r;

	if (stale)
		table_number_drop(table, stale, real);
	if (map_find(&table->forward, real) < 0 && !names->test_diverge && table_number_ours(table, real))
		return 0;
	number_make_room(table);
	r = number_choose(table, n);
	return r < 0 ? r : number_insert(table, *n, real, keeper);
}

int names_number_born(struct names *names, struct rpid rpid, struct rpid keeper, struct vpid *out)
{
	const struct timespec moment = {0, LEASE_LOOK_NS};
	uint32_t n = (uint32_t)rpid.n;
	int r;

	if (rpid.n <= 0)
		return -EINVAL;
	table_wait_joined(names->table);
	if (names_generation(names) == 0 && !names->test_diverge && table_number_ours(names->table, n)) {
		out->n = rpid.n;
		return 0;
	}
	/* in a cluster pbeamd leases more numbers as they are needed */
	for (int tries = 0;; tries++) {
		r = table_lock(names);
		if (r < 0)
			return r;
		r = give_number(names, &n, keeper.n);
		table_unlock(names);
		if (r != -ENOSPC || tries == LEASE_LOOKS || !names_cluster(names, NULL))
			break;
		nanosleep(&moment, NULL);
	}
	if (r == 0)
		out->n = (int32_t)n;
	return r;
}

/* Returns the process that a thread belongs to, 0 if there is no such thread. */
static int32_t thread_group(uint32_t tid)
{
	char path[40], text[2048];
	const char *p;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%u/status", tid);
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : io_read_full(fd, text, sizeof(text) - 1);
	if (n <= 0)
		return 0;
	text[n] = 0;
	p = strstr(text, "\nTgid:");
	return p ? (int32_t)strtol(p + 6, NULL, 10) : 0;
}

/* True if `n`, which is not in the map, is the number of a living object of the name space other than
 * `real`. */
static bool named_itself(struct table *table, uint32_t n, uint32_t real)
{
	uint32_t slot = map_get(&table->by_vpid, n);
	int32_t group;

	if (slot) {
		const struct table_process *entry = &table->processes[slot - 1];

		if (entry->p.rpid.n != (int32_t)real && entry->p.state != NAME_STATE_DEAD &&
		    table_alive(entry->p.rpid.n, entry->start_ticks))
			return true;
	}
	if (map_get(&table->backward, n) || n >= NUMBER_OWN_FIRST)
		return false;
	if (kill((pid_t)n, 0) < 0 && errno == ESRCH)
		return false;
	group = thread_group(n);
	return group > 0 && group != (int32_t)n && map_find(&table->by_rpid, (uint32_t)group) >= 0;
}

int names_number_bind(struct names *names, struct vpid vpid, struct rpid rpid, struct rpid keeper)
{
	struct table *table = names->table;
	uint32_t virtual = (uint32_t)vpid.n, real = (uint32_t)rpid.n;
	struct name_process elsewhere;
	const struct table_job *job;
	uint32_t bound, stale;
	bool replacing;
	int at, r;

	if (vpid.n <= 0 || rpid.n <= 0 || vpid.n > NUMBER_OWN_LAST)
		return -EINVAL;
	if (virtual != real && others_find_process(names, vpid, &elsewhere) == 0)
		return -EEXIST;
	r = table_lock(names);
	if (r < 0)
		return r;
	job = table_find_job(table, keeper.n);
	replacing = job && job->replacing;
	at = map_find(&table->forward, virtual);
	bound = at < 0 ? 0 : map_get(&table->forward, virtual);
	if (replacing && bound == real && !table->released[at]) {
		table_unlock(names);
		return 0; /* not provisional: the keeper's own numbers */
	}
	if (bound && bound != real && !table->released[at] && number_is_busy(bound))
		r = -EEXIST;
	else if (!bound && virtual != real && named_itself(table, virtual, real))
		r = -EEXIST;
	if (r == 0 && virtual == real) {
		stale = map_get(&table->backward, real);
		if (bound)
			table_number_drop(table, virtual, bound);
		if (stale && stale != virtual)
			table_number_drop(table, stale, real);
	} else if (r == 0) {
		number_make_room(table);
		r = number_insert(table, virtual, real, replacing ? -keeper.n : keeper.n);
	}
	table_unlock(names);
	return r;
}

void names_number_release(struct names *names, struct vpid vpid, struct rpid rpid)
{
	struct table *table = names->table;
	uint32_t now, number = (uint32_t)vpid.n;
	int at;

	if (vpid.n <= 0 || names_generation(names) == 0 ||
	    (map_find(&table->forward, number) < 0 && map_find(&table->forward, number | NUMBER_ASIDE) < 0) ||
	    table_lock(names) < 0)
		return;
	now = number_seconds_now();
	if (map_get(&table->forward, number) != (uint32_t)rpid.n)
		number |= NUMBER_ASIDE;
	at = map_find(&table->forward, number);
	if (at >= 0 && !table->released[at] && map_get(&table->forward, number) == (uint32_t)rpid.n) {
		table->released[at] = now;
		table->nreleased++;
	}
	if (table->nreleased && now - table->swept >= (table->nreleased >= RELEASED_MAX ? 1 : RELEASED_AGE)) {
		drop_released(table, RELEASED_AGE);
		table->swept = now;
	}
	table_unlock(names);
}
