/*
 * The end of the processes that a rollback replaces.
 *
 * Of a whole job: all of it. Of a part: the process and its descendants, and who else has a number of the
 * image: one that was a descendant when that was made. Stopped first, so that none sees another's end and
 * acts upon it: removes its files, say. In a rollback of several parts they are frozen, all of them on all
 * hosts, before the first one is killed: until then it can be given up.
 *
 * A process whose number had diverged leaves its entry, DEAD, for its parent's wait. The parent of a part
 * lives and is frozen, so nobody waits: names and entries are given up here.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "scip/object/object.h"
#include "scip/restore/coordinate.h"
#include "scip/restore/keeper_protocol.h"
#include "scip/tracee/procfs.h"

enum { CLEAR_MS = 10000, LOOK_AGAIN_NS = 500000, JOB_MAX = 65536, FREEZE_MS = 3000, PASSES = 8 };

/* How far below `root` the process is, or below the job's first one with `root` 0; -1 if it does not descend
 * from it. */
static int depth_below(struct coordinate *coordinate, struct name_process process, struct vpid root)
{
	for (int depth = 0; depth < JOB_MAX; depth++) {
		if (root.n > 0 && process.vpid.n == root.n)
			return depth;
		if (process.parent.n <= 0 ||
		    names_process_get(coordinate->names, process.parent, &process) < 0)
			return root.n > 0 ? -1 : depth;
	}
	return -1;
}

static bool is_of_image(const struct coordinate *coordinate, struct vpid vpid)
{
	for (size_t i = 0; i < coordinate->manifest->n_processes; i++)
		if (coordinate->manifest->processes[i]->vpid == vpid.n)
			return true;
	return false;
}

bool clear_is_victim(struct coordinate *coordinate, const struct name_process *process)
{
	return coordinate->whole ||
	       depth_below(coordinate, *process, (struct vpid){coordinate->manifest->processes[0]->vpid}) >=
		       0 ||
	       is_of_image(coordinate, process->vpid);
}

struct victim {
	pid_t rpid;
	int depth;
	bool stub;	 /* what it is told reaches its process */
	struct rpid kin; /* of a stub whose process is in another part of the cut: its scip */
};

static int compare_depth(const void *a, const void *b)
{
	return ((const struct victim *)a)->depth - ((const struct victim *)b)->depth;
}

/* As one of those that are gone. */
static int remember(struct coordinate *coordinate, pid_t rpid)
{
	struct above *above = &coordinate->above;
	int32_t *more;

	for (size_t i = 0; i < above->ngone; i++)
		if (above->gone[i] == rpid)
			return 0;
	more = reallocarray(above->gone, above->ngone + 1, sizeof(*more));
	if (!more)
		return err_code(coordinate->err, -ENOMEM, "list of processes");
	above->gone = more;
	above->gone[above->ngone++] = rpid;
	return 0;
}

/* Its scip was killed, and the kernel is still at killing it. */
static bool is_dying(const struct name_process *process)
{
	struct procfs_stat stat;

	return procfs_stat_read(process->rpid.n, 0, &stat, NULL) == 0 && stat.state != 'Z' &&
	       stat.state != 'X';
}

/* Nobody waits for it while its parent is frozen. */
static void give_up(struct coordinate *coordinate, const struct name_process *process)
{
	names_number_release(coordinate->names, process->vpid, process->rpid);
	names_process_remove(coordinate->names, process->vpid, process->rpid);
}

static bool is_saved_stub(const struct coordinate *coordinate, struct vpid vpid)
{
	for (size_t i = 0; i < coordinate->manifest->n_processes; i++)
		if (coordinate->manifest->processes[i]->vpid == vpid.n)
			return coordinate->manifest->processes[i]->state == PBEAM__PROCESS__STATE__STUB;
	return false;
}

static struct victim victim_of(struct coordinate *coordinate, const struct name_process *process)
{
	struct victim victim = {.rpid = process->rpid.n,
				.depth = depth_below(coordinate, *process, (struct vpid){0}),
				.stub = process->state == NAME_STATE_STUB};

	/* The other part replaces that one itself. */
	if (victim.stub && coordinate->options->step && is_saved_stub(coordinate, process->vpid))
		victim.kin = process->scip;
	return victim;
}

/* Its process on the other host does not hear of it. */
static void end_quietly(const struct victim *victim)
{
	auto_close int sock = link_connect(victim->kin, NULL);

	if (sock < 0 || link_call(sock, PBEAM__SCIP_REQUEST__SCIP_TERMINATE, NULL,
				  &pbeam__scip_done__descriptor, NULL, NULL) < 0)
		log_debug("clear: the stub %d has ended already", victim->rpid);
}

