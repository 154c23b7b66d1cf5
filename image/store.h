/*
 * Where a job's checkpoints are stored: STATE/JOB/N.ckpt; JOB is the job's name or, if it has none, the vpid
 * that was saved. Numbers begin with 1 and are never used again. STATE/JOB/job has the job's uuid and the
 * last number. If a later job has the same vpid, the older directory is moved aside (JOB.UUID); nothing is
 * removed.
 */
#ifndef IMAGE_STORE_H
#define IMAGE_STORE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define STORE_JOB_MAX 64

struct image_reader;

/* Checks a name for --name: not a path, not a number, not empty, not too long. */
must_check int store_check_name(const char *name, struct err *err);

/* Makes JOB from the vpid of a process without a name. */
void store_job_of_vpid(int32_t vpid, char job[STORE_JOB_MAX]);
/* Makes JOB from a job's name or, if that is "", from its first process. */
void store_job_of(const char *name, int32_t root, char job[STORE_JOB_MAX]);

/* The path of a log of the job, STATE/JOB/output.log, and makes its directory. */
must_check int store_log_path(const char *name, int32_t root, char path[PATH_MAX], struct err *err);

/* --dir: from now on the job's checkpoints are stored in DIR/JOB, and STATE/JOB becomes a symbolic link to
 * it, so that they are found like any others. A directory that is in the way is moved aside. `dir` is
 * absolute, and is created if necessary. */
must_check int store_place(const char *job, const char *dir, struct err *err);

/* Claims the next number for the job with this `uuid`; `path` is the image's. Removes the leftovers of
 * killed dumps. */
must_check int store_claim(const char *job, const char *uuid, char path[PATH_MAX], uint32_t *number,
			   struct err *err);

/* Lists the existing numbers, ascending, malloc'd. Returns how many (0 is no error), or -errno. */
must_check int store_list(const char *job, uint32_t **numbers, struct err *err);

/* Finds the path of number N, or with 0 of the newest. -ENOENT if there is none. */
must_check int store_find(const char *job, uint32_t number, char path[PATH_MAX], struct err *err);

/* Opens the newest image before N.ckpt in its directory. NULL: there is none that can be read. */
struct image_reader *store_open_before(const char *path);

/* ---- cuts over several hosts: N.ckpt is the cut's manifest, N.parts/K.ckpt the image of part K ---- */
/* Returns the last number claimed on this host, 0 if there is none. */
must_check int store_last(const char *job, uint32_t *number, struct err *err);
/* As store_claim(), with a given number: the next one on this host is larger. */
must_check int store_take(const char *job, const char *uuid, uint32_t number, struct err *err);
/* Makes the path of a part's image, and its directory. Part 0: of the manifest. */
must_check int store_image_path(const char *job, uint32_t number, uint32_t part, char path[PATH_MAX],
				struct err *err);
/* As a part number: a copy of another host's N.ckpt while the job is rolled back to it. This host's own
 * N.ckpt may belong to an earlier job of that name. */
#define STORE_COPY UINT32_MAX
/* True if this image is the manifest of a cut. */
bool store_is_cut(const char *path);
/* Lists the parts of number N on this host, as store_list(). */
must_check int store_parts(const char *job, uint32_t number, uint32_t **parts, struct err *err);
/* Removes the parts of number N. */
void store_drop_parts(const char *job, uint32_t number);
/* Removes the copy (STORE_COPY) of number N. */
void store_drop_copy(const char *job, uint32_t number);
/* Removes parts of smaller numbers that have no manifest. */
void store_sweep_parts(const char *job, uint32_t below);

/* Removes all but the newest `keep`, the newest complete one, and their ancestors; 0 removes none. */
void store_prune(const char *job, uint32_t keep);

#endif
