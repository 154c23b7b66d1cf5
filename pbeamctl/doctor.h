/*
 * What this machine allows. Each check tries the operation itself on a small scale. The checks are in
 * doctor_checks.c and doctor_host.c; command_doctor.c prints the findings.
 */
#ifndef PBEAMCTL_DOCTOR_H
#define PBEAMCTL_DOCTOR_H

#include <stdbool.h>

enum finding { FINDING_GOOD, FINDING_LACKS, FINDING_BAD };

struct check {
	const char *name;
	const char *meaning; /* the purpose of the feature */
	const char *mend;    /* how to make it available */
	/* Runs the check and describes the result in `found` (128 bytes). */
	enum finding (*look)(char found[128]);
};

/* Prints what would prevent the restore of the image here. Returns the exit status. */
int doctor_image(const char *path, bool json);

extern const struct check doctor_checks[], doctor_host[]; /* end with a row without a name */

#endif
