/* Attributes of the whole process: directories, umask, personality, credentials, limits and the prctl
 * settings. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "scip/fill/fill_batch.h"

enum { ARCH_REQ_XCOMP_PERM_CALL = 0x1023, XFEATURE_TILEDATA = 18, SMALL_FILE = 64, STATUS_MAX = 1 << 16 };

/* Appends a call whose first argument is a path. */
static int with_path(struct fill *fill, int64_t nr, const ProtobufCBinaryData *path)
{
	uint64_t where;
	char *text;
	int r = fill_reserve(fill, 1, path->len + 1);

	if (r == 0)
		r = fill_data(fill, NULL, path->len + 1, &where);
	if (r < 0)
		return r;
	text = batch_local(fill->batch, (struct taddr){where});
	bytes_copy(text, path->data, path->len);
	text[path->len] = 0;
	return fill_do(fill, nr, remote_args(where));
}

static int fill_directories(struct fill *fill)
{
	const Pbeam__Process *saved = fill->saved;
	bool other_root = saved->root.len > 1;
	int r = 0;

	if (saved->cwd.len && !other_root)
		r = with_path(fill, SYS_chdir, &saved->cwd);
	if (r == 0 && other_root)
		r = with_path(fill, SYS_chroot, &saved->root);
	if (r == 0 && saved->cwd.len && other_root)
		r = with_path(fill, SYS_chdir, &saved->cwd);
	if (r == 0)
		r = fill_flush(fill);
	if (r < 0)
		return err_wrap(fill->err, r, "working directory %.*s", (int)saved->cwd.len,
				(const char *)saved->cwd.data);
	return 0;
}

static bool same_capabilities(const Pbeam__Credentials *want, const char *status)
{
	static const char *const names[] = {"CapInh", "CapPrm", "CapEff"};

	for (size_t i = 0; i < 3 && i < want->n_caps; i++) {
		const char *text = procfs_field(status, names[i]);

		if (text && strtoull(text, NULL, 16) != want->caps[i])
			return false;
	}
	return true;
}

static bool same_ids(const Pbeam__Credentials *want, const char *status)
{
	const char *uids = procfs_field(status, "Uid"), *gids = procfs_field(status, "Gid");
	const char *groups = procfs_field(status, "Groups");
	unsigned u[4], g[4];

	if (!uids || !gids || !groups || sscanf(uids, "%u %u %u %u", &u[0], &u[1], &u[2], &u[3]) != 4 ||
	    sscanf(gids, "%u %u %u %u", &g[0], &g[1], &g[2], &g[3]) != 4)
		return false;
	if (u[0] != want->ruid || u[1] != want->euid || u[2] != want->suid || u[3] != want->fsuid ||
	    g[0] != want->rgid || g[1] != want->egid || g[2] != want->sgid || g[3] != want->fsgid)
		return false;
	for (size_t i = 0; i < want->n_groups; i++) {
		char *end;

		if (strtoul(groups, &end, 10) != want->groups[i] || end == groups)
			return false;
		groups = end;
	}
	return strspn(groups, " \t") == strcspn(groups, "\n");
}

static int change_ids(struct fill *fill, const Pbeam__Credentials *want)
{
	uint64_t groups;
	int r = fill_reserve(fill, 1, want->n_groups * sizeof(uint32_t));

	if (r == 0)
		r = fill_data(fill, want->groups, want->n_groups * sizeof(uint32_t), &groups);
	if (r == 0)
		r = fill_do(fill, SYS_setgroups, remote_args(want->n_groups, groups));
	if (r == 0)
		r = fill_do(fill, SYS_setresgid, remote_args(want->rgid, want->egid, want->sgid));
	if (r == 0)
		r = fill_do(fill, SYS_setresuid, remote_args(want->ruid, want->euid, want->suid));
	if (r == 0 && want->fsgid != want->egid)
		r = fill_do(fill, SYS_setfsgid, remote_args(want->fsgid));
	if (r == 0 && want->fsuid != want->euid)
		r = fill_do(fill, SYS_setfsuid, remote_args(want->fsuid));
	return r;
}

static int change_capabilities(struct fill *fill, const Pbeam__Credentials *want)
{
	struct {
		struct __user_cap_header_struct header;
		struct __user_cap_data_struct data[2];
	} caps = {.header = {.version = _LINUX_CAPABILITY_VERSION_3}};
	uint64_t where;
	int r;

	for (unsigned half = 0; half < 2; half++) {
		caps.data[half].inheritable = (uint32_t)(want->caps[0] >> (32 * half));
		caps.data[half].permitted = (uint32_t)(want->caps[1] >> (32 * half));
		caps.data[half].effective = (uint32_t)(want->caps[2] >> (32 * half));
	}
	r = fill_reserve(fill, 1, sizeof(caps));
	if (r == 0)
		r = fill_data(fill, &caps, sizeof(caps), &where);
	if (r < 0)
		return r;
	return fill_do(fill, SYS_capset, remote_args(where, where + sizeof(caps.header)));
}

