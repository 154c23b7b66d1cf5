/*
 * Refuses processes that share more with their parent than fork leaves shared, and processes in namespaces of
 * their own. An ordinary user cannot restore either in general.
 */
#include "scip/capture/group.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/io.h"
#include "scip/tracee/procfs.h"

static const struct {
	int type;
	const char *what;
} SHARED[] = {
	{KCMP_VM, "memory (CLONE_VM or vfork)"},
	{KCMP_FILES, "descriptor table (CLONE_FILES)"},
	{KCMP_FS, "working directory and umask (CLONE_FS)"},
};

static const char *const NAMESPACES[] = {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"};
enum { NNAMESPACES = sizeof(NAMESPACES) / sizeof(NAMESPACES[0]) };

/* The links of our own; "" where the kernel has none. */
struct own_namespaces {
	char links[NNAMESPACES][64];
};

static void read_own_namespaces(struct own_namespaces *own)
{
	for (size_t i = 0; i < NNAMESPACES; i++) {
		char path[64];

		snprintf(path, sizeof(path), "/proc/self/ns/%s", NAMESPACES[i]);
		if (io_readlink(AT_FDCWD, path, own->links[i], sizeof(own->links[i])) < 0)
			own->links[i][0] = '\0';
	}
}

static void read_comm(struct rpid rpid, char comm[64])
{
	struct procfs_stat stat;

	snprintf(comm, 64, "?");
	if (procfs_stat_read(rpid.n, 0, &stat, NULL) == 0)
		snprintf(comm, 64, "%s", stat.comm);
}

static struct member *find_parent_member(const struct group *group, const struct member *member)
{
	struct procfs_stat stat;

	if (procfs_stat_read(member->rpid.n, 0, &stat, NULL) < 0)
		return NULL;
	return group_find(group, (struct rpid){stat.ppid});
}

static int check_sharing(const struct group *group, const struct member *member, struct err *err)
{
	const struct member *parent = find_parent_member(group, member);
	char comm[64];

	if (!parent || parent->zombie)
		return 0;
	for (size_t i = 0; i < sizeof(SHARED) / sizeof(SHARED[0]); i++) {
		if (syscall(SYS_kcmp, parent->rpid.n, member->rpid.n, SHARED[i].type, 0, 0) != 0)
			continue;
		read_comm(member->rpid, comm);
		return err_set(err, -ENOTSUP,
			       "vpid %d (%s): it shares its %s with its parent, vpid %d, without being a "
			       "thread of it; "
			       "let it execute a program or end first",
			       member->vpid.n, comm, SHARED[i].what, parent->vpid.n);
	}
	return 0;
}

static int check_namespaces(const struct own_namespaces *own, const struct member *member, struct err *err)
{
	for (size_t i = 0; i < NNAMESPACES; i++) {
		char path[64], its[64], comm[64];

		snprintf(path, sizeof(path), "/proc/%d/ns/%s", member->rpid.n, NAMESPACES[i]);
		if (io_readlink(AT_FDCWD, path, its, sizeof(its)) < 0)
			continue; /* a kernel without it, or a process that has just ended */
		if (!own->links[i][0] || !strcmp(its, own->links[i]))
			continue;
		read_comm(member->rpid, comm);
		return err_set(err, -ENOTSUP,
			       "vpid %d (%s): it is in a %s namespace of its own; run it without its "
			       "sandbox, or run scip "
			       "itself inside that namespace",
			       member->vpid.n, comm, NAMESPACES[i]);
	}
	return 0;
}

int group_check_isolation(const struct group *group, struct err *err)
{
	struct own_namespaces own;

	read_own_namespaces(&own);
	for (size_t i = 0; i < group->n; i++) {
		const struct member *member = group->v[i];
		int r = member->zombie ? 0 : check_namespaces(&own, member, err);

		if (r >= 0 && !member->zombie)
			r = check_sharing(group, member, err);
		if (r < 0)
			return r;
	}
	return 0;
}
