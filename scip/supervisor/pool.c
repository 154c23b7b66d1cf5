#include "scip/supervisor/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "scip/supervisor/control.h"

enum { POOL_CALM = 0, POOL_FIRST = 2, POOL_HIGH = 6, POOL_HIGH_BURST = 64, POOL_SURPLUS = 24 };
enum { POOL_RETRY_MS = 100, POOL_QUIET_MS = 2000 };
/* Longer than a scip that has received a process can be without the processor. */
#define DOUBT_NS 5000000000ull

struct pool {
	struct seat seat;
	void (*before_scip)(void *arg);
	void *arg;
	pid_t *scips; /* alive */
	size_t nscips, room;
	uint64_t starving_since;  /* CLOCK_MONOTONIC of the first fork that failed, or of the last process
				     taken  since; 0 when none did */
	uint64_t starving_handed; /* shared->handed then */
	uint64_t seen_handed, seen_ns; /* shared->handed when it was last seen to have changed */
	struct doubt *doubts;
	size_t ndoubts;
	bool uncertain; /* more scips may be idle than were counted */
};

/* A newborn that may have no scip: its maker's scip, or an idle one, has died. */
struct doubt {
	struct name_process born;
	uint64_t since; /* CLOCK_MONOTONIC */
};

static void pool_free(struct pool *pool)
{
	if (pool->seat.take >= 0)
		close(pool->seat.take);
	if (pool->seat.give >= 0)
		close(pool->seat.give);
	if (pool->seat.wake >= 0)
		close(pool->seat.wake);
	if (pool->seat.page >= 0)
		close(pool->seat.page);
	if (pool->seat.shared)
		munmap(pool->seat.shared, sizeof(*pool->seat.shared));
	free(pool->scips);
	free(pool->doubts);
	free(pool);
}

int pool_open(struct pool **out, struct names *names, void (*before_scip)(void *arg), void *arg,
	      struct err *err)
{
	struct pool *pool = calloc(1, sizeof(*pool));
	int pair[2], r;
	void *page;

	if (!pool)
		return err_code(err, -ENOMEM, "make the pool of scips");
	pool->seat = (struct seat){
		.names = names, .take = -1, .give = -1, .wake = -1, .page = -1, .keeper = getpid()};
	pool->before_scip = before_scip;
	pool->arg = arg;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
		r = err_sys(err, "make the hand-over socket");
		goto fail;
	}
	pool->seat.take = pair[0];
	pool->seat.give = pair[1];
	/* Room for bursts; with less, a fork waits for a scip. */
	(void)setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &(int){4 << 20}, sizeof(int));
	pool->seat.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (pool->seat.wake < 0) {
		r = err_sys(err, "make the pool's eventfd");
		goto fail;
	}
	/* A file, so that it can be mapped again by a program that the keeper or a scip executes. */
	pool->seat.page = memfd_create("pbeam-seats", MFD_CLOEXEC);
	if (pool->seat.page < 0 || ftruncate(pool->seat.page, sizeof(*pool->seat.shared)) < 0) {
		r = err_sys(err, "make the pool's page");
		goto fail;
	}
	page = mmap(NULL, sizeof(*pool->seat.shared), PROT_READ | PROT_WRITE, MAP_SHARED, pool->seat.page, 0);
	if (page == MAP_FAILED) {
		r = err_sys(err, "map the pool's page");
		goto fail;
	}
	pool->seat.shared = page;
	pool->seat.shared->low = POOL_CALM;
	pool->seat.shared->high = POOL_CALM;
	pool->seat.shared->surplus = POOL_CALM;
	*out = pool;
	return 0;
fail:
	pool_free(pool);
	return r;
}

int pool_adopt(struct pool **out, const struct seat *seat, const int32_t *scips, size_t nscips,
	       void (*before_scip)(void *arg), void *arg)
{
	struct pool *pool = calloc(1, sizeof(*pool));

	if (!pool)
		return -ENOMEM;
	pool->scips = calloc(nscips + 1, sizeof(*pool->scips));
	if (!pool->scips) {
		free(pool);
		return -ENOMEM;
	}
	for (size_t i = 0; i < nscips; i++)
		pool->scips[i] = scips[i];
	pool->nscips = nscips;
	pool->room = nscips + 1;
	pool->seat = *seat;
	pool->before_scip = before_scip;
	pool->arg = arg;
	*out = pool;
	return 0;
}

