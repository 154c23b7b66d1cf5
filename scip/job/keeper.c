#include "scip/job/keeper.h"
#include "scip/job/event.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "image/file_guard.h"
#include "image/image.h"
#include "image/store.h"
#include "namespace/record.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/files/files.h"
#include "scip/job/coordinator.h"
#include "scip/job/home.h"
#include "scip/job/interval.h"
#include "scip/job/launch.h"
#include "scip/job/links.h"
#include "scip/job/remote_console.h"
#include "scip/job/request_migrate.h"
#include "scip/job/requests.h"
#include "scip/job/upgrade.h"
#include "scip/job/user_terminal.h"
#include "scip/job/viewer.h"
#include "scip/supervisor/pool.h"
#include "scip/syscall/syscall.h"
#include "scip/tracee/procfs.h"

enum { STATUS_SCIP = 125, END_LOOKS = 5 };
#define MS 1000000ull

/* The keeper itself: the job, and what only beginning and end are about. */
struct keeper {
	struct job job;
	int report;	    /* the pipe that reports whether the program is executed; -1 once that is known */
	bool report_began;  /* its process has got as far as execve() */
	int early_stop;	    /* wait status of a stop before that was known, 0 none */
	unsigned end_looks; /* since something ended last */
	bool restoring;	    /* the console gets the event of the restore before that of the end */
};

/* ---- the job's end ---- */

/* A restore does not overwrite what somebody else writes to these files from now on. */
static void record_files(const struct job *job)
{
	char store[STORE_JOB_MAX], path[PATH_MAX];

	job_store_name(job, job->entry.root, store);
	if (store_find(store, 0, path, NULL) == 0)
		file_guard_record(path);
}

_Noreturn static void keeper_exit(struct keeper *keeper)
{
	struct job *job = &keeper->job;

	interval_stop(job);
	requests_close(job);
	if (job->pool)
		pool_close(job->pool);
	if (job->names && job->root_gone)
		record_files(job);
	if (job->names) {
		names_job_remove(job->names, job->entry.keeper);
		files_job_ended(job->names, job->entry.uuid);
		record_forget_job(job->entry.keeper);
		home_close(job);
		names_close(job->names);
	}
	_exit(0);
}

_Noreturn static void keeper_fail(struct keeper *keeper, int status, const char *text)
{
	viewer_tell(&keeper->job, PBEAM__KEEPER_EVENT__TYPE__FAILED, status, text);
	if (keeper->job.root > 0)
		kill(keeper->job.root, SIGKILL);
	keeper_exit(keeper);
}

static void keeper_reap_children(struct keeper *keeper);

static void check_end_again(void *arg);

/* Descendants of the first process may go on after its end: the keeper ends with the last of them. A
 * process's names are removed just after its end shows to the keeper. Its scip then sends SIGCHLD; if the
 * scip is killed in between, its own end does. A few looks more are for what others remove (coordinators,
 * links to other hosts); after that nothing wakes the keeper. */
static void check_end(struct keeper *keeper)
{
	struct job *job = &keeper->job;

	keeper->end_looks = 0;
	loop_timer_stop(&job->loop, check_end_again, keeper);
	check_end_again(keeper);
}

static void check_end_again(void *arg)
{
	struct keeper *keeper = arg;
	struct job *job = &keeper->job;
	uint64_t after = 50 * MS << keeper->end_looks;

	if (job->pool)
		pool_report_ends(job->pool, job->root_gone); /* before the table is looked at */
	if (!job->root_gone || job->coordinator)
		return;
	if (names_process_count(job->names, job->entry.keeper) <= 0) {
		keeper_reap_children(keeper);
		keeper_exit(keeper);
	}
	if (keeper->end_looks++ == END_LOOKS)
		return;
	if (loop_timer_start(&job->loop, after, check_end_again, keeper) < 0)
		log_debug("no alarm to spare: the job's end is noticed at the next death");
}

static void root_ended(struct keeper *keeper)
{
	struct job *job = &keeper->job;

	viewer_tell(job, PBEAM__KEEPER_EVENT__TYPE__ENDED, job->root_status, "");
	interval_stop(job);
	job_close_console(job);
}

/* ---- the program's start ---- */

