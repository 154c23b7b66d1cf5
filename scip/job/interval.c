/*
 * Counted from the end of the one before, so that a job whose checkpoints take longer than that still runs in
 * between. A failure is logged and tried again at the next interval; a checkpoint or rollback that is at work
 * puts it off likewise.
 */
#include "scip/job/interval.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "scip/job/coordinator.h"

struct interval {
	char path[PATH_MAX]; /* of the image that is being written */
};

static void on_time(void *arg);

static void again(struct job *job)
{
	if (job->interval && !job->root_gone &&
	    loop_alarm_in(&job->loop, job->entry.interval_ns, on_time, job) < 0)
		log_error("job %d: no more checkpoints at intervals: too many alarms", job->entry.root.n);
}

static void on_done(void *arg, const struct coordinator_outcome *outcome)
{
	struct job *job = arg;
	char store[STORE_JOB_MAX];

	job_store_name(job, job->entry.root, store);
	if (outcome->err.code)
		log_error("checkpoint at interval of vpid %d: %s", job->entry.root.n, outcome->err.text);
	else
		store_prune(store, job_keep(job));
	again(job);
}

static void on_time(void *arg)
{
	struct job *job = arg;
	struct coordinator_wish wish = {.kind = COORDINATOR_CHECKPOINT,
					.path = job->interval->path,
					.save_files_max = job->options->save_files_max};
	struct err err = ERR_INIT;
	char store[STORE_JOB_MAX];
	uint32_t number;
	int r;

	if (job->root_gone)
		return;
	if (job->coordinator) {
		again(job);
		return;
	}
	job_store_name(job, job->entry.root, store);
	r = store_claim(store, job->entry.uuid, job->interval->path, &number, &err);
	if (r == 0)
		r = coordinator_start(job, &wish, on_done, job, &err);
	if (r < 0) {
		log_error("checkpoint at interval of vpid %d: %s", job->entry.root.n, err.text);
		again(job);
	}
}

int interval_start(struct job *job, struct err *err)
{
	if (!job->entry.interval_ns)
		return 0;
	job->interval = calloc(1, sizeof(*job->interval));
	if (!job->interval)
		return err_code(err, -ENOMEM, "checkpoints at intervals");
	again(job);
	return 0;
}

void interval_stop(struct job *job)
{
	loop_alarm_cancel(&job->loop, on_time, job);
	free(job->interval);
	job->interval = NULL;
}