const struct seat *pool_seat(const struct pool *pool)
{
	return &pool->seat;
}

size_t pool_scips(const struct pool *pool, const pid_t **scips)
{
	*scips = pool->scips;
	return pool->nscips;
}

int pool_retire(struct pool *pool)
{
	const struct handoff retire = {.flags = HANDOFF_RETIRE};
	int n = 0;

	/* First: an old scip whose process ends from now on does not become idle. */
	pool->seat.generation = atomic_fetch_add(&pool->seat.shared->generation, 1) + 1;
	while (atomic_load(&pool->seat.shared->idle) > 0 &&
	       handoff_message_send(pool->seat.give, &retire) == 0) {
		atomic_fetch_sub(&pool->seat.shared->idle, 1);
		n++;
	}
	return n;
}

int pool_wake_fd(const struct pool *pool)
{
	return pool->seat.wake;
}

struct fill_signs *pool_signs(const struct pool *pool)
{
	return &pool->seat.shared->signs;
}

void pool_report_ends(struct pool *pool, bool report)
{
	atomic_store(&pool->seat.shared->reports_ends, report);
}

void pool_set_coordinator(struct pool *pool, pid_t pid)
{
	atomic_store(&pool->seat.shared->coordinator, pid);
}

static int make_room(struct pool *pool)
{
	size_t room = pool->room ? pool->room * 2 : 64;
	pid_t *bigger;

	if (pool->nscips < pool->room)
		return 0;
	bigger = realloc(pool->scips, room * sizeof(*bigger));
	if (!bigger)
		return -ENOMEM;
	pool->scips = bigger;
	pool->room = room;
	return 0;
}

static int fork_spare(struct pool *pool)
{
	int r = make_room(pool);
	pid_t pid;

	if (r < 0)
		return r;
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid == 0) {
		if (prctl(PR_SET_PDEATHSIG, SEAT_KEEPER_GONE) < 0 || getppid() != pool->seat.keeper)
			_exit(125);
		pool->before_scip(pool->arg);
		supervisor_main(&pool->seat);
	}
	pool->scips[pool->nscips++] = pid;
	return 0;
}

/* Removes and kills the process that has waited longest; false if there is none. */
static bool kill_one_waiting(struct pool *pool, const char *why)
{
	struct handoff handoff;

	do {
		if (handoff_message_take(pool->seat.take, &handoff) <= 0)
			return false;
		atomic_fetch_add(&pool->seat.shared->idle, 1);
	} while (handoff.flags & HANDOFF_RETIRE);
	kill(handoff.rpid, SIGKILL);
	names_process_remove(pool->seat.names, (struct vpid){handoff.vpid}, (struct rpid){handoff.rpid});
	names_number_release(pool->seat.names, (struct vpid){handoff.vpid}, (struct rpid){handoff.rpid});
	log_error("vpid %d was killed: %s", handoff.vpid, why);
	return true;
}

/* Processes wait and no scip can be made. Other processes end and free their scips, so as long as any
 * process is taken this may resolve itself. */
static void pool_starve(struct pool *pool)
{
	uint64_t now = io_now_ns(CLOCK_MONOTONIC), handed = atomic_load(&pool->seat.shared->handed);

	if (!pool->starving_since || handed != pool->starving_handed) {
		if (!pool->starving_since)
			log_warn("processes wait: no supervisor can be made for them: %s", strerror(errno));
		pool->starving_since = now;
		pool->starving_handed = handed;
	} else if (now - pool->starving_since > POOL_PATIENCE_NS &&
		   kill_one_waiting(pool, "no process can be made to supervise it (limit of processes: "
					  "ulimit -u)")) {
		pool->starving_since += POOL_PATIENCE_STEP_NS;
	}
}

static void settle_doubts(struct pool *pool);

static void pool_set_high(struct pool *pool, uint32_t high)
{
	struct seat_shared *shared = pool->seat.shared;

	shared->high = high;
	shared->low = high > POOL_CALM ? high / 2 : POOL_CALM;
	shared->surplus = high == POOL_CALM ? POOL_CALM : high > POOL_SURPLUS ? high : POOL_SURPLUS;
}

/* Corrects the count of idle scips while nothing is handed over. It is wrong after a scip was killed whose
 * process had left the table already: that one was counted as idle. */
