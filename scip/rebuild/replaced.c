/*
 * Freezes and kills the processes that a rollback replaces.
 *
 * Of a whole job these are all processes. Of a part: the process, its descendants, and every process with a
 * number of the image, which was a descendant when the image was made. They are frozen first, so that none
 * notices the end of another and acts on it, for instance by removing its files. Their scips freeze them,
 * not SIGSTOP: no process can observe that, a process that the user has stopped stays stopped, and if the
 * coordinator is killed the processes continue; or, once they are condemned (fill_signs.h), all of them
 * end. That is the commit, or, in the old order, comes before the new processes are made. In a rollback of
 * several parts all processes on all hosts are frozen before the first one is killed; until then it can be
 * given up.
 *
 * A process whose number had diverged leaves its entry, DEAD, for its parent's wait. The parent of a part
 * is frozen and does not wait, so names and entries are released here.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "scip/object/object.h"
#include "scip/rebuild/rebuild_parts.h"
#include "scip/tracee/procfs.h"

enum {
	CLEAR_MS = 10000,
	LOOK_AGAIN_NS = 500000,
	DEPTH_MAX = 65536,
	FREEZE_MS = 3000,
	LEAVE_MS = 500,
	PASSES = 8
};

/* The depth of the process below `root`, or below the job's first process with `root` 0. -1 if it is no
 * descendant. */
static int depth_below(struct rebuild *rebuild, struct name_process process, struct vpid root)
{
	for (int depth = 0; depth < DEPTH_MAX; depth++) {
		if (root.n > 0 && process.vpid.n == root.n)
			return depth;
		if (process.parent.n <= 0 || names_process_get(rebuild->names, process.parent, &process) < 0)
			return root.n > 0 ? -1 : depth;
	}
	return -1;
}

static bool is_of_image(const struct rebuild *rebuild, struct vpid vpid)
{
	for (size_t i = 0; i < rebuild->manifest->n_processes; i++)
		if (rebuild->manifest->processes[i]->vpid == vpid.n)
			return true;
	return false;
}

/* On the job's home host the stub of its first process belongs to the console. */
static bool is_consoles(struct rebuild *rebuild, const struct name_process *process)
{
	struct name_job job;

	return process->state == NAME_STATE_STUB &&
	       names_job_get(rebuild->names, rebuild->options->keeper, &job) == 0 && !job.home[0] &&
	       job.root.n == process->vpid.n;
}

bool replaced_includes(struct rebuild *rebuild, const struct name_process *process)
{
	if (rebuild->ends && is_consoles(rebuild, process))
		return false;
	return rebuild->whole || process->aside ||
	       depth_below(rebuild, *process, (struct vpid){rebuild->manifest->processes[0]->vpid}) >= 0 ||
	       is_of_image(rebuild, process->vpid);
}

struct victim {
	struct vpid vpid;
	pid_t rpid;
	struct rpid scip;
	int depth;
	bool apart; /* a stub in a rollback of several parts: its process is replaced, or ends, on its own */
};

static int compare_depth(const void *a, const void *b)
{
	return ((const struct victim *)a)->depth - ((const struct victim *)b)->depth;
}

/* Adds the process to the list of killed processes. */
static int list_gone(struct rebuild *rebuild, pid_t rpid)
{
	struct above *above = &rebuild->above;
	int32_t *more;

	for (size_t i = 0; i < above->ngone; i++)
		if (above->gone[i] == rpid)
			return 0;
	more = reallocarray(above->gone, above->ngone + 1, sizeof(*more));
	if (!more)
		return err_code(rebuild->err, -ENOMEM, "list of processes");
	above->gone = more;
	above->gone[above->ngone++] = rpid;
	return 0;
}

/* True if its scip was killed and the kernel has not finished killing it. */
static bool is_dying(const struct name_process *process)
{
	struct procfs_stat stat;

	return procfs_stat_read(process->rpid.n, 0, &stat, NULL) == 0 && stat.state != 'Z' &&
	       stat.state != 'X';
}

/* No process waits for it while its parent is frozen, or is a stub. */
static void release_name(struct rebuild *rebuild, const struct name_process *process)
{
	names_number_release(rebuild->names, process->vpid, process->rpid);
	names_process_remove(rebuild->names, process->vpid, process->rpid);
}

static struct victim victim_of(struct rebuild *rebuild, const struct name_process *process)
{
	return (struct victim){.vpid = process->vpid,
			       .rpid = process->rpid.n,
			       .scip = process->scip,
			       .depth = depth_below(rebuild, *process, (struct vpid){0}),
			       .apart = process->state == NAME_STATE_STUB && rebuild->options->part};
}

