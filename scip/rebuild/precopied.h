/*
 * Pre-copied processes: husks of a migration that receive memory while the program still runs on its old
 * host.
 *
 * precopied_make() makes them from a skeleton, an image without contents. Pages are written into them as they
 * arrive. With the final image rebuild_open() takes them over.
 */
#ifndef SCIP_REBUILD_PRECOPIED_H
#define SCIP_REBUILD_PRECOPIED_H

#include "scip/rebuild/rebuild.h"

struct precopied;

/* Makes the processes of the skeleton with their private memory, empty and held. `options` is copied; what it
 * points to must live as long as the result. The image is taken in every case. -ENOTSUP: these processes
 * cannot be pre-copied. */
must_check int precopied_make(struct precopied **out, struct names *names, struct image_reader *image,
			      const struct rebuild_options *options, struct err *err);
/* Whole pages of memory. */
struct precopied_piece {
	uint64_t address, len;
	const uint8_t *data;
};
enum { PRECOPIED_PIECES = 256 };
/* The index of a process of the skeleton or, with an id, of its shared memory, whose addresses are offsets.
 * -1: there is none. */
int precopied_find(const struct precopied *precopied, int32_t vpid, uint32_t shared_id);
/* Writes at most PRECOPIED_PIECES pieces into the memory of this index. May be called by several threads at
 * once.
 */
must_check int precopied_write(struct precopied *precopied, size_t index,
			       const struct precopied_piece *pieces, size_t n, struct err *err);
/* Reads what was written before, all pieces one behind the other, into `to`. */
must_check int precopied_read(const struct precopied *precopied, size_t index,
			      const struct precopied_piece *pieces, size_t n, uint8_t *to, struct err *err);
/* Kills the processes and frees everything. */
void precopied_abandon(struct precopied *precopied);

#endif
