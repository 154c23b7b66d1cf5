/*
 * Contents of large files, stored by blocks beside the images of a job.
 *
 * N.ckpt may come with N.blocks: the blocks of large files that were not stored by earlier checkpoints. A
 * checkpoint reads such a file whole, computes a digest of each block and compares it with that of the newest
 * earlier image; it stores the blocks that differ. The image's runs (Pages) then point into several files
 * N.blocks, which Manifest.blocks names. So an image costs what has changed, and each is complete by itself:
 * no other image is needed, only files N.blocks. Blocks that no image refers to any more are given back to
 * the file system (blocks_prune()).
 *
 * docs/IMAGE.md, "Large files", has the layout. Whoever reads a file N.blocks holds a shared lock (flock) on
 * it, the writer an exclusive one; blocks_prune() leaves a locked file alone.
 */
#ifndef IMAGE_BLOCKS_H
#define IMAGE_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/err.h"
#include "proto/image.pb-c.h"

#define BLOCKS_SIZE 65536u /* of one block */

/* ---- writing ---- */
struct blocks;
/* For the image PATH, DIR/N.ckpt, which is about to be written. `newest` is the manifest of an earlier image
 * in DIR, or NULL: what cannot be read of it is not shared. 0 or -errno; nothing is written yet. */
must_check int blocks_open(struct blocks **out, const char *path, const Pbeam__Manifest *newest,
			   struct err *err);
/* Stores the contents of the file that is open as `fd` (read only once if it is added again unchanged).
 * Appends runs to pages; their addresses are offsets in the file. The file must not change meanwhile. 0,
 * -ENOSPC with a sentence, or -errno. */
must_check int blocks_add(struct blocks *blocks, int fd, const struct stat *st, Pbeam__Manifest *manifest,
			  size_t *n, Pbeam__Pages ***pages, struct err *err);
/* Stores what has changed in the file ahead of blocks_add(), which then has only to store what changes after
 * this. The file may be written to meanwhile. 0 or -errno. */
must_check int blocks_ahead(struct blocks *blocks, int fd, const struct stat *st, struct err *err);
/* Completes N.blocks, if there is one; `durable`: on disk when this returns. Adds its bytes to *bytes. Call
 * it before the image is committed. 0 or -errno. */
must_check int blocks_commit(struct blocks *blocks, Pbeam__Manifest *manifest, bool durable, uint64_t *bytes,
			     struct err *err);
/* The image has been committed: N.blocks stays. */
void blocks_keep(struct blocks *blocks);
/* Frees it, and removes N.blocks unless it was kept. NULL is allowed. */
void blocks_close(struct blocks *blocks);

/* ---- reading: for image/ ---- */
struct blocks_pack {
	int fd;
	uint64_t n;		/* blocks */
	uint8_t (*digests)[16]; /* of each */
	uint8_t identity[16];	/* digest of these */
};
/* Opens and locks DIR/NAME and checks it, but for the blocks. 0 or -errno; -EBADMSG. */
must_check int blocks_pack_open(struct blocks_pack *pack, const char *path, struct err *err);
void blocks_pack_close(struct blocks_pack *pack);
/* The place of block number `slot` in the file. */
uint64_t blocks_offset(uint64_t slot);
/* True if the blocks with these pages match their digests. -errno if they cannot be read. */
must_check int blocks_check_run(const struct blocks_pack *pack, const Pbeam__Pages *pages);

/* ---- pruning ---- */
/* Gives back the blocks in DIR that no image there refers to. */
void blocks_prune(const char *dir);

#endif
