/* Inside scip/restore: the coordinator's parts. */
#ifndef SCIP_RESTORE_COORDINATE_H
#define SCIP_RESTORE_COORDINATE_H

#include "proto/control.pb-c.h"
#include "scip/object/object.h"
#include "scip/restore/plan.h"
#include "scip/restore/restore.h"

/* Shared memory as made again: a descriptor of ours, or the real id of a SysV segment. */
struct shared_made {
	const Pbeam__SharedMemory *saved;
	int fd;	       /* -1 none */
	bool borrowed; /* the descriptor is an object's */
	int sysv_id;   /* -1 none */
	bool made;     /* the segment or file was not there before */
};

struct shared {
	struct shared_made *v;
	size_t n;
};

/* A node of the plan as it is being made. */
struct made {
	pid_t rpid;	    /* 0: not made (yet, or any more) */
	int sock;	    /* to its scip, -1 */
	const uint8_t *exe; /* what it executed instead of its missing program, or NULL */
};

struct coordinate {
	struct names *names;
	struct image_reader *image;
	const Pbeam__Manifest *manifest;
	const struct restore_options *options;
	struct object_restore *objects;
	struct shared shared;
	struct plan plan;
	struct made *made; /* one for each node of the plan */
	struct err *err;
};

/* ---- link.c: one question and its answer ---- */
/* Connects to the scip of a process. The descriptor or -errno. */
must_check int link_open(struct coordinate *coordinate, pid_t rpid);
must_check int link_ask(int sock, uint32_t type, const ProtobufCMessage *message, const int *fds, int nfds,
			struct err *err);
/* The answer, of this kind; *out (may be NULL) is the caller's. A refusal is the error that it tells. */
must_check int link_answer(int sock, const ProtobufCMessageDescriptor *kind, ProtobufCMessage **out,
			   struct err *err);
must_check int link_call(int sock, uint32_t type, const ProtobufCMessage *message,
			 const ProtobufCMessageDescriptor *kind, ProtobufCMessage **out, struct err *err);

/* ---- check.c: all that can be refused before anything is made ---- */
must_check int check_image(struct coordinate *coordinate);
must_check int check_numbers(struct coordinate *coordinate);
/* The file that the process's husk is to execute: its own, or ours when it is gone. */
const char *check_executable(const Pbeam__Process *process, char path[4096]);

/* ---- shared.c ---- */
must_check int shared_make_all(struct coordinate *coordinate);
const struct shared_made *shared_find(const struct shared *shared, uint32_t id);
/* Seals, and segments that were removed while in use: after all processes have mapped them. */
must_check int shared_finish(struct coordinate *coordinate);
void shared_free(struct shared *shared);

/* ---- tree.c: the plan is carried out ---- */
must_check int tree_make(struct coordinate *coordinate);
must_check int tree_fill(struct coordinate *coordinate);
must_check int tree_run(struct coordinate *coordinate);
/* Kills the processes of the job that are to be replaced and waits until their names are free. */
must_check int tree_clear(struct coordinate *coordinate);
/* Kills whatever was made. */
void tree_abandon(struct coordinate *coordinate);

#endif
