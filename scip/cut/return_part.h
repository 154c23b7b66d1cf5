/*
 * A part of a rollback over several hosts (lead_rollback.c), in the part's coordinator. Its leader keeps all
 * parts in step:
 *
 *   leader                                       each part's coordinator
 *   ---------------------------------------------------------------------------------------------
 *   BEGIN                                        READY: the ports where other parts connect
 *   STATE     which ends connect to which        CHECKED: everything that can be refused is checked
 *   GO        all parts are checked              CHECKED: the processes to be replaced are frozen
 *   GO        all parts stand still              HELD: the new ones are complete and held
 *   COMMIT    all parts hold                     RUNS: the old ones are gone
 *
 * Until it is committed the rollback can be given up: the old processes go on. In the old order (--replace)
 * they do so only until the second GO, at which all parts kill them.
 */
#ifndef SCIP_CUT_RETURN_PART_H
#define SCIP_CUT_RETURN_PART_H

#include "scip/arrival/arrival.h"

/* Restores the part that arrival->begin->cut names; with begin->cut->ends the job's processes here end and
 * nothing takes their place. */
must_check int return_part_run(struct names *names, const struct arrival_options *arrival,
			       struct rebuild_result *result, struct err *err);

#endif