static void on_report(void *arg, int fd)
{
	struct keeper *keeper = arg;
	Pbeam__KeeperEvent *event = NULL;
	struct err err = ERR_INIT;
	int r = event_read(fd, &event);

	if (r == -EINTR || r == -EAGAIN)
		return;
	if (r > 0 && event->type == PBEAM__KEEPER_EVENT__TYPE__EXECUTING) {
		keeper->report_began = true;
		message_free(event);
		return;
	}
	loop_unwatch(&keeper->job.loop, fd);
	close(fd);
	keeper->report = -1;
	if (r > 0)
		keeper_fail(keeper, event->value, event->text);
	if (!keeper->report_began)
		keeper_fail(keeper, STATUS_SCIP,
			    "the program's process was killed before it could be executed");
	/* Not earlier: requests are for the program, not for the process that will execute it. */
	if (requests_serve(&keeper->job, &err) < 0)
		log_error("%s", err.text);
	viewer_tell(&keeper->job, PBEAM__KEEPER_EVENT__TYPE__STARTED, keeper->job.entry.root.n, "");
	if (keeper->early_stop)
		viewer_tell(&keeper->job, PBEAM__KEEPER_EVENT__TYPE__STOPPED, keeper->early_stop, "");
}

/* ---- children ---- */

/* Removes the names of a process that no other process waits for. */
static void forget_orphan(struct job *job, pid_t pid)
{
	struct name_process entry;
	struct vpid vpid = names_virtual(job->names, (struct rpid){pid});

	if (names_process_find_real(job->names, (struct rpid){pid}, &entry) == 0)
		names_process_remove(job->names, entry.vpid, entry.rpid);
	if (vpid.n != pid && vpid.n)
		names_number_release(job->names, vpid, (struct rpid){pid});
}

static void fill_pool(void *arg)
{
	struct job *job = arg;
	struct err err = ERR_INIT;
	int r = pool_fill(job->pool, &err);

	loop_timer_stop(&job->loop, fill_pool, job);
	if (r < 0)
		log_warn("%s", err.text);
	if (r != 0 && loop_timer_start(&job->loop, (r > 0 ? (uint64_t)r : 100) * MS, fill_pool, job) < 0)
		log_warn("no alarm to spare");
}

static void child_ended(struct keeper *keeper, pid_t pid, int status)
{
	struct job *job = &keeper->job;

	if (job->pool && pool_reaped(job->pool, pid, status)) {
		fill_pool(job);
		return;
	}
	if (coordinator_reaped(job, pid, status)) {
		if (job->root_gone)
			root_ended(keeper);
		return;
	}
	if (links_reaped(job, pid))
		return;
	links_child(job, pid, status);
	forget_orphan(job, pid);
	if (pid == job->root && !job->root_gone) {
		job->root_gone = true;
		job->root_status = status;
		while (keeper->report >= 0) /* its reports come first */
			on_report(keeper, keeper->report);
		/* Else when the coordinator has ended: another first process may take its place. */
		if (!job->replacing && !job->arrives && !keeper->restoring)
			root_ended(keeper);
	}
}

/* Takes all that waitpid() has. */
static void keeper_reap_children(struct keeper *keeper)
{
	struct job *job = &keeper->job;
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0) {
		if (WIFSTOPPED(status) || WIFCONTINUED(status))
			links_child(job, pid, status);
		if (WIFCONTINUED(status)) {
			if (pid == job->root && !job->coordinator)
				viewer_tell(job, PBEAM__KEEPER_EVENT__TYPE__CONTINUED, status, "");
			continue;
		}
		if (!WIFSTOPPED(status))
			child_ended(keeper, pid, status);
		else if (pid == job->root && keeper->report >= 0)
			keeper->early_stop = status;
		else if (pid == job->root && !job->coordinator)
			/* the console is not told of a husk's stops */
			viewer_tell(job, PBEAM__KEEPER_EVENT__TYPE__STOPPED, status, "");
	}
}

