/*
 * The steps of a capture: freezing the processes of a job, writing them to an image, letting them go on.
 *
 * They run in a coordinator, in this order: open, freeze, dump, then the shared memory and the objects (or,
 * for a skeleton, only the list of its shared memory), commit, thaw. A driver (checkpoint_run.c,
 * scip/precopy, scip/migrate) calls them one after the other and does its own work between them.
 *
 * Undo: after a failure of any step the driver calls capture_close(), before or after capture_thaw(). The
 * processes go on, the temporary file is removed. SIGTERM, SIGINT and SIGHUP are read from a signalfd while a
 * capture is open (group_cancelled()). A signal that kills the coordinator closes its connections to the
 * scips, which thaw; the next checkpoint of the same path removes the temporary file.
 */
#ifndef SCIP_CAPTURE_CAPTURE_H
#define SCIP_CAPTURE_CAPTURE_H

#include <signal.h>

#include "image/image.h"
#include "scip/capture/group.h"

struct capture_options {
	struct vpid target;
	const char *path; /* of the image; NULL: a file in memory */
	bool alone;	  /* without the target's descendants */
	bool moves;	  /* the processes move, or are part of a cut */
	bool whole_job;	  /* all processes of the job are captured, wherever its first process is */
	/* True for a process that stays on this host, as in struct group; NULL: none does. */
	bool (*stays)(void *arg, struct vpid vpid);
	void *stays_arg;
	const struct name_job *job;
	const int *console; /* 3 descriptors, or NULL */
	uint64_t save_files_max;
	const struct object_external *external; /* or NULL */
	/* Chooses the shared memory that is pre-copied; NULL: none is. */
	shared_precopy_fn *shared;
	void *shared_arg;
};

struct capture {
	const struct capture_options *options;
	struct group group;
	struct image_writer *writer;
	Pbeam__Manifest *manifest;
	uint64_t begin_ns, swapped_out;
	bool signals_blocked;
	sigset_t signals_before;
};

struct capture_result {
	uint64_t bytes, pause_ns, total_ns;
	uint32_t processes, threads;
	char **incomplete; /* as in the manifest; the coordinator ends with them */
	size_t nincomplete;
};

/* Opens the image, so that an unwritable path is refused before anything is frozen. `options` must outlive
 * the capture. 0 or -errno; capture_close() is due in either case. */
must_check int capture_open(struct capture *c, struct names *names, const struct capture_options *options,
			    struct err *err);
/* Freezes the target and its descendants. 0, -EBUSY when a later attempt may succeed, or -errno. */
must_check int capture_freeze(struct capture *c, struct err *err);
/* Makes every scip dump its process. WRITTEN: only untracked memory of the members that are pre-copied. 0,
 * -EBUSY or -errno. */
must_check int capture_dump(struct capture *c, Pbeam__ScipDump__What what, struct err *err);
/* Completes a skeleton: lists the shared memory that will be pre-copied. 0 or -errno. */
must_check int capture_list_shared(struct capture *c, struct err *err);
/* Dumps shared memory and System V objects. 0 or -errno. */
must_check int capture_shared(struct capture *c, struct err *err);
/* Dumps the kernel objects behind descriptors, and describes the job. 0, -EBUSY, -ECANCELED after a signal,
 * or -errno. */
must_check int capture_objects(struct capture *c, struct err *err);
/* Writes the manifest and gives the image its name; `durable`: also syncs it. Adds processes and threads, and
 * the bytes of the image, to *result. 0 or -errno. */
must_check int capture_commit(struct capture *c, bool durable, struct capture_result *result,
			      struct err *err);
/* Resumes the processes. */
void capture_thaw(struct capture *c);
/* Ends the capture: closes the connections, which thaws what is still frozen, and removes what is not
 * committed. */
void capture_close(struct capture *c);

/* Describes the three descriptors of a console. 0 or -ENOMEM. */
must_check int capture_describe_streams(Pbeam__Job *out, const int console[3]);
/* Describes the host, the user and the time. `names` may be NULL: then the host's name in the cluster is left
 * out. 0 or -errno. */
must_check int capture_describe_host(struct names *names, Pbeam__Manifest *manifest, struct err *err);
/* Lists the numbers of groups, sessions and parents that are not processes of the manifest. 0 or -ENOMEM. */
must_check int capture_list_numbers(Pbeam__Manifest *manifest);
/* Removes the temporary files that killed checkpoints of this path have left. */
void capture_remove_stale(const char *path);

/* Logs when a step was reached. */
void capture_log(const struct capture *c, const char *what);

/* Repeats attempts that end with -EBUSY. A capture is refused with it for something that is under way (a
 * connection that has not been accepted, events that have not been read), which usually is over when the
 * program has run a little further. Zeroed to begin with; `last_ms` is the longest pause. */
struct capture_retry {
	long last_ms, next_ms;
};
enum { CAPTURE_RETRY_MS = 320 };
/* True after a pause if the attempt that returned `r` should be repeated; `err` is cleared then. */
bool capture_should_retry(struct capture_retry *retry, struct vpid target, int r, struct err *err);

#endif
