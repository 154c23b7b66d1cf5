/*
 * Paths of a job that are elsewhere on this host: RUNTIME/record/KEEPER.paths, written by the coordinator of
 * a migration, looked up by the scips of the job. A job that has only its own host's paths has no such file.
 *
 * A path has the meaning that it had on the host of the job's birth. Where nothing else is said it is the
 * same here; else a *map* says which directory stands for which, or a file was *sent* along and is somewhere
 * in the state directory.
 */
#ifndef NAMESPACE_PATHS_H
#define NAMESPACE_PATHS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "namespace/names.h"

enum path_kind {
	PATH_MAP = 'm',	    /* it and all below it */
	PATH_SENT = 's',    /* a file, not to be written: its contents are shared with other jobs */
	PATH_LIBRARY = 'l', /* the same, one that was mapped: of no use to programs of this host's own */
	PATH_PROGRAM = 'p', /* in place of the file of the same name, for execve() */
	PATH_WRITTEN = 'w', /* a file that the job writes, the only current one */
};

/* What the file at home was when its contents went along. */
struct path_home {
	char host[NAME_TEXT_MAX]; /* "": no host has one */
	uint64_t ino, size, mtime_ns;
};
struct path_entry {
	enum path_kind kind;
	char *name;	       /* as the program knows it */
	char *real;	       /* on this host */
	struct path_home home; /* of PATH_WRITTEN */
};
struct paths {
	struct path_entry *v;
	size_t n;
};

/* Reads them, none where there is no file. Free with paths_free(). */
must_check int paths_load(struct paths *out, struct rpid keeper);
void paths_free(struct paths *paths);
/* The job has some here, or had: its processes have their paths trapped. */
bool paths_exist(struct rpid keeper);
/* Writes them, whole or not at all, and lets the scips know. */
must_check int paths_store(const struct paths *paths, struct names *names, struct rpid keeper);
/* Adds a copy, in place of what had that name. -ENOMEM. */
must_check int paths_add(struct paths *paths, enum path_kind kind, const char *name, const char *real,
			 const struct path_home *home);

/* All take absolute paths without "//", "/./" and "/../". */
/* The entry that says where `name` is: a file's own, else the map with the longest prefix; NULL: nowhere
 * else.
 */
const struct path_entry *paths_find(const struct paths *paths, const char *name);
/* Where `name` is, into `out`: the entry that says so, or NULL and `out` untouched. NULL as well if it does
 * not fit. */
const struct path_entry *paths_real(const struct paths *paths, const char *name, char *out, size_t size);
/* Back: what the program calls `real`. */
const struct path_entry *paths_name(const struct paths *paths, const char *real, char *out, size_t size);
/* The file that is executed in place of a file of that name; NULL: that file. */
const struct path_entry *paths_program(const struct paths *paths, const char *name);
/* A file of that name, in whatever directory, is an entry. */
bool paths_has_file(const struct paths *paths, const char *base);

/* Changes with every paths_store() on this host; 0: there was none. Lock-free: the cheap test. */
uint64_t paths_generation(struct names *names);

/* "FROM=TO", two absolute paths other than "/". False: malformed. */
bool paths_parse_map(const char *text, char *from, char *to, size_t size);

#endif