static void on_signals(void *arg, int fd)
{
	struct keeper *keeper = arg;
	struct signalfd_siginfo info;

	while (read(fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
		if (info.ssi_signo == SIGIO)
			home_check(&keeper->job, info.ssi_code == SI_USER);
	keeper_reap_children(keeper);
	check_end(keeper);
}

/* ---- the pool ---- */

static void on_pool_low(void *arg, int fd)
{
	fill_pool(arg);
}

static void before_scip(void *arg)
{
	job_close_private(arg);
	prctl(PR_SET_NAME, "scip");
}

/* ---- start ---- */

/* The program has inherited its descriptors; the keeper's own are all close-on-exec. */
static int close_if_inherited(int fd, void *arg)
{
	int flags = fcntl(fd, F_GETFD);

	if (fd > STDERR_FILENO && flags >= 0 && !(flags & FD_CLOEXEC))
		close(fd);
	return 0;
}

/* The job's streams are where streams_choose() put them. The keeper's own, 0 to 2, must not keep a pipe open.
 */
static int leave_streams(struct err *err)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0)
		return err_sys(err, "open /dev/null");
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		if (dup2(null, fd) < 0)
			return err_sys(err, "leave the console's streams");
	log_take_stderr();
	if (null > STDERR_FILENO)
		close(null);
	return procfs_each_number("/proc/self/fd", close_if_inherited, NULL);
}

static int describe_job(struct job *job, struct err *err)
{
	const struct keeper_options *options = job->options;
	struct name_job *entry = &job->entry;
	int r;

	entry->keeper.n = getpid();
	entry->interval_ns = options->interval_ns;
	entry->keep = options->keep;
	job->track = options->track;
	job->ntrack = options->ntrack;
	entry->start_ns = io_now_ns(CLOCK_REALTIME);
	if (options->name)
		snprintf(entry->name, sizeof(entry->name), "%s", options->name);
	if (options->group)
		snprintf(entry->group, sizeof(entry->group), "%s", options->group);
	r = io_make_uuid(entry->uuid);
	return r < 0 ? err_code(err, r, "make an id for the job") : 0;
}

/* A restored job keeps its identity. Its terminal belongs to the keeper, as for a new job, unless the first
 * process leads the session. */
static int describe_job_of_image(struct job *job, bool *leads, struct err *err)
{
	struct name_job *entry = &job->entry;
	struct image_reader *image;
	const Pbeam__Manifest *manifest;
	const Pbeam__Job *saved;
	int r = image_reader_open(&image, job->options->image, err);

	if (r < 0)
		return r;
	manifest = image_reader_manifest(image);
	*leads = manifest->n_processes && manifest->processes[0]->vsid == manifest->processes[0]->vpid;
	saved = manifest->job;
	if (saved) {
		snprintf(entry->name, sizeof(entry->name), "%s", saved->name);
		snprintf(entry->uuid, sizeof(entry->uuid), "%s", saved->uuid);
		snprintf(entry->group, sizeof(entry->group), "%s", saved->group);
		entry->root.n = saved->root_vpid;
		entry->interval_ns = saved->interval_ns;
		entry->keep = saved->keep;
	}
	for (size_t i = 0; i < manifest->n_trees && r == 0; i++) {
		auto_free char *path = message_dup_text(&manifest->trees[i]->path);

		r = path ? message_append_string(&job->track, &job->ntrack, path) : -ENOMEM;
	}
	image_reader_close(image);
	return r < 0 ? err_code(err, r, "start the job of %s", job->options->image) : 0;
}

/* A guest keeper serves the job of the processes that arrive. */
static int describe_job_of_guest(struct job *job, bool *leads, struct err *err)
{
	const Pbeam__MigrateBegin *begin = job->options->begin;
	struct name_job *entry = &job->entry;

	if (!begin->job || !begin->job->uuid[0] || !begin->home[0])
		return err_set(err, -EPROTO, "the arriving processes name no job");
	snprintf(entry->name, sizeof(entry->name), "%s", begin->job->name);
	snprintf(entry->uuid, sizeof(entry->uuid), "%s", begin->job->uuid);
	snprintf(entry->group, sizeof(entry->group), "%s", begin->job->group);
	entry->root.n = begin->root;
	entry->keep = begin->job->keep;
	entry->spread = true;
	snprintf(entry->home, sizeof(entry->home), "%s", begin->home);
	job->home = begin->home;
	*leads = begin->leads;
	return 0;
}

