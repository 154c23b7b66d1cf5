/* Puts processes behind the restored filter: they must translate names from now on, because other processes
 * of their job have diverged. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "scip/rebuild/rebuild_parts.h"

enum { FREEZE_OTHERS_MS = 3000, PASSES = 3 };

int rebuild_diverge_hold(const struct name_process *process, uint32_t timeout_ms, struct err *err)
{
	auto_close int sock = scip_link_freeze(process, timeout_ms, err);
	int r = sock;

	if (sock >= 0)
		r = scip_link_call(sock, PBEAM__SCIP_REQUEST__SCIP_DIVERGE, NULL,
				   &pbeam__scip_done__descriptor, NULL, err);
	return r < 0 ? r : steal_fd(&sock);
}

/* One pass over all of them. Returns how many needed it. */
static int diverge_once(struct names *names, struct rpid keeper, rebuild_skip_fn skip, void *arg)
{
	auto_free struct name_process *list = NULL;
	int n = names_snapshot(names, keeper, &list), found = 0;

	for (int i = 0; i < n; i++) {
		struct err err = ERR_INIT;
		int sock;

		if (list[i].diverged || list[i].state != NAME_STATE_RUNNING || (skip && skip(arg, &list[i])))
			continue;
		sock = rebuild_diverge_hold(&list[i], FREEZE_OTHERS_MS, &err);
		if (sock >= 0)
			close(sock);
		else
			log_info("vpid %d does not translate names: %s", list[i].vpid.n, err.text);
		found++;
	}
	return n < 0 ? n : found;
}

int rebuild_diverge(struct names *names, struct rpid keeper, rebuild_skip_fn skip, void *arg)
{
	int found = 1;

	for (int i = 0; i < PASSES && found > 0; i++)
		found = diverge_once(names, keeper, skip, arg);
	return found < 0 ? found : 0;
}
