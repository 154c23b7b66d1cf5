/*
 * Where a job's checkpoints are kept: STATE/JOB/N.ckpt, JOB the job's name or, where it has none, the vpid
 * that was saved. Numbers begin with 1 and are never used again. STATE/JOB/job has the job's uuid and the
 * last number. If a later job happens to have the same vpid the older directory is moved aside (JOB.UUID);
 * nothing is removed.
 */
#ifndef IMAGE_STORE_H
#define IMAGE_STORE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define STORE_JOB_MAX 64

/* A name that can be given with --name: no path, no number, not empty, not too long. */
must_check int store_check_name(const char *name, struct err *err);

/* The JOB of a vpid without a name. */
void store_job_of_vpid(int32_t vpid, char job[STORE_JOB_MAX]);
/* The JOB of a whole job: its name or, "", its first process. */
void store_job_of(const char *name, int32_t root, char job[STORE_JOB_MAX]);

/* --dir: from now on the job's checkpoints are kept in DIR/JOB, to which STATE/JOB becomes a symbolic link,
 * so that they are found as any other's. A directory that is in the way is moved aside. `dir` is absolute and
 * is made if need be. */
must_check int store_place(const char *job, const char *dir, struct err *err);

/* Claims the next number for the job that `uuid` names; `path` is the image's. Removes the leftovers of
 * killed dumps. */
must_check int store_claim(const char *job, const char *uuid, char path[PATH_MAX], uint32_t *number,
			   struct err *err);

/* The numbers that are there, ascending, malloc'd. Returns how many, or -errno; none is no error. */
must_check int store_list(const char *job, uint32_t **numbers, struct err *err);

/* The path of number N, or of the newest with 0. -ENOENT when it is not there. */
must_check int store_find(const char *job, uint32_t number, char path[PATH_MAX], struct err *err);

/* ---- cuts over several hosts: N.ckpt is the cut's manifest, N.parts/K.ckpt the image of part K ---- */
/* The last number that was given here, 0 for none. */
must_check int store_last(const char *job, uint32_t *number, struct err *err);
/* As store_claim() with a number that is known: the next one here is larger. */
must_check int store_take(const char *job, const char *uuid, uint32_t number, struct err *err);
/* The path of a part's image; the directory is made. Part 0: of the manifest. */
must_check int store_image_path(const char *job, uint32_t number, uint32_t part, char path[PATH_MAX],
				struct err *err);
/* As a part: a copy of N.ckpt of another host, while the job is rolled back to it; this host's own N.ckpt may
 * be an earlier job's of that name. */
#define STORE_COPY UINT32_MAX
/* True if this image is the manifest of a cut. */
bool store_is_cut(const char *path);
/* The parts of number N that are here, as store_list(). */
must_check int store_parts(const char *job, uint32_t number, uint32_t **parts, struct err *err);
/* Removes the parts of number N. */
void store_drop_parts(const char *job, uint32_t number);
/* Removes the copy (STORE_COPY) of number N. */
void store_drop_copy(const char *job, uint32_t number);
/* Removes parts of smaller numbers that have no manifest. */
void store_sweep_parts(const char *job, uint32_t below);

/* Removes all but the newest `keep` and their ancestors; 0 removes none. */
void store_prune(const char *job, uint32_t keep);

#endif
