/*
 * The way back: processes rebuilt from an image under the same virtual names.
 *
 * rebuild.c runs in the coordinator: checks, makes objects, plans the tree (plan.c, pure), has the husks
 * made, filled and released. husk.c, fill.c, threads.c run in each scip on its held process.
 */
#ifndef SCIP_REBUILD_REBUILD_H
#define SCIP_REBUILD_REBUILD_H

#include "image/image.h"
#include "namespace/names.h"
#include "proto/control.pb-c.h"
#include "scip/fill/fill_signs.h"

/* ---- in the coordinator ---- */
struct rebuild_options {
	const char *path;
	bool force;
	const int *console;  /* 3 descriptors for the job's standard streams, -1 none */
	int keeper_socket;   /* to ask the keeper for the root husk: keeper_protocol.h */
	struct vpid replace; /* a rollback: when all checks have passed, this process and its descendants are
				killed; 0 for none. If it is not the job's first one it becomes its living
				parent's child again */
	struct rpid keeper;
	bool joins;   /* the job has its first process already, or on another host: this one is another */
	bool trusted; /* the image is not checked byte by byte: it is no file that can have been damaged */
	const struct object_external *external; /* of a migration, or NULL */
	/* All is checked; then, once more, what is to be replaced stands still. 0: go on, else it goes on as
	 * if nothing had been. May be NULL. */
	int (*step)(void *arg, struct err *err);
	/* All is made and held; 0: let it run, else it is undone. NULL: let it run. */
	int (*held)(void *arg, struct err *err);
	void *held_arg;		     /* of both */
	struct precopied *precopied; /* processes that were made ahead: taken; NULL: make all */
	const int32_t *ahead;	     /* ... who of them is still what it was */
	size_t nahead;
	struct fill_signs *signs;
};
struct rebuild_result {
	struct vpid root;
	uint32_t processes;
};
/* Processor, kernel and user are such that an image from there can run here. */
must_check int rebuild_check_host(const Pbeam__Host *host, uint32_t uid, struct err *err);
/* ---- precopied.c: of a migration ---- */
/* Makes the processes of a skeleton (an image without contents) with their private memory, empty, held.
 * `options` is copied, what it points to must live as long. The image is taken in every case. -ENOTSUP: these
 * cannot be made ahead. */
must_check int precopied_make(struct precopied **out, struct names *names, struct image_reader *image,
			      const struct rebuild_options *options, struct err *err);
/* Whole pages of memory. */
struct precopied_piece {
	uint64_t address, len;
	const uint8_t *data;
};
enum { PRECOPIED_PIECES = 256 };
/* Contents for number `index` (precopied_find()), at most PRECOPIED_PIECES of them. From several threads
 * at once. */
must_check int precopied_write(struct precopied *precopied, size_t index,
			       const struct precopied_piece *pieces, size_t n, struct err *err);
/* What was written to it before, one after the other into `to`. */
must_check int precopied_read(const struct precopied *precopied, size_t index,
			      const struct precopied_piece *pieces, size_t n, uint8_t *to, struct err *err);
/* The number of a process of the skeleton or, with an id, of its shared memory (whose addresses are offsets);
 * -1: there is none. */
int precopied_find(const struct precopied *precopied, int32_t vpid, uint32_t shared_id);
/* They are of no use: killed. */
void precopied_abandon(struct precopied *precopied);

/* The processes of the job that run here, and are not behind the restored filter, but for those that `skip`
 * (may be NULL) says, get behind it, each frozen for a moment. Who cannot be stopped just now (in vfork, say)
 * goes without. */
typedef bool (*rebuild_skip_fn)(void *arg, const struct name_process *process);
must_check int rebuild_diverge(struct names *names, struct rpid keeper, rebuild_skip_fn skip, void *arg);

/* Everything that can be refused is refused before anything is made. */
must_check int restore_run(struct names *names, struct image_reader *image,
			   const struct rebuild_options *options, struct rebuild_result *result,
			   struct err *err);
/* As part of a rollback whose parts are on other hosts: all that the keeper has of the job ends, by the same
 * steps, and nothing comes in its place; but for the stub that is the console's. */
must_check int restore_end(struct names *names, const struct rebuild_options *options, struct err *err);

#endif
