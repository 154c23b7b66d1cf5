/*
 * Where a job's checkpoints are kept: STATE/JOB/N.ckpt, JOB the job's name or, where it has none, the vpid
 * that was saved. Numbers begin with 1 and are never used again. STATE/JOB/job says whose they are and what
 * the last number was; a later job that happens to have the same vpid gets the directory for itself, the
 * older one is moved aside (JOB.UUID), nothing is thrown away.
 */
#ifndef IMAGE_STORE_H
#define IMAGE_STORE_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define STORE_JOB_MAX 64

/* A name that can be given with --name: no path, no number, not empty, not too long. */
must_check int store_check_name(const char *name, struct err *err);

/* The JOB of a vpid without a name. */
void store_job_of_vpid(int32_t vpid, char job[STORE_JOB_MAX]);

/* --dir: from now on the job's checkpoints are kept in DIR/JOB, to which STATE/JOB becomes a symbolic link,
 * so that they are found as any other's. A directory that is in the way is moved aside. `dir` is absolute and
 * is made if need be. */
must_check int store_place(const char *job, const char *dir, struct err *err);

/* Claims the next number for the job that `uuid` names; `path` is the image's. Removes what dumps that were
 * killed left. */
must_check int store_claim(const char *job, const char *uuid, char path[PATH_MAX], uint32_t *number,
			   struct err *err);

/* The numbers that are there, ascending, malloc'd. Returns how many, or -errno; none is no error. */
must_check int store_list(const char *job, uint32_t **numbers, struct err *err);

/* The path of number N, or of the newest with 0. -ENOENT when it is not there. */
must_check int store_find(const char *job, uint32_t number, char path[PATH_MAX], struct err *err);

/* Removes all but the newest `keep`; 0 removes none. */
void store_prune(const char *job, uint32_t keep);

#endif
