/*
 * onedump PID IMAGE: one running process into an image, without supervisor, names or objects. For work on
 * dump and restore.
 *
 * Seizes every thread, freezes by the same calls that the supervisor uses, dumps, writes the manifest,
 * detaches. Times go to standard error.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/checkpoint/checkpoint.h"
#include "scip/checkpoint/freeze.h"
#include "scip/checkpoint/group.h"
#include "scip/tracee/procfs.h"
#include "scip/tracee/stops.h"

struct seizing {
	struct process *process;
	unsigned added;
	struct err *err;
};

static int seize_thread(int tid, void *arg)
{
	struct seizing *seizing = arg;
	struct tracee *tracee;
	int rc;

	if (process_find_tracee(seizing->process, tid))
		return 0;
	rc = stops_seize(seizing->process, tid, &tracee, seizing->err);
	if (rc < 0)
		return rc;
	tracee->vtid.n = tid;
	tracee->frozen = true;
	seizing->added++;
	return 0;
}

static int seize_all(struct process *process, struct err *err)
{
	struct seizing seizing = {process, 0, err};
	char dir[64];

	snprintf(dir, sizeof(dir), "/proc/%d/task", process->pid);
	do {
		int rc;

		seizing.added = 0;
		rc = procfs_each_number(dir, seize_thread, &seizing);
		if (rc < 0)
			return rc;
	} while (seizing.added);
	return 0;
}

static double ms_since(uint64_t from)
{
	return (double)(io_now_ns(CLOCK_MONOTONIC) - from) / 1e6;
}

static int dump(struct process *process, const char *path, struct err *err)
{
	Pbeam__ScipDumped dumped = PBEAM__SCIP_DUMPED__INIT;
	Pbeam__Manifest *manifest = message_new(&pbeam__manifest__descriptor);
	uint64_t begin = io_now_ns(CLOCK_MONOTONIC), bytes = 0;
	struct image_writer *writer;
	int rc = image_writer_open(&writer, path, 1024, err);

	if (rc < 0)
		return rc;
	rc = seize_all(process, err);
	fprintf(stderr, "seized %u threads: %.2f ms\n", process->ntracees, ms_since(begin));
	if (rc >= 0)
		rc = checkpoint_dump_process(process, image_writer_fd(writer), image_writer_arena(writer),
					     &dumped, err);
	fprintf(stderr, "dumped %.1f MiB: %.2f ms\n", (double)dumped.bytes / 1048576, ms_since(begin));
	if (rc >= 0)
		rc = manifest_describe(manifest, err);
	if (rc >= 0)
		rc = message_append(&manifest->processes, &manifest->n_processes, &dumped.process->base);
	if (rc >= 0) {
		dumped.process = NULL;
		rc = image_writer_commit(writer, manifest, getenv("ONEDUMP_SYNC") != NULL, &bytes, err);
	}
	fprintf(stderr, "committed %.1f MiB: %.2f ms\n", (double)bytes / 1048576, ms_since(begin));
	image_writer_close(writer);
	message_free(manifest);
	return rc;
}

int main(int argc, char **argv)
{
	struct err err = ERR_INIT;
	struct process process;
	struct tracee *next;
	int rc;

	log_open("onedump", NULL);
	if (argc != 3) {
		fprintf(stderr, "usage: onedump PID IMAGE\n");
		return 2;
	}
	memset(&process, 0, sizeof(process));
	process.pid = atoi(argv[1]);
	process.vpid.n = process.pid;
	rc = names_open(&process.names, &err);
	if (rc >= 0)
		rc = dump(&process, argv[2], &err);
	for (struct tracee *t = process.tracees; t; t = next) {
		next = t->next;
		if (ptrace(PTRACE_DETACH, t->tid, 0, 0) < 0)
			perror("detach");
	}
	if (rc < 0)
		fprintf(stderr, "onedump: %s\n", err.text);
	return rc < 0;
}
