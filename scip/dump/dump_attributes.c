/* What belongs to the process as a whole: its names, credentials, limits, directories and the odds and ends
 * of prctl. */
#include "scip/dump/dump_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "proto/message.h"
#include "scip/dump/mappings.h"

enum {
	ARCH_GET_XCOMP_PERM_CALL = 0x1022,
	MEMBARRIER_CMD_GET_REGISTRATIONS_CALL = 1 << 9 /* Linux 6.3 */,
	AUXV_MAX = 4096,
	SMALL_TEXT_MAX = 4096,
	CAP_SETS = 5
};

static int proc_text(pid_t pid, const char *what, size_t max, char **text, size_t *len, struct err *err)
{
	char path[64];
	int r;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, what);
	r = io_slurp(AT_FDCWD, path, max, text, len);
	return r < 0 ? err_code(err, r, "read %s", path) : 0;
}

/* A number in a small file of /proc; `otherwise` where the file is not there. */
static int64_t proc_number(pid_t pid, const char *what, int base, int64_t otherwise)
{
	auto_free char *text = NULL;

	if (proc_text(pid, what, SMALL_TEXT_MAX, &text, NULL, NULL) < 0)
		return otherwise;
	return strtoll(text, NULL, base);
}

static int collect_credentials(struct dump *dump, struct err *err)
{
	static const char *const CAPS[CAP_SETS] = {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"};
	const char *uids = procfs_field(dump->status, "Uid");
	const char *gids = procfs_field(dump->status, "Gid");
	const char *groups = procfs_field(dump->status, "Groups");
	Pbeam__Credentials *out = dump->out->creds = message_new(&pbeam__credentials__descriptor);
	char *end;

	if (!out)
		return -ENOMEM;
	if (!uids || !gids || !groups ||
	    sscanf(uids, "%u %u %u %u", &out->ruid, &out->euid, &out->suid, &out->fsuid) != 4 ||
	    sscanf(gids, "%u %u %u %u", &out->rgid, &out->egid, &out->sgid, &out->fsgid) != 4)
		return err_set(err, -EINVAL, "its status tells no credentials");
	for (;; groups = end) {
		unsigned long gid;

		while (*groups == ' ' || *groups == '\t')
			groups++;
		if (*groups < '0' || *groups > '9')
			break;
		gid = strtoul(groups, &end, 10);
		if (message_append_u32(&out->groups, &out->n_groups, (uint32_t)gid) < 0)
			return -ENOMEM;
	}
	for (unsigned i = 0; i < CAP_SETS; i++) {
		const char *set = procfs_field(dump->status, CAPS[i]);

		if (message_append_u64(&out->caps, &out->n_caps, set ? strtoull(set, NULL, 16) : 0) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int collect_limits(struct dump *dump, struct err *err)
{
	for (uint32_t resource = 0; resource < RLIM_NLIMITS; resource++) {
		Pbeam__Limit *out = message_add(dump->out, limits, pbeam__limit__descriptor);
		struct rlimit limit;

		if (!out)
			return -ENOMEM;
		if (prlimit(dump->process->pid, (__rlimit_resource_t)resource, NULL, &limit) < 0)
			return err_sys(err, "limit %u", resource);
		out->resource = resource;
		out->soft = limit.rlim_cur;
		out->hard = limit.rlim_max;
	}
	return 0;
}

/* Where a link of /proc points to. A directory that was removed has no way back. */
static int collect_directory(struct dump *dump, const char *what, const char *as, ProtobufCBinaryData *out,
			     struct err *err)
{
	static const char GONE[] = " (deleted)";
	char path[64], target[PATH_MAX + 16];
	size_t len;
	int r;

	snprintf(path, sizeof(path), "/proc/%d/%s", dump->caller->tid, what);
	r = io_readlink(AT_FDCWD, path, target, sizeof(target));
	if (r < 0)
		return err_code(err, r, "read %s", path);
	len = strlen(target);
	if (len > sizeof(GONE) - 1 && !strcmp(target + len - (sizeof(GONE) - 1), GONE)) {
		target[len - (sizeof(GONE) - 1)] = '\0';
		return err_set(err, -ENOTSUP, "its %s %s was removed; let it change to one that exists", as,
			       target);
	}
	return message_text(out, target);
}

/* A tick more than /proc tells: the program, which may know its time more exactly, never sees it go back. */
static int collect_cpu_times(struct dump *dump)
{
	const uint64_t tick = 1000000000u / (uint64_t)sysconf(_SC_CLK_TCK);
	int r = 0;

	for (int i = 0; i < CPU_TIMES && r >= 0; i++) {
		int64_t ns = (int64_t)dump->stat.cpu_ns[i] + dump->process->cpu_before[i];

		r = message_append_u64(&dump->out->cpu_times_ns, &dump->out->n_cpu_times_ns,
				       (uint64_t)(ns > 0 ? ns : 0) + (i < CPU_CHILDREN_USER ? tick : 0));
	}
	return r;
}

static int32_t virtual_of(struct dump *dump, pid_t number)
{
	return number > 0 ? names_virtual(dump->process->names, (struct rpid){number}).n : number;
}

static void collect_state(struct dump *dump)
{
	Pbeam__Process *out = dump->out;

	out->vpid = dump->process->vpid.n;
	out->vppid = names_parent(dump->process->names, (struct rpid){dump->process->pid},
				  (struct rpid){dump->stat.ppid})
			     .n;
	out->remote_parent = out->vppid != virtual_of(dump, dump->stat.ppid);
	out->vpgid = virtual_of(dump, dump->stat.pgrp);
	out->vsid = virtual_of(dump, dump->stat.session);
	out->exit_signal = dump->stat.exit_signal;
	out->state = PBEAM__PROCESS__STATE__RUNNING;
	for (struct tracee *t = dump->process->tracees; t; t = t->next) {
		if (t->stop == TRACEE_GROUP_STOP) {
			out->state = PBEAM__PROCESS__STATE__STOPPED;
			out->stop_signal = t->signal;
		}
	}
}

int dump_attributes(struct dump *dump, struct err *err)
{
	pid_t pid = dump->caller->tid;
	Pbeam__Process *out = dump->out;
	const char *field;
	int r;

	collect_state(dump);
	field = procfs_field(dump->status, "Umask");
	out->umask = field ? (uint32_t)strtoul(field, NULL, 8) : 022;
	field = procfs_field(dump->status, "NoNewPrivs");
	out->no_new_privs = field && *field == '1';
	out->personality = (uint32_t)proc_number(pid, "personality", 16, 0);
	out->oom_score_adj = (int32_t)proc_number(pid, "oom_score_adj", 10, 0);
	out->coredump_filter = (uint32_t)proc_number(pid, "coredump_filter", 16, 0x33);
	r = collect_cpu_times(dump);
	if (r >= 0)
		r = collect_credentials(dump, err);
	if (r >= 0)
		r = collect_limits(dump, err);
	if (r >= 0)
		r = collect_directory(dump, "cwd", "working directory", &out->cwd, err);
	if (r >= 0)
		r = collect_directory(dump, "root", "root directory", &out->root, err);
	if (r >= 0)
		r = mapping_exe_identity(pid, &out->exe, err);
	return r < 0 ? err_wrap(err, r, "attributes") : 0;
}

struct attributes {
	uint64_t xcomp;
	int32_t subreaper, pad;
};

enum { ASKED_DUMPABLE, ASKED_THP, ASKED_BRK, ASKED_MEMBARRIER };

int dump_ask_attributes(struct dump *dump, struct batch *batch, struct dump_asked *asked)
{
	int r = batch_data(batch, NULL, sizeof(struct attributes), &asked->at);
	const uint64_t subreaper = asked->at.a + offsetof(struct attributes, subreaper);

	if (r >= 0)
		r = asked->calls[ASKED_DUMPABLE] =
			batch_add(batch, INJECT_CALL_ANY, SYS_prctl, remote_args(PR_GET_DUMPABLE));
	if (r >= 0)
		r = asked->calls[ASKED_THP] =
			batch_add(batch, INJECT_CALL_ANY, SYS_prctl, remote_args(PR_GET_THP_DISABLE));
	asked->calls[ASKED_MEMBARRIER] = -1;
	if (r >= 0 && dump_may_call(dump, SYS_membarrier))
		r = asked->calls[ASKED_MEMBARRIER] =
			batch_add(batch, INJECT_CALL_ANY, SYS_membarrier,
				  remote_args(MEMBARRIER_CMD_GET_REGISTRATIONS_CALL, 0, 0));
	/* [heap] ends at the next page: the exact value is in no file of /proc. */
	if (r >= 0)
		r = asked->calls[ASKED_BRK] = batch_add(batch, INJECT_CALL_ANY, SYS_brk, remote_args(0));
	if (r >= 0)
		r = batch_add(batch, INJECT_CALL_ANY, SYS_prctl,
			      remote_args(PR_GET_CHILD_SUBREAPER, subreaper));
	if (r >= 0)
		r = batch_add(batch, INJECT_CALL_ANY, SYS_arch_prctl,
			      remote_args(ARCH_GET_XCOMP_PERM_CALL, asked->at.a));
	return r;
}

int dump_take_attributes(struct dump *dump, struct batch *batch, const struct dump_asked *asked)
{
	const struct attributes *got = batch_local(batch, asked->at);
	const int dumpable = asked->calls[ASKED_DUMPABLE], membarrier = asked->calls[ASKED_MEMBARRIER];

	/* what the program asked for is not done for real: scip would be kept out */
	dump->out->dumpable = dump->process->dumpable ? (uint32_t)dump->process->dumpable - 1
						      : (uint32_t)batch_call(batch, dumpable)->ret;
	dump->out->memory->thp_disable = batch_call(batch, asked->calls[ASKED_THP])->ret == 1;
	dump->out->memory->brk = (uint64_t)batch_call(batch, asked->calls[ASKED_BRK])->ret;
	if (membarrier >= 0 && batch_call(batch, membarrier)->ret > 0)
		dump->out->membarrier = (uint32_t)batch_call(batch, membarrier)->ret;
	dump->out->child_subreaper = got->subreaper != 0;
	dump->out->xcomp_perm = got->xcomp;
	return 0;
}

int dump_memory_fields(struct dump *dump, struct err *err)
{
	const struct procfs_stat *stat = &dump->stat;
	Pbeam__Memory *out = dump->out->memory;
	auto_free char *auxv = NULL;
	size_t len;
	int r;

	out->start_code = stat->start_code;
	out->end_code = stat->end_code;
	out->start_data = stat->start_data;
	out->end_data = stat->end_data;
	out->start_brk = stat->start_brk;
	out->start_stack = stat->start_stack;
	out->arg_start = stat->arg_start;
	out->arg_end = stat->arg_end;
	out->env_start = stat->env_start;
	out->env_end = stat->env_end;
	r = proc_text(dump->caller->tid, "auxv", AUXV_MAX, &auxv, &len, err);
	if (r >= 0)
		r = message_bytes(&out->auxv, auxv, len);
	return r < 0 ? err_wrap(err, r, "memory fields") : 0;
}
