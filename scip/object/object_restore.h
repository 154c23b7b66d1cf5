/* Inside of the restore: object_restore.c drives the kinds. */
#ifndef SCIP_OBJECT_OBJECT_RESTORE_H
#define SCIP_OBJECT_OBJECT_RESTORE_H

#include "base/u64_map.h"
#include "scip/object/object.h"

/* What F_SETFL can change, but for O_ASYNC, whose signals name a descriptor of the process. */
#define OBJECT_STATUS_FLAGS (O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME)

enum object_state { OBJECT_ABSENT, OBJECT_MAKING, OBJECT_MADE };

struct object_slot {
	const Pbeam__Object *object;
	const struct object_ops *ops;
	enum object_state state;
	bool shared; /* the description is that of a process which is replaced: object_borrow.c */
	int fd;
	struct object_slot *next_same; /* the next in the manifest with an end of this inode number */
	struct object_slot *last_same; /* of the first with it: the last one */
};

struct object_kept {
	Pbeam__Object__KindCase kind;
	uint64_t key;
	int fd;
	size_t next; /* index + 1 of one of another kind with this key, or 0 */
};

struct object_pts {
	int saved, now;
};

/* An open file description of a process that is replaced, with locks. */
struct object_locked {
	int fd; /* duplicate */
	uint64_t ino;
	char *lines; /* its fdinfo */
	bool shared; /* it is an object of the image as well */
};

/* The file of a UNIX socket that is bound beside that of a process which is replaced. */
struct object_aside {
	char *path, *beside;
	bool gone; /* the path has no socket in the image */
};

struct object_restore {
	struct names *names;
	struct image_reader *image;
	const Pbeam__Manifest *manifest;
	bool force;
	bool early;		/* files change before the objects are made */
	struct file_undo *undo; /* of the files that change; NULL before object_restore_prepare_files() */
	const struct object_external *external;
	int console[3];
	struct object_slot *slots; /* slots[id - 1] */
	size_t nslots;
	struct u64_map inodes; /* inode number of an end -> id - 1 of the first object with it */
	struct object_kept *kept;
	size_t nkept;
	struct u64_map kept_keys; /* key -> index of the last one kept with it */
	struct object_pts *pts;
	size_t npts;
	bool beside;	       /* the processes that are replaced exist */
	struct rpid *replaced; /* those processes */
	size_t nreplaced;
	struct object_borrowed *borrowed; /* object_borrow.c */
	size_t nborrowed;
	struct object_locked *locked; /* object_locks_pass.c */
	size_t nlocked;
	struct object_aside *aside; /* unix_aside.c */
	size_t naside;
};

/* Sets the description's flags and owner. */
must_check int object_restore_set_state(struct object_restore *restore, const struct object_slot *slot,
					struct err *err);
struct inet_address;
/* True if a process that is replaced has a TCP socket with this port. */
bool object_restore_is_taken(const struct object_restore *restore, const struct inet_address *address);

/* Puts a descriptor that has the object in front of its error. Returns `code`. */
must_check int object_restore_name_error(const struct object_restore *restore, const struct object_slot *slot,
					 int code, struct err *err);

/* The description's own locks (object_locks.c). */
must_check int object_locks_restore(const Pbeam__Object *object, int fd, struct err *err);
must_check int object_locks_install(const Pbeam__Process *process, struct batch *batch);

/* True if a process that is replaced has a UNIX socket of this name. */
bool object_restore_has_unix_name(const struct object_restore *restore, const ProtobufCBinaryData *name);
/* Gives the new sockets their paths, or removes them (unix_aside.c). */
void unix_aside_end(struct object_restore *restore, bool committed);

/* ---- object_locks_pass.c ---- */
bool object_locks_saved(const Pbeam__Manifest *manifest);
/* Keeps the description behind this descriptor of a process that is replaced, if it has locks. */
must_check int object_locks_gather(struct object_restore *restore, pid_t pid, int pidfd, int number);
/* Lets a file with locks be the old processes' description of it, if they have one. */
void object_locks_share(struct object_restore *restore, struct object_slot *slot);
/* Takes the locks of descriptions over, after the commit. Errors are logged; the first one is returned. */
must_check int object_locks_take(struct object_restore *restore, struct err *err);
void object_locks_forget(struct object_restore *restore);

/* True if all holders of this saved file (index + 1) get another console stream in its place: the file is
 * left alone (regular.c). */
bool object_regular_replaced(struct object_restore *restore, uint32_t saved);

/* Saved file contents: checks for obstacles (files.c). */
must_check int object_files_check(struct object_restore *restore, struct err *err);
/* Adds all files that the restore changes to the transaction (files_switch.c). */
must_check int object_files_list(struct object_restore *restore, struct file_undo *undo, struct err *err);
/* The length that the file behind the object gets, and its path, which the caller frees. False: it keeps its
 * length, or its contents are in the image (regular.c). */
bool object_regular_cut(struct object_restore *restore, const Pbeam__Object *object, char **path,
			uint64_t *size);
/* Writes page runs into an open file; what is not covered below `size` becomes a hole. */
must_check int object_files_read_pages(struct image_reader *image, int fd, uint64_t size, size_t n,
				       Pbeam__Pages *const *pages, struct err *err);

#endif
