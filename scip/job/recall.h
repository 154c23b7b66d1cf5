/*
 * A process may not go to a host where a descendant of it, whose stub would go along, is already: the kernel
 * gives nobody another parent. So that one comes back into its stub first, and goes along as what it is.
 */
#ifndef SCIP_JOB_RECALL_H
#define SCIP_JOB_RECALL_H

#include "scip/job/requests.h"

/* 1: processes are being called back, and request_migrate() serves the request again when all are here. 0:
 * none has to be. -errno. */
must_check int recall_begin(struct request *request, const Pbeam__MigrateRequest *wish, struct err *err);

#endif