/* Ends a stub without telling its process on the other host. */
static void end_quietly(const struct victim *victim)
{
	auto_close int sock = scip_link_connect(victim->scip, NULL);

	if (sock < 0 || scip_link_call(sock, PBEAM__SCIP_REQUEST__SCIP_TERMINATE, NULL,
				       &pbeam__scip_done__descriptor, NULL, NULL) < 0)
		log_debug("the stub %d has ended already", victim->rpid);
}

/* Kills all that are left, parents first. Returns how many there were, including zombies of a whole job. */
static int kill_all(struct rebuild *rebuild)
{
	auto_free struct name_process *list = NULL;
	int n = names_snapshot(rebuild->names, rebuild->options->keeper, &list), left = 0;
	auto_free struct victim *victims = n < 0 ? NULL : calloc((size_t)n + 1, sizeof(*victims));

	if (!victims)
		return err_code(rebuild->err, n < 0 ? n : -ENOMEM, "list the processes");
	for (int i = 0; i < n; i++) {
		if (rebuild->beside ? !list[i].aside : !replaced_includes(rebuild, &list[i]))
			continue;
		if (!rebuild->whole && list_gone(rebuild, list[i].rpid.n) < 0)
			return -ENOMEM;
		if ((!rebuild->whole || rebuild->ends) && list[i].state == NAME_STATE_DEAD &&
		    !is_dying(&list[i]))
			release_name(rebuild, &list[i]);
		else
			victims[left++] = victim_of(rebuild, &list[i]);
	}
	bytes_sort(victims, (size_t)left, sizeof(*victims), compare_depth);
	for (int i = 0; i < left; i++)
		if (victims[i].apart)
			end_quietly(&victims[i]);
		else if (victims[i].rpid > 1)
			kill(victims[i].rpid, SIGKILL);
	return left;
}

static bool was_asked(const struct rebuild *rebuild, const struct name_process *process)
{
	for (size_t i = 0; i < rebuild->nstill; i++)
		if (rebuild->still[i].rpid == process->rpid.n)
			return true;
	return false;
}

/* Lists running processes that have not been asked to freeze, parents first. Returns how many, or -ENOMEM.
 * *newborn: some have no scip yet. */
static int list_running(struct rebuild *rebuild, struct victim **out, bool *newborn)
{
	auto_free struct name_process *list = NULL;
	int n = names_snapshot(rebuild->names, rebuild->options->keeper, &list), kept = 0;

	*newborn = false;
	*out = n < 0 ? NULL : calloc((size_t)n + 1, sizeof(**out));
	if (!*out)
		return err_code(rebuild->err, n < 0 ? n : -ENOMEM, "list the processes");
	for (int i = 0; i < n; i++) {
		if (!replaced_includes(rebuild, &list[i]))
			continue;
		if (list[i].state == NAME_STATE_BORN)
			*newborn = true;
		else if (list[i].state == NAME_STATE_RUNNING && list[i].scip.n &&
			 !was_asked(rebuild, &list[i]))
			(*out)[kept++] = victim_of(rebuild, &list[i]);
	}
	bytes_sort(*out, (size_t)kept, sizeof(**out), compare_depth);
	return kept;
}

/* Waits until the process has left the name table. False: it stays. */
static bool is_leaving(struct rebuild *rebuild, const struct still *still)
{
	uint64_t end = io_now_ns(CLOCK_MONOTONIC) + LEAVE_MS * 1000000ull;
	const struct timespec pause = {0, LOOK_AGAIN_NS};
	struct name_process now;

	while (names_process_get_real(rebuild->names, still->vpid, (struct rpid){still->rpid}, &now) == 0 &&
	       now.state != NAME_STATE_DEAD) {
		if (io_now_ns(CLOCK_MONOTONIC) > end)
			return false;
		nanosleep(&pause, NULL);
	}
	return true;
}

/* A process that ends now, or cannot be stopped in time, does not stand in the way: the former is dropped
 * from the list, the latter is killed as it is. After any other failure the rollback is refused: nothing has
 * changed yet. */
static int give_up_freeze(struct rebuild *rebuild, struct still *still, const struct err *err)
{
	if (still->sock >= 0)
		close(still->sock);
	still->sock = -1;
	log_info("vpid %d cannot be frozen: %s", still->vpid.n, err->text);
	if (err->code == -ETIMEDOUT || rebuild->ends || rebuild->options->old_end_first)
		return 0;
	if (!is_leaving(rebuild, still))
		return err_set(rebuild->err, err->code, "vpid %d cannot be frozen: %s", still->vpid.n,
			       err->text);
	still->rpid = 0;
	return 0;
}

static void drop_gone(struct rebuild *rebuild)
{
	size_t kept = 0;

	for (size_t i = 0; i < rebuild->nstill; i++)
		if (rebuild->still[i].rpid)
			rebuild->still[kept++] = rebuild->still[i];
	rebuild->nstill = kept;
}

