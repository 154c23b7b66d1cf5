/* A part of a rollback whose coordinator was killed. */
#ifndef SCIP_CUT_RETURN_SETTLE_H
#define SCIP_CUT_RETURN_SETTLE_H

#include "namespace/names.h"
#include "scip/fill/fill_signs.h"

struct return_settling {
	const char *uuid; /* of the rollback */
	bool known;	  /* it is committed for certain; the record may be gone */
	bool ends;	  /* the part has no image */
	struct rpid keeper;
	int keeper_socket;
	struct fill_signs *signs;
};
/* Waits until the registry tells the outcome, and carries it out. True if it is committed. */
bool return_settle(struct names *names, const struct return_settling *settling);

#endif
