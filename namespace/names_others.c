/*
 * Tables of other versions in the runtime directory, as this version sees them: read only.
 *
 * Each version keeps its jobs in a table of its own, RUNTIME/names.VERSION (version 12: RUNTIME/names),
 * because the scips of a job map the table with the layout that they were compiled with. What all versions
 * have in common, and what this file relies on, is in table.h ("Frozen"). It suffices to list the jobs of
 * another version, to signal their processes, and to find their keepers, which serve requests themselves.
 *
 * No lock is taken: a mutex belongs to a layout, and a reader could not repair the table. The arrays are read
 * until two readings are equal; after some attempts only entries that are equal in the last two count.
 * Entries whose process or keeper has ended are left out.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "base/parse.h"
#include "namespace/table.h"

enum { READINGS = 6, ENTRIES_MAX = 1 << 20, STRIDE_MAX = 4096, VERSION_BEFORE_SHAPES = 12 };

/* Of version 12, whose head does not describe it. */
static const struct table_shape shape_before = {
	.jobs_at = 152,
	.job_stride = 288,
	.job_room = 1024,
	.processes_at = 295064,
	.process_stride = 72,
	.process_room = 16384,
};

/* What has been collected from all other tables. */
struct others {
	struct name_job *jobs;
	uint64_t *start_ticks; /* of their keepers */
	struct name_process *processes;
	int njobs, nprocesses;
};

static void others_free(struct others *others)
{
	free(others->jobs);
	free(others->start_ticks);
	free(others->processes);
	*others = (struct others){0};
}

bool table_file_version(const char *name, uint32_t *version)
{
	uint64_t n = VERSION_BEFORE_SHAPES;

	if (strncmp(name, TABLE_FILE, strlen(TABLE_FILE)) != 0)
		return false;
	name += strlen(TABLE_FILE);
	if (name[0] &&
	    (name[0] != '.' || parse_number(name + 1, VERSION_BEFORE_SHAPES + 1, 1000000, &n, NULL) < 0))
		return false;
	*version = (uint32_t)n;
	return true;
}

static bool others_fits(uint32_t at, uint32_t stride, uint32_t room, size_t least, off_t size)
{
	return stride >= least && stride <= STRIDE_MAX && stride % 8 == 0 && room <= ENTRIES_MAX &&
	       at >= sizeof(struct table_head_before) && (off_t)at + (off_t)stride * room <= size;
}

/* 0 with the table's shape, -ENOENT if it is not a table of this machine's, since boot and in this pid
 * namespace. */
static int others_read_shape(int fd, uint32_t version, struct table_shape *shape)
{
	struct table_head head, own;
	struct stat st;
	ssize_t n;

	memset(&head, 0, sizeof(head));
	n = io_pread_full(fd, &head, sizeof(head), 0);
	if (n < (ssize_t)sizeof(struct table_head_before) || fstat(fd, &st) < 0)
		return -ENOENT;
	table_head_fill(&own, version);
	if (head.magic != own.magic || head.version != version || head.size != st.st_size ||
	    head.pid_namespace != own.pid_namespace ||
	    strncmp(head.boot_id, own.boot_id, sizeof(own.boot_id)) != 0)
		return -ENOENT;
	*shape = version == VERSION_BEFORE_SHAPES ? shape_before : head.shape;
	return others_fits(shape->jobs_at, shape->job_stride, shape->job_room, TABLE_JOB_FROZEN,
			   st.st_size) &&
			       others_fits(shape->processes_at, shape->process_stride, shape->process_room,
					   TABLE_PROCESS_FROZEN, st.st_size)
		       ? 0
		       : -ENOENT;
}

