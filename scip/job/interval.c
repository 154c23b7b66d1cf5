/*
 * An interval begins when the last checkpoint has ended, so that a job whose checkpoints take longer than the
 * interval still runs in between. A failure is logged, and the next interval tries again. A checkpoint or
 * rollback in progress also postpones to the next interval.
 */
#include "scip/job/interval.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "proto/ask.h"
#include "scip/job/coordinator.h"

struct interval {
	char path[PATH_MAX]; /* of the image that is being written */
	pid_t asking;	     /* the child that requests a cut of a job on several hosts */
};

static void on_time(void *arg);

static void interval_start_timer(struct job *job)
{
	if (job->interval && !job->root_gone &&
	    loop_timer_start(&job->loop, job->entry.interval_ns, on_time, job) < 0)
		log_error("job %d: no more checkpoints at intervals: too many alarms", job->entry.root.n);
}

static void on_interval_checkpoint(void *arg, const struct coordinator_outcome *outcome)
{
	struct job *job = arg;
	char store[STORE_JOB_MAX];

	job_store_name(job, job->entry.root, store);
	if (outcome->err.code)
		log_error("checkpoint at interval of vpid %d: %s", job->entry.root.n, outcome->err.text);
	else
		store_prune(store, job_keep(job));
	for (size_t i = 0; i < outcome->nobstacles; i++)
		log_warn("checkpoint %s is incomplete: %s", job->interval->path, outcome->obstacles[i]);
	interval_start_timer(job);
}

/* The first process, or one that descends from it. */
static bool is_anybody_away(const struct job *job)
{
	auto_free struct name_process *all = NULL;
	int n = names_snapshot(job->names, job->entry.keeper, &all);

	for (int i = 0; i < n; i++)
		if (all[i].state == NAME_STATE_STUB)
			return true;
	return false;
}

/* The checkpoint of a job on several hosts is made where its first process is, and may need all its keepers.
 * A child requests it, as the user's command does. */
static int interval_request_checkpoint(struct job *job, struct err *err)
{
	Pbeam__CheckpointRequest wish = PBEAM__CHECKPOINT_REQUEST__INIT;
	Pbeam__Target target = PBEAM__TARGET__INIT;
	ProtobufCMessage *reply = NULL;
	sigset_t none;
	int sock, r;

	job->interval->asking = fork();
	if (job->interval->asking)
		return job->interval->asking < 0 ? err_sys(err, "start a checkpoint") : 0;
	job_close_private(job);
	prctl(PR_SET_NAME, "scip-interval");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	target.vpid = job->entry.root.n;
	wish.target = &target;
	wish.save_files_max = job->options->save_files_max;
	r = sock = ask_open("scip " PBEAM_VERSION, err);
	if (r >= 0)
		r = ask_message(sock, PBEAM__DAEMON_REQUEST__DAEMON_CHECKPOINT, &wish.base, NULL,
				&pbeam__checkpoint_reply__descriptor, &reply, err);
	if (r < 0)
		log_error("checkpoint at interval of vpid %d: %s", target.vpid, err->text);
	_exit(r < 0);
}

static void on_time(void *arg)
{
	struct job *job = arg;
	struct coordinator_wish wish = {.kind = COORDINATOR_CHECKPOINT,
					.path = job->interval->path,
					.numbered = true,
					.save_files_max = job->options->save_files_max};
	struct err err = ERR_INIT;
	char store[STORE_JOB_MAX];
	uint32_t number;
	int r;

	if (job->root_gone)
		return;
	if (job->coordinator || (job->interval->asking > 0 && kill(job->interval->asking, 0) == 0)) {
		interval_start_timer(job);
		return;
	}
	if (is_anybody_away(job)) {
		if (interval_request_checkpoint(job, &err) < 0)
			log_error("checkpoint at interval of vpid %d: %s", job->entry.root.n, err.text);
		interval_start_timer(job);
		return;
	}
	job_store_name(job, job->entry.root, store);
	r = store_claim(store, job->entry.uuid, job->interval->path, &number, &err);
	if (r == 0)
		r = coordinator_start(job, &wish, on_interval_checkpoint, job, &err);
	if (r < 0) {
		log_error("checkpoint at interval of vpid %d: %s", job->entry.root.n, err.text);
		interval_start_timer(job);
	}
}

int interval_start(struct job *job, struct err *err)
{
	if (!job->entry.interval_ns)
		return 0;
	job->interval = calloc(1, sizeof(*job->interval));
	if (!job->interval)
		return err_code(err, -ENOMEM, "checkpoints at intervals");
	interval_start_timer(job);
	return 0;
}

void interval_stop(struct job *job)
{
	loop_timer_stop(&job->loop, on_time, job);
	free(job->interval);
	job->interval = NULL;
}
