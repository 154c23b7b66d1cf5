/*
 * The files of processes that move to another host: open and mapped files, programs, directories.
 *
 * The source announces the files (MIGRATE_FILES), first while the processes run, and those that have come
 * since once more when the processes are frozen. The target looks for each file under its *name*, which is
 * its path on the host of the job's birth, translated by the maps that the user gave:
 *
 *   read or mapped   the same file if inode number, size and times agree (a shared file system), else if size
 *                    and contents agree; else its contents are sent, for the open file and for every later
 * use of the name (namespace/paths.h) written          must be the very same file, which its times prove:
 * they lie between those that the source sees before and after. Else the file is refused; with --send-files
 * its contents go along in the image, and the file is the job's own until the program comes home, where the
 * contents are put back directory        must exist
 *
 * The target then gives every file identity in the manifest the path and the numbers that the file has there.
 */
#ifndef SCIP_FILES_FILES_H
#define SCIP_FILES_FILES_H

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "image/arena.h"
#include "namespace/paths.h"
#include "proto/cluster.pb-c.h"

/* ---- files_sender.c: the source ---- */
struct files_sender;
struct files_options {
	struct names *names;
	struct rpid keeper;
	const char *own_host, *host; /* source and target */
	bool send_files, dry_run;
	uint64_t bandwidth; /* bytes per second, 0 for no limit */
	/* With dry_run: receives a sentence for each refusal. */
	void (*obstacle)(void *arg, const char *text);
	void *obstacle_arg;
};
/* 0 or -errno; *out is freed by the caller in either case. */
must_check int files_sender_new(struct files_sender **out, const struct files_options *options,
				struct err *err);
void files_sender_free(struct files_sender *sender);
/* Announces the files of these processes that were not announced before, and sends the contents that the
 * target asks for. Adds the bytes sent to *bytes. With dry_run nothing is sent. 0 or -errno. */
must_check int files_sender_announce(struct files_sender *sender, int channel,
				     const struct name_process *processes, size_t n, uint64_t *bytes,
				     struct err *err);
/* True if some files have other paths on the target. */
bool files_sender_has_other_paths(const struct files_sender *sender);
/* How many bytes of a file's contents the image must hold at most: `max` for a file that was not announced.
 */
uint64_t files_sender_limit(const struct files_sender *sender, const struct stat *st, uint64_t max);
/* The processes have moved: removes files that were on this host only for them. */
void files_sender_departed(const struct files_sender *sender);

/* ---- files_list.c: the files that a process uses ---- */
struct files_list {
	Pbeam__MigrateFile **v;
	size_t n;
};
/* Appends the files that `process` uses, each path once. Leaves out files that the kernel does not name: the
 * checkpoint refuses those. 0 or -errno. */
must_check int files_list_add(struct files_list *list, const struct name_process *process,
			      const struct paths *paths, struct err *err);
void files_list_free(struct files_list *list);
/* Where the contents are that the processes have at `path` on this host: `path` itself, or the original of a
 * program that was made to ask for another interpreter. */
const char *files_contents(const struct paths *paths, const char *path);

/* ---- files_receiver.c, files_localize.c: the target ---- */
struct files_receiver;
/* 0 or -errno; *out is freed by the caller in either case. */
must_check int files_receiver_new(struct files_receiver **out, struct names *names, struct rpid keeper,
				  const Pbeam__MigrateBegin *begin, const char *own_host, struct err *err);
void files_receiver_free(struct files_receiver *receiver);
struct frame;
/* Answers MIGRATE_FILES. 0 or -errno. */
must_check int files_receiver_answer(struct files_receiver *receiver, int channel, const struct frame *frame,
				     struct err *err);
/* Takes MIGRATE_FILE with its bulk data. `room` has WIRE_PART_MAX bytes. 0 or -errno. */
must_check int files_receiver_take_part(struct files_receiver *receiver, int channel,
					const struct frame *frame, uint8_t *room, struct err *err);