/* Sends to all that are left, parents first. How many there are, zombies of a whole job included. */
static int signal_all(struct coordinate *coordinate, int sig)
{
	struct rpid keeper = coordinate->options->keeper;
	int room = names_process_list(coordinate->names, keeper, NULL, 0) + 64, n, left = 0;
	auto_free struct name_process *list = calloc((size_t)room, sizeof(*list));
	auto_free struct victim *victims = calloc((size_t)room, sizeof(*victims));

	if (!list || !victims)
		return err_code(coordinate->err, -ENOMEM, "list of processes");
	n = names_process_list(coordinate->names, keeper, list, room);
	for (int i = 0; i < n && i < room; i++) {
		if (!clear_is_victim(coordinate, &list[i]))
			continue;
		if (!coordinate->whole && remember(coordinate, list[i].rpid.n) < 0)
			return -ENOMEM;
		if (!coordinate->whole && list[i].state == NAME_STATE_DEAD && !is_dying(&list[i]))
			give_up(coordinate, &list[i]);
		else
			victims[left++] = victim_of(coordinate, &list[i]);
	}
	qsort(victims, (size_t)left, sizeof(*victims), compare_depth);
	for (int i = 0; i < left; i++)
		if (victims[i].kin.n && sig == SIGKILL)
			end_quietly(&victims[i]);
		else if (victims[i].rpid > 1 && (!victims[i].stub || sig == SIGKILL))
			kill(victims[i].rpid, sig);
	return left;
}

/* Those that run and are not frozen yet, those first that were born first. How many, or -ENOMEM. */
static int list_running(struct coordinate *coordinate, struct name_process **out)
{
	struct rpid keeper = coordinate->options->keeper;
	int room = names_process_list(coordinate->names, keeper, NULL, 0) + 64, n, kept = 0;

	*out = calloc((size_t)room, sizeof(**out));
	if (!*out)
		return err_code(coordinate->err, -ENOMEM, "list of processes");
	n = names_process_list(coordinate->names, keeper, *out, room);
	for (int i = 0; i < n && i < room; i++)
		if ((*out)[i].state == NAME_STATE_RUNNING && (*out)[i].scip.n &&
		    clear_is_victim(coordinate, &(*out)[i]))
			(*out)[kept++] = (*out)[i];
	return kept;
}

static int freeze_one(struct coordinate *coordinate, const struct name_process *process)
{
	struct err err = ERR_INIT;
	int *more, sock = link_freeze(process, FREEZE_MS, &err);

	if (sock < 0) { /* in vfork, say: it may see the end of others */
		log_info("vpid %d does not stand still: %s", process->vpid.n, err.text);
		return 0;
	}
	more = reallocarray(coordinate->still, coordinate->nstill + 1, sizeof(*more));
	if (!more) {
		close(sock);
		return err_code(coordinate->err, -ENOMEM, "stop the processes that are to be replaced");
	}
	coordinate->still = more;
	coordinate->still[coordinate->nstill++] = sock;
	return 1;
}

/* By their scips, not by SIGSTOP: nobody sees it, and one that the user has stopped stays so. Who is frozen
 * has no more children. */
static int freeze_all(struct coordinate *coordinate)
{
	int r = 1;

	for (int pass = 0; pass < PASSES && r > 0; pass++) {
		auto_free struct name_process *list = NULL;
		int n = list_running(coordinate, &list);

		r = n < 0 ? n : 0;
		for (int i = 0; i < n && r >= 0; i++) {
			int one = freeze_one(coordinate, &list[i]);

			r = one < 0 ? one : r + one;
		}
	}
	return r < 0 ? r : 0;
}

int clear_stop(struct coordinate *coordinate)
{
	int r = coordinate->options->replace.n > 0 ? freeze_all(coordinate) : 0;

	return r < 0 ? r : coordinate->options->step(coordinate->options->held_arg, coordinate->err);
}

void clear_close(struct coordinate *coordinate)
{
	for (size_t i = 0; i < coordinate->nstill; i++)
		close(coordinate->still[i]);
	free(coordinate->still);
	coordinate->still = NULL;
	coordinate->nstill = 0;
}

/* What they have connected with each other is to be connected anew, between the same addresses. */
static void abort_connections(struct coordinate *coordinate)
{
	struct rpid keeper = coordinate->options->keeper;
	int room = names_process_list(coordinate->names, keeper, NULL, 0) + 64, n, kept = 0;
	auto_free struct name_process *list = calloc((size_t)room, sizeof(*list));
	auto_free struct rpid *rpids = calloc((size_t)room, sizeof(*rpids));

	if (!list || !rpids)
		return; /* tcp_restore.c waits for what they leave behind */
	n = names_process_list(coordinate->names, keeper, list, room);
	for (int i = 0; i < n && i < room; i++)
		if (list[i].state == NAME_STATE_RUNNING && clear_is_victim(coordinate, &list[i]))
			rpids[kept++] = list[i].rpid;
	object_abort_connections(rpids, (size_t)kept);
}

int clear_all(struct coordinate *coordinate)
{
	const struct keeper_request request = {.type = KEEPER_REPLACE};
	uint64_t end = io_now_ns(CLOCK_MONOTONIC) + CLEAR_MS * 1000000ull;
	pid_t none;
	int r = coordinate->whole ? tree_ask_keeper(coordinate, &request, &none) : 0;

	if (r == 0 && coordinate->above.replaces > 0) /* it may have left the table by now */
		r = remember(coordinate, coordinate->above.replaces);
	if (r < 0)
		return r;
	r = signal_all(coordinate, SIGSTOP);
	if (r > 0)
		abort_connections(coordinate);
	while (r > 0 && (r = signal_all(coordinate, SIGKILL)) > 0) {
		const struct timespec pause = {0, LOOK_AGAIN_NS};

		if (io_now_ns(CLOCK_MONOTONIC) > end)
			return err_set(coordinate->err, -ETIMEDOUT,
				       "the processes to be replaced do not end");
		nanosleep(&pause, NULL);
	}
	return r;
}
