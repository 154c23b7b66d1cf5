/*
 * The checkpoint file. docs/IMAGE.md has the layout:
 *
 *   [ELF stub: ./FILE resumes it][superblock][page-aligned data ...][manifest][digest table][trailer]
 *
 * Writer: the coordinator opens it and shares its descriptor and arena with the scips, which let the injected
 * code write pages at offsets that they take from the arena. Then follow the manifest, the digests, the sync
 * and the rename. Until image_writer_commit() returns there is no file of that name, or the older one.
 * Reader: checks everything before it is used: image_reader_open() the structure and the manifest's digest,
 * image_reader_verify() every byte.
 */
#ifndef IMAGE_IMAGE_H
#define IMAGE_IMAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/image.pb-c.h"

#define IMAGE_FORMAT	    1u
#define IMAGE_PAGE	    4096u
/* Most ancestors in a chain. A fill passes a descriptor for each (proto/frame.h, FRAME_FDS_MAX). */
#define IMAGE_ANCESTORS_MAX 15u
/* The first number by which runs of files name an entry of Manifest.blocks instead of an ancestor. */
#define IMAGE_BLOCKS_FIRST  256u

/* ---- the arena: allocates room in the file ---- */
/* Shared memory (a memfd) of the coordinator and all scips of a dump: the next free offset, and the table
 * of pages that are in the file already, so that pages shared copy-on-write are stored once. */
struct image_arena;
must_check int image_arena_map(int fd, struct image_arena **out,
			       struct err *err); /* in a scip: `fd` as received */
void image_arena_unmap(struct image_arena *arena);
/* Allocates `bytes` (rounded up to pages) of the file; returns the offset. */
uint64_t image_arena_take(struct image_arena *arena, uint64_t bytes);
/* Looks up a page by its digest (XXH3 128 bit). True: *offset is that of an equal page in the file. False:
 * *offset is newly reserved, and the caller must write the page before the dump ends. If the table is
 * full, the page is stored again. */
bool image_arena_dedup(struct image_arena *arena, const uint8_t page[IMAGE_PAGE], uint64_t *offset);

/* Reports that these bytes, at an allocated offset, have been written: complete chunks are digested while
 * the rest is still being written. Optional: the commit digests the other chunks. */
void image_arena_written(struct image_arena *arena, uint64_t offset, uint64_t bytes);

/* ---- writing ---- */
struct image_reader;
struct image_writer;
/* Creates PATH.tmp-PID beside `path`, mode 0700: executable, and readable by its owner only.
 * `expect_pages` sizes the dedup table. `path` NULL: a memory file that never gets a name. */
must_check int image_writer_open(struct image_writer **out, const char *path, uint64_t expect_pages,
				 struct err *err);
/* Unlinks the temporary file; it exists as long as a process has it open. */
must_check int image_writer_hide(struct image_writer *writer, struct err *err);
int image_writer_fd(const struct image_writer *writer); /* for pwrite() at offsets from the arena */
int image_writer_arena_fd(const struct image_writer *writer);
struct image_arena *image_writer_arena(const struct image_writer *writer);
/* Stores bulk bytes (queues, file contents) and returns their place. */
must_check int image_writer_put(struct image_writer *writer, const void *data, uint64_t len,
				Pbeam__Extent *where, struct err *err);
/* Writes manifest and digests, syncs, renames over `path`, and syncs the directory. On failure (full disk,
 * ...) the temporary file is removed and the older file unchanged. `durable` false omits the syncs. Total
 * size in *bytes. */
must_check int image_writer_commit(struct image_writer *writer, Pbeam__Manifest *manifest, bool durable,
				   uint64_t *bytes, struct err *err);
/* The image is numbered, DIR/N.ckpt: image_writer_blocks() has a store for large files (image/blocks.h),
 * which is committed and closed with the writer. `newest`: of an earlier image in DIR, or NULL. 0 or -errno.
 */
must_check int image_writer_use_blocks(struct image_writer *writer, const Pbeam__Manifest *newest,
				       struct err *err);
