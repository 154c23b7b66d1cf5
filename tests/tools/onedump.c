/*
 * onedump PID IMAGE: saves one running process to an image, without supervisor, names or objects. For work on
 * dump and restore.
 *
 * Seizes every thread, freezes by the same calls that the supervisor uses, dumps, writes the manifest,
 * detaches. Prints times on standard error.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/capture/capture.h"
#include "scip/capture/group.h"
#include "scip/dump/dump.h"
#include "scip/dump/freeze.h"
#include "tests/tools/seize.h"

static double ms_since(uint64_t from)
{
	return (double)(io_now_ns(CLOCK_MONOTONIC) - from) / 1e6;
}

static int dump(struct process *process, pid_t pid, struct names *names, const char *path, struct err *err)
{
	Pbeam__ScipDumped dumped = PBEAM__SCIP_DUMPED__INIT;
	Pbeam__Manifest *manifest = message_new(&pbeam__manifest__descriptor);
	uint64_t begin = io_now_ns(CLOCK_MONOTONIC), bytes = 0;
	struct image_writer *writer;
	int rc = image_writer_open(&writer, path, 1024, err);

	if (rc < 0)
		return rc;
	rc = seize_process(process, pid, names, err);
	fprintf(stderr, "seized %u threads: %.2f ms\n", process->ntracees, ms_since(begin));
	if (rc >= 0)
		rc = dump_process(process, PBEAM__SCIP_DUMP__WHAT__ALL, image_writer_fd(writer),
				  image_writer_arena(writer), &dumped, err);
	fprintf(stderr, "dumped %.1f MiB: %.2f ms\n", (double)dumped.bytes / 1048576, ms_since(begin));
	if (rc >= 0)
		rc = capture_describe_host(NULL, manifest, err);
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
	struct names *names;
	int rc;

	log_open("onedump", NULL);
	if (argc != 3) {
		fprintf(stderr, "usage: onedump PID IMAGE\n");
		return 2;
	}
	memset(&process, 0, sizeof(process));
	rc = names_open(&names, &err);
	if (rc >= 0) {
		rc = dump(&process, atoi(argv[1]), names, argv[2], &err);
		release_process(&process);
		names_close(names);
	}
	if (rc < 0)
		fprintf(stderr, "onedump: %s\n", err.text);
	return rc < 0;
}
