/*
 * Process groups whose members are on several hosts.
 *
 * A signal for a group reaches each member in one of three ways. The kernel sends it to members on this
 * host. A stub on this host forwards it to its process, as it does with every signal. Members on other
 * hosts without a stub here are found by pbeamd, which asks all hosts. Only the third way needs work
 * here, and only in a cluster.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/syscall/other_host.h"

static int members_take(const Pbeam__Members *members, struct remote_members *out)
{
	if (out && members->n_vpids) {
		out->v = malloc(members->n_vpids * sizeof(*out->v));
		if (!out->v)
			return -ENOMEM;
		bytes_copy(out->v, members->vpids, members->n_vpids * sizeof(*out->v));
		out->n = members->n_vpids;
	}
	if (members->n_vpids)
		return (int)members->n_vpids;
	if (members->code < 0)
		return members->code;
	return members->n_missing ? -EHOSTUNREACH : 0;
}

int other_host_members(const struct process *process, int32_t group, const char *job_uuid, int signal,
		       const int32_t *except, size_t nexcept, struct remote_members *out)
{
	Pbeam__MembersRequest wish = PBEAM__MEMBERS_REQUEST__INIT;
	Pbeam__Members *members = NULL;
	struct err err = ERR_INIT;
	int r;

	wish.group = group;
	wish.job_uuid = (char *)(uintptr_t)job_uuid;
	wish.signal = signal;
	wish.from = process->vpid.n;
	wish.except = (int32_t *)(uintptr_t)except;
	wish.n_except = nexcept;
	r = other_host_request(PBEAM__DAEMON_REQUEST__DAEMON_MEMBERS, &wish.base, &pbeam__members__descriptor,
			       &members, &err);
	if (r < 0) {
		log_info("vpid %d: list members on other hosts: %s", process->vpid.n, err.text);
		return other_host_errno(r);
	}
	r = members_take(members, out);
	message_free(members);
	return r;
}

static bool is_spread(struct names *names, struct rpid keeper)
{
	struct name_job job;

	return names_job_get(names, keeper, &job) == 0 && job.spread;
}

bool other_host_spread(const struct process *process, int32_t group)
{
	struct name_process leader;

	if (!names_cluster(process->names, NULL))
		return false;
	if (is_spread(process->names, process->keeper))
		return true;
	return group && names_process_get(process->names, (struct vpid){group}, &leader) == 0 &&
	       is_spread(process->names, leader.keeper);
}

int other_host_stubs(struct names *names, int32_t group, int32_t **out)
{
	auto_free struct name_process *all = NULL;
	int n = names_snapshot(names, (struct rpid){0}, &all), found = 0;

	*out = n < 0 ? NULL : calloc((size_t)n + 1, sizeof(**out));
	if (!*out)
		return n < 0 ? n : -ENOMEM;
	for (int i = 0; i < n; i++) {
		pid_t real = all[i].state == NAME_STATE_STUB ? getpgid(all[i].rpid.n) : -1;

		if (real > 0 && names_virtual(names, (struct rpid){real}).n == group)
			(*out)[found++] = all[i].vpid.n;
	}
	return found;
}
