/*
 * --interval TIME: a numbered checkpoint of the whole job each TIME, counted from the end of the one before,
 * so that a job whose checkpoints take longer than that still runs in between. A failure is logged and tried
 * again at the next interval; a checkpoint or rollback that is at work puts it off likewise.
 */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "scip/job/requests.h"

static void on_time(struct keeper *keeper, void *arg);

static void again(struct keeper *keeper)
{
	if (keeper->job.interval_ns && !keeper->root_gone &&
	    keeper_alarm(keeper, io_now_ns(CLOCK_MONOTONIC) + keeper->job.interval_ns, on_time, NULL) < 0)
		log_error("job %d: no more checkpoints at intervals: too many alarms", keeper->job.root.n);
}

static void on_done(struct keeper *keeper, const struct keeper_outcome *outcome, void *arg)
{
	struct requests *requests = keeper->requests;
	char job[STORE_JOB_MAX];

	requests->interval_running = false;
	requests_store_job(keeper, keeper->job.root, job);
	if (outcome->err.code)
		log_error("checkpoint at interval of vpid %d: %s", keeper->job.root.n, outcome->err.text);
	else
		store_prune(job, keeper->job.keep ? keeper->job.keep : REQUESTS_KEEP_DEFAULT);
	again(keeper);
}

static void on_time(struct keeper *keeper, void *arg)
{
	struct requests *requests = keeper->requests;
	struct err err = ERR_INIT;
	char job[STORE_JOB_MAX];
	uint32_t number;
	int r;

	if (keeper->root_gone)
		return;
	if (keeper->coordinator) {
		again(keeper);
		return;
	}
	requests_store_job(keeper, keeper->job.root, job);
	r = store_claim(job, keeper->job.uuid, requests->interval_path, &number, &err);
	if (r == 0)
		r = keeper_checkpoint(keeper, keeper->job.root, requests->interval_path, false, false,
				      keeper->options->save_files_max, on_done, NULL, &err);
	if (r < 0) {
		log_error("checkpoint at interval of vpid %d: %s", keeper->job.root.n, err.text);
		again(keeper);
		return;
	}
	requests->interval_running = true;
}

void interval_start(struct keeper *keeper)
{
	again(keeper);
}

void interval_stop(struct keeper *keeper)
{
	keeper_alarm_cancel(keeper, on_time, NULL);
}