/* Credentials that already match are not set, so that an ordinary user can restore what the same user
 * saved. */
static int set_credentials(struct fill *fill)
{
	const Pbeam__Credentials *want = fill->saved->creds;
	auto_free char *status = NULL;
	char path[64];
	int r;

	if (!want)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/status", fill->process->pid);
	r = io_slurp(AT_FDCWD, path, STATUS_MAX, &status, NULL);
	if (r < 0)
		return err_code(fill->err, r, "read %s", path);
	if (!same_ids(want, status))
		r = change_ids(fill, want);
	if (r == 0 && want->n_caps >= 3 && !same_capabilities(want, status))
		r = change_capabilities(fill, want);
	if (r == 0)
		r = fill_flush(fill);
	return r < 0 ? err_wrap(fill->err, r, "credentials (uid %u, gid %u)", want->euid, want->egid) : 0;
}

/* Writes a small file of /proc. The kernel may refuse an unprivileged user; the process then keeps its
 * present value. */
static void write_proc(pid_t pid, const char *file, long value, int base)
{
	char path[64], now[SMALL_FILE];
	auto_close int fd = -1;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return;
	n = read(fd, now, sizeof(now) - 1);
	now[n > 0 ? n : 0] = 0;
	if (n > 0 && strtol(now, NULL, base) == value)
		return;
	n = snprintf(now, sizeof(now), base == 16 ? "0x%lx" : "%ld", value);
	if (pwrite(fd, now, (size_t)n, 0) < 0)
		log_warn("cannot set %s, left unchanged: %s", path, strerror(errno));
}

int fill_attributes(struct fill *fill)
{
	const Pbeam__Process *saved = fill->saved;
	int r = fill_directories(fill);

	if (r == 0)
		r = fill_do(fill, SYS_umask, remote_args(saved->umask));
	if (r == 0)
		r = fill_do(fill, SYS_personality, remote_args(saved->personality));
	if (r == 0 && saved->no_new_privs)
		r = fill_do(fill, SYS_prctl, remote_args(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	if (r == 0)
		r = fill_do(fill, SYS_prctl, remote_args(PR_SET_CHILD_SUBREAPER, saved->child_subreaper));
	for (uint32_t bit = 1; r == 0 && bit && bit <= saved->membarrier; bit <<= 1)
		if (saved->membarrier & bit)
			r = fill_do(fill, SYS_membarrier, remote_args(bit, 0, 0));
	if (r == 0 && saved->xcomp_perm >> XFEATURE_TILEDATA & 1)
		r = fill_do(fill, SYS_arch_prctl, remote_args(ARCH_REQ_XCOMP_PERM_CALL, XFEATURE_TILEDATA));
	if (r < 0)
		return r;
	write_proc(fill->process->pid, "oom_score_adj", saved->oom_score_adj, 10);
	if (saved->coredump_filter)
		write_proc(fill->process->pid, "coredump_filter", (long)saved->coredump_filter, 16);
	r = fill_flush(fill);
	return r < 0 ? r : set_credentials(fill);
}

/* Raising a hard limit needs privilege. Where the limit here is lower than the saved one, the program gets
 * the lower limit. */
int fill_limits(struct fill *fill)
{
	for (size_t i = 0; i < fill->saved->n_limits; i++) {
		const Pbeam__Limit *want = fill->saved->limits[i];
		struct rlimit limit = {want->soft, want->hard}, now;

		if (prlimit(fill->process->pid, want->resource, NULL, &now) < 0)
			return err_sys(fill->err, "limit %u", want->resource);
		if (now.rlim_cur == limit.rlim_cur && now.rlim_max == limit.rlim_max)
			continue;
		if (prlimit(fill->process->pid, want->resource, &limit, NULL) == 0)
			continue;
		if (errno != EPERM)
			return err_sys(fill->err, "limit %u", want->resource);
		limit.rlim_max = now.rlim_max < limit.rlim_max ? now.rlim_max : limit.rlim_max;
		limit.rlim_cur = limit.rlim_cur < limit.rlim_max ? limit.rlim_cur : limit.rlim_max;
		log_warn("vpid %d: limit %u is %lu on this host, lower than the saved %lu", fill->saved->vpid,
			 want->resource, (unsigned long)limit.rlim_max, (unsigned long)want->hard);
		if (prlimit(fill->process->pid, want->resource, &limit, NULL) < 0)
			return err_sys(fill->err, "limit %u", want->resource);
	}
	return 0;
}
