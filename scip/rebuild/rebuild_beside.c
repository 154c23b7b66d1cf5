/*
 * What allows the new processes to be made while the old ones exist: rebuild.h.
 *
 * The numbers of the old ones are set aside (namespace/names_replace.c). The state of the job's terminal is
 * not in the requests to the new processes: it is set at the commit, by the coordinator, which is in the
 * keeper's session.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "namespace/record.h"
#include "scip/object/object_end.h"
#include "scip/object/terminal.h"
#include "scip/rebuild/rebuild_parts.h"
#include "scip/tracee/procfs.h"

enum { END_MS = 2000 };

/* ---- whether it is possible ---- */

/* A session has the job's terminal until its leader ends. */
static bool leads_console(const struct rebuild *rebuild)
{
	const Pbeam__Manifest *manifest = rebuild->manifest;

	for (size_t i = 0; i < manifest->n_objects; i++) {
		const Pbeam__Object *object = manifest->objects[i];
		const Pbeam__Tty *tty = object_tty_of(object);

		if (!tty || (object->kind_case != PBEAM__OBJECT__KIND_CONSOLE && !tty->console))
			continue;
		for (size_t n = 0; n < manifest->n_processes; n++)
			if (tty->session_vsid > 0 && manifest->processes[n]->vpid == tty->session_vsid)
				return true;
	}
	return false;
}

/* True if a process that is replaced is on another host: the end of its stub is what ends it there. Other
 * parts of a cut see to their processes themselves. */
static bool replaces_stub(struct rebuild *rebuild)
{
	auto_free struct name_process *list = NULL;
	int n = names_snapshot(rebuild->names, rebuild->options->keeper, &list);

	for (int i = 0; i < n && !rebuild->options->part; i++)
		if (list[i].state == NAME_STATE_STUB && replaced_includes(rebuild, &list[i]))
			return true;
	return n < 0;
}

/* A process that could not be frozen, or NULL. */
static const struct still *find_moving(const struct rebuild *rebuild)
{
	for (size_t i = 0; i < rebuild->nstill; i++)
		if (rebuild->still[i].sock < 0 && rebuild->still[i].rpid > 0)
			return &rebuild->still[i];
	return NULL;
}

/* A process that needs calls of its own after the commit, which its filter may forbid. */
static bool is_filtered(const struct rebuild *rebuild)
{
	for (size_t i = 0; i < rebuild->manifest->n_processes; i++) {
		const Pbeam__Process *process = rebuild->manifest->processes[i];

		if (process->n_seccomp_filters && (process->n_locks || process->n_sysv_undo))
			return true;
	}
	return false;
}

/* Why the old processes end first without a question, or NULL. */
static const char *find_reason(struct rebuild *rebuild)
{
	const struct rebuild_options *options = rebuild->options;

	if (options->old_end_first)
		return "--replace";
	if (replaces_stub(rebuild))
		return "a process of it is on another host";
	return rebuild->nstill || options->part ? NULL : "none of them runs";
}

/* What prevents that old and new processes exist at once, or NULL. */
static const char *find_obstacle(const struct rebuild *rebuild)
{
	if (leads_console(rebuild))
		return "the terminal, whose session its first process leads";
	if (is_filtered(rebuild))
		return "the locks or semaphores of a process with a seccomp filter";
	return NULL;
}

#define HOW_TO_REPLACE "use --replace, which ends them first (if the restore then fails nothing runs)"

static int refuse_beside(const struct rebuild *rebuild, const char *obstacle)
{
	return err_set(rebuild->err, -EBUSY,
		       "the image needs %s, which the present processes have; " HOW_TO_REPLACE, obstacle);
}

static int borrow_objects(struct rebuild *rebuild, const char **obstacle)
{
	auto_free struct rpid *rpids = calloc(rebuild->nstill + 1, sizeof(*rpids));

	if (!rpids)
		return err_code(rebuild->err, -ENOMEM, "list of processes");
	for (size_t i = 0; i < rebuild->nstill; i++)
		rpids[i].n = rebuild->still[i].rpid;
	return object_restore_borrow(rebuild->objects, rpids, rebuild->nstill, obstacle, rebuild->err);
}

