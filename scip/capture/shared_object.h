/* The shared memory of a frozen group, as the driver of a migration sees it to choose what is pre-copied. */
#ifndef SCIP_CAPTURE_SHARED_OBJECT_H
#define SCIP_CAPTURE_SHARED_OBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/control.pb-c.h"

struct member;

/* A mapping of a shared object. */
struct shared_use {
	struct member *member;
	Pbeam__SharedRef *ref;
};

/* True if both refer to the same object. A System V segment has its id in the place of its inode number, and
 * a file of that device may have the same number (ipc/shm.c, newseg()). */
static inline bool shared_is_same(const Pbeam__SharedRef *a, const Pbeam__SharedRef *b)
{
	const uint32_t sysv = PBEAM__SHARED_MEMORY__KIND__SYSV;

	return a->dev == b->dev && a->ino == b->ino && (a->kind == sysv) == (b->kind == sysv);
}

/* A shared object of the frozen group. */
struct shared_object {
	const struct shared_use *uses;
	size_t n;
	uint64_t size; /* in bytes */
	/* NULL: it cannot be pre-copied. Else `pages` are those that the kernel reports (address is the
	 * offset in the object). Out: `precopied`, an id, if it is chosen; at the end, if all of it has been
	 * sent, with `sent`. */
	Pbeam__SharedMemory *there;
};

/* Chooses the objects that are pre-copied. 0 or -errno. */
typedef int shared_precopy_fn(void *arg, struct shared_object *objects, size_t n, struct err *err);

#endif
