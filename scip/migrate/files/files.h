/*
 * The files of processes that go to another host: those open or mapped, the programs, their directories.
 *
 * The source tells which there are (MIGRATE_FILES), first while the processes run, and once more when they
 * are frozen what has come since. The target looks for each under its *name*, the path on the host of the
 * job's birth, translated by the maps that it was given:
 *
 *   read or mapped   the same if inode number, size and times are (a shared file system), else if size and
 *                    contents are; else its contents are sent, for the open path to be opened and for every
 *                    later use of the name (namespace/paths.h)
 *   written          must be the very same file, which its times prove: they are as the source sees them
 *                    before and after. Else it is refused; with --send-files its contents go along in the
 *                    image, and it is the job's own until the program comes home, where they are put back
 *   directory        must be there
 *
 * The target then gives every identity in the manifest the path and the numbers that the file has there.
 */
#ifndef SCIP_MIGRATE_FILES_H
#define SCIP_MIGRATE_FILES_H

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "image/arena.h"
#include "namespace/paths.h"
#include "proto/cluster.pb-c.h"

/* ---- source ---- */
struct files_leaving;
struct files_options {
	struct names *names;
	struct rpid keeper;
	const char *own_host, *host; /* from where, to where */
	bool send_files, dry_run;
	uint64_t bandwidth; /* bytes a second, 0: as much as there is */
	/* With dry_run: a sentence for each refusal. */
	void (*obstacle)(void *arg, const char *text);
	void *obstacle_arg;
};
must_check int files_leaving_new(struct files_leaving **out, const struct files_options *options,
				 struct err *err);
void files_leaving_free(struct files_leaving *leaving);
/* What these processes use and was not told yet is told, and sent where it is wanted. *bytes grows by what
 * was sent. With dry_run nothing is sent. */
must_check int files_leaving_tell(struct files_leaving *leaving, int channel,
				  const struct name_process *processes, size_t n, uint64_t *bytes,
				  struct err *err);
/* Some are under other paths there. */
bool files_leaving_elsewhere(const struct files_leaving *leaving);
/* How much of a file's contents the image is to hold: `max` where nothing was told of it. */
uint64_t files_leaving_limit(const struct files_leaving *leaving, const struct stat *st, uint64_t max);
/* They have left: what was here only for them goes. */
void files_leaving_left(const struct files_leaving *leaving);

/* ---- list.c: what a process uses ---- */
struct files_list {
	Pbeam__MigrateFile **v;
	size_t n;
};
/* Appends what `process` uses, once for each path. Files that it may not be asked for are left out: the
 * checkpoint refuses them. */
must_check int files_list_add(struct files_list *list, const struct name_process *process,
			      const struct paths *paths, struct err *err);
void files_list_free(struct files_list *list);
/* Where the contents are of what the processes have at `path`: a program that was made to ask for another
 * interpreter is to go as it was. On this host; `path` itself or an entry's. */
const char *files_contents(const struct paths *paths, const char *path);

/* ---- target ---- */
struct files_arriving;
must_check int files_arriving_new(struct files_arriving **out, struct names *names, struct rpid keeper,
				  const Pbeam__MigrateBegin *begin, struct err *err);
void files_arriving_free(struct files_arriving *arriving);
struct frame;
/* MIGRATE_FILES: answers it. */
must_check int files_arriving_told(struct files_arriving *arriving, int channel, const struct frame *frame,
				   struct err *err);
/* MIGRATE_FILE: takes its bytes. `room` is of WIRE_PART_MAX bytes. */
must_check int files_arriving_part(struct files_arriving *arriving, int channel, const struct frame *frame,
				   uint8_t *room, struct err *err);
/* Rewrites the manifest for this host. `last`: it is that of the state, and what is carried in it gets its
 * place. */
must_check int files_arriving_apply(struct files_arriving *arriving, Pbeam__Manifest *manifest, bool last,
				    struct err *err);

/* ---- elf.c: programs and their interpreters (ld.so) ---- */
/* The interpreter that the ELF program asks for; false: none. */
bool files_elf_interpreter(int fd, char out[PATH_MAX]);
/* Makes it ask for another. */
must_check int files_elf_set_interpreter(int fd, const char *interpreter);

/* ---- store.c: STATE/.files/HOST (no job has a name with a dot before it) ---- */
/*
 *   cache/DIGEST.r, .x        contents, by XXH3-128 and whether they may be executed; never written to
 *   job/UUID/DIGEST/NAME      hard links to them, of the jobs that are here
 *   written/UUID/PATH         files that a job writes; they stay when the job ends
 *
 * A file of the cache that no job has a link to goes when it was not used for FILES_KEEP_DAYS, or when all
 * such are more than FILES_KEEP_BYTES.
 */
#define FILES_KEEP_DAYS	 7
#define FILES_KEEP_BYTES (2ull << 30)

struct files_store {
	char top[PATH_MAX];
	char uuid[40];
};
/* `host`: this one's name in the cluster. */
must_check int files_store_open(struct files_store *store, const char *host, const char *uuid,
				struct err *err);
/* 1 if the contents are in the cache, whole; 0 if not. */
must_check int files_store_has(const struct files_store *store, const uint8_t digest[IMAGE_DIGEST],
			       bool executable);
/* A link of the job's to contents of the cache, under this file name: its path. */
must_check int files_store_link(const struct files_store *store, const uint8_t digest[IMAGE_DIGEST],
				bool executable, const char *base, char path[PATH_MAX], struct err *err);
/* Where the job's written file of that name is to be; the directories are made with `make`. */
must_check int files_store_written(const struct files_store *store, const char *name, bool make,
				   char path[PATH_MAX], struct err *err);
/* A copy of the program at `from` that asks for the interpreter `interpreter`: 1 and its path, beside that of
 * files_store_link(); 0: it asks for none. */
must_check int files_store_program(const struct files_store *store, const uint8_t digest[IMAGE_DIGEST],
				   const char *from, const char *interpreter, char path[PATH_MAX],
				   struct err *err);
/* The written file is not needed any more; nor are directories above it that are empty. */
void files_store_drop(const struct files_store *store, const char *path);
/* New contents: a file to be written, then put into the cache or (on error) closed. *temporary is its name,
 * "" if it has none. */
must_check int files_store_new(const struct files_store *store, char temporary[PATH_MAX], struct err *err);
must_check int files_store_publish(const struct files_store *store, int fd, const char *temporary,
				   const uint8_t digest[IMAGE_DIGEST], bool executable, struct err *err);
/* Removes what is left of jobs that are not here any more, and what is too old or too much. */
void files_store_sweep(const struct files_store *store, struct names *names);
/* The job has ended, or has no process here: its links go. Without a cluster: nothing. */
void files_job_ended(struct names *names, const char *uuid);

/* XXH3-128 of a whole open file. */
must_check int files_digest(int fd, uint64_t size, uint8_t digest[IMAGE_DIGEST]);
uint64_t files_mtime_ns(const struct stat *st);
uint64_t files_ctime_ns(const struct stat *st);
/* A path field as a string of the caller's; NULL without memory. */
char *files_text(const ProtobufCBinaryData *field);

#endif
