#include "scip/job/job.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "scip/supervisor/pool.h"

int job_set_root(struct job *job, pid_t root, struct vpid vpid)
{
	job->root = root;
	job->root_gone = false;
	job->entry.root = vpid;
	return names_job_update(job->names, &job->entry);
}

int job_replace_root(struct job *job)
{
	pid_t root = job->next_root;

	job->next_root = 0;
	return root ? job_set_root(job, root, job->next_root_vpid) : 0;
}

int job_spreads(struct job *job)
{
	if (job->entry.spread)
		return 0;
	job->entry.spread = true;
	return names_job_update(job->names, &job->entry);
}

int job_cookie(const struct job *job, uint8_t cookie[16], struct err *err)
{
	const char *at = job->entry.uuid;

	for (int i = 0; i < 16; i++) {
		unsigned byte;

		while (*at == '-')
			at++;
		if (sscanf(at, "%2x", &byte) != 1)
			return err_set(err, -EINVAL, "the job has no uuid");
		cookie[i] = (uint8_t)byte;
		at += 2;
	}
	return 0;
}

void job_store_name(const struct job *job, struct vpid target, char name[STORE_JOB_MAX])
{
	store_job_of(target.n == job->entry.root.n ? job->entry.name : "", target.n, name);
}

uint32_t job_keep(const struct job *job)
{
	return job->entry.keep ? job->entry.keep : JOB_KEEP_DEFAULT;
}

bool job_wants_stub(const struct job *job, struct vpid vpid)
{
	struct name_process process;

	if (names_process_get(job->names, vpid, &process) < 0)
		return false;
	if (vpid.n == job->entry.root.n)
		return !job->home;
	return !process.remote_parent && names_process_get(job->names, process.parent, &process) == 0 &&
	       process.state != NAME_STATE_DEAD;
}

void job_close_console(struct job *job)
{
	for (int i = 0; i < 3; i++) {
		if (job->console[i] >= 0)
			close(job->console[i]);
		job->console[i] = -1;
	}
}

/* The pool's wake descriptor stays: a scip rings it. */
static void close_watched(void *arg, int fd)
{
	const struct job *job = arg;

	if (!job->pool || fd != pool_wake_fd(job->pool))
		close(fd);
}

void job_close_private(struct job *job)
{
	loop_each_fd(&job->loop, close_watched, job);
	loop_close(&job->loop);
	if (job->home_dir >= 0)
		close(job->home_dir);
	job_close_console(job);
	for (int i = 0; i < 3; i++)
		if (job->console_ends[i] >= 0)
			close(job->console_ends[i]);
	if (job->pty_master >= 0)
		close(job->pty_master);
	if (job->arrival >= 0)
		close(job->arrival);
	if (job->links_sock >= 0)
		close(job->links_sock);
}
