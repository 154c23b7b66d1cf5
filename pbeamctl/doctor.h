/*
 * What this machine allows. Each check asks the kernel itself, by doing the thing in a small way;
 * doctor_checks.c and doctor_host.c have them, doctor.c shows what they found.
 */
#ifndef PBEAMCTL_DOCTOR_H
#define PBEAMCTL_DOCTOR_H

enum finding { FINDING_GOOD, FINDING_LACKS, FINDING_BAD };

struct check {
	const char *name;
	const char *meaning; /* what it is needed for */
	const char *mend;    /* what to do when it is not there */
	/* Looks; `found` (128 bytes) is what was found. */
	enum finding (*look)(char found[128]);
};

extern const struct check doctor_checks[], doctor_host[]; /* the last has no name */

#endif
