/*
 * The outcome of a part of a cut whose coordinator was killed after its vote: rebuild_commit.c.
 *
 * Old and new processes stand still, without a connection to any coordinator. The old ones have their numbers
 * set aside; that, or that there is no image, tells them apart. Each step leaves what the next call needs.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "image/file_undo.h"
#include "namespace/record.h"
#include "scip/rebuild/rebuild_parts.h"

enum { FREEZE_MS = 10000 };

/* Lists the processes that stand still. Returns how many. */
static size_t list_still(struct names *names, struct rpid keeper, struct name_process **out)
{
	int n = names_snapshot(names, keeper, out);
	size_t kept = 0;

	for (int i = 0; i < n; i++)
		if ((*out)[i].state == NAME_STATE_FROZEN && (*out)[i].scip.n)
			(*out)[kept++] = (*out)[i];
	return kept;
}

static void settle_tell(const struct name_process *process, uint32_t type, bool frozen)
{
	struct err err = ERR_INIT;
	auto_close int sock =
		frozen ? scip_link_freeze(process, FREEZE_MS, &err) : scip_link_connect(process->scip, &err);

	if (sock < 0 || scip_link_call(sock, type, NULL, &pbeam__scip_done__descriptor, NULL, &err) < 0)
		log_warn("restore: vpid %d: %s", process->vpid.n, err.text);
}

/* Finds the new process in the place of an entry of a snapshot, which has the old one of two processes with
 * the same number. */
static bool find_new(struct names *names, struct name_process *process)
{
	if (process->aside && names_process_get(names, process->vpid, process) < 0)
		return false;
	return !process->aside && process->state == NAME_STATE_FROZEN && process->scip.n;
}

/* Of a part that has no image all are old. `voted` false: so are those that are still thawing, which ignore
 * the request. */
static void settle_kill_new(struct names *names, const struct rebuild_settling *settling, bool voted)
{
	auto_free struct name_process *list = NULL;
	int n = settling->ends ? 0 : names_snapshot(names, settling->keeper, &list);
	auto_free struct pollfd *ends = calloc((size_t)(n < 0 ? 0 : n) + 1, sizeof(*ends));
	size_t nends = 0;

	for (int i = 0; i < n; i++) {
		if (!find_new(names, &list[i]))
			continue;
		if (ends && voted)
			ends[nends++] = (struct pollfd){.fd = (int)syscall(SYS_pidfd_open, list[i].rpid.n, 0),
							.events = POLLIN};
		settle_tell(&list[i], PBEAM__SCIP_REQUEST__SCIP_GIVE_UP, false);
	}
	rebuild_beside_await_ends(ends, nends);
}

static void settle_thaw_old(struct names *names, const struct rebuild_settling *settling)
{
	auto_free struct name_process *list = NULL;
	size_t n = list_still(names, settling->keeper, &list);

	for (size_t i = 0; i < n; i++)
		settle_tell(&list[i], PBEAM__SCIP_REQUEST__SCIP_THAW, true);
}

static void settle_run_new(struct names *names, const struct rebuild_settling *settling)
{
	auto_free struct name_process *list = NULL;
	size_t n = list_still(names, settling->keeper, &list);

	for (size_t i = 0; i < n; i++)
		settle_tell(&list[i], PBEAM__SCIP_REQUEST__SCIP_RESTORE_RUN, false);
}

/* In the old order there are none. */
static void settle_kill_old(struct names *names, const struct rebuild_settling *settling)
{
	const struct rebuild_options options = {.path = "the part",
						.part = true,
						.keeper = settling->keeper,
						.keeper_socket = settling->keeper_socket,
						.signs = settling->signs};
	struct err err = ERR_INIT;
	struct rebuild rebuild;

	rebuild_init(&rebuild, names, NULL, &options, &err);
	rebuild.ends = settling->ends;
	rebuild.beside = !settling->ends;
	rebuild.committed = true;
	if (!settling->ends &&
	    rebuild_ask_keeper(&rebuild, PBEAM__KEEPER_REQUEST__KEEPER_REPLACED, NULL, NULL) < 0)
		log_error("restore: %s", err.text);
	err_clear(&err);
	if (replaced_kill(&rebuild) < 0)
		log_error("restore: %s", err.text);
	rebuild_destroy(&rebuild);
}

void rebuild_settle(struct names *names, const struct rebuild_settling *settling, bool committed)
{
	const bool voted = atomic_load(&settling->signs->voted);

	if (committed)
		settle_kill_old(names, settling);
	else
		settle_kill_new(names, settling, voted);
	names_replace_end(names, settling->keeper, committed);
	file_undo_decide(settling->keeper.n, committed);
	if (committed && !settling->ends) {
		record_peer_forget(settling->keeper);
		settle_run_new(names, settling);
	}
	if (!committed && voted)
		settle_thaw_old(names, settling);
}
