/*
 * /proc/VPID of processes on other hosts.
 *
 * pbeamd is asked for the job's processes on other hosts when a program begins to list /proc, or looks
 * up a number that may be one of them. The files that it then reads come from the host of the process.
 *
 * A number in another host's block may also belong to a process outside the job here, such as a daemon.
 * The program sees that process, as in a job without other hosts, unless a process of the job has the
 * number.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "namespace/proc_text.h"
#include "proto/message.h"
#include "scip/syscall/other_host.h"

#define FRESH_NS  1000000000ull
#define SECOND_NS 1000000000ll

bool other_host_list(const struct call *call)
{
	struct process *process = call->process;
	struct name_job job;

	free(process->calls->remote.v);
	process->calls->remote = (struct remote_members){.asked_ns = io_now_ns(CLOCK_MONOTONIC)};
	return names_cluster(process->names, NULL) &&
	       names_job_get(process->names, process->keeper, &job) == 0 && job.spread && job.uuid[0] &&
	       other_host_members(process, 0, job.uuid, 0, NULL, 0, &process->calls->remote) > 0;
}

bool other_host_is_listed(const struct call *call, int32_t vpid)
{
	const struct remote_members *members = &call->process->calls->remote;

	for (size_t i = 0; i < members->n; i++)
		if (members->v[i] == vpid)
			return true;
	return false;
}

/* True if the number is in another host's block and belongs to a process of the job. */
static bool is_of_job(const struct call *call, int32_t vpid)
{
	const struct remote_members *members = &call->process->calls->remote;

	if (!members->asked_ns || io_now_ns(CLOCK_MONOTONIC) - members->asked_ns > FRESH_NS)
		other_host_list(call);
	return other_host_is_listed(call, vpid);
}

bool other_host_proc(const struct call *call, int32_t vpid)
{
	struct names *names = call->process->names;
	struct name_process process;
	char path[32];

	if (!other_host_has(call, vpid))
		return false;
	if (names_process_get(names, (struct vpid){vpid}, &process) == 0)
		return process.state == NAME_STATE_STUB;
	snprintf(path, sizeof(path), "/proc/%d", names_real(names, (struct vpid){vpid}).n);
	return access(path, F_OK) < 0 || is_of_job(call, vpid);
}

/* How many seconds later the other host was booted, by the clocks of both. */
static int64_t booted_later(uint64_t booted_ns)
{
	int64_t here = (int64_t)(io_now_ns(CLOCK_REALTIME) - io_now_ns(CLOCK_BOOTTIME)),
		later = (int64_t)booted_ns - here;

	return (later + (later < 0 ? -SECOND_NS / 2 : SECOND_NS / 2)) / SECOND_NS;
}

int other_host_text(const struct call *call, int32_t vpid, const char *file, bool link, char **text,
		    size_t *len)
{
	Pbeam__ProcRequest wish = PBEAM__PROC_REQUEST__INIT;
	Pbeam__Target target = PBEAM__TARGET__INIT;
	Pbeam__ProcReply *reply = NULL;
	struct err err = ERR_INIT;
	size_t name = strlen(file);
	int r;

	target.vpid = vpid;
	wish.target = &target;
	wish.file = (char *)(uintptr_t)file;
	wish.link = link;
	r = other_host_request(PBEAM__DAEMON_REQUEST__DAEMON_PROC, &wish.base, &pbeam__proc_reply__descriptor,
			       &reply, &err);
	if (r == -ESRCH)
		return -ENOENT;
	if (r < 0) /* readers of /proc expect to be refused a process */
		return other_host_errno(r) == -EHOSTUNREACH ? -EACCES : r;
	*len = reply->text.len;
	*text = calloc(1, *len + 1);
	if (*text && *len)
		bytes_copy(*text, reply->text.data, *len);
	r = *text ? 0 : -ENOMEM;
	if (r == 0 && name >= 4 && !strcmp(file + name - 4, "stat") && strcmp(file, "schedstat") != 0)
		r = proc_text_shift(text, len, booted_later(reply->booted_ns) * sysconf(_SC_CLK_TCK));
	message_free(reply);
	return r;
}
