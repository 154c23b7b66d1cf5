/*
 * The way back: processes rebuilt from an image under the same virtual names.
 *
 * coordinate.c runs in the coordinator: checks, makes objects, plans the tree (plan.c, pure), has the husks
 * made, filled and released. husk.c, fill.c, threads.c run in each scip on its held process.
 */
#ifndef SCIP_RESTORE_RESTORE_H
#define SCIP_RESTORE_RESTORE_H

#include "image/image.h"
#include "proto/control.pb-c.h"
#include "scip/tracee/process.h"

/* ---- in a scip, on its held process ---- */
/* Executes `path` in the husk: afterwards it is stopped before its first instruction. */
must_check int restore_exec(struct process *process, const char *path, struct err *err);
/* Rebuilds address space, contents, descriptors, threads, handlers, timers. Afterwards every thread is
 * stopped with its saved registers. */
must_check int restore_fill(struct process *process, const Pbeam__ScipFill *fill, int image_fd,
			    struct err *err);
/* Makes the held husk end with this wait status: 0 once it is dying; the loop then sees its exit as any
 * other's.
 */
must_check int restore_exit(struct process *process, int status, struct err *err);
/* Lets it go, or leaves it stopped if it was saved so. */
must_check int restore_release(struct process *process, const Pbeam__Process *saved, struct err *err);

/* ---- in the coordinator ---- */
struct restore_options {
	const char *path;
	bool force;
	const int *console;  /* 3 descriptors for the job's standard streams, -1 none */
	int keeper_socket;   /* to ask the keeper for the root husk: keeper_protocol.h */
	struct vpid replace; /* a rollback: when all checks have passed, this process and its descendants are
				killed; 0 for none */
	struct rpid keeper;
};
struct restore_result {
	struct vpid root;
	uint32_t processes;
};
/* Everything that can be refused is refused before anything is made. */
must_check int restore_run(struct names *names, struct image_reader *image,
			   const struct restore_options *options, struct restore_result *result,
			   struct err *err);

#endif
