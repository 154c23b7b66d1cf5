/*
 * Kernel objects behind descriptors. One file per kind (pipe.c, unix.c, tcp.c ...), one struct object_ops
 * each, listed in object_table.c. docs/HOWTO_ADD_OBJECT.md.
 *
 * Dumping runs in the coordinator on frozen processes. It has for every open file description a duplicate of
 * its own (pidfd_getfd), so that a kind's dump is plain system calls on a local descriptor plus
 * /proc/PID/fdinfo. It must leave the object as it was: the program may go on. Queues are copied without
 * being drained (tee, MSG_PEEK with SO_PEEK_OFF). Restoring runs in the coordinator too: it makes the object;
 * the process's injected code then takes the descriptor from it (pidfd_getfd). What only the process itself
 * can do (POSIX locks, a terminal's foreground group) is in `install`, a list of calls in a batch.
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
#include "proto/rpc.pb-c.h"
#include "scip/tracee/remote.h"

/* One open file description of the frozen group, as found. */
struct object_source {
	uint32_t id;	    /* Object.id */
	struct rpid holder; /* a process that holds it (the coordinator itself when `hidden`) ... */
	struct vpid holder_vpid;
	int holder_fd; /* ... as this descriptor */
	int local;     /* our duplicate */
	int flags;     /* F_GETFL */
	bool hidden;   /* in no descriptor table: passed in a queue */
	struct stat st;
	char *link;	  /* /proc/PID/fd/N */
	char *fdinfo;	  /* text of /proc/PID/fdinfo/N */
	uint32_t holders; /* how many descriptors refer to it */
};

/* What the dump of one object may need of the others. Functions in object_dump.c. */
struct object_dump;
struct image_writer *object_dump_image(struct object_dump *dump);
struct names *object_dump_names(struct object_dump *dump);
Pbeam__Manifest *object_dump_manifest(struct object_dump *dump);
bool object_dump_force(const struct object_dump *dump);
/* The keeper of the job that is dumped; 0 if it is in no name table. */
struct rpid object_dump_keeper(struct object_dump *dump);
/* The number N by which the program knows the pseudo-terminal /dev/pts/`real`. */
int object_dump_pts(struct object_dump *dump, int real);
/* The sources in order of their ids; NULL at the end. Hidden ones appear while objects are dumped. */
const struct object_source *object_dump_source(struct object_dump *dump, size_t index);
/* True if a connection to a program outside is saved as one that is reset. That has been recorded, unless
 * `peer` is NULL. */
bool object_dump_lose(struct object_dump *dump, const struct object_source *source, const char *peer);
/* The next source with this inode number after `after`, or the first one (NULL), in the order of the ids. */
const struct object_source *object_dump_same_inode(struct object_dump *dump, uint64_t ino,
						   const struct object_source *after);
/* What was dumped of the source, which is being written while its own kind dumps it. */
const Pbeam__Object *object_dump_object(const struct object_source *source);
/* The source with this socket or pipe inode in the frozen group, NULL if no process in it holds it. Several
 * may (two ends of a pipe): `skip` is left out. */
const struct object_source *object_dump_find_inode(struct object_dump *dump, uint64_t ino,
						   const struct object_source *skip);
/* Which ends of the pipe of `of` the frozen group has. */
void object_dump_pipe_ends(struct object_dump *dump, const struct object_source *of, bool *reads,
			   bool *writes);
/* What the first holder of `of` has at the number `fd`; NULL: nothing that has been looked at. */
const struct object_source *object_dump_neighbour(struct object_dump *dump, const struct object_source *of,
						  int fd);
/* The source that entry number `nth` for descriptor `fd` of the epoll instance `epoll` watches, among those
 * of inode `ino`; NULL when it is none of the group's. */
const struct object_source *object_dump_find_epoll(struct object_dump *dump, int epoll, int fd, unsigned nth,
						   uint64_t ino);
/* The console stream (0, 1, 2) that this description is, or -1. */
int object_dump_console_stream(struct object_dump *dump, const struct object_source *source);
/* A descriptor of the job's terminal, borrowed; -1 if the console is no terminal. */
int object_dump_console_tty(struct object_dump *dump);
/* Gives a description that is not in any descriptor table (passed in a queue) an id of its own, or finds the
 * one it has; takes `local`. */
must_check int object_dump_add_hidden(struct object_dump *dump, int local, uint32_t *id, struct err *err);
/* Records a file's contents to be saved with the image; *index is the SavedFile's index + 1, or 0 if it is
 * over the limit (`always` lifts it). Once for each (dev, ino). */
must_check int object_dump_save_file(struct object_dump *dump, int local, const struct stat *st,
				     const char *path, bool unlinked, bool always, uint32_t *index,
				     struct err *err);