static void pool_recount(struct pool *pool)
{
	auto_free struct name_process *list = NULL;
	int n = names_snapshot(pool->seat.names, (struct rpid){pool->seat.keeper}, &list);
	int32_t seen = atomic_load(&pool->seat.shared->idle), idle = 0;

	for (int i = 0; i < n; i++)
		if (list[i].state == NAME_STATE_BORN)
			return; /* not quiet */
	for (size_t i = 0; i < pool->nscips && n >= 0; i++) {
		bool busy = false;

		for (int k = 0; k < n; k++)
			busy = busy || list[k].scip.n == pool->scips[i];
		idle += !busy;
	}
	if (n < 0 || idle <= seen || atomic_load(&pool->seat.shared->handed) != pool->seen_handed)
		return;
	log_debug("%d scips are idle, not %d", idle, seen);
	atomic_fetch_add(&pool->seat.shared->idle, idle - seen);
}

/* Ends all spares. One that is taken meanwhile is not missed: its successor is forked at once. */
static void pool_calm(struct pool *pool)
{
	const struct handoff retire = {.flags = HANDOFF_RETIRE};

	pool_set_high(pool, POOL_CALM);
	if (pool->uncertain)
		pool_recount(pool);
	pool->uncertain = false;
	while (atomic_load(&pool->seat.shared->idle) > POOL_CALM &&
	       handoff_message_send(pool->seat.give, &retire) == 0)
		atomic_fetch_sub(&pool->seat.shared->idle, 1);
}

/* Sets how many spares are wanted. `woken`: a hand-over has left few. Several scips are made at a time when
 * the pool has become empty, because the keeper may run rarely on a busy processor. */
static void pool_adapt(struct pool *pool, bool woken)
{
	struct seat_shared *shared = pool->seat.shared;
	uint64_t handed = atomic_load(&shared->handed), now = io_now_ns(CLOCK_MONOTONIC);

	if (woken || handed != pool->seen_handed) {
		pool->seen_handed = handed;
		pool->seen_ns = now;
	}
	if (woken && atomic_load(&shared->idle) <= 0 && shared->high < POOL_HIGH_BURST)
		pool_set_high(pool, shared->high ? shared->high * 2 : POOL_FIRST);
	else if (woken && atomic_load(&shared->idle) > 0 && shared->high > POOL_HIGH)
		pool_set_high(pool, shared->high / 2);
	else if ((shared->high > POOL_CALM || pool->uncertain) &&
		 now - pool->seen_ns >= POOL_QUIET_MS * 1000000ull)
		pool_calm(pool);
}

/* Forks spares up to the high mark; a doubt is settled only by an idle scip. True if processes wait and no
 * scip can be made. */
static bool pool_top_up(struct pool *pool)
{
	struct seat_shared *shared = pool->seat.shared;
	const int32_t wanted = shared->high || !pool->ndoubts ? (int32_t)shared->high : 1;
	int r = 0;

	while (atomic_load(&shared->idle) < wanted && r == 0) {
		r = fork_spare(pool);
		if (r < 0)
			break;
		atomic_fetch_add(&shared->idle, 1);
		pool->starving_since = 0;
	}
	if (r == 0 || atomic_load(&shared->idle) >= 0)
		return false; /* at worst fewer spares than wanted */
	errno = -r;
	pool_starve(pool);
	return true;
}

int pool_fill(struct pool *pool, struct err *err)
{
	ssize_t woken;
	uint64_t count;

	woken = read(pool->seat.wake, &count, sizeof(count));
	if (woken < 0 && errno != EAGAIN)
		return err_sys(err, "read the pool's eventfd");
	settle_doubts(pool);
	pool_adapt(pool, woken > 0);
	if (pool_top_up(pool) || pool->ndoubts > 0)
		return POOL_RETRY_MS;
	return pool->seat.shared->high > POOL_CALM || pool->uncertain ? POOL_QUIET_MS : 0;
}

/* True if a scip has taken the process, or the process has ended. */
static bool was_taken(struct pool *pool, const struct name_process *born)
{
	struct name_process now;

	return names_process_get(pool->seat.names, born->vpid, &now) < 0 || now.rpid.n != born->rpid.n ||
	       now.state != NAME_STATE_BORN;
}

static void pool_check_born(struct pool *pool, const struct name_process *born)
{
	struct doubt *more = reallocarray(pool->doubts, pool->ndoubts + 1, sizeof(*more));

	if (!more) {
		log_error("vpid %d: no memory to watch it", born->vpid.n);
		return;
	}
	pool->doubts = more;
	more[pool->ndoubts++] = (struct doubt){*born, io_now_ns(CLOCK_MONOTONIC)};
}

