#include "scip/job/husk.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/io.h"
#include "namespace/paths.h"
#include "scip/job/launch.h"
#include "scip/job/links.h"
#include "scip/supervisor/pool.h"
#include "scip/syscall/syscall.h"

struct husk {
	struct job *job;
	husk_done_fn done;
	void *arg;
	bool root;
	int ready; /* end of file: it waits for its scip */
	struct handoff handoff;
};

static int husk_add_names(struct job *job, pid_t husk, const Pbeam__HuskRequest *request, struct vpid *vpid,
			  struct err *err)
{
	struct name_process entry = {
		.rpid = {husk},
		.keeper = job->entry.keeper,
		.start_ns = io_now_ns(CLOCK_REALTIME),
		.state = NAME_STATE_BORN,
		.parent = {request->remote_parent},
		.remote_parent = request->remote_parent != 0,
		.diverged = true,
	};
	int r;

	if (vpid->n)
		r = names_number_bind(job->names, *vpid, entry.rpid, job->entry.keeper);
	else
		r = names_number_born(job->names, entry.rpid, job->entry.keeper, vpid);
	if (r < 0)
		return err_code(err, r, "vpid %d", vpid->n);
	entry.vpid = *vpid;
	r = names_process_add(job->names, &entry);
	return r < 0 ? err_code(err, r, "enter vpid %d in the name table", vpid->n) : 0;
}

static void free_husk(struct husk *husk)
{
	if (husk->ready >= 0) {
		loop_unwatch(&husk->job->loop, husk->ready);
		close(husk->ready);
	}
	free(husk);
}

/* A scip that seized the husk earlier would have to wait for it in many turns. */
static void on_husk_ready(void *arg, int fd)
{
	struct husk *husk = arg;
	struct job *job = husk->job;
	struct err err = ERR_INIT;
	int r = pool_hand_over(job->pool, &husk->handoff, &err);

	if (r == 0 && husk->root && job->root > 0 && job->rolls_back) {
		job->next_root = husk->handoff.rpid;
		job->next_root_vpid.n = husk->handoff.vpid;
	} else if (r == 0 && husk->root) {
		r = job_set_root(job, husk->handoff.rpid, (struct vpid){husk->handoff.vpid});
		if (r < 0)
			err_code(&err, r, "vpid %d", husk->handoff.vpid);
	}
	if (r < 0)
		kill(husk->handoff.rpid, SIGKILL);
	husk->done(husk->arg, husk->handoff.rpid, &err);
	free_husk(husk);
}

int husk_make(struct husk **out, struct job *job, const Pbeam__HuskRequest *request, husk_done_fn done,
	      void *arg, struct err *err)
{
	struct vpid vpid = {request->vpid};
	struct sock_fprog filter;
	struct husk *husk = calloc(1, sizeof(*husk));
	int r;

	if (!husk)
		return err_code(err, -ENOMEM, "make a process");
	*husk = (struct husk){.job = job,
			      .done = done,
			      .arg = arg,
			      .root = request->root,
			      .ready = -1,
			      .handoff = {.keeper = job->entry.keeper.n,
					  .coordinator = job->coordinator_pid,
					  .flags = HANDOFF_LAUNCH | HANDOFF_HELD | HANDOFF_DIVERGED}};
	r = syscall_filter_build(paths_exist(job->entry.keeper) ? SYSCALL_FILTER_MAPPED
								: syscall_filter_restored(job->names),
				 &filter, err);
	if (r < 0) {
		free_husk(husk);
		return r;
	}
	r = launch_husk(job, &filter, &husk->ready, err);
	free(filter.filter);
	if (r < 0) {
		free_husk(husk);
		return r;
	}
	husk->handoff.rpid = r;
	r = husk_add_names(job, husk->handoff.rpid, request, &vpid, err);
	if (r == 0)
		r = fault_point("husk-launched", err);
	husk->handoff.vpid = vpid.n;
	if (vpid.n == request->vpid) /* else it is a helper without a name */
		links_await(job, vpid, husk->handoff.rpid);
	if (r == 0) {
		r = loop_watch(&job->loop, husk->ready, on_husk_ready, husk);
		if (r < 0)
			err_code(err, r, "wait for a process");
	}
	if (r < 0) {
		husk_cancel(husk);
		return r;
	}
	*out = husk;
	return 0;
}

void husk_cancel(struct husk *husk)
{
	kill(husk->handoff.rpid, SIGKILL);
	free_husk(husk);
}
