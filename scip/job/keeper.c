#include "scip/job/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
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
#include "base/dirs.h"
#include "base/io.h"
#include "base/log.h"
#include "image/image.h"
#include "namespace/record.h"
#include "scip/job/coordinator.h"
#include "scip/job/launch.h"
#include "scip/supervisor/pool.h"
#include "scip/syscall/syscall.h"
#include "scip/tracee/procfs.h"

enum { STATUS_SCIP = 125 };
#define MS 1000000ull

/* ---- what the loop waits for ---- */

int keeper_watch(struct keeper *keeper, int fd, short events, keeper_ready_fn ready, void *arg)
{
	for (int i = 0; i < KEEPER_WATCHES_MAX; i++) {
		if (keeper->watches[i].ready)
			continue;
		keeper->watches[i] = (struct keeper_watch){fd, events, ready, arg};
		return 0;
	}
	return -ENOSPC;
}

void keeper_unwatch(struct keeper *keeper, int fd)
{
	for (int i = 0; i < KEEPER_WATCHES_MAX; i++)
		if (keeper->watches[i].ready && keeper->watches[i].fd == fd)
			keeper->watches[i].ready = NULL;
}

int keeper_alarm(struct keeper *keeper, uint64_t at_ns, keeper_alarm_fn ring, void *arg)
{
	for (int i = 0; i < KEEPER_ALARMS_MAX; i++) {
		if (keeper->alarms[i].at_ns)
			continue;
		keeper->alarms[i] = (struct keeper_alarm){at_ns ? at_ns : 1, ring, arg};
		return 0;
	}
	return -ENOSPC;
}

void keeper_alarm_cancel(struct keeper *keeper, keeper_alarm_fn ring, void *arg)
{
	for (int i = 0; i < KEEPER_ALARMS_MAX; i++)
		if (keeper->alarms[i].at_ns && keeper->alarms[i].ring == ring && keeper->alarms[i].arg == arg)
			keeper->alarms[i].at_ns = 0;
}

/* Milliseconds until the next alarm, -1 for none. */
static int patience(const struct keeper *keeper)
{
	uint64_t now = io_now_ns(CLOCK_MONOTONIC), left = UINT64_MAX;

	for (int i = 0; i < KEEPER_ALARMS_MAX; i++) {
		uint64_t at = keeper->alarms[i].at_ns;

		if (at && (at <= now || at - now < left))
			left = at <= now ? 0 : at - now;
	}
	if (left == UINT64_MAX)
		return -1;
	return left / MS > 1000000 ? 1000000 : (int)((left + MS - 1) / MS);
}

static void ring_alarms(struct keeper *keeper)
{
	uint64_t now = io_now_ns(CLOCK_MONOTONIC);

	for (int i = 0; i < KEEPER_ALARMS_MAX; i++) {
		struct keeper_alarm due = keeper->alarms[i];

		if (!due.at_ns || due.at_ns > now)
			continue;
		keeper->alarms[i].at_ns = 0;
		due.ring(keeper, due.arg);
	}
}

static void wait_and_serve(struct keeper *keeper)
{
	struct pollfd polls[KEEPER_WATCHES_MAX];
	int slots[KEEPER_WATCHES_MAX], n = 0;

	for (int i = 0; i < KEEPER_WATCHES_MAX; i++) {
		if (!keeper->watches[i].ready)
			continue;
		polls[n] = (struct pollfd){.fd = keeper->watches[i].fd, .events = keeper->watches[i].events};
		slots[n++] = i;
	}
	if (poll(polls, (nfds_t)n, patience(keeper)) > 0)
		for (int i = 0; i < n; i++) {
			struct keeper_watch watch = keeper->watches[slots[i]];

			/* An earlier handler may have removed, or replaced, this one. */
			if (polls[i].revents && watch.ready && watch.fd == polls[i].fd)
				watch.ready(keeper, watch.fd, polls[i].revents, watch.arg);
		}
	ring_alarms(keeper);
}

/* ---- the console that started us ---- */

