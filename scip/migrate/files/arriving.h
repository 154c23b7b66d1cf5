/* Inside of the target's side of files: target.c answers and receives, apply.c rewrites. */
#ifndef SCIP_MIGRATE_FILES_ARRIVING_H
#define SCIP_MIGRATE_FILES_ARRIVING_H

#include "scip/migrate/files/files.h"

/* What was found for a file of the source's. */
struct files_entry {
	Pbeam__MigrateFile *told;
	Pbeam__MigrateFileFound__State state;
	char *real;   /* where it is on this host, or will be; NULL: not known yet */
	bool awaited; /* its contents are to come */
};
struct files_arriving {
	struct names *names;
	struct rpid keeper;
	const Pbeam__MigrateBegin *begin;
	char own_host[NAME_TEXT_MAX];
	struct files_store store;
	struct paths paths; /* of the job, on this host, with what is added now */
	struct files_entry *v;
	size_t n;
	bool changed; /* `paths` are to be stored */
	bool stored;  /* there are such */
	/* Contents that are coming: one file at a time. */
	int fd;
	char temporary[PATH_MAX];
	uint8_t digest[IMAGE_DIGEST];
};

struct files_entry *files_find(const struct files_arriving *arriving, const ProtobufCBinaryData *path);

#endif
