/*
 * Finds the target that a user names: a vpid, or a job by its name. Running processes are in the name table;
 * ended ones are known by their checkpoints.
 */
#include "pbeamd/services/target.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "image/image.h"
#include "image/store.h"
#include "pbeamd/transport/server.h"

void target_comm(struct rpid rpid, char comm[32])
{
	auto_free char *text = NULL;
	char path[40];
	size_t len;

	snprintf(path, sizeof(path), "/proc/%d/comm", rpid.n);
	if (io_slurp(AT_FDCWD, path, 64, &text, &len) < 0 || !len) {
		snprintf(comm, 32, "?");
		return;
	}
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] < 32 || text[i] == 127)
			text[i] = text[i] == '\n' && i == len - 1 ? 0 : '?';
	snprintf(comm, 32, "%.31s", text);
}

void target_host(struct server *server, char host[256])
{
	strcpy(host, "localhost");
	if (!names_cluster(server->names, host))
		gethostname(host, 255);
}

static void target_set_name(struct target *target)
{
	char comm[32];

	target_comm(target->process.rpid, comm);
	snprintf(target->who, sizeof(target->who), "vpid %d (%s)", target->process.vpid.n, comm);
	store_job_of(target->process.vpid.n == target->job.root.n ? target->job.name : "",
		     target->process.vpid.n, target->store);
}

static int find_vpid(struct server *server, int32_t vpid, struct target *out)
{
	int r = names_process_get(server->names, (struct vpid){vpid}, &out->process);

	if (r == 0)
		r = names_job_get(server->names, out->process.keeper, &out->job);
	return r;
}

/* The job's first process may be gone while its keeper is about to follow: the job is live all the same. */
static int target_find_name(struct server *server, const char *name, struct target *out)
{
	auto_free struct name_job *jobs = NULL;
	int n = names_jobs_snapshot(server->names, &jobs);

	for (int i = 0; i < n; i++) {
		if (strcmp(jobs[i].name, name) != 0)
			continue;
		out->job = jobs[i];
		if (names_process_get(server->names, jobs[i].root, &out->process) < 0)
			out->process = (struct name_process){.vpid = jobs[i].root, .keeper = jobs[i].keeper};
		return 0;
	}
	return n < 0 ? n : -ESRCH;
}

/* Finds the checkpoints of an ended process: STATE/VPID, else a named job whose newest image has it as its
 * first process. */
static int find_stored_vpid(int32_t vpid, struct target *out)
{
	char dir[PATH_MAX], path[PATH_MAX];
	auto_closedir DIR *d = NULL;
	struct dirent *entry;

	store_job_of_vpid(vpid, out->store);
	if (store_find(out->store, 0, path, NULL) == 0)
		return 0;
	if (dirs_state(dir, NULL, NULL) < 0)
		return -ESRCH;
	d = opendir(dir);
	while (d && (entry = readdir(d))) {
		struct image_reader *image;
		const Pbeam__Manifest *manifest;
		bool found;

		if (entry->d_name[0] == '.' || strlen(entry->d_name) >= sizeof(out->store) ||
		    store_find(entry->d_name, 0, path, NULL) < 0 || image_reader_open(&image, path, NULL) < 0)
			continue;
		manifest = image_reader_manifest(image);
		found = manifest->job && manifest->job->root_vpid == vpid;
		image_reader_close(image);
		if (found) {
			strcpy(out->store, entry->d_name);
			return 0;
		}
	}
	return -ESRCH;
}

static int find_stored(const Pbeam__Target *wish, struct target *out)
{
	char path[PATH_MAX];

	if (wish->vpid > 0) {
		snprintf(out->who, sizeof(out->who), "vpid %d", wish->vpid);
		return find_stored_vpid(wish->vpid, out);
	}
	if (store_check_name(wish->name, NULL) < 0 || store_find(wish->name, 0, path, NULL) < 0)
		return -ESRCH;
	snprintf(out->store, sizeof(out->store), "%.63s", wish->name);
	snprintf(out->who, sizeof(out->who), "%.127s", wish->name);
	return 0;
}

/* `r`: why it was not found. A table that cannot be read is not one without the job: a job that runs would be
 * restored beside itself. */
static int target_refuse(const struct server *server, int r, const Pbeam__Target *wish, const char *what,
			 struct err *err)
{
	if (r == -ETIMEDOUT)
		return names_explain(server->names, r, err);
	if (r != -ESRCH && r != -ENOENT)
		return err_code(err, r, "look for the program in the name table");
	if (wish->vpid > 0)
		return err_set(err, -ESRCH, "vpid %d: there is no such process%s; `pbeamctl ps` lists all",
			       wish->vpid, what);
	return err_set(err, -ESRCH, "%s: there is no job of that name%s; `pbeamctl ps` lists all", wish->name,
		       what);
}

static int target_find_local(struct server *server, const Pbeam__Target *wish, struct target *out)
{
	int r;

	memset(out, 0, sizeof(*out));
	if (wish->vpid > 0)
		r = find_vpid(server, wish->vpid, out);
	else
		r = target_find_name(server, wish->name, out);
	if (r < 0)
		return r;
	out->live = true;
	target_set_name(out);
	return 0;
}

int target_find_live(struct server *server, const Pbeam__Target *wish, struct target *out, struct err *err)
{
	int r = target_find_local(server, wish, out);

	return r < 0 ? target_refuse(server, r, wish, "", err) : 0;
}

int target_find(struct server *server, const Pbeam__Target *wish, struct target *out, struct err *err)
{
	int r = target_find_local(server, wish, out);

	if (r == 0)
		return 0;
	if (r == -ESRCH || r == -ENOENT) {
		memset(out, 0, sizeof(*out));
		r = find_stored(wish, out);
	}
	return r < 0 ? target_refuse(server, r, wish, " and no checkpoint of one", err) : 0;
}