static int enter_root(struct job *job, pid_t pid, struct err *err)
{
	struct name_process entry = {
		.rpid = {pid},
		.keeper = job->entry.keeper,
		.start_ns = job->entry.start_ns,
		.state = NAME_STATE_BORN,
	};
	int r = names_number_born(job->names, entry.rpid, job->entry.keeper, &entry.vpid);

	if (r < 0)
		return err_code(err, r, "name the program's process");
	r = names_process_add(job->names, &entry);
	if (r == 0)
		r = job_set_root(job, pid, entry.vpid);
	return r < 0 ? err_code(err, r, "enter vpid %d in the name table", entry.vpid.n) : 0;
}

static int hand_root_over(struct keeper *keeper, int report, struct err *err)
{
	struct job *job = &keeper->job;
	struct handoff handoff = {.rpid = job->root,
				  .vpid = job->entry.root.n,
				  .keeper = job->entry.keeper.n,
				  .flags = HANDOFF_LAUNCH};
	int r;

	if (handoff.vpid != handoff.rpid)
		handoff.flags |= HANDOFF_DIVERGED;
	keeper->report = report;
	r = loop_watch(&job->loop, report, on_report, keeper);
	return r < 0 ? r : pool_hand_over(job->pool, &handoff, err);
}

static void on_restored(void *arg, const struct coordinator_outcome *outcome)
{
	struct keeper *keeper = arg;

	char text[ERR_TEXT_MAX] = "";

	keeper->restoring = false;
	if (outcome->err.code)
		keeper_fail(keeper, STATUS_SCIP, outcome->err.text);
	for (size_t i = 0; i < outcome->nobstacles; i++) {
		size_t len = strlen(text);

		snprintf(text + len, sizeof(text) - len, "%s%s", len ? "\n" : "", outcome->obstacles[i]);
	}
	viewer_tell(&keeper->job, PBEAM__KEEPER_EVENT__TYPE__STARTED, keeper->job.entry.root.n, text);
}

/* After a failure the reason has been sent to the other host. */
static void on_received(void *arg, const struct coordinator_outcome *outcome)
{
	struct keeper *keeper = arg;
	struct job *job = &keeper->job;
	struct err err = ERR_INIT;

	keeper->restoring = false;
	if (outcome->killed && arrival_ask(job, job->options->begin, outcome, on_received, keeper))
		return;
	if (!outcome->err.code) {
		if (links_start_console(job, &err) < 0 || arrival_settle(job, job->options->begin, &err) < 0)
			log_error("vpid %d: %s", job->entry.root.n, err.text);
		return;
	}
	log_info("job %s: nothing arrived: %s", keeper->job.entry.uuid, outcome->err.text);
	keeper_fail(keeper, STATUS_SCIP, outcome->err.text);
}

/* True if the job of this name has no process left: its keeper is ending. */
static bool name_is_left(const struct job *job)
{
	auto_free struct name_job *jobs = NULL;
	int n = names_jobs_snapshot(job->names, &jobs);

	for (int i = 0; i < n; i++)
		if (strcmp(jobs[i].name, job->entry.name) == 0)
			return names_process_count(job->names, jobs[i].keeper) <= 0;
	return n >= 0;
}

/* A console is told of its program's end shortly before the name is free. A job that takes the name at once
 * must not be refused. */
static int keeper_add_job(struct job *job, struct err *err)
{
	int r;

	names_limit_wait(job->names, true);
	r = names_job_add(job->names, &job->entry, err);
	for (int tries = 0; r == -ESTALE && tries < 10; tries++) {
		names_close(job->names);
		job->names = NULL;
		err_clear(err);
		r = names_open(&job->names, err);
		if (r == 0)
			r = names_job_add(job->names, &job->entry, err);
	}
	for (int tries = 0; r == -EEXIST && job->entry.name[0] && tries < 200 && name_is_left(job); tries++) {
		nanosleep(&(struct timespec){.tv_nsec = 5 * MS}, NULL);
		err_clear(err);
		r = names_job_add(job->names, &job->entry, err);
	}
	if (r == 0)
		names_limit_wait(job->names, false); /* from now on it records what must not be lost */
	return r;
}

/* Starts the program behind the filter for a program that starts on this host. It inherits what the console
 * inherited. */