/* A scip died between parking a child and its transfer, or had just received one. A child that is still
 * queued is taken sooner or later: on a busy machine later, and not before a scip is idle. A child that is
 * not queued would wait for ever. */
static void settle_doubts(struct pool *pool)
{
	bool idle = atomic_load(&pool->seat.shared->idle) > 0;
	uint64_t now = pool->ndoubts ? io_now_ns(CLOCK_MONOTONIC) : 0;

	for (size_t i = pool->ndoubts; i-- > 0;) {
		struct doubt *d = &pool->doubts[i];
		bool settled = was_taken(pool, &d->born);

		if (!settled && !idle)
			d->since = now;
		if (!settled && now - d->since < DOUBT_NS)
			continue;
		if (!settled) {
			log_error("vpid %d is killed: its supervisor died during the hand-over",
				  d->born.vpid.n);
			kill(d->born.rpid.n, SIGKILL);
			names_process_remove(pool->seat.names, d->born.vpid, d->born.rpid);
			names_number_release(pool->seat.names, d->born.vpid, d->born.rpid);
		}
		*d = pool->doubts[--pool->ndoubts];
	}
}

/* Leaves the entry as its scip would have: a diverged one DEAD, for its parent to wait for. */
static void pool_remove_dead(struct pool *pool, struct name_process *process)
{
	process->state = NAME_STATE_DEAD;
	process->scip.n = 0;
	if (process->diverged && kill(process->rpid.n, 0) == 0) {
		if (names_process_update(pool->seat.names, process) < 0)
			log_debug("vpid %d now belongs to another process", process->vpid.n);
		return;
	}
	names_process_remove(pool->seat.names, process->vpid, process->rpid);
	names_number_release(pool->seat.names, process->vpid, process->rpid);
}

/* A scip that was killed has killed its process (PTRACE_O_EXITKILL). Returns the number of its entries: 0
 * if it was idle or had not yet entered itself for a process that it had received. */
static int clean_up_after(struct pool *pool, pid_t scip)
{
	struct rpid keeper = {pool->seat.keeper};
	auto_free struct name_process *list = NULL;
	int n = names_snapshot(pool->seat.names, keeper, &list), found = 0;

	for (int i = 0; i < n; i++)
		found += list[i].scip.n == scip;
	for (int i = 0; i < n; i++)
		if (list[i].state == NAME_STATE_BORN && (!found || list[i].scip.n == scip))
			pool_check_born(pool, &list[i]);
		else if (list[i].scip.n == scip)
			pool_remove_dead(pool, &list[i]);
	return found;
}

bool pool_reaped(struct pool *pool, pid_t pid, int status)
{
	for (size_t i = 0; i < pool->nscips; i++) {
		if (pool->scips[i] != pid)
			continue;
		pool->scips[i] = pool->scips[--pool->nscips];
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
			return true;
		log_warn("scip %d ended unexpectedly (wait status %#x)", pid, (unsigned)status);
		control_clean_up(pid);
		/* An idle scip was counted. (In doubt one spare more is made, until the next recount.) */
		if (clean_up_after(pool, pid) == 0) {
			atomic_fetch_sub(&pool->seat.shared->idle, 1);
			pool->uncertain = true;
		}
		return true;
	}
	return false;
}

int pool_hand_over(struct pool *pool, const struct handoff *handoff, struct err *err)
{
	int r = handoff_message_send(pool->seat.give, handoff);

	if (r < 0)
		return err_code(err, r, "hand process %d to a scip", handoff->rpid);
	atomic_fetch_sub(&pool->seat.shared->idle, 1);
	if (pool_top_up(pool) && pool->nscips == 0)
		return err_set(err, -EAGAIN,
			       "no process can be made to supervise process %d (limit of "
			       "processes: ulimit -u)",
			       handoff->rpid);
	return 0;
}

void pool_close(struct pool *pool)
{
	/* Scips remove their sockets themselves, but a killed one cannot. */
	for (size_t i = 0; i < pool->nscips; i++) {
		kill(pool->scips[i], SEAT_KEEPER_GONE);
		control_clean_up(pool->scips[i]);
	}
	while (kill_one_waiting(pool, "its job has ended"))
		continue;
	pool_free(pool);
}
