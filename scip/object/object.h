/*
 * Kernel objects behind descriptors. One file per kind (pipe.c, unix.c, tcp.c ...), one struct object_ops
 * each, listed in object_table.c. docs/HOWTO_ADD_OBJECT.md.
 *
 * Dumping runs in the coordinator on frozen processes. It has for every open file description a duplicate of
 * its own (pidfd_getfd), so that a kind's dump is plain system calls on a local descriptor plus
 * /proc/PID/fdinfo. It must leave the object as it was: the program may go on. Queues are looked at without
 * taking (tee, MSG_PEEK with SO_PEEK_OFF). Restoring runs in the coordinator too: it makes the object; the
 * process's injected code then takes the descriptor from it (pidfd_getfd). What can only be done by the
 * process itself (epoll interest, POSIX locks) is in `install`, a list of calls in a batch.
 */
#ifndef SCIP_OBJECT_OBJECT_H
#define SCIP_OBJECT_OBJECT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/err.h"
#include "image/image.h"
#include "namespace/names.h"
#include "proto/image.pb-c.h"
#include "scip/tracee/remote.h"

/* One open file description of the frozen group, as found. */
struct object_source {
	uint32_t id;	    /* Object.id */
	struct rpid holder; /* a process that holds it ... */
	struct vpid holder_vpid;
	int holder_fd; /* ... as this descriptor */
	int local;     /* our duplicate */
	struct stat st;
	char link[4096 + 16]; /* /proc/PID/fd/N */
	char *fdinfo;	      /* text of /proc/PID/fdinfo/N */
	uint32_t holders;     /* how many descriptors refer to it */
};

/* All that the dump of one object may need to know of the others. Functions in object_dump.c. */
struct object_dump;
struct image_writer *object_dump_image(struct object_dump *dump);
struct names *object_dump_names(struct object_dump *dump);
uint64_t object_dump_save_files_max(const struct object_dump *dump);
/* The source with this socket or pipe inode in the frozen group, NULL when nobody in it holds it. Several may
 * (two ends of a pipe): `skip` is left out. */
const struct object_source *object_dump_find_inode(struct object_dump *dump, uint64_t ino,
						   const struct object_source *skip);
/* The console stream (0, 1, 2) that this description is, or -1. */
int object_dump_console_stream(struct object_dump *dump, const struct object_source *source);
/* Gives a description that is not in any descriptor table (passed in a queue, waiting in an accept queue) an
 * id of its own; takes `local`. */
must_check int object_dump_add_hidden(struct object_dump *dump, int local, uint32_t *id, struct err *err);
/* Records a file's contents to be saved with the image; *index is the SavedFile's index + 1, or 0 if it is
 * over the limit. */
must_check int object_dump_save_file(struct object_dump *dump, int local, const struct stat *st,
				     const char *path, bool unlinked, uint32_t *index, struct err *err);

struct object_restore;
struct names *object_restore_names(struct object_restore *restore);
struct image_reader *object_restore_image(struct object_restore *restore);
bool object_restore_force(const struct object_restore *restore);
/* The descriptor, in the coordinator, of an object restored before or restored now on demand (a pipe's other
 * end, a passed descriptor). -errno. */
must_check int object_restore_get(struct object_restore *restore, uint32_t id, struct err *err);
/* The description that has this socket inode in the image, or NULL. */
const Pbeam__Object *object_restore_find_inode(struct object_restore *restore, uint64_t ino,
					       const Pbeam__Object *skip);
/* Hands over a descriptor made for another object (both ends of a socketpair are made at once); takes it. */
void object_restore_put(struct object_restore *restore, uint32_t id, int fd);
/* The descriptor of the console stream, borrowed; -1 if there is none. */
int object_restore_console(struct object_restore *restore, int index);

struct object_ops {
	const char *name; /* as users read it: "pipe", "UNIX socket" */
	Pbeam__Object__KindCase kind;
	/* True if the source is of this kind. First match in the table's order. */
	bool (*match)(struct object_dump *dump, const struct object_source *source);
	/* Fills the kind's message of `out` (heap-allocated, freed with the manifest). A refusal is an error
	 * whose text says what the object is, why it cannot be saved and what to do; the caller puts "vpid N
	 * (comm): fd M is " in front. */
	int (*dump)(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
		    struct err *err);
	/* Checks without changing anything that restore will work: missing files and the like. May be NULL.
	 */
	int (*check)(struct object_restore *restore, const Pbeam__Object *object, struct err *err);
	/* Makes it; *fd is the coordinator's own, closed by the caller in the end. May be called in any order
	 * of ids. */
	int (*restore)(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err);
	/* After every object exists: queues refilled, connections shut down, settings that depend on others.
	 * May be NULL. */
	int (*finish)(struct object_restore *restore, const Pbeam__Object *object, int fd, struct err *err);
	/* Calls for the process to make itself once its descriptors are in place; `fd` is its number there.
	 * May be NULL. */
	int (*install)(const Pbeam__Object *object, const Pbeam__Process *process, int fd,
		       struct batch *batch, struct err *err);
};

extern const struct object_ops *const object_table[];

/* Dumps every descriptor of the frozen processes: fills manifest->objects and every process's descriptors and
 * locks. `processes[i]` are the frozen processes with their real ids in `rpids[i]`. kcmp finds which
 * descriptors share a description. */
struct object_dump_options {
	uint64_t save_files_max;
	const int
		*console; /* the keeper's descriptors of the job's standard streams, 3 of them, -1 for none */
};
must_check int object_dump_all(struct names *names, struct image_writer *writer, Pbeam__Manifest *manifest,
			       const struct rpid *rpids, const struct object_dump_options *options,
			       struct err *err);

/* The restore of all objects in three steps, between which the coordinator builds the processes. */
must_check int object_restore_open(struct object_restore **out, struct names *names,
				   struct image_reader *image, bool force, const int console[3],
				   struct err *err);
must_check int object_restore_check_all(struct object_restore *restore, struct err *err);
must_check int object_restore_make_all(struct object_restore *restore, struct err *err);
must_check int object_restore_finish_all(struct object_restore *restore, struct err *err);
void object_restore_close(struct object_restore *restore);
/* Appends a process's own calls (install of each of its descriptors). */
must_check int object_install_all(const Pbeam__Manifest *manifest, const Pbeam__Process *process,
				  struct batch *batch, struct err *err);

#endif
