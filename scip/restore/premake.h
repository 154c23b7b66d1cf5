/* Inside scip/restore: the processes of a migration that are made ahead. */
#ifndef SCIP_RESTORE_PREMAKE_H
#define SCIP_RESTORE_PREMAKE_H

#include <pthread.h>
#include <sys/mman.h>

#include "scip/restore/coordinate.h"

/* Where what was sent lies, as far as inherit.h is concerned. */
#define PREMAKE_SENT_BASE    (1ull << 62)
#define PREMAKE_SENT_PROCESS (1ull << 47)

/* What a process has by now. */
struct premade_process {
	Pbeam__Memory memory; /* its mappings: copies of the skeleton's */
	Pbeam__Mapping *copies;
	Pbeam__Mapping **more; /* those that were added later, each malloc'd */
	size_t nmore;
	struct inherit_state *state; /* owned by the coordinate */
	size_t settled;		     /* how long its list of pages was when it was last in order */
};

/* Shared memory that comes ahead, made as a memory file; -1: taken. */
struct premade_shared {
	uint32_t id;
	int fd;
};

struct restore_premade {
	struct coordinate coordinate;
	struct restore_options options;
	struct premade_process *processes;
	size_t n;
	struct premade_shared *shared;
	size_t nshared;
	struct err err;
	pthread_mutex_t lock; /* of the lists of pages */
};

static inline int64_t premake_shift(size_t index)
{
	return (int64_t)(PREMAKE_SENT_BASE + index * PREMAKE_SENT_PROCESS);
}

/* Memory whose contents are sent ahead. */
static inline bool premake_is_tracked(const Pbeam__Mapping *map)
{
	bool anonymous = map->kind == PBEAM__MAPPING__KIND__ANON_PRIVATE ||
			 map->kind == PBEAM__MAPPING__KIND__HEAP || map->kind == PBEAM__MAPPING__KIND__STACK;

	return anonymous && (map->flags & MAP_PRIVATE) && !(map->flags & MAP_HUGETLB);
}

/* Until the number of one that was killed is free: another may be made under it at once. */
void premake_await_gone(struct names *names, struct vpid vpid);

/* ---- premake_shared.c: shared memory that comes ahead ---- */
/* A memory file for each that the skeleton names. */
must_check int premake_shared_make(struct restore_premade *premade);
/* As restore_premade_write() and restore_premade_read(). */
must_check int premake_shared_write(const struct restore_premade *premade, size_t index,
				    const struct restore_piece *pieces, size_t n, struct err *err);
must_check int premake_shared_read(const struct restore_premade *premade, size_t index,
				   const struct restore_piece *pieces, size_t n, uint8_t *to,
				   struct err *err);
/* What of the final manifest's shared memory came ahead is that of the objects that are made next. */
must_check int premake_shared_give(struct coordinate *coordinate);
void premake_shared_release(struct restore_premade *premade);

/* ---- premake_take.c: the end ---- */
/* Those of the final manifest that options->ahead names go on in `coordinate`, which plans and makes the
 * others beside them; what the manifest says has been sent is found where it was put. Those that are not in
 * it any more are killed. `premade` is taken in every case. */
must_check int premake_take(struct coordinate *coordinate, struct restore_premade *premade);
/* While a process that was made ahead forks another, that one has no use for its memory. */
must_check int premake_hide(struct coordinate *coordinate, int node, bool hide);
void premake_release(struct restore_premade *premade);

#endif
