/* Inside of the dump: object_scan.c finds descriptions, object_dump.c drives the kinds. */
#ifndef SCIP_OBJECT_OBJECT_DUMP_H
#define SCIP_OBJECT_OBJECT_DUMP_H

#include "base/u64_map.h"
#include "scip/object/object.h"
#include "scip/object/tcp_look.h"
#include "scip/object/unix_diag.h"

struct object_entry {
	struct object_source source;
	Pbeam__Object *out; /* owned by the manifest */
	const struct object_ops *ops;
	bool dumped;
	struct object_entry *next_same; /* the next entry with this inode number */
	struct object_entry *last_same; /* of the first entry with it: the last one */
};

#define OBJECT_HINTS 1024

struct object_dump {
	struct names *names;
	struct image_writer *writer;
	Pbeam__Manifest *manifest;
	const struct object_dump_options *options;
	struct object_entry **entries; /* entries[id - 1] */
	size_t nentries, room;
	struct object_entry *hints[OBJECT_HINTS]; /* by descriptor number: what the last process had there */
	pid_t self;
	struct unix_diag_table diag; /* read when the first UNIX socket is met */
	struct tcp_table tcp;	     /* what the TCP sockets were when the first of them was looked at */
	void *tree;		     /* the same entries, as tsearch(3) keeps them; see object_scan.c */
	struct u64_map inodes;	     /* inode number -> index of the first entry with it */
	dev_t pipefs;		     /* the device of pipes without a name, once one was met */
};

/* The entry of the description behind found->local, which is taken over: added, or found and closed. `found`
 * names the holder. `fdinfo`: the text of its descriptor there, or NULL to have it read. 0 or -errno. */
must_check int object_scan_add(struct object_dump *dump, const struct object_source *found,
			       const char *fdinfo, struct object_entry **out, struct err *err);
void object_scan_free(struct object_dump *dump);
/* All descriptors of all processes. */
must_check int object_scan_processes(struct object_dump *dump, const struct rpid *rpids, struct err *err);

/* Parses the "lock:" lines of one descriptor's fdinfo into the object and the process (NULL for none). */
must_check int object_locks_parse(const char *fdinfo, int fd, const struct stat *st, Pbeam__Object *object,
				  Pbeam__Process *process, struct err *err);

/* Saves all contents of the open file (files.c). */
must_check int object_files_save(struct image_writer *writer, Pbeam__Manifest *manifest, int fd,
				 const struct stat *st, const char *path, bool unlinked, bool always,
				 uint64_t limit, uint32_t *index, struct err *err);
/* The same for a file that is open for reading and that the manifest does not have. */
must_check int object_files_save_new(struct image_writer *writer, Pbeam__Manifest *manifest, int fd,
				     const struct stat *st, const char *path, bool unlinked, uint32_t *index,
				     struct err *err);
/* True if this file is stored by blocks (image/blocks.h). */
bool object_files_by_blocks(struct image_writer *writer, int fd, uint64_t size);
/* The data of an open file as page runs in the image. */
must_check int object_files_write_pages(struct image_writer *writer, int fd, uint64_t size, size_t *n,
					Pbeam__Pages ***pages, struct err *err);
#endif