int rebuild_beside_decide(struct rebuild *rebuild)
{
	const char *reason = find_reason(rebuild), *obstacle = find_obstacle(rebuild);
	const struct still *moving = find_moving(rebuild);
	int r;

	if (reason) {
		log_info("restore: the old processes end before the new ones are made: %s", reason);
		return 0;
	}
	if (moving)
		return err_set(rebuild->err, -EBUSY,
			       "vpid %d does not stop (a vfork that does not end, for instance); "
			       "try again, or " HOW_TO_REPLACE,
			       moving->vpid.n);
	r = obstacle ? 0 : borrow_objects(rebuild, &obstacle);
	if (r < 0)
		return r;
	if (obstacle)
		return refuse_beside(rebuild, obstacle);
	rebuild->beside = true;
	r = rebuild_check_room(rebuild);
	return r < 0 ? r : rebuild_check_tasks(rebuild);
}

/* ---- numbers ---- */

struct numbers {
	struct names *names;
	struct name_number *v;
	size_t n;
};

static int beside_add_number(int number, void *arg)
{
	struct numbers *numbers = arg;
	struct name_number *more = reallocarray(numbers->v, numbers->n + 1, sizeof(*more));
	struct vpid vpid = names_virtual(numbers->names, (struct rpid){number});

	if (!more)
		return -ENOMEM;
	numbers->v = more;
	if (vpid.n > 0)
		more[numbers->n++] = (struct name_number){vpid, {number}};
	return 0;
}

/* The process's own number, which is known also when it has ended, and those of its threads. */
static int beside_add_process(struct rebuild *rebuild, const struct name_process *process,
			      struct numbers *numbers)
{
	char path[64];
	int r = beside_add_number(process->rpid.n, numbers);

	snprintf(path, sizeof(path), "/proc/%d/task", process->rpid.n);
	if (r == 0)
		r = procfs_each_number(path, beside_add_number, numbers);
	if (r == -ENOENT || r == -ESRCH)
		r = 0;
	return r < 0 ? r : record_filter_set_aside(rebuild->options->keeper, process->vpid);
}

static bool is_of_others(const struct rebuild *rebuild, const struct numbers *numbers, pid_t group)
{
	int32_t number = names_virtual(rebuild->names, (struct rpid){group}).n;

	for (size_t i = 0; i < numbers->n; i++)
		if (numbers->v[i].rpid.n == group)
			return true; /* known already */
	for (size_t i = 0; i < rebuild->above.plan.ngroups; i++)
		if (rebuild->above.groups[i] == number)
			return true;
	return number == rebuild->above.plan.session || number <= 0;
}

/* Of a part of a job: the numbers of groups and sessions whose leader has ended and whose members are all
 * replaced. */
static int add_groups(struct rebuild *rebuild, const struct name_process *process, struct numbers *numbers)
{
	struct procfs_stat stat;
	int r = 0;

	if (procfs_stat_read(process->rpid.n, 0, &stat, NULL) < 0)
		return 0;
	if (!is_of_others(rebuild, numbers, stat.pgrp))
		r = beside_add_number(stat.pgrp, numbers);
	if (r == 0 && !is_of_others(rebuild, numbers, stat.session))
		r = beside_add_number(stat.session, numbers);
	return r;
}

static int set_numbers_aside(struct rebuild *rebuild, struct numbers *numbers)
{
	auto_free struct name_process *list = NULL;
	int n = names_snapshot(rebuild->names, rebuild->options->keeper, &list), r = n < 0 ? n : 0;

	for (int i = 0; i < n && r == 0; i++)
		if (replaced_includes(rebuild, &list[i]))
			r = beside_add_process(rebuild, &list[i], numbers);
	for (int i = 0; i < n && r == 0 && !rebuild->whole; i++)
		if (replaced_includes(rebuild, &list[i]))
			r = add_groups(rebuild, &list[i], numbers);
	return r < 0 ? r
		     : names_replace_begin(rebuild->names, rebuild->options->keeper, numbers->v, numbers->n,
					   rebuild->whole);
}

