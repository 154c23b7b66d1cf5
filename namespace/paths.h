/*
 * Paths of a job that are different on this host: RUNTIME/record/KEEPER.paths, written by the coordinator of
 * a migration, read by the scips of the job. A job whose paths are those of this host has no such file.
 *
 * A path means what it meant on the host where the job was started. Without an entry it is the same here;
 * else a *map* replaces a directory by another, or the file was *sent* with the job and is in the state
 * directory.
 */
#ifndef NAMESPACE_PATHS_H
#define NAMESPACE_PATHS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "namespace/names.h"

enum path_kind {
	PATH_MAP = 'm',	    /* a directory and everything below it */
	PATH_SENT = 's',    /* a file, read-only: its contents are shared with other jobs */
	PATH_LIBRARY = 'l', /* the same for a mapped file: not for programs of this host */
	PATH_PROGRAM = 'p', /* replaces the file of the same name, for execve() */
	PATH_WRITTEN = 'w', /* a file that the job writes: the only current copy */
};

/* The original file when its contents were sent. */
struct path_home {
	char host[NAME_TEXT_MAX]; /* "" if there is none */
	uint64_t ino, size, mtime_ns;
};
struct path_entry {
	enum path_kind kind;
	char *name;	       /* the program's name for it */
	char *real;	       /* on this host */
	struct path_home home; /* of PATH_WRITTEN */
};
struct paths {
	struct path_entry *v;
	size_t n;
};

/* Reads the entries, none if there is no file. Free with paths_free(). */
must_check int paths_load(struct paths *out, struct rpid keeper);
void paths_free(struct paths *paths);
/* True if the job has, or had, entries on this host: its calls with paths are trapped. */
bool paths_exist(struct rpid keeper);
/* Writes all entries or none, and notifies the scips. */
must_check int paths_store(const struct paths *paths, struct names *names, struct rpid keeper);
/* Adds a copy, replacing an entry with that name. -ENOMEM. */
must_check int paths_add(struct paths *paths, enum path_kind kind, const char *name, const char *real,
			 const struct path_home *home);

/* All take absolute paths without "//", "/./" and "/../". */
/* The entry of `name`: its own, else the map with the longest prefix; NULL: the path is the same here. */
const struct path_entry *paths_find(const struct paths *paths, const char *name);
/* Translates `name` to this host's path. Returns the entry used; NULL, with `out` untouched, if there is none
 * or the result does not fit. */
const struct path_entry *paths_real(const struct paths *paths, const char *name, char *out, size_t size);
/* Translates this host's path `real` to the program's. */
const struct path_entry *paths_name(const struct paths *paths, const char *real, char *out, size_t size);
/* The entry of a file to be executed instead of `name`; NULL: none. */
const struct path_entry *paths_program(const struct paths *paths, const char *name);
/* True if there is an entry for a file with that base name, in any directory. */
bool paths_has_file(const struct paths *paths, const char *base);

/* Changes with every paths_store() on this host; 0: there was none. A cheap, lock-free test. */
uint64_t paths_generation(struct names *names);

/* "FROM=TO", two absolute paths other than "/". False: malformed. */
bool paths_parse_map(const char *text, char *from, char *to, size_t size);

#endif
