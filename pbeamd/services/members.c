/*
 * Lists or signals the members of a process group or job on this host: this host's part of kill(2) for a
 * group with members on several hosts, and of a listing of /proc.
 *
 * A process counts on the host where the registry places it. A migrating process exists on both hosts until
 * the commit, and is counted once. A stub does not count.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "pbeamd/services/process_requests.h"
#include "pbeamd/transport/connection.h"
#include "pbeamd/transport/server.h"

static bool is_excepted(const Pbeam__MembersRequest *wish, int32_t vpid)
{
	for (size_t i = 0; i < wish->n_except; i++)
		if (wish->except[i] == vpid)
			return true;
	return false;
}

static bool lives_here(struct names *names, const struct name_process *process)
{
	char host[NAME_TEXT_MAX];

	return process->rpid.n > 0 && process->state != NAME_STATE_STUB &&
	       names_place_find(names, process->vpid, host) < 0;
}

static bool is_member(struct names *names, const Pbeam__MembersRequest *wish,
		      const struct name_process *process)
{
	struct name_job job;
	pid_t group;

	if (!lives_here(names, process) || is_excepted(wish, process->vpid.n))
		return false;
	if (wish->job_uuid[0] &&
	    (names_job_get(names, process->keeper, &job) < 0 || strcmp(job.uuid, wish->job_uuid) != 0))
		return false;
	group = wish->group ? getpgid(process->rpid.n) : 0;
	return group >= 0 && (!wish->group || names_virtual(names, (struct rpid){group}).n == wish->group);
}

static int members_reach(const Pbeam__MembersRequest *wish, const struct name_process *process)
{
	siginfo_t info;

	if (!wish->signal || process->state == NAME_STATE_DEAD)
		return 0; /* a zombie takes any signal */
	signal_info(wish->signal, wish->from, &info);
	return signal_process(process->rpid.n, 0, wish->signal, &info);
}

int handle_members(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__MembersRequest *wish = (const Pbeam__MembersRequest *)message;
	struct names *names = connection->server->names;
	auto_free struct name_process *all = NULL;
	auto_free int32_t *vpids = NULL;
	Pbeam__Members members = PBEAM__MEMBERS__INIT;
	int n, r;

	if (wish->group < 0 || wish->signal < 0 || wish->signal > SIGRTMAX ||
	    (!wish->group && !wish->job_uuid[0]))
		return err_set(err, -EINVAL, "the request names no group and no job");
	/* not passed on: there are no other hosts */
	n = connection->passed_on ? names_snapshot(names, (struct rpid){0}, &all) : 0;
	vpids = n < 0 ? NULL : calloc((size_t)n + 1, sizeof(*vpids));
	if (!vpids)
		return err_code(err, n < 0 ? n : -ENOMEM, "look for the members");
	members.vpids = vpids;
	for (int i = 0; i < n; i++) {
		if (!is_member(names, wish, &all[i]))
			continue;
		r = members_reach(wish, &all[i]);
		if (r == 0)
			vpids[members.n_vpids++] = all[i].vpid.n;
		else if (r != -ESRCH)
			members.code = r;
	}
	connection_reply(connection, &members.base);
	return 0;
}
