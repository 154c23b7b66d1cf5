#include "scip/cut/return_settle.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "scip/ends/migration_record.h"
#include "scip/rebuild/rebuild.h"

struct marking {
	struct names *names;
	struct rpid keeper;
};

static void mark_part_undecided(void *arg, bool undecided)
{
	const struct marking *marking = arg;
	auto_free struct name_process *list = NULL;
	int n = names_snapshot(marking->names, marking->keeper, &list);

	for (int i = 0; i < n; i++)
		if (list[i].state == NAME_STATE_FROZEN && !list[i].aside)
			names_process_mark(marking->names, list[i].vpid, undecided);
}

/* No scip is connected to before the outcome is known: if this process is killed too, nothing has changed. */
bool return_settle(struct names *names, const struct return_settling *settling)
{
	const struct rebuild_settling part = {.keeper = settling->keeper,
					      .keeper_socket = settling->keeper_socket,
					      .signs = settling->signs,
					      .ends = settling->ends};
	struct marking marking = {names, settling->keeper};
	struct record record;
	bool committed;

	record_init(&record, settling->uuid);
	record.undecided = mark_part_undecided;
	record.undecided_arg = &marking;
	committed = settling->known || record_abort(&record);
	record_close(&record);
	log_info("cut: the coordinator of a part was killed; the rollback is %s",
		 committed ? "committed" : "given up");
	rebuild_settle(names, &part, committed);
	return committed;
}