static int start_program(struct job *job, int *report, struct err *err)
{
	struct sock_fprog filter;
	int r = syscall_filter_build(syscall_filter_born(job->names), &filter, err);

	if (r < 0)
		return r;
	r = launch_program(job, &filter, report, err);
	free(filter.filter);
	if (r < 0)
		return r;
	r = enter_root(job, r, err);
	return r < 0 ? r : fault_point("job-launched", err);
}

static int start_pool(struct job *job, struct err *err)
{
	int r;

	malloc_trim(0); /* every scip is a copy of this process, and shares what it leaves alone */
	r = pool_open(&job->pool, job->names, before_scip, job, err);
	if (r < 0)
		return r;
	r = loop_watch(&job->loop, pool_wake_fd(job->pool), on_pool_low, job);
	if (r < 0)
		return r;
	r = pool_fill(job->pool, err);
	return r < 0 ? r : 0; /* hand_root_over() reports a pool that is not full */
}

/* What the job serves besides its processes: requests, checkpoints at intervals, links from other hosts. */
static int start_services(struct job *job, struct err *err)
{
	const struct keeper_options *options = job->options;
	int r = requests_place_checkpoints(job, err);

	if (r < 0)
		return r;
	r = options->argv ? 0 : requests_serve(job, err); /* on_report() serves them for a program */
	if (r < 0)
		return r;
	r = interval_start(job, err);
	if (r < 0)
		return r;
	return options->begin && options->begin->stubs ? links_expect(job, err) : 0;
}

/* The program's process is handed to a scip, or a coordinator makes the job's processes. */
static int start_processes(struct keeper *keeper, int report, struct err *err)
{
	const struct keeper_options *options = keeper->job.options;
	const struct coordinator_wish wish = {
		.kind = options->begin ? COORDINATOR_RECEIVE : COORDINATOR_RESTORE,
		.path = options->image,
		.force = options->force,
		.begin = options->begin,
		.channel = options->channel,
	};
	int r;

	if (options->argv)
		return hand_root_over(keeper, report, err);
	r = coordinator_start(&keeper->job, &wish, options->begin ? on_received : on_restored, keeper, err);
	keeper->restoring = r == 0;
	return r;
}

static int begin_job(struct keeper *keeper, struct err *err)
{
	struct job *job = &keeper->job;
	int report = -1, r;

	record_forget_job(job->entry.keeper); /* an older keeper's of this number */
	r = names_open(&job->names, err);
	if (r < 0)
		return r;
	r = requests_open(job, err); /* before any process can find the job */
	if (r < 0)
		return r;
	r = keeper_add_job(job, err);
	if (r < 0)
		return r;
	home_open(job);
	r = job->options->argv ? start_program(job, &report, err) : 0;
	if (r < 0)
		return r;
	r = leave_streams(err);
	if (r < 0)
		return r;
	r = start_pool(job, err);
	if (r < 0)
		return r;
	r = start_services(job, err);
	if (r < 0)
		return r;
	r = start_processes(keeper, report, err);
	/* The coordinator alone holds the channel: its end shows there. */
	if (job->arrival >= 0)
		close(steal_fd(&job->arrival));
	return r;
}

static int watch_signals(struct keeper *keeper, struct err *err)
{
	sigset_t mask;
	int fd;

	sigfillset(&mask);
	sigdelset(&mask, SIGTERM); /* kill KEEPER ends the job */
	sigprocmask(SIG_SETMASK, &mask, NULL);
	sigemptyset(&mask);
	sigaddset(&mask, SIGCHLD);
	sigaddset(&mask, SIGIO); /* home.h */
	fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0)
		return err_sys(err, "make a signalfd");
	return loop_watch(&keeper->job.loop, fd, on_signals, keeper);
}

/* What the job is: a new one, a saved one, or part of one that was started on another host. `leads`: its
 * first process leads its session. */
static int choose_identity(struct job *job, bool *leads, struct err *err)
{
	int r = describe_job(job, err);

	if (r < 0 || job->options->argv)
		return r;
	if (!job->options->begin || job->options->image)
		return describe_job_of_image(job, leads, err);
	r = describe_job_of_guest(job, leads, err);
	return r < 0 ? r : remote_console_make_streams(job, job->options->begin, err);
}

