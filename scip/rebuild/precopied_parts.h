/* Internal to scip/rebuild: shared by the parts of precopied.h. */
#ifndef SCIP_REBUILD_PRECOPIED_PARTS_H
#define SCIP_REBUILD_PRECOPIED_PARTS_H

#include <pthread.h>
#include <sys/mman.h>

#include "scip/rebuild/precopied.h"
#include "scip/rebuild/rebuild_parts.h"

/* inherit.h sees pages that were sent as if they lay in the file, at these offsets. */
#define PRECOPIED_SENT_BASE    (1ull << 62)
#define PRECOPIED_SENT_PROCESS (1ull << 47)

/* The memory that a process has received so far. */
struct precopied_process {
	Pbeam__Memory memory; /* its mappings: copies of the skeleton's */
	Pbeam__Mapping *copies;
	Pbeam__Mapping **more; /* those that were added later, each malloc'd */
	size_t nmore;
	struct inherit_state *state; /* owned by the rebuild */
	size_t settled;		     /* length of the list of pages when it was last sorted */
};

/* The memory file of pre-copied shared memory; fd -1: taken. */
struct precopied_shared {
	uint32_t id;
	int fd;
};

struct precopied {
	struct rebuild rebuild;
	struct rebuild_options options;
	struct precopied_process *processes;
	size_t n;
	struct precopied_shared *shared;
	size_t nshared;
	struct err err;
	pthread_mutex_t lock; /* of the lists of pages */
};

static inline int64_t precopied_shift(size_t index)
{
	return (int64_t)(PRECOPIED_SENT_BASE + index * PRECOPIED_SENT_PROCESS);
}

/* True for memory whose contents are pre-copied. */
static inline bool precopied_is_tracked(const Pbeam__Mapping *map)
{
	bool anonymous = map->kind == PBEAM__MAPPING__KIND__ANON_PRIVATE ||
			 map->kind == PBEAM__MAPPING__KIND__HEAP || map->kind == PBEAM__MAPPING__KIND__STACK;

	return anonymous && (map->flags & MAP_PRIVATE) && !(map->flags & MAP_HUGETLB);
}

/* ---- precopied_memory.c ---- */
/* Hides the memory of a pre-copied process from the children that it forks, which have no use for it, or
 * makes the memory inheritable again. */
must_check int precopied_hide(struct rebuild *rebuild, int node, bool hide);
/* Waits until the number of a killed process is free: another process may be made under that number at
 * once. */
void precopied_await_gone(struct names *names, struct vpid vpid);
/* Frees everything but the processes. */
void precopied_release(struct precopied *precopied);

/* ---- precopied_shared.c: shared memory ---- */
/* Makes a memory file for each shared memory object of the skeleton. */
must_check int precopied_shared_make(struct precopied *precopied);
/* Like precopied_write() and precopied_read(). */
must_check int precopied_shared_write(const struct precopied *precopied, size_t index,
				      const struct precopied_piece *pieces, size_t n, struct err *err);
must_check int precopied_shared_read(const struct precopied *precopied, size_t index,
				     const struct precopied_piece *pieces, size_t n, uint8_t *to,
				     struct err *err);
/* The pre-copied shared memory of the final manifest becomes that of the objects, which are made next. */
must_check int precopied_shared_give(struct rebuild *rebuild);
void precopied_shared_release(struct precopied *precopied);

/* ---- precopied_take.c: the end ---- */
/* The processes that options->precopied_vpids names go on in `rebuild`, which plans and makes the others
 * beside them. Pages that the manifest marks as sent are expected where they were written. Processes that
 * have gone since are killed. `precopied` is taken in every case. */
must_check int precopied_take(struct rebuild *rebuild, struct precopied *precopied);

#endif
