#ifndef PBEAMD_SERVICES_BRIDGES_H
#define PBEAMD_SERVICES_BRIDGES_H

#include "pbeamd/transport/cluster.h"

/* Fills info->depends: programs on other hosts whose connections go through bridges on this one. */
void bridges_describe(Pbeam__HostInfo *info);

#endif
