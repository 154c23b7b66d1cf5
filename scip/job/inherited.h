/*
 * Descriptors that a new program inherits beyond its standard streams: those without FD_CLOEXEC from 3 on. A
 * pipe, socket, terminal or device among them has its other end outside of the job, so that every checkpoint
 * would be refused.
 */
#ifndef SCIP_JOB_INHERITED_H
#define SCIP_JOB_INHERITED_H

#include "base/err.h"

/* Closes them. */
must_check int inherited_close(struct err *err);
/* Names those that no checkpoint can save on standard error, in one line; prints nothing if there are none.
 */
void inherited_report(void);

#endif
