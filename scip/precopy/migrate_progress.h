/* The progress of a migration, as shown to the user. */
#ifndef SCIP_PRECOPY_MIGRATE_PROGRESS_H
#define SCIP_PRECOPY_MIGRATE_PROGRESS_H

#include <stdint.h>

struct migrate_progress {
	uint64_t done, total; /* of this phase */
	char phase[16];
	char detail[64]; /* "" for none */
	char note[256];	 /* a sentence to be shown once, "" for none */
};

#endif