static int ask_to_freeze(struct rebuild *rebuild, const struct victim *victim)
{
	struct still *still = reallocarray(rebuild->still, rebuild->nstill + 1, sizeof(*rebuild->still));
	Pbeam__ScipFreeze request = PBEAM__SCIP_FREEZE__INIT;
	struct err err = ERR_INIT;

	if (!still)
		return err_code(rebuild->err, -ENOMEM, "freeze the processes that will be replaced");
	rebuild->still = still;
	still += rebuild->nstill++;
	*still = (struct still){victim->vpid, victim->rpid, scip_link_connect(victim->scip, &err)};
	request.timeout_ms = FREEZE_MS;
	request.replaced = true;
	if (still->sock < 0 ||
	    scip_link_ask(still->sock, PBEAM__SCIP_REQUEST__SCIP_FREEZE, &request.base, NULL, 0, &err) < 0)
		return give_up_freeze(rebuild, still, &err);
	return 0;
}

/* Freezes the processes of one depth at the same time. (Parents first: a process in vfork can be frozen only
 * when its child has executed.) Returns how many, or -ENOMEM. */
static int freeze_level(struct rebuild *rebuild, const struct victim *victims, int n)
{
	size_t first = rebuild->nstill;
	int asked = 0, r = 0;

	for (; asked < n && victims[asked].depth == victims[0].depth && r == 0; asked++)
		r = ask_to_freeze(rebuild, &victims[asked]);
	for (size_t i = first; i < rebuild->nstill && r == 0; i++) {
		struct still *still = &rebuild->still[i];
		struct err err = ERR_INIT;

		if (still->sock >= 0 &&
		    scip_link_answer(still->sock, &pbeam__scip_frozen__descriptor, NULL, &err) < 0)
			r = give_up_freeze(rebuild, still, &err);
	}
	drop_gone(rebuild);
	return r < 0 ? r : asked;
}

/* A frozen process has no more children. A process that cannot be frozen, in vfork for instance, may notice
 * the end of others. */
int replaced_freeze(struct rebuild *rebuild)
{
	bool again = true;
	int r = rebuild->whole
			? rebuild_ask_keeper(rebuild, PBEAM__KEEPER_REQUEST__KEEPER_REPLACE, NULL, NULL)
			: 0;

	atomic_store(&rebuild->options->signs->condemned, false);
	for (int pass = 0; pass < PASSES && again && r >= 0; pass++) {
		auto_free struct victim *victims = NULL;
		bool newborn = false;
		int n = list_running(rebuild, &victims, &newborn);

		r = n < 0 ? n : 0;
		for (int i = 0; i < n && r >= 0; i += r)
			r = freeze_level(rebuild, victims + i, n - i);
		if (n == 0 && newborn)
			nanosleep(&(struct timespec){0, LOOK_AGAIN_NS}, NULL);
		again = n > 0 || newborn;
	}
	return r < 0 ? r : 0;
}

void replaced_close(struct rebuild *rebuild)
{
	for (size_t i = 0; i < rebuild->nstill; i++)
		if (rebuild->still[i].sock >= 0)
			close(rebuild->still[i].sock);
	free(rebuild->still);
	rebuild->still = NULL;
	rebuild->nstill = 0;
}

/* The connections between these processes will be made again, with the same addresses. */
static void abort_connections(const struct rebuild *rebuild)
{
	auto_free struct rpid *rpids = calloc(rebuild->nstill + 1, sizeof(*rpids));

	for (size_t i = 0; i < rebuild->nstill && rpids; i++)
		rpids[i].n = rebuild->still[i].sock >= 0 ? rebuild->still[i].rpid : 0;
	if (rpids) /* else tcp_restore.c waits for the old sockets to disappear */
		object_abort_connections(rpids, rebuild->nstill);
}

int replaced_kill(struct rebuild *rebuild)
{
	uint64_t end = io_now_ns(CLOCK_MONOTONIC) + CLEAR_MS * 1000000ull;
	int r = 0;

	if (rebuild->above.replaces > 0) /* it may have left the table already */
		r = list_gone(rebuild, rebuild->above.replaces);
	if (r < 0)
		return r;
	atomic_store(&rebuild->options->signs->condemned, true);
	abort_connections(rebuild);
	r = fault_point("restore-condemned", rebuild->err);
	if (r < 0 && !rebuild->committed)
		return r;
	while ((r = kill_all(rebuild)) > 0) {
		const struct timespec pause = {0, LOOK_AGAIN_NS};

		if (io_now_ns(CLOCK_MONOTONIC) > end)
			return err_set(rebuild->err, -ETIMEDOUT,
				       "the processes that will be replaced do not end");
		nanosleep(&pause, NULL);
	}
	replaced_close(rebuild);
	return r;
}
