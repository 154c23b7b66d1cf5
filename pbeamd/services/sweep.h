#ifndef PBEAMD_SERVICES_SWEEP_H
#define PBEAMD_SERVICES_SWEEP_H

/* Removes the sockets that killed keepers and scips left. */
void sweep_sockets(void);

#endif
