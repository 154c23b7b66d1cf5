/* Removes processes that have moved, except for the stub that the first one leaves if its parent stays. */
#include <errno.h>

#include "base/log.h"
#include "scip/ends/external.h"
#include "scip/migrate/migrate.h"

enum { ANSWER_MS = 30000 };

int migrate_withdraw(struct group *group, bool stub, struct err *err)
{
	struct member *root = group->n && stub && !group->v[0]->zombie ? group->v[0] : NULL;
	struct err why = ERR_INIT;
	int r, cancel = group->cancel;

	group->cancel = -1; /* the migration is committed */
	if (root)
		group_abort_connections(group); /* the first process's too: it may come back to these ports */
	if (root)
		root->frozen = false; /* so that group_terminate() skips it */
	r = group_terminate(group, err);
	if (root) {
		group_ask(root, PBEAM__SCIP_REQUEST__SCIP_STUB, NULL, NULL, 0);
		if (group_gather(group, &pbeam__scip_done__descriptor, ANSWER_MS, &why) < 0 ||
		    root->problem.code)
			log_error("migrate: vpid %d leaves no stub: %s", root->vpid.n,
				  root->problem.code ? root->problem.text : why.text);
	}
	group->cancel = cancel;
	return r;
}
