/* State that the two files of the target share. Private to scip/files. */
#ifndef SCIP_FILES_FILES_RECEIVER_H
#define SCIP_FILES_FILES_RECEIVER_H

#include "scip/files/files.h"

/* A file that the source announced, and what was found for it. */
struct files_entry {
	Pbeam__MigrateFile *announced;
	Pbeam__MigrateFileFound__State state;
	char *real;   /* its present or future path on this host; NULL: not known yet */
	bool awaited; /* its contents will come */
};
struct files_receiver {
	struct names *names;
	struct rpid keeper;
	const Pbeam__MigrateBegin *begin;
	char own_host[NAME_TEXT_MAX];
	struct files_store store;
	struct paths paths; /* of the job on this host, with the additions of this migration */
	struct files_entry *v;
	size_t n;
	bool changed; /* `paths` must be stored */
	bool stored;  /* and have been before */
	/* The contents being received, one file at a time. */
	int fd;
	char temporary[PATH_MAX];
	uint8_t digest[IMAGE_DIGEST];
};

struct files_entry *files_find(const struct files_receiver *receiver, const ProtobufCBinaryData *path);

#endif
