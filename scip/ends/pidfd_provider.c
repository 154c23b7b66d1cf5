/*
 * Refuses pidfds of processes that do not migrate with the holder. On the target no process would end when
 * theirs does or take its signals. A pidfd of a process that also migrates, or whose stub does, is
 * restored as usual.
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "scip/ends/external.h"

/* `pid` may be a thread (PIDFD_THREAD). */
static bool group_has_process(const struct group *group, pid_t pid)
{
	char path[64];

	for (size_t i = 0; i < group->n; i++) {
		snprintf(path, sizeof(path), "/proc/%d/task/%d", group->v[i]->rpid.n, pid);
		if (access(path, F_OK) == 0)
			return true;
	}
	return false;
}

static int pidfd_refuse(struct migrate_source *source, void **state, struct object_dump *dump,
			const struct object_source *of, Pbeam__Object *out, struct err *err)
{
	struct rpid rpid = {object_pidfd_process(of)};

	if (!rpid.n || group_has_process(source->group, rpid.n))
		return 0;
	return err_set(err, -ENOTSUP,
		       "a pidfd of vpid %d, which does not migrate with it; close it first, or migrate both",
		       names_virtual(source->names, rpid).n);
}

const struct external_provider pidfd_provider = {.name = "pidfd", .dump = pidfd_refuse};
