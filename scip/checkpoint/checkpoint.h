/* The checkpoint of a process and its descendants: the driver, which runs in a coordinator. */
#ifndef SCIP_CHECKPOINT_CHECKPOINT_H
#define SCIP_CHECKPOINT_CHECKPOINT_H

#include "scip/capture/capture.h"

/* Adds one sentence. 0 or -ENOMEM. */
typedef int checkpoint_add_reason(void *arg, const char *why);

struct checkpoint_options {
	struct vpid target;
	const char *path; /* final path */
	bool kill, alone;
	bool numbered; /* the path is one of the job's own: large files are stored beside it */
	uint64_t save_files_max;
	char *const *track; /* directories that are saved as a whole */
	size_t ntrack;
	const int *console; /* 3 descriptors */
	const struct name_job *job;
	/* Calls `add` with each reason why the image could not be restored as things are. It has a manifest
	 * and no contents. 0, also if there are some; -errno if they could not be looked for. */
	int (*check)(void *arg, struct image_reader *image, checkpoint_add_reason *add, void *add_arg,
		     struct err *err);
	void *check_arg;
};

/* Makes a checkpoint. 0: the image is whole and durable; result->incomplete has the reasons why it could not
 * be restored as things are. -errno: there is none, and the programs go on as before. */
must_check int checkpoint_run(struct names *names, const struct checkpoint_options *options,
			      struct capture_result *result, struct err *err);

#endif
