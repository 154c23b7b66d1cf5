/* ps: the processes of the name table, with data from /proc. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "pbeamd/services/process_requests.h"
#include "pbeamd/services/target.h"
#include "pbeamd/transport/server.h"
#include "pbeamd/transport/worker.h"
#include "proto/rpc.h"

enum { COMMAND_MAX = 256 };

struct stat_line {
	char state;
	unsigned threads;
	uint64_t resident;
};

static int read_stat(pid_t pid, struct stat_line *out)
{
	auto_free char *text = NULL;
	char path[40];
	const char *p;
	long threads = 0, resident = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (io_slurp(AT_FDCWD, path, 1 << 14, &text, NULL) < 0)
		return -ESRCH;
	p = strrchr(text, ')'); /* the name may contain any character */
	if (!p || sscanf(p + 1, " %c", &out->state) != 1)
		return -EPROTO;
	for (int field = 2; p && field < 20; field++)
		p = strchr(p + 1, ' ');
	if (p)
		sscanf(p, " %ld", &threads);
	for (int field = 20; p && field < 24; field++)
		p = strchr(p + 1, ' ');
	if (p)
		sscanf(p, " %ld", &resident);
	out->threads = (unsigned)threads;
	out->resident = resident > 0 ? (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
	return 0;
}

/* Reads it again if the process is stopped only for a moment, by its supervisor. */
static void read_stat_settled(pid_t pid, struct stat_line *out)
{
	struct timespec moment = {0, 1000000};

	for (int i = 0; i < 4; i++) {
		if (read_stat(pid, out) < 0) {
			*out = (struct stat_line){.state = 'X'};
			return;
		}
		if (out->state != 't')
			return;
		nanosleep(&moment, NULL);
	}
}

static const char *ps_state_word(const struct name_process *process, char state)
{
	if (process->state == NAME_STATE_FROZEN)
		return process->undecided ? "undecided" : "frozen";
	if (process->state == NAME_STATE_BORN)
		return "starting";
	switch (state) {
	case 'R':
		return "running";
	case 'S':
	case 'I':
		return "sleeping";
	case 'D':
		return "waiting";
	case 'T':
	case 't':
		return "stopped";
	default:
		return "ended";
	}
}

static void read_command(pid_t pid, char command[COMMAND_MAX])
{
	char path[40];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? 0 : io_read_full(fd, command, COMMAND_MAX - 1);
	if (n < 0)
		n = 0;
	while (n > 0 && !command[n - 1])
		n--;
	for (ssize_t i = 0; i < n; i++) {
		if (!command[i])
			command[i] = ' ';
		else if ((unsigned char)command[i] < 32 || command[i] == 127)
			command[i] = '?';
	}
	command[n] = 0;
}

/* One row, and the texts that it points to. */
struct row {
	Pbeam__ProcessInfo info;
	char comm[32], command[COMMAND_MAX];
};

static const struct name_job *job_of(const struct name_job *jobs, int n, struct rpid keeper)
{
	for (int i = 0; i < n; i++)
		if (jobs[i].keeper.n == keeper.n)
			return &jobs[i];
	return NULL;
}

static void fill_row(struct row *row, const struct name_process *process, const struct name_job *job,
		     char *host)
{
	Pbeam__ProcessInfo *info = &row->info;
	struct stat_line stat = {.state = 'X'};

	pbeam__process_info__init(info);
	read_stat_settled(process->rpid.n, &stat);
	target_comm(process->rpid, row->comm);
	read_command(process->rpid.n, row->command);
	info->vpid = process->vpid.n;
	info->vppid = process->parent.n;
	info->host = host;
	info->state = (char *)(uintptr_t)ps_state_word(process, stat.state);
	info->threads = stat.threads;
	info->memory = stat.resident;
	info->name = row->comm;
	info->rpid = process->rpid.n;
	info->command = row->command[0] ? row->command : row->comm;
	info->start_ns = process->start_ns;
	info->unknown_calls = process->unknown_calls;
	info->scip = process->scip.n;
	if (!job)
		return;
	info->job = job->root.n;
	info->job_name = (char *)(uintptr_t)job->name;
	info->group = (char *)(uintptr_t)job->group;
	info->job_uuid = (char *)(uintptr_t)job->uuid;
	if (job->root.n == process->vpid.n && job->name[0])
		info->name = info->job_name;
}

static int ps_compare_vpids(const void *a, const void *b)
{
	int32_t x = ((const struct name_process *)a)->vpid.n, y = ((const struct name_process *)b)->vpid.n;

	return x < y ? -1 : x > y;
}

void ps_work(struct server *server, int sock, const void *arg)
{
	struct name_process *processes = NULL;
	struct name_job *jobs = NULL;
	Pbeam__ProcessList list = PBEAM__PROCESS_LIST__INIT;
	struct err err = ERR_INIT;
	char host[256];
	struct row *rows;
	int n, njobs, r;

	n = names_snapshot(server->names, (struct rpid){0}, &processes);
	njobs = names_jobs_snapshot(server->names, &jobs);
	rows = n < 0 ? NULL : calloc((size_t)n + 1, sizeof(*rows));
	list.processes = n < 0 ? NULL : calloc((size_t)n + 1, sizeof(Pbeam__ProcessInfo *));
	if (!jobs || !rows || !list.processes) {
		r = n < 0 ? n : njobs < 0 ? njobs : -ENOMEM;
		if (r == -ENOMEM)
			err_code(&err, r, "list the processes");
		else
			names_explain(server->names, r, &err);
		rpc_refuse(sock, &err);
		return;
	}
	target_host(server, host);
	bytes_sort(processes, (size_t)n, sizeof(*processes), ps_compare_vpids);
	for (int i = 0; i < n; i++) {
		fill_row(&rows[i], &processes[i], job_of(jobs, njobs, processes[i].keeper), host);
		list.processes[list.n_processes++] = &rows[i].info;
	}
	if (rpc_reply(sock, &list.base, &err) < 0)
		log_info("list of processes: %s", err.text);
	free(list.processes);
	free(rows);
	free(jobs);
	free(processes);
}