/* Reads an array of entries; *out is the caller's. */
static int others_read_entries(int fd, uint32_t at, uint32_t stride, uint32_t room, uint8_t **out)
{
	size_t len = (size_t)stride * room;
	auto_free uint8_t *now = malloc(len + 1), *before = malloc(len + 1);

	if (!now || !before)
		return -ENOMEM;
	if (io_pread_full(fd, before, len, at) != (ssize_t)len)
		return -EIO;
	for (int i = 0; i < READINGS; i++) {
		if (io_pread_full(fd, now, len, at) != (ssize_t)len)
			return -EIO;
		if (!memcmp(now, before, len))
			break;
		if (i < READINGS - 1)
			memcpy(before, now, len);
	}
	for (uint32_t i = 0; i < room; i++)
		if (memcmp(now + (size_t)i * stride, before + (size_t)i * stride, stride) != 0)
			memset(now + (size_t)i * stride, 0, stride); /* not used */
	*out = steal_ptr(&now);
	return 0;
}

static bool others_ends(const char *text, size_t size)
{
	return memchr(text, 0, size) != NULL;
}

static int others_take_jobs(struct others *others, int fd, const struct table_shape *shape)
{
	auto_free uint8_t *bytes = NULL;
	struct name_job *jobs;
	uint64_t *ticks;
	int r = others_read_entries(fd, shape->jobs_at, shape->job_stride, shape->job_room, &bytes);

	if (r < 0)
		return r;
	jobs = reallocarray(others->jobs, (size_t)others->njobs + shape->job_room + 1, sizeof(*jobs));
	if (!jobs)
		return -ENOMEM;
	others->jobs = jobs;
	ticks = reallocarray(others->start_ticks, (size_t)others->njobs + shape->job_room + 1,
			     sizeof(*ticks));
	if (!ticks)
		return -ENOMEM;
	others->start_ticks = ticks;
	for (uint32_t i = 0; i < shape->job_room; i++) {
		struct table_job job = {0};

		memcpy(&job, bytes + (size_t)i * shape->job_stride, TABLE_JOB_FROZEN);
		if (!table_used(&job.used) || job.j.keeper.n <= 0 || job.j.root.n < 0 ||
		    !others_ends(job.j.name, sizeof(job.j.name)) ||
		    !others_ends(job.j.uuid, sizeof(job.j.uuid)) ||
		    !others_ends(job.j.group, sizeof(job.j.group)) ||
		    !others_ends(job.j.home, sizeof(job.j.home)) ||
		    !table_runs(job.j.keeper.n, job.start_ticks))
			continue;
		ticks[others->njobs] = job.start_ticks;
		jobs[others->njobs++] = job.j;
	}
	return 0;
}

static bool others_have_keeper(const struct others *others, int32_t keeper)
{
	for (int i = 0; i < others->njobs; i++)
		if (others->jobs[i].keeper.n == keeper)
			return true;
	return false;
}

static int others_take_processes(struct others *others, int fd, const struct table_shape *shape)
{
	auto_free uint8_t *bytes = NULL;
	struct name_process *all;
	int r = others_read_entries(fd, shape->processes_at, shape->process_stride, shape->process_room,
				    &bytes);

	if (r < 0)
		return r;
	all = reallocarray(others->processes, (size_t)others->nprocesses + shape->process_room + 1,
			   sizeof(*all));
	if (!all)
		return -ENOMEM;
	others->processes = all;
	for (uint32_t i = 0; i < shape->process_room; i++) {
		struct table_process process = {0};

		memcpy(&process, bytes + (size_t)i * shape->process_stride, TABLE_PROCESS_FROZEN);
		if (!table_used(&process.used) || process.p.vpid.n <= 0 || process.p.rpid.n <= 0 ||
		    process.p.state <= NAME_STATE_FREE || process.p.state > NAME_STATE_STUB ||
		    !others_have_keeper(others, process.p.keeper.n) ||
		    !table_alive(process.p.rpid.n, process.start_ticks))
			continue;
		all[others->nprocesses++] = process.p;
	}
	return 0;
}

