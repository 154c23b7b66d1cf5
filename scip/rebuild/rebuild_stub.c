/*
 * A process returns to the host where its stub is. The stub, frozen and held, becomes its husk: the stub
 * has the right number, parent, session and group. If the restore fails, its scip makes it a stub again
 * when the coordinator's connection ends.
 */
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "scip/rebuild/rebuild_parts.h"

enum { FREEZE_MS = 10000 };

bool rebuild_stub_find(const struct rebuild *rebuild, struct name_process *out)
{
	return names_process_get(rebuild->names, (struct vpid){rebuild->manifest->processes[0]->vpid}, out) ==
		       0 &&
	       out->state == NAME_STATE_STUB;
}

int rebuild_stub_take(struct rebuild *rebuild, int node)
{
	struct made *made = &rebuild->made[node];
	Pbeam__ScipFreeze freeze = PBEAM__SCIP_FREEZE__INIT;
	struct name_process process;
	int r;

	if (node != 0 || !rebuild_stub_find(rebuild, &process))
		return 0;
	r = made->sock = scip_link_connect(process.scip, rebuild->err);
	freeze.timeout_ms = FREEZE_MS;
	if (r >= 0)
		r = scip_link_call(made->sock, PBEAM__SCIP_REQUEST__SCIP_FREEZE, &freeze.base,
				   &pbeam__scip_frozen__descriptor, NULL, rebuild->err);
	if (r >= 0)
		r = scip_link_call(made->sock, PBEAM__SCIP_REQUEST__SCIP_HOLD, NULL,
				   &pbeam__scip_done__descriptor, NULL, rebuild->err);
	if (r < 0)
		return r;
	made->stub = true;
	made->rpid = process.rpid.n;
	return 1;
}

bool rebuild_stub_is_in_session(const struct rebuild *rebuild, int node)
{
	const struct made *made = &rebuild->made[node];

	return made->stub && getsid(made->rpid) == made->rpid;
}

bool rebuild_stub_is_in_group(const struct rebuild *rebuild, int node, pid_t group)
{
	const struct made *made = &rebuild->made[node];

	return made->stub && getpgid(made->rpid) == (group ? group : made->rpid);
}
