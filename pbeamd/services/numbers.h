/* Process numbers. */
#ifndef PBEAMD_SERVICES_NUMBERS_H
#define PBEAMD_SERVICES_NUMBERS_H

#include "pbeamd/transport/cluster.h"

/* Leases blocks of process numbers ahead of need, and keeps the registry's places of this host's processes up
 * to date. */
must_check int numbers_open(struct cluster *cluster, struct err *err);
void numbers_close(struct cluster *cluster);
void numbers_tick(struct cluster *cluster, uint64_t now_ns);

#endif