/* ---- the terminal ---- */

static int defer_terminals(struct rebuild *rebuild)
{
	const Pbeam__Manifest *manifest = rebuild->manifest;

	rebuild->terminals = calloc(manifest->n_objects + 1, sizeof(*rebuild->terminals));
	if (!rebuild->terminals)
		return -ENOMEM;
	for (size_t i = 0; i < manifest->n_objects; i++) {
		const Pbeam__Object *object = manifest->objects[i];
		Pbeam__Tty *tty = object_tty_of(object);

		if (!tty || (object->kind_case != PBEAM__OBJECT__KIND_CONSOLE && !tty->console))
			continue;
		rebuild->terminals[rebuild->nterminals++] =
			(struct rebuild_terminal){tty->termios, tty->foreground_vpgid};
		tty->termios = (ProtobufCBinaryData){0};
		tty->foreground_vpgid = 0;
	}
	return 0;
}

/* The job's terminal, or -1. */
static int find_job_terminal(const struct rebuild *rebuild)
{
	for (int i = 0; i < 3 && rebuild->options->console; i++)
		if (rebuild->options->console[i] >= 0 && isatty(rebuild->options->console[i]))
			return rebuild->options->console[i];
	return -1;
}

void rebuild_beside_set_terminals(struct rebuild *rebuild)
{
	int fd = find_job_terminal(rebuild);

	for (size_t i = 0; i < rebuild->nterminals && fd >= 0; i++) {
		const struct rebuild_terminal *terminal = &rebuild->terminals[i];
		Pbeam__Tty tty = PBEAM__TTY__INIT;
		pid_t group = names_real(rebuild->names, (struct vpid){terminal->foreground}).n;
		struct err err = ERR_INIT;

		tty.termios = terminal->termios;
		if (terminal_restore_termios(&tty, fd, &err) < 0)
			log_warn("restore: %s", err.text);
		if (terminal->foreground > 0 && ioctl(fd, TIOCSPGRP, &group) < 0)
			log_info("restore: group %d is not in the foreground", terminal->foreground);
	}
}

/* ---- its beginning and end ---- */

int rebuild_beside_begin(struct rebuild *rebuild)
{
	struct numbers numbers = {.names = rebuild->names};
	int r = set_numbers_aside(rebuild, &numbers);

	free(numbers.v);
	if (r == 0)
		r = defer_terminals(rebuild);
	return r < 0 ? err_code(rebuild->err, r, "set the numbers of the old processes aside") : 0;
}

/* The new ones have been killed; what they hold is free when they have ended. */
void rebuild_beside_await_ends(struct pollfd *ends, size_t n)
{
	uint64_t end = io_now_ns(CLOCK_MONOTONIC) + END_MS * 1000000ull, now;

	for (size_t i = 0; i < n; i++) {
		now = io_now_ns(CLOCK_MONOTONIC);
		if (ends[i].fd >= 0 && poll(&ends[i], 1, now < end ? (int)((end - now) / 1000000) : 0) == 0)
			log_warn("restore: a process that was made does not end");
		if (ends[i].fd >= 0)
			close(ends[i].fd);
	}
}

struct pollfd *rebuild_beside_watch_ends(const struct rebuild *rebuild, size_t *n)
{
	struct pollfd *ends = calloc((size_t)rebuild->plan.nnodes + 1, sizeof(*ends));

	*n = 0;
	for (int i = 0; i < rebuild->plan.nnodes && ends && rebuild->made; i++)
		if (rebuild->made[i].rpid > 1)
			ends[(*n)++] =
				(struct pollfd){.fd = (int)syscall(SYS_pidfd_open, rebuild->made[i].rpid, 0),
						.events = POLLIN};
	return ends;
}

void rebuild_beside_end(struct rebuild *rebuild, bool committed)
{
	if (rebuild->beside)
		names_replace_end(rebuild->names, rebuild->options->keeper, committed);
}

void rebuild_beside_free(struct rebuild *rebuild)
{
	for (size_t i = 0; i < rebuild->nterminals; i++)
		free(rebuild->terminals[i].termios.data);
	free(rebuild->terminals);
}