struct blocks *image_writer_blocks(const struct image_writer *writer); /* NULL: there is none */
/* Makes `parent` the parent of the image. It was opened by its path, and must be in the directory of the
 * image. 0, -EXDEV or -ENOMEM. */
must_check int image_writer_set_parent(const struct image_writer *writer, Pbeam__Manifest *manifest,
				       const struct image_reader *parent, struct err *err);
/* Makes `out`, a run of the image being written, refer to the contents of a run of its parent, from its
 * page `first`; the caller sets address and count. -E2BIG: the parent has these pages from an ancestor
 * that is too remote; they must be stored again. */
must_check int image_pages_in_parent(Pbeam__Pages *out, const Pbeam__Pages *run, uint64_t first);
/* Frees the writer; removes the temporary file if it was not committed. */
void image_writer_close(struct image_writer *writer);

/* ---- reading ---- */
/* Opens an image and checks superblock, trailer, sizes, the manifest's digest and every offset in the
 * manifest. Does not open parents, see image_reader_open_chain(). */
must_check int image_reader_open(struct image_reader **out, const char *path, struct err *err);
const Pbeam__Manifest *
image_reader_manifest(const struct image_reader *reader); /* borrowed; valid as long as the reader */
int image_reader_fd(const struct image_reader *reader);
uint64_t image_reader_size(const struct image_reader *reader);
/* Opens the ancestors that have pages of this image, unless they are open, and checks that each is the
 * file that was the parent and has the pages. 0; -ENOENT: a parent is missing; -ELOOP, -EBADMSG. */
must_check int image_reader_open_chain(struct image_reader *reader, struct err *err);
/* Returns the number of ancestors that have pages of this image; 0: the image is complete by itself. */
uint32_t image_reader_ancestors(const struct image_reader *reader);
/* The descriptor of ancestor 1, 2, ... of an open chain. */
int image_reader_ancestor_fd(const struct image_reader *reader, uint32_t ancestor);
/* Finds the file that has these pages, opening the chain if necessary. Returns its descriptor, which the
 * reader owns, with the pages' offset in *offset, or -errno. */
must_check int image_reader_home(struct image_reader *reader, const Pbeam__Pages *pages, uint64_t *offset,
				 struct err *err);
/* Returns the place of pages in the chain as one number, which is contiguous where they are contiguous in
 * a file. */
uint64_t image_pages_place(const Pbeam__Pages *pages);
void image_pages_set_place(Pbeam__Pages *pages, uint64_t place);

/* Checks every byte of the file, and of the ancestors that have pages of it, against the digest tables, on
 * all processors. `err` names offset and section of the first bad place. */
must_check int image_reader_verify(struct image_reader *reader, struct err *err);
/* As image_reader_verify(), except for the chunks of the file itself (of IMAGE_CHUNK bytes,
 * image/layout.h) that `skip`, one byte for each, marks: the caller checks these with image_check_chunk(). */
must_check int image_reader_verify_but(struct image_reader *reader, const uint8_t *skip, struct err *err);
/* The offset at which its data ends. */
uint64_t image_reader_data_end(const struct image_reader *reader);
/* The offset of its digest table, which covers everything before it. */
uint64_t image_reader_digests(const struct image_reader *reader);
/* True if these bytes match the digest of chunk number `chunk` in the table at offset `digests`, which has
 * been verified. Whole chunks only. */
bool image_check_chunk(int fd, uint64_t digests, uint64_t chunk, const void *data);
must_check int image_reader_get(struct image_reader *reader, const Pbeam__Extent *where, void *buf,
				struct err *err);
/* As image_reader_open() on an open descriptor, of which it takes ownership in every case; `name` is for
 * messages. */
must_check int image_reader_open_fd(struct image_reader **out, int fd, const char *name, struct err *err);
/* A reader of nothing but this manifest, which is borrowed. For checks before the image is committed. */
must_check int image_reader_of_manifest(struct image_reader **out, const char *name,
					const Pbeam__Manifest *manifest, struct err *err);
void image_reader_close(struct image_reader *reader);

#endif
