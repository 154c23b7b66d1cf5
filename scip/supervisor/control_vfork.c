/*
 * A process to be stopped, one thread of which waits in vfork.
 *
 * The kernel does not stop that thread before its child has executed a program or ended
 * (wait_for_vfork_done() in kernel/fork.c is killable, not interruptible). Normally this takes less than a
 * millisecond. A child that sleeps, or a debugger holds, can take for ever, and all processes of the tree
 * that have been stopped wait with it. So the child is looked at: if it has slept from one look to the next
 * without running in between, or has not got there after VFORK_MOST_NS, the stop is refused.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "scip/supervisor/control_request.h"
#include "scip/tracee/procfs.h"

enum { STATUS_MAX = 65536 };
#define VFORK_LOOK_NS 200000000ull
#define VFORK_MOST_NS 5000000000ull

/* Reads how often the process has given up the processor. False if it has ended. */
static bool vfork_read_switches(pid_t pid, uint64_t *out)
{
	auto_free char *text = NULL;
	const char *voluntary, *forced;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	if (io_slurp(AT_FDCWD, path, STATUS_MAX, &text, NULL) < 0)
		return false;
	voluntary = procfs_field(text, "voluntary_ctxt_switches");
	forced = procfs_field(text, "nonvoluntary_ctxt_switches");
	*out = (voluntary ? strtoull(voluntary, NULL, 10) : 0) + (forced ? strtoull(forced, NULL, 10) : 0);
	return true;
}

/* True if the child has slept, or been stopped by a signal, since the last look. A thread of the same process
 * is held by the freeze itself. */
static bool vfork_has_slept(struct control_vfork *vfork, bool thread)
{
	uint64_t before = vfork->switches;
	struct procfs_stat stat;

	if (!vfork_read_switches(vfork->child, &vfork->switches) ||
	    procfs_stat_read(vfork->child, 0, &stat, NULL) < 0)
		return false;
	return vfork->switches == before &&
	       (stat.state == 'S' || stat.state == 'T' || (thread && stat.state == 't'));
}

bool control_vfork_blocks(struct control_vfork *vfork, const struct process *process, struct err *err)
{
	uint64_t now = io_now_ns(CLOCK_MONOTONIC);
	bool first = vfork->child != process->vfork_child;
	bool thread = process_find_tracee(process, process->vfork_child);
	int32_t child;

	if (!process->vfork_pending || !process->vfork_child) {
		*vfork = (struct control_vfork){0};
		return false;
	}
	if (first)
		*vfork = (struct control_vfork){.child = process->vfork_child, .began_ns = now};
	else if (now < vfork->look_ns)
		return false;
	vfork->look_ns = now + VFORK_LOOK_NS;
	if ((!vfork_has_slept(vfork, thread) || first) && now - vfork->began_ns < VFORK_MOST_NS)
		return false;
	child = names_virtual(process->names, (struct rpid){vfork->child}).n;
	err_set(err, -ETIMEDOUT,
		thread ? "vpid %d cannot be stopped: a thread waits in vfork for thread %d, which has not "
			 "ended; try "
			 "again when it has, or end the process (pbeamctl kill %d)"
		       : "vpid %d cannot be stopped: it waits in vfork for its child, vpid %d, which has "
			 "neither "
			 "executed a program nor ended; try again when it has, or end it (pbeamctl kill %d)",
		process->vpid.n, child, thread ? process->vpid.n : child);
	return true;
}

uint64_t control_vfork_deadline(const struct control_vfork *vfork)
{
	return vfork->child ? vfork->look_ns : 0;
}