/* A table that no process maps any more is removed. */
static int others_take(struct others *others, int dir, const char *name, uint32_t version)
{
	auto_close int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	struct table_shape shape;
	int r;

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (others_read_shape(fd, version, &shape) < 0)
		return 0;
	if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
		struct stat a, b;

		if (fstat(fd, &a) == 0 && fstatat(dir, name, &b, AT_SYMLINK_NOFOLLOW) == 0 &&
		    a.st_ino == b.st_ino)
			unlinkat(dir, name, 0);
		return 0;
	}
	r = others_take_jobs(others, fd, &shape);
	return r < 0 || !others->njobs ? r : others_take_processes(others, fd, &shape);
}

static int others_read(const struct names *names, struct others *others)
{
	auto_closedir DIR *d = NULL;
	char path[PATH_MAX];
	const struct dirent *entry;
	uint32_t version;
	int r = dirs_runtime(path, NULL, NULL);

	*others = (struct others){0};
	if (r < 0)
		return r;
	d = opendir(path);
	if (!d)
		return -errno;
	while (r == 0 && (r = io_next_entry(d, &entry)) > 0) {
		r = 0;
		if (table_file_version(entry->d_name, &version) && version != names->table->head.version)
			r = others_take(others, dirfd(d), entry->d_name, version);
	}
	if (r < 0)
		others_free(others);
	return r;
}

/* ---- what the callers need of it ---- */

int others_append_jobs(const struct names *names, struct name_job **jobs, int n)
{
	struct others others;
	struct name_job *all;
	int r = others_read(names, &others);

	if (r < 0 || !others.njobs) {
		others_free(&others);
		return r < 0 ? r : n;
	}
	all = reallocarray(*jobs, (size_t)n + (size_t)others.njobs, sizeof(*all));
	if (all) {
		memcpy(all + n, others.jobs, (size_t)others.njobs * sizeof(*all));
		*jobs = all;
		n += others.njobs;
	}
	others_free(&others);
	return all ? n : -ENOMEM;
}

int others_append_processes(const struct names *names, struct rpid keeper, struct name_process **processes,
			    int n)
{
	struct others others;
	struct name_process *all;
	int r = others_read(names, &others);

	if (r < 0 || !others.nprocesses) {
		others_free(&others);
		return r < 0 ? r : n;
	}
	all = reallocarray(*processes, (size_t)n + (size_t)others.nprocesses, sizeof(*all));
	if (all)
		*processes = all;
	for (int i = 0; all && i < others.nprocesses; i++)
		if (!keeper.n || others.processes[i].keeper.n == keeper.n)
			all[n++] = others.processes[i];
	others_free(&others);
	return all ? n : -ENOMEM;
}

int others_find_job(const struct names *names, struct rpid keeper, struct name_job *out)
{
	struct others others;
	int r = others_read(names, &others);

	for (int i = 0; i < others.njobs; i++)
		if (others.jobs[i].keeper.n == keeper.n) {
			*out = others.jobs[i];
			others_free(&others);
			return 0;
		}
	others_free(&others);
	return r < 0 ? r : -ENOENT;
}

int others_find_process(const struct names *names, struct vpid vpid, struct name_process *out)
{
	struct others others;
	int r = others_read(names, &others);

	for (int i = 0; i < others.nprocesses; i++)
		if (others.processes[i].vpid.n == vpid.n) {
			*out = others.processes[i];
			others_free(&others);
			return 0;
		}
	others_free(&others);
	return r < 0 ? r : -ENOENT;
}

int others_check_name(const struct names *names, const char *name, struct err *err)
{
	struct others others;
	int r = name[0] ? others_read(names, &others) : 0;

	if (!name[0])
		return 0;
	if (r < 0)
		return err_code(err, r, "read the name tables of other versions");
	for (int i = 0; i < others.njobs && r == 0; i++)
		if (strncmp(others.jobs[i].name, name, NAME_TEXT_MAX) == 0)
			r = err_set(err, -EEXIST,
				    "the name %s is in use by job %d, which runs under another version; "
				    "choose another",
				    name, others.jobs[i].root.n);
	others_free(&others);
	return r;
}