struct object_restore;
struct names *object_restore_names(struct object_restore *restore);
struct image_reader *object_restore_image(struct object_restore *restore);
const Pbeam__Manifest *object_restore_manifest(const struct object_restore *restore);
bool object_restore_force(const struct object_restore *restore);
/* The descriptor, in the coordinator, of an object restored before or restored now on demand (a pipe's other
 * end, a passed descriptor). Borrowed. -errno. Kinds marked `late` name processes: for them this may be
 * called only once the processes exist. */
must_check int object_restore_get(struct object_restore *restore, uint32_t id, struct err *err);
/* The same without making it: -1 if it was not made yet. */
int object_restore_peek(struct object_restore *restore, uint32_t id);
/* The object of this id, or NULL. */
const Pbeam__Object *object_restore_object(const struct object_restore *restore, uint32_t id);
/* The next object after `after` whose end has this inode number in the image, or the first one (NULL). */
const Pbeam__Object *object_restore_same_inode(struct object_restore *restore, uint64_t ino,
					       const Pbeam__Object *after);
/* The first such object but `skip`, or NULL. */
const Pbeam__Object *object_restore_find_inode(struct object_restore *restore, uint64_t ino,
					       const Pbeam__Object *skip);
/* Hands over a descriptor made for another object (both ends of a socketpair are made at once); takes it. */
void object_restore_put(struct object_restore *restore, uint32_t id, int fd);
/* Keeps a descriptor under a key until everything is finished (the second end of a pipe nobody holds, the
 * pipe itself while its ends are given out); takes it. object_restore_kept() borrows it, -1 if there is none.
 */
must_check int object_restore_keep(struct object_restore *restore, Pbeam__Object__KindCase kind, uint64_t key,
				   int fd, struct err *err);
int object_restore_kept(struct object_restore *restore, Pbeam__Object__KindCase kind, uint64_t key);
/* The descriptor of the console stream, borrowed; -1 if there is none. */
int object_restore_console(struct object_restore *restore, int index);
/* A pseudo-terminal that was /dev/pts/`saved` to the program is /dev/pts/`now`. */
must_check int object_restore_renamed_pts(struct object_restore *restore, int saved, int now,
					  struct err *err);
/* Where the pseudo-terminal at `path` (/dev/pts/N as the program knows it) is now; it is made if need be. 1
 * and the path in `buf`, 0 if it is no such path or none of the image's terminals, -errno. */
must_check int object_restore_map_path(struct object_restore *restore, const char *path, char *buf,
				       size_t size, struct err *err);

/* Visits what names a file in a message of the image, so that it can be given the names of another host. */
struct object_visitor {
	void *arg;
	/* A file's identity; `ctime_ns` is that of the file, NULL where it is not saved. 0 or -errno. */
	int (*file)(void *arg, Pbeam__FileIdentity *file, uint64_t *ctime_ns);
	/* A path, which may be empty. 0 or -errno. */
	int (*path)(void *arg, ProtobufCBinaryData *path);
};

/* What is added to the numbers of an image that is joined with others, so that no two images share one. */
struct object_shift {
	uint64_t ino;	 /* inodes of pipes, sockets and files without a name */
	uint32_t object; /* Object.id */
	uint32_t shared; /* SharedMemory.id */
	uint32_t saved;	 /* index into Manifest.files */
};

