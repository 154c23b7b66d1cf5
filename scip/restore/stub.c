/*
 * A process that comes back to the host where its stub is: the stub, frozen and held, is its husk. It has its
 * number and its parent, and is in its session and group, already. If the restore fails it is a stub again:
 * its scip sees to that when our connection ends.
 */
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "scip/restore/coordinate.h"

enum { FREEZE_MS = 10000 };

bool stub_find(const struct coordinate *coordinate, struct name_process *out)
{
	return names_process_get(coordinate->names, (struct vpid){coordinate->manifest->processes[0]->vpid},
				 out) == 0 &&
	       out->state == NAME_STATE_STUB;
}

int stub_take(struct coordinate *coordinate, int node)
{
	struct made *made = &coordinate->made[node];
	Pbeam__ScipFreeze freeze = PBEAM__SCIP_FREEZE__INIT;
	struct name_process process;
	int r;

	if (node != 0 || !stub_find(coordinate, &process))
		return 0;
	r = made->sock = link_connect(process.scip, coordinate->err);
	freeze.timeout_ms = FREEZE_MS;
	if (r >= 0)
		r = link_call(made->sock, PBEAM__SCIP_REQUEST__SCIP_FREEZE, &freeze.base,
			      &pbeam__scip_frozen__descriptor, NULL, coordinate->err);
	if (r >= 0)
		r = link_call(made->sock, PBEAM__SCIP_REQUEST__SCIP_HOLD, NULL, &pbeam__scip_done__descriptor,
			      NULL, coordinate->err);
	if (r < 0)
		return r;
	made->stub = true;
	made->rpid = process.rpid.n;
	return 1;
}

bool stub_is_in_session(const struct coordinate *coordinate, int node)
{
	const struct made *made = &coordinate->made[node];

	return made->stub && getsid(made->rpid) == made->rpid;
}

bool stub_is_in_group(const struct coordinate *coordinate, int node, pid_t group)
{
	const struct made *made = &coordinate->made[node];

	return made->stub && getpgid(made->rpid) == (group ? group : made->rpid);
}
