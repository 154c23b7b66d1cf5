/* An open image. Private to image/. */
#ifndef IMAGE_READER_H
#define IMAGE_READER_H

#include "image/blocks.h"
#include "image/image.h"
#include "image/layout.h"

struct image_reader {
	int fd;
	char *name;
	bool has_path; /* the name is a path */
	bool borrowed; /* the manifest */
	struct image_trailer trailer;
	Pbeam__Manifest *manifest;
	uint8_t (*digests)[IMAGE_DIGEST];
	uint32_t depth; /* the most remote ancestor that the manifest names */
	struct image_reader *chain[IMAGE_ANCESTORS_MAX]; /* the open ones of ancestors 1, 2, ... */
	uint32_t nchain;
	bool chain_checked;
	struct blocks_pack *packs; /* of Manifest.blocks, opened when needed */
	uint32_t npacks;
};

/* Reports -EBADMSG: `what` is wrong with the image. */
must_check int reader_damaged(const struct image_reader *reader, struct err *err, const char *what);
/* True if [offset, offset + length) is in the data part. Empty ranges may be anywhere. */
bool reader_in_data(const struct image_reader *reader, uint64_t offset, uint64_t length);
/* Checks what the manifest says of a parent. */
must_check int reader_check_parent(const struct image_reader *reader, struct err *err);

/* blocks_read.c: what the manifest says of files N.blocks. */
must_check int reader_check_blocks(const struct image_reader *reader, struct err *err);
/* Opens them, unless they are open, and checks their tables. */
must_check int reader_open_blocks(struct image_reader *reader, struct err *err);
/* Checks every block that the image has there. */
must_check int reader_verify_blocks(struct image_reader *reader, struct err *err);
void reader_close_blocks(struct image_reader *reader);

/* writer.c: the path that the image will have, "" if it has none. */
const char *image_writer_path(const struct image_writer *writer);

#endif