/* Rewrites the manifest for this host. `last`: it is the manifest of the final state, and files carried in it
 * get their places. 0 or -errno. */
must_check int files_receiver_localize(struct files_receiver *receiver, Pbeam__Manifest *manifest, bool last,
				       struct err *err);

/* ---- files_elf.c: programs and their interpreters (ld.so) ---- */
/* Reads the interpreter that the ELF program asks for. False: it asks for none. */
bool files_elf_interpreter(int fd, char out[PATH_MAX]);
/* Makes the program ask for another interpreter. 0 or -errno. */
must_check int files_elf_set_interpreter(int fd, const char *interpreter);

/* ---- files_store.c: STATE/.files/HOST (no job has a name that begins with a dot) ---- */
/*
 *   cache/DIGEST.r, .x        contents by XXH3-128, not executable and executable; never written to
 *   job/UUID/DIGEST/NAME      hard links to them, for the jobs on this host
 *   written/UUID/PATH         files that a job writes; they remain when the job ends
 *
 * A cached file without a link of a job is removed when it was not used for FILES_KEEP_DAYS, or when all
 * unlinked ones together exceed FILES_KEEP_BYTES.
 */
#define FILES_KEEP_DAYS	 7
#define FILES_KEEP_BYTES (2ull << 30)

struct files_store {
	char top[PATH_MAX];
	char uuid[40];
};
/* `host` is this host's name in the cluster. 0 or -errno. */
must_check int files_store_open(struct files_store *store, const char *host, const char *uuid,
				struct err *err);
/* Returns 1 if the contents are in the cache and undamaged, 0 if not, or -errno. */
must_check int files_store_has(const struct files_store *store, const uint8_t digest[IMAGE_DIGEST],
			       bool executable);
/* Makes the job's link to cached contents, with this file name; `path` receives its path. 0 or -errno. */
must_check int files_store_link(const struct files_store *store, const uint8_t digest[IMAGE_DIGEST],
				bool executable, const char *base, char path[PATH_MAX], struct err *err);
/* Tells where the job's written file of that name belongs; `make` creates the directories. 0 or -errno. */
must_check int files_store_written(const struct files_store *store, const char *name, bool make,
				   char path[PATH_MAX], struct err *err);
/* Copies the program at `from`, beside the link of files_store_link(), and makes the copy ask for
 * `interpreter`. Returns 1 and the path of the copy, 0 if the program asks for no interpreter, or -errno. */
must_check int files_store_program(const struct files_store *store, const uint8_t digest[IMAGE_DIGEST],
				   const char *from, const char *interpreter, char path[PATH_MAX],
				   struct err *err);
/* Removes a written file, and the directories above it that are empty then. */
void files_store_drop(const struct files_store *store, const char *path);
/* Opens a file for new contents, to be published when written, or closed after an error. *temporary receives
 * its name, "" if it has none. Returns the descriptor or -errno. */
must_check int files_store_new(const struct files_store *store, char temporary[PATH_MAX], struct err *err);
must_check int files_store_publish(const struct files_store *store, int fd, const char *temporary,
				   const uint8_t digest[IMAGE_DIGEST], bool executable, struct err *err);
/* Removes the links of jobs that are no longer on this host, and cached files as described above. */
void files_store_sweep(const struct files_store *store, struct names *names);
/* Removes the links of a job that has ended or has no process on this host. */
void files_job_ended(struct names *names, const char *uuid);

/* Computes the XXH3-128 of a whole open file. 0 or -errno. */
must_check int files_digest(int fd, uint64_t size, uint8_t digest[IMAGE_DIGEST]);
uint64_t files_mtime_ns(const struct stat *st);
uint64_t files_ctime_ns(const struct stat *st);
/* Copies a path field to a string, the caller's; NULL when out of memory. */
char *files_text(const ProtobufCBinaryData *field);

#endif
