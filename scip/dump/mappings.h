/*
 * Lists the memory of a process: one Mapping for each line of smaps, without contents.
 *
 * Kind and flags come from the line alone (mapping_from_map(), pure). The file is looked up: if the path no
 * longer leads to the inode that is mapped, the file counts as deleted, and its contents are saved with the
 * image.
 */
#ifndef SCIP_DUMP_MAPPINGS_H
#define SCIP_DUMP_MAPPINGS_H

#include "proto/control.pb-c.h"
#include "proto/image.pb-c.h"
#include "scip/dump/page_scan.h"
#include "scip/tracee/process.h"
#include "scip/tracee/procfs.h"

/* Address ranges that are ours, not the program's. */
struct mapping_range {
	uint64_t start, end;
};

/* How the contents of a mapping are saved. */
enum mapping_contents {
	MAPPING_NOTHING,   /* no contents of its own */
	MAPPING_ANONYMOUS, /* the anonymous pages that pagemap shows */
	MAPPING_ALL,	   /* every readable page: its file is gone */
	MAPPING_SHARED,	   /* on the coordinator's request, once for all processes */
};

/* One mapping: the message, and how to save its contents. */
struct mapping {
	Pbeam__Mapping *out; /* in Memory.mappings */
	enum mapping_contents contents;
	bool unreadable; /* readable only from outside: no read permission, or a protection key */
	bool shares;	 /* some pages are mapped elsewhere too */
	struct page_runs runs;
};
struct mappings {
	struct mapping *v;
	size_t n;
};

/* Sets kind, flags and advice of `out`, which is initialised, from one line. 0, or -ENOTSUP with a refusal
 * that says what the mapping is and what to do. */
must_check int mapping_from_map(const struct procfs_map *map, Pbeam__Mapping *out, struct err *err);

/* Subtracts the `n` ranges that are ours from `whole`. Writes the remaining pieces in order to `out`, which
 * has room for n + 1. Returns how many. */
size_t mapping_without(struct mapping_range whole, const struct mapping_range *ours, size_t n,
		       struct mapping_range *out);

/* Adds the process's mappings to `memory`, and those that are shared and writable to dumped->shared as well.
 * The caller frees *out with mappings_free(), also on failure. 0 or -errno. */
must_check int mappings_collect(struct process *process, pid_t tid, const struct procfs_maps *maps,
				Pbeam__Memory *memory, Pbeam__ScipDumped *dumped, struct mappings *out,
				struct err *err);
void mappings_free(struct mappings *mappings);

/* Identifies the program's executable, /proc/PID/exe. 0 or -errno. */
must_check int mapping_exe_identity(pid_t pid, Pbeam__FileIdentity **out, struct err *err);

#endif