struct object_ops {
	const char *name; /* as users read it: "pipe", "UNIX socket" */
	Pbeam__Object__KindCase kind;
	/* Dumped in this order: 0 may find hidden descriptions (sockets), 1 most, 2 names others (epoll). */
	int phase;
	/* Names processes: made by object_restore_get() on request, or by object_restore_finish_all(). */
	bool late;
	/* True if the source is of this kind. First match in the table's order. */
	bool (*match)(struct object_dump *dump, const struct object_source *source);
	/* Fills the kind's message of `out` (heap-allocated, freed with the manifest). A refusal is an error
	 * whose text names the object, the reason and the remedy; the caller puts "vpid N
	 * (comm): fd M is " in front. */
	int (*dump)(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
		    struct err *err);
	/* After all are dumped: refuses an object that needs a description which no process of the group
	 * holds. May be NULL.
	 */
	int (*verify)(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
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
	/* Of a rollback, when the processes that are replaced have ended: what `restore` and `finish` left
	 * out because those had the same object (object_restore_is_beside()). May be NULL. */
	int (*take_over)(struct object_restore *restore, const Pbeam__Object *object, int fd,
			 struct err *err);
	/* Calls for the process to make itself once its descriptors are in place; `fd` is its number there.
	 * May be NULL. */
	int (*install)(struct names *names, const Pbeam__Object *object, const Pbeam__Process *process,
		       int fd, struct batch *batch, struct err *err);
	/* Visits the files that the message names. NULL: it names none. 0 or the visitor's -errno. */
	int (*visit_files)(Pbeam__Object *object, const struct object_visitor *visitor);
	/* Adds the shift to every inode, shared id and saved index of the kind's message; 0 means "none" and
	 * stays 0. Object ids are in nested messages (Descriptor, EpollEntry ...), which the caller shifts.
	 * Required: a number that is not shifted joins unrelated objects. A kind without numbers has
	 * object_shift_none(). */
	void (*shift)(Pbeam__Object *object, const struct object_shift *shift);
	/* The hooks of a kind with another end (object_end.h); NULL for other kinds. */
	const struct object_end_ops *end;
};
void object_shift_none(Pbeam__Object *object, const struct object_shift *shift);

extern const struct object_ops *const object_table[]; /* NULL at the end */
const struct object_ops *object_ops_of(const Pbeam__Object *object);

/* The process (real) of a pidfd; 0: it is none, or its process has ended or is in another pid namespace. */
pid_t object_pidfd_process(const struct object_source *source);

/* Handles descriptions whose other end is outside the group: the coordinators of a migration, through
 * scip/ends/external.h. The first two are called while dumping, the others while restoring. */
struct object_external {
	void *arg;
	/* All descriptions are known (object_dump_source()), none is dumped yet. */
	int (*survey)(void *arg, struct object_dump *dump, struct err *err);
	/* 1: taken, `out` has its kind and out->external; 0: dump it as usual. */
	int (*dump)(void *arg, struct object_dump *dump, const struct object_source *source,
		    Pbeam__Object *out, struct err *err);
	/* A TCP connection whose peer (as text) is not saved with it: it is recorded as reset when restored.
	 * NULL: it is refused. */
	void (*lost)(void *arg, const struct object_source *source, const char *peer);
	/* As the kind's `restore` and `finish`, in their place. */
	int (*make)(void *arg, struct object_restore *restore, const Pbeam__Object *object, int *fd,
		    struct err *err);
	int (*finish)(void *arg, struct object_restore *restore, const Pbeam__Object *object, int fd,
		      struct err *err);
	/* The size up to which the contents of a file with a name are saved, in place of `max`. While
	 * dumping; may be NULL. */
	uint64_t (*file_limit)(void *arg, const struct stat *st, uint64_t max);
};
uint64_t object_file_limit(const struct object_external *external, const struct stat *st, uint64_t max);
/* Saves the contents of an open file: appends runs to *pages. 0 or -errno. */
must_check int object_files_write(struct image_writer *writer, Pbeam__Manifest *manifest, int fd,
				  const struct stat *st, size_t *n, Pbeam__Pages ***pages, struct err *err);
/* Refuses an image that lacks the contents of a file which its processes can change in place. */
must_check int object_files_check_saved(const Pbeam__Manifest *manifest, struct err *err);
/* Stores large files that the running processes have open for writing ahead of the dump, which then stores
 * what they change from now on. Best effort, but for a full disk: -ENOSPC. `max`: bytes of a file. */
must_check int object_files_ahead(struct image_writer *writer, const struct rpid *rpids, size_t n,
				  uint64_t max, struct err *err);
/* Saves these directories as a whole, before the objects: a file in them is saved once (tree.c). 0 or -errno.
 */
must_check int object_trees_save(struct image_writer *writer, Pbeam__Manifest *manifest, char *const *paths,
				 size_t n, struct err *err);
/* For their `dump`: what the description's kind would have put into `out`. */
must_check int object_dump_as_usual(struct object_dump *dump, const struct object_source *source,
				    Pbeam__Object *out, struct err *err);

/* Dumps every descriptor of the frozen processes: fills manifest->objects, ->files (and ->shared for memory
 * files), and of every process descriptors, files_of and locks. `rpids[i]` is the real number of
 * manifest->processes[i], 0 for one without descriptors (a zombie); of processes[i] only vpid is read.
 * Shared memory that is mapped must be in manifest->shared already. kcmp finds which descriptors share a
 * description. The soft limit of open files of the caller is raised. */
struct object_dump_options {
	uint64_t save_files_max;
	const int
		*console; /* the keeper's descriptors of the job's standard streams, 3 of them, -1 for none */
	bool force;	  /* save connections to the outside too: they are reset when they are restored */
	const struct object_external *external; /* or NULL */
};
must_check int object_dump_all(struct names *names, struct image_writer *writer, Pbeam__Manifest *manifest,
			       const struct rpid *rpids, const struct object_dump_options *options,
			       struct err *err);

/* Processes that are about to be killed to be restored later: their TCP connections with each other are set
 * to end without TIME_WAIT, which would keep their ports from being used again. Best effort. */
void object_abort_connections(const struct rpid *rpids, size_t n);

/* The restore of all objects in three steps, between which the coordinator builds the processes. */
must_check int object_restore_open(struct object_restore **out, struct names *names,
				   struct image_reader *image, bool force, const int console[3],
				   struct err *err);
/* `external`, which must live as long as the restore, makes the objects that have an External. */
void object_restore_set_external(struct object_restore *restore, const struct object_external *external);
/* Refuses everything that can be refused; changes nothing. */
must_check int object_restore_check_all(struct object_restore *restore, struct err *err);
/* The same, but `pass` gets the result of each check, with the error in `err`, and returns 0 to go on. */
must_check int object_restore_check_each(struct object_restore *restore, int (*pass)(void *arg, int r),
					 void *arg, struct err *err);
/* Lists what a restore would do to each file now. Changes nothing. 0 or -errno. */
must_check int object_restore_forecast(struct object_restore *restore, Pbeam__FileFate ***fates, size_t *n,
				       struct err *err);
/* True if the files may change when all processes are filled. False: the image has objects that report a
 * change of a file, so that files change before these are made. */
bool object_restore_wait(struct object_restore *restore);
/* The objects will be made while these processes, which are frozen and will be replaced, exist: takes
 * duplicates of what both need. *obstacle: what they need to themselves, so that they must end first; then,
 * and after a failure, nothing is borrowed. */
must_check int object_restore_borrow(struct object_restore *restore, const struct rpid *rpids, size_t n,
				     const char **obstacle, struct err *err);
/* True until the commit of a rollback whose processes exist beside the new ones. */
bool object_restore_is_beside(const struct object_restore *restore);
/* Refuses if another program has a lock that the image has, or waits for one. Before the commit. */
must_check int object_locks_check(struct object_restore *restore, struct err *err);
/* Gives it back; the processes go on. */
void object_restore_give_back(struct object_restore *restore);
/* The processes have ended. Does all that can be done; the last error is returned. */
must_check int object_restore_take_over(struct object_restore *restore, struct err *err);
/* Prepares the change of files (file_undo_prepare()): when the processes that are replaced are frozen, before
 * any of them ends. On failure nothing has changed. */
must_check int object_restore_prepare_files(struct object_restore *restore, struct err *err);
/* True if the file that is open as `fd` gets its contents by object_restore_put_back(). */
bool object_restore_puts_back(const struct object_restore *restore, int fd);
/* Makes missing files, then all objects except those that name processes. */
must_check int object_restore_make_all(struct object_restore *restore, struct err *err);
/* Gives the files their saved contents, when all processes are filled. */
must_check int object_restore_put_back(struct object_restore *restore, struct err *err);
/* From now on a registry's decision, not the end of the coordinator, takes the files back or keeps them. */
must_check int object_restore_hold(struct object_restore *restore, struct err *err);
/* Puts all files back as they were before object_restore_prepare_files(), when no process of the image runs.
 * The objects are gone then. A file for which that fails is named at the end of `err`. */
void object_restore_take_back(struct object_restore *restore, struct err *err);
/* After the commit, before a process of the image runs: the earlier contents are dropped. */
void object_restore_settle(struct object_restore *restore);
/* Queues, terminals, epoll interest, owners: when all processes have their descriptors, before they run. */
must_check int object_restore_finish_all(struct object_restore *restore, struct err *err);
void object_restore_close(struct object_restore *restore);
/* A descriptor (read and write) of a shared memory object that descriptors refer to as well (memfd, unlinked
 * file), filled with its contents, for mapping. Borrowed. -ENOENT: no descriptor refers to it, the caller
 * makes it. Valid after object_restore_make_all(). */
must_check int object_restore_shared(struct object_restore *restore, uint32_t shared_id, struct err *err);
/* The terminal, as a descriptor of the coordinator, that the session with this number controls; -1 if it has
 * none. The session's leader does TIOCSCTTY on it after its setsid() and before it forks. */
int object_restore_controlling_tty(struct object_restore *restore, struct vpid session);
/* Records, for translation and for the next checkpoint, which numbers the pseudo-terminals have now and who
 * the peers of UNIX sockets are. After object_restore_make_all(), before any process runs. */
must_check int object_restore_record(struct object_restore *restore, struct rpid keeper, struct err *err);

/* True if the object's install has calls for the processes that hold it. */
bool object_wants_install(const Pbeam__Object *object);
/* Appends a process's own calls: locks, and install of each of its descriptors. `objects` holds at least
 * those that object_wants_install(). Returns 0, -ENOSPC when the batch is full. */
must_check int object_install_all(struct names *names, Pbeam__Object *const *objects, size_t nobjects,
				  const Pbeam__Process *process, struct batch *batch, struct err *err);

#endif
