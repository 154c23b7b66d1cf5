/*
 * What memory a process has: one Mapping for each line of smaps, without its contents.
 *
 * The kind and the flags come from the line alone (mapping_from_map(), pure). What file it is comes from the
 * file system: the path in the map's line must still lead to the map's inode, else the file is as good as
 * deleted and its contents are saved with the image.
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
	MAPPING_ALL,	   /* whatever can be read: its file is gone */
	MAPPING_SHARED,	   /* by the coordinator's order, once for all processes */
};

/* One mapping and what is needed to save it, beside the message. */
struct mapping {
	Pbeam__Mapping *out; /* in Memory.mappings */
	enum mapping_contents contents;
	bool unreadable; /* only from outside: no read permission, or a protection key */
	bool shares;	 /* some pages are mapped elsewhere too */
	struct page_runs runs;
};
struct mappings {
	struct mapping *v;
	size_t n;
};

/* Kind, flags, advice of one line. `out` is initialised. 0, or -ENOTSUP with a refusal: what it is, and what
 * to do. */
must_check int mapping_from_map(const struct procfs_map *map, Pbeam__Mapping *out, struct err *err);

/* What is left of [start, end) without the `n` ranges that are ours: pieces in order into `out` (room for n +
 * 1); returns how many. */
size_t mapping_without(struct mapping_range whole, const struct mapping_range *ours, size_t n,
		       struct mapping_range *out);

/* The process's mappings into `memory`, those that are shared (and may have been written to) into `dumped`
 * too. The caller frees *out with mappings_free(), also on failure. */
must_check int mappings_collect(struct process *process, pid_t tid, const struct procfs_maps *maps,
				Pbeam__Memory *memory, Pbeam__ScipDumped *dumped, struct mappings *out,
				struct err *err);
void mappings_free(struct mappings *mappings);

/* The program's executable, /proc/PID/exe. */
must_check int mapping_exe_identity(pid_t pid, Pbeam__FileIdentity **out, struct err *err);

#endif