static int keeper_open(struct keeper *keeper, int console_sock, struct err *err)
{
	struct job *job = &keeper->job;
	bool leads = false;
	int r = viewer_open(job, console_sock, err); /* first: it is told of every later failure */

	if (r < 0)
		return r;
	r = loop_open(&job->loop);
	if (r < 0)
		return err_code(err, r, "make an event loop");
	r = watch_signals(keeper, err);
	if (r < 0)
		return r;
	r = viewer_watch(job, err);
	if (r < 0)
		return r;
	r = choose_identity(job, &leads, err);
	if (r < 0)
		return r;
	r = leads ? 0 : terminal_adopt(job->console, err);
	return r < 0 ? r : begin_job(keeper, err);
}

_Noreturn static void keeper_main(struct keeper *keeper, int console_sock)
{
	struct err err = ERR_INIT;
	int r;

	setsid();
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	prctl(PR_SET_NAME, "scip-keeper");
	log_open_shared("scip");
	r = keeper_open(keeper, console_sock, &err);
	if (r < 0 && !err.text[0])
		err_code(&err, r, "start the keeper");
	if (r < 0 && keeper->job.arrival >= 0)
		rpc_refuse(keeper->job.arrival, &err);
	if (r < 0)
		keeper_fail(keeper, STATUS_SCIP, err.text);
	if (chdir("/") < 0)
		log_debug("the job's directory stays in use");
	for (;;)
		loop_step(&keeper->job.loop);
}

void keeper_take_over(const struct successor *from)
{
	static struct keeper keeper = {.report = -1};
	struct job *job = &keeper.job;
	struct err err = ERR_INIT;
	int connection = -1, r;

	prctl(PR_SET_NAME, "scip-keeper");
	log_open_shared("scip");
	log_take_stderr();
	job->console_ends[0] = job->console_ends[1] = job->console_ends[2] = -1;
	job->links_sock = job->arrival = job->home_dir = -1;
	r = loop_open(&job->loop);
	if (r == 0)
		r = watch_signals(&keeper, &err);
	if (r == 0)
		r = upgrade_take_over(job, from, before_scip, &connection, &err);
	if (r == 0)
		r = loop_watch(&job->loop, pool_wake_fd(job->pool), on_pool_low, job);
	if (r < 0) {
		successor_go_back(from, err.text[0] ? err.text : strerror(-r));
		_exit(1);
	}
	successor_close(from, pool_seat(job->pool));
	home_open(job);
	if (from->refused) {
		upgrade_refused(connection, from->refused);
	} else {
		if (pool_retire(job->pool) == 0)
			fill_pool(job); /* else when they have ended: a new one could take the message of an
					   old one */
		upgrade_go_on(job, connection);
	}
	keeper_reap_children(&keeper); /* a child may have ended before the signalfd was made */
	check_end(&keeper);
	for (;;)
		loop_step(&job->loop);
}

_Noreturn static void become_keeper(const struct keeper_options *options, int console_sock)
{
	static struct keeper keeper = {.report = -1};
	struct job *job = &keeper.job;

	job->options = options;
	job->console_ends[0] = job->console_ends[1] = job->console_ends[2] = -1;
	job->pty_master = options->pty_master;
	job->links_sock = -1;
	job->home_dir = -1;
	job->arrival = options->begin ? options->channel : -1;
	memcpy(job->console, options->console, sizeof(job->console));
	if (options->signal_mask)
		job->saved_mask = *options->signal_mask;
	else
		sigprocmask(SIG_BLOCK, NULL, &job->saved_mask);
	keeper_main(&keeper, console_sock);
}

void keeper_receive(const struct keeper_options *options)
{
	become_keeper(options, -1);
}

int keeper_start(const struct keeper_options *options, struct err *err)
{
	int pair[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return err_sys(err, "make a socket for the keeper");
	fflush(NULL);
	pid = fork();
	if (pid < 0) {
		int r = err_sys(err, "start the keeper");

		close(pair[0]);
		close(pair[1]);
		return r;
	}
	if (pid == 0) {
		close(pair[0]);
		become_keeper(options, pair[1]);
	}
	close(pair[1]);
	return pair[0];
}