static void tell_console(struct keeper *keeper, enum keeper_event_type type, int value, const char *text)
{
	struct keeper_event event = {.type = type, .value = value, .keeper = keeper->job.keeper.n};

	if (keeper->console_sock < 0)
		return;
	snprintf(event.text, sizeof(event.text), "%s", text);
	if (send(keeper->console_sock, &event, sizeof(event), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		log_info("the console has gone");
}

static void on_console(struct keeper *keeper, int fd, short revents, void *arg)
{
	char byte;

	if (recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	keeper_unwatch(keeper, fd);
	close(fd);
	keeper->console_sock = -1;
	requests_console_gone(keeper);
}

/* ---- the job's end ---- */

static void close_console(struct keeper *keeper)
{
	for (int i = 0; i < 3; i++) {
		if (keeper->console[i] >= 0)
			close(keeper->console[i]);
		keeper->console[i] = -1;
	}
}

_Noreturn static void leave(struct keeper *keeper)
{
	if (keeper->requests)
		requests_close(keeper);
	if (keeper->pool)
		pool_close(keeper->pool);
	if (keeper->names) {
		names_job_remove(keeper->names, keeper->job.keeper);
		record_forget_job(keeper->job.keeper);
		names_close(keeper->names);
	}
	_exit(0);
}

_Noreturn static void fail(struct keeper *keeper, int status, const char *text)
{
	tell_console(keeper, KEEPER_FAILED, status, text);
	if (keeper->root > 0)
		kill(keeper->root, SIGKILL);
	leave(keeper);
}

/* Whatever the first process left running goes on; we stay as long as any of it does. */
static void check_end(struct keeper *keeper, void *arg)
{
	if (!keeper->root_gone || keeper->coordinator)
		return;
	if (names_process_list(keeper->names, keeper->job.keeper, NULL, 0) <= 0)
		leave(keeper);
	keeper_alarm_cancel(keeper, check_end, NULL);
	if (keeper_alarm(keeper, io_now_ns(CLOCK_MONOTONIC) + 50 * MS, check_end, NULL) < 0)
		log_debug("no alarm to spare: the job's end is noticed at the next death");
}

static void root_ended(struct keeper *keeper)
{
	tell_console(keeper, KEEPER_ENDED, keeper->root_status, "");
	if (keeper->requests)
		requests_job_ended(keeper, keeper->root_status);
	close_console(keeper);
	check_end(keeper, NULL);
}

int keeper_set_root(struct keeper *keeper, pid_t root, struct vpid vpid)
{
	keeper->root = root;
	keeper->root_gone = false;
	keeper->job.root = vpid;
	return names_job_update(keeper->names, &keeper->job);
}

/* ---- the program's start ---- */

static void on_report(struct keeper *keeper, int fd, short revents, void *arg)
{
	struct launch_failure failure;
	char began;
	ssize_t n = read(fd, &began, 1);

	if (n == 1 && began == 0) {
		n = io_read_full(fd, &failure,
				 sizeof(failure)); /* blocks until the exec is done or has failed */
		began = 1;
	} else if (n == 1) {
		((char *)&failure)[0] = began;
		n = io_read_full(fd, (char *)&failure + 1, sizeof(failure) - 1) + 1;
		began = 0;
	}
	keeper_unwatch(keeper, fd);
	close(fd);
	keeper->report = -1;
	if (n == (ssize_t)sizeof(failure)) {
		failure.text[sizeof(failure.text) - 1] = 0;
		fail(keeper, failure.status, failure.text);
	}
	if (n != 0 || began != 1)
		fail(keeper, STATUS_SCIP, "the program's process was killed before it could be executed");
	tell_console(keeper, KEEPER_STARTED, keeper->job.root.n, "");
}

/* ---- children ---- */

/* Nobody else will wait for it: what is left of its names goes. */
static void forget_orphan(struct keeper *keeper, pid_t pid)
{
	struct name_process entry;
	struct vpid vpid = names_virtual(keeper->names, (struct rpid){pid});

	if (names_process_find_real(keeper->names, (struct rpid){pid}, &entry) == 0)
		names_process_remove(keeper->names, entry.vpid);
	if (vpid.n != pid && vpid.n)
		names_number_release(keeper->names, vpid);
}

static void child_ended(struct keeper *keeper, pid_t pid, int status)
{
	if (keeper->pool && pool_reaped(keeper->pool, pid, status))
		return;
	if (coordinator_reaped(keeper, pid, status)) {
		if (keeper->root_gone)
			root_ended(keeper);
		return;
	}
	forget_orphan(keeper, pid);
	if (pid == keeper->root && !keeper->root_gone) {
		keeper->root_gone = true;
		keeper->root_status = status;
		if (keeper->report >= 0) /* its last words come first */
			on_report(keeper, keeper->report, POLLIN, NULL);
		if (!keeper->replacing)
			root_ended(keeper);
	} else {
		check_end(keeper, NULL);
	}
}

static void on_children(struct keeper *keeper, int fd, short revents, void *arg)
{
	struct signalfd_siginfo info;
	int status;
	pid_t pid;

	while (read(fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
		continue;
	while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0) {
		if (!WIFSTOPPED(status))
			child_ended(keeper, pid, status);
		else if (pid == keeper->root && !keeper->coordinator)
			/* stops of a rollback's husks are none of the console's business */
			tell_console(keeper, KEEPER_STOPPED, status, "");
	}
}

/* ---- the pool ---- */

static void fill_pool(struct keeper *keeper)
{
	struct err err = ERR_INIT;

	if (pool_fill(keeper->pool, &err) == 0)
		return;
	log_warn("%s", err.text);
	/* Processes wait: try again soon. */
	if (keeper_alarm(keeper, io_now_ns(CLOCK_MONOTONIC) + 100 * MS, (keeper_alarm_fn)(void *)fill_pool,
			 NULL) < 0)
		log_warn("no alarm to spare");
}

static void on_pool_low(struct keeper *keeper, int fd, short revents, void *arg)
{
	fill_pool(keeper);
}

void keeper_close_private(struct keeper *keeper)
{
	for (int i = 0; i < KEEPER_WATCHES_MAX; i++) {
		const struct keeper_watch *watch = &keeper->watches[i];

		if (watch->ready && !(keeper->pool && watch->fd == pool_wake_fd(keeper->pool)))
			close(watch->fd);
	}
	close_console(keeper);
	if (keeper->pty_master >= 0)
		close(keeper->pty_master);
}

static void before_scip(void *arg)
{
	keeper_close_private(arg);
	prctl(PR_SET_NAME, "scip");
}

/* ---- start ---- */

/* The program's own descriptors beyond the streams went to the program; ours are all close-on-exec. */
static int close_if_inherited(int fd, void *arg)
{
	int flags = fcntl(fd, F_GETFD);

	if (fd > STDERR_FILENO && flags >= 0 && !(flags & FD_CLOEXEC))
		close(fd);
	return 0;
}

/* The job's streams are where streams_choose() put them; ours, 0 to 2, must not keep anybody's pipe open. */
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

static void open_log(void)
{
	char path[PATH_MAX];
	size_t len;

	if (dirs_runtime(path, NULL, NULL) < 0)
		return;
	len = strlen(path);
	snprintf(path + len, sizeof(path) - len, "/log");
	log_open("scip", path);
}

static void describe_job(struct keeper *keeper)
{
	const struct keeper_options *options = keeper->options;
	struct name_job *job = &keeper->job;
	char *uuid;

	job->keeper.n = getpid();
	job->interval_ns = options->interval_ns;
	job->keep = options->keep;
	job->start_ns = io_now_ns(CLOCK_REALTIME);
	if (options->name)
		snprintf(job->name, sizeof(job->name), "%s", options->name);
	if (io_slurp(AT_FDCWD, "/proc/sys/kernel/random/uuid", 64, &uuid, NULL) == 0) {
		snprintf(job->uuid, sizeof(job->uuid), "%.36s", uuid);
		free(uuid);
	}
}

/* A restored job is the one that was saved. */
static int describe_job_of_image(struct keeper *keeper, struct err *err)
{
	struct name_job *job = &keeper->job;
	struct image_reader *image;
	const Pbeam__Job *saved;
	int r = image_reader_open(&image, keeper->options->image, err);

	if (r < 0)
		return r;
	saved = image_reader_manifest(image)->job;
	if (saved) {
		snprintf(job->name, sizeof(job->name), "%s", saved->name);
		snprintf(job->uuid, sizeof(job->uuid), "%s", saved->uuid);
		job->root.n = saved->root_vpid;
		job->interval_ns = saved->interval_ns;
		job->keep = saved->keep;
	}
	image_reader_close(image);
	return 0;
}

static int enter_root(struct keeper *keeper, pid_t pid, struct err *err)
{
	struct name_process entry = {
		.rpid = {pid},
		.keeper = keeper->job.keeper,
		.start_ns = keeper->job.start_ns,
		.state = NAME_STATE_BORN,
	};
	int r = names_number_born(keeper->names, entry.rpid, keeper->job.keeper, &entry.vpid);

	if (r < 0)
		return err_code(err, r, "name the program's process");
	r = names_process_add(keeper->names, &entry);
	if (r == 0)
		r = keeper_set_root(keeper, pid, entry.vpid);
	return r < 0 ? err_code(err, r, "enter vpid %d in the name table", entry.vpid.n) : 0;
}

static int hand_root_over(struct keeper *keeper, int report, struct err *err)
{
	struct handoff handoff = {.rpid = keeper->root,
				  .vpid = keeper->job.root.n,
				  .keeper = keeper->job.keeper.n,
				  .flags = HANDOFF_LAUNCH};
	int r;

	if (handoff.vpid != handoff.rpid)
		handoff.flags |= HANDOFF_DIVERGED;
	r = keeper_watch(keeper, report, POLLIN, on_report, NULL);

	keeper->report = report;

	return r < 0 ? r : pool_hand_over(keeper->pool, &handoff, err);
}

static void on_restored(struct keeper *keeper, const struct keeper_outcome *outcome, void *arg)
{
	if (outcome->err.code)
		fail(keeper, STATUS_SCIP, outcome->err.text);
	tell_console(keeper, KEEPER_STARTED, keeper->job.root.n, "");
}

/* True if the job of our name has no process left: its keeper is on the way out. */
static bool name_is_left(const struct keeper *keeper)
{
	int room = names_job_list(keeper->names, NULL, 0) + 8;
	auto_free struct name_job *jobs = room > 0 ? calloc((size_t)room, sizeof(*jobs)) : NULL;
	int n = jobs ? names_job_list(keeper->names, jobs, room) : 0;

	if (!jobs)
		return false;
	for (int i = 0; i < n && i < room; i++)
		if (strcmp(jobs[i].name, keeper->job.name) == 0)
			return names_process_list(keeper->names, jobs[i].keeper, NULL, 0) <= 0;
	return true;
}

/* A console hears of the end of its program a moment before the name is free: who then takes the name at once
 * must not be refused. */
static int add_job(struct keeper *keeper, struct err *err)
{
	int r = names_job_add(keeper->names, &keeper->job, err);

	for (int tries = 0; r == -EEXIST && keeper->job.name[0] && tries < 200 && name_is_left(keeper);
	     tries++) {
		nanosleep(&(struct timespec){.tv_nsec = 5 * MS}, NULL);
		err_clear(err);
		r = names_job_add(keeper->names, &keeper->job, err);
	}
	return r;
}

static int begin_job(struct keeper *keeper, const struct sock_fprog *filter, struct err *err)
{
	const struct keeper_options *options = keeper->options;
	int report = -1, r;

	record_forget_job(keeper->job.keeper); /* an older keeper's of this number */
	r = names_open(&keeper->names, err);
	if (r == 0)
		r = add_job(keeper, err);
	if (r == 0 && options->argv) {
		/* First of all: it inherits what the console inherited. */
		r = launch_program(keeper, filter, &report, err);
		if (r > 0)
			r = enter_root(keeper, r, err);
	}
	if (r == 0)
		r = leave_streams(err);
	if (r == 0)
		r = pool_open(&keeper->pool, keeper->names, before_scip, keeper, err);
	if (r == 0)
		r = keeper_watch(keeper, pool_wake_fd(keeper->pool), POLLIN, on_pool_low, NULL);
	if (r == 0)
		r = pool_fill(keeper->pool, err);
	if (r == 0)
		r = requests_open(keeper, err);
	if (r == 0 && options->argv)
		r = hand_root_over(keeper, report, err);
	else if (r == 0)
		r = coordinator_restore(keeper, options->image, options->force, on_restored, NULL, err);
	return r;
}

_Noreturn static void keeper_main(struct keeper *keeper)
{
	struct sock_fprog filter = {0};
	struct err err = ERR_INIT;
	sigset_t mask;
	int fd, r;

	setsid();
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	prctl(PR_SET_NAME, "scip-keeper");
	open_log();
	sigfillset(&mask);
	sigdelset(&mask, SIGTERM); /* kill KEEPER ends the job */
	sigprocmask(SIG_SETMASK, &mask, NULL);
	sigemptyset(&mask);
	sigaddset(&mask, SIGCHLD);
	fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	r = fd < 0 ? err_sys(&err, "make a signalfd") : keeper_watch(keeper, fd, POLLIN, on_children, NULL);
	if (r == 0)
		r = keeper_watch(keeper, keeper->console_sock, POLLIN, on_console, NULL);
	describe_job(keeper);
	if (r == 0 && keeper->options->argv)
		r = syscall_filter_build(SYSCALL_FILTER_BORN, &filter, &err);
	else if (r == 0)
		r = describe_job_of_image(keeper, &err);
	if (r == 0)
		r = begin_job(keeper, &filter, &err);
	free(filter.filter);
	if (r < 0)
		fail(keeper, STATUS_SCIP, err.text[0] ? err.text : strerror(-r));
	if (chdir("/") < 0)
		log_debug("the job's directory stays in use");
	for (;;)
		wait_and_serve(keeper);
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
		static struct keeper keeper = {.coordinator_sock = -1, .report = -1};

		close(pair[0]);
		keeper.options = options;
		keeper.console_sock = pair[1];
		keeper.pty_master = options->pty_master;
		memcpy(keeper.console, options->console, sizeof(keeper.console));
		if (options->signal_mask)
			keeper.saved_mask = *options->signal_mask;
		else
			sigprocmask(SIG_BLOCK, NULL, &keeper.saved_mask);
		keeper_main(&keeper);
	}
	close(pair[1]);
	return pair[0];
}
