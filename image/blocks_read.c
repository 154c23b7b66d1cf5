/* Files N.blocks that an image names: checking what it says of them, opening and verifying them. */
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image/blocks_layout.h"
#include "image/digest.h"
#include "image/reader.h"
#include "proto/message.h"

enum { PACKS_MAX = 4096 };

static int count_run(void *arg, ProtobufCMessage *message)
{
	if (message->descriptor == &pbeam__pages__descriptor &&
	    ((const Pbeam__Pages *)(const void *)message)->ancestor >= IMAGE_BLOCKS_FIRST)
		++*(uint64_t *)arg;
	return 0;
}

/* Calls one() for the runs of files that are in files N.blocks. */
static int each_run(const Pbeam__Manifest *manifest, int (*one)(void *arg, const Pbeam__Pages *run),
		    void *arg)
{
	int r = 0;

	for (size_t i = 0; i < manifest->n_files; i++)
		for (size_t k = 0; k < manifest->files[i]->n_pages && r == 0; k++)
			if (manifest->files[i]->pages[k]->ancestor >= IMAGE_BLOCKS_FIRST)
				r = one(arg, manifest->files[i]->pages[k]);
	for (size_t i = 0; i < manifest->n_shared; i++)
		for (size_t k = 0; k < manifest->shared[i]->n_pages && r == 0; k++)
			if (manifest->shared[i]->pages[k]->ancestor >= IMAGE_BLOCKS_FIRST)
				r = one(arg, manifest->shared[i]->pages[k]);
	return r;
}

struct counting {
	const Pbeam__Manifest *manifest;
	uint64_t runs;
};

static int blocks_check_place(void *arg, const Pbeam__Pages *run)
{
	struct counting *counting = arg;

	counting->runs++;
	return run->ancestor - IMAGE_BLOCKS_FIRST >= counting->manifest->n_blocks || run->offset ||
			       run->ancestor_offset < BLOCKS_SIZE || run->ancestor_offset % IMAGE_PAGE
		       ? -EBADMSG
		       : 0;
}

int reader_check_blocks(const struct image_reader *reader, struct err *err)
{
	const Pbeam__Manifest *manifest = reader->manifest;
	struct counting counting = {.manifest = manifest};
	uint64_t all = 0;
	int r = manifest->n_blocks > PACKS_MAX ? -EBADMSG : 0;

	for (size_t i = 0; i < manifest->n_blocks && r == 0; i++) {
		const Pbeam__ImageParent *named = manifest->blocks[i];

		if (named->identity.len != IMAGE_DIGEST || named->name[0] == '.' || !named->name[0] ||
		    strchr(named->name, '/') || strlen(named->name) > 63)
			r = -EBADMSG;
	}
	message_walk(&reader->manifest->base, count_run, &all);
	if (r == 0)
		r = each_run(manifest, blocks_check_place, &counting);
	/* No other runs, of a process's memory for instance, can be there. */
	if (r < 0 || all != counting.runs)
		return err_set(err, -EBADMSG,
			       "%s is damaged: its manifest does not name contents of files properly; use "
			       "another checkpoint",
			       reader->name);
	return 0;
}

struct opening {
	const struct image_reader *reader;
	struct err *err;
};

static int blocks_check_end(void *arg, const Pbeam__Pages *run)
{
	const struct opening *opening = arg;
	const struct blocks_pack *pack = &opening->reader->packs[run->ancestor - IMAGE_BLOCKS_FIRST];
	uint64_t end = blocks_offset(pack->n);

	if (run->ancestor_offset > end || run->count * IMAGE_PAGE > end - run->ancestor_offset)
		return err_set(opening->err, -EBADMSG,
			       "%s is damaged: its manifest points to blocks that are not there; use another "
			       "checkpoint",
			       opening->reader->name);
	return 0;
}

static int open_pack(struct image_reader *reader, const Pbeam__ImageParent *named, struct err *err)
{
	char directory[PATH_MAX], path[PATH_MAX + 80];
	int r;

	if (!reader->has_path)
		return err_set(err, -EINVAL, "%s needs %s, but is not in a directory", reader->name,
			       named->name);
	snprintf(directory, sizeof(directory), "%s", reader->name);
	snprintf(path, sizeof(path), "%s/%s", dirname(directory), named->name);
	r = blocks_pack_open(&reader->packs[reader->npacks], path, err);
	if (r < 0)
		return err_wrap(err, r, "%s", reader->name);
	if (memcmp(reader->packs[reader->npacks++].identity, named->identity.data, IMAGE_DIGEST) != 0)
		return err_set(err, -EBADMSG,
			       "%s needs %s, but another file has that name now; use another "
			       "checkpoint",
			       reader->name, path);
	return 0;
}

int reader_open_blocks(struct image_reader *reader, struct err *err)
{
	const Pbeam__Manifest *manifest = reader->manifest;
	int r = 0;

	if (reader->npacks == manifest->n_blocks)
		return 0;
	if (!reader->packs)
		reader->packs = calloc(manifest->n_blocks, sizeof(*reader->packs));
	if (!reader->packs)
		return err_code(err, -ENOMEM, "open %s", reader->name);
	while (reader->npacks < manifest->n_blocks && r == 0)
		r = open_pack(reader, manifest->blocks[reader->npacks], err);
	return r < 0 ? r : each_run(manifest, blocks_check_end, &(struct opening){reader, err});
}

/* ---- verifying ---- */

struct verifying {
	const struct image_reader *reader;
	const Pbeam__Pages **v;
	uint64_t n;
};

static int gather_run(void *arg, const Pbeam__Pages *run)
{
	struct verifying *verifying = arg;

	verifying->v[verifying->n++] = run;
	return 0;
}

static int verify_run(void *arg, uint64_t i)
{
	const struct verifying *verifying = arg;
	const Pbeam__Pages *run = verifying->v[i];
	int r = blocks_check_run(&verifying->reader->packs[run->ancestor - IMAGE_BLOCKS_FIRST], run);

	return r == 0 ? -EBADMSG : r < 0 ? r : 0;
}

int reader_verify_blocks(struct image_reader *reader, struct err *err)
{
	struct verifying verifying = {.reader = reader};
	struct counting counting = {.manifest = reader->manifest};
	int r;

	if (!reader->manifest->n_blocks)
		return 0;
	r = reader_open_blocks(reader, err);
	if (r < 0)
		return r;
	r = each_run(reader->manifest, blocks_check_place, &counting);
	verifying.v = r < 0 ? NULL : calloc(counting.runs + 1, sizeof(const Pbeam__Pages *));
	if (!verifying.v)
		return err_code(err, r < 0 ? r : -ENOMEM, "verify %s", reader->name);
	r = each_run(reader->manifest, gather_run, &verifying);
	if (r == 0)
		r = digest_each(verifying.n, verify_run, &verifying);
	free(verifying.v);
	if (r == -EBADMSG)
		return err_set(err, r,
			       "%s is damaged: contents of files in %s do not match their digests; use "
			       "another checkpoint",
			       reader->name, reader->manifest->blocks[0]->name);
	return r < 0 ? err_code(err, r, "verify %s", reader->name) : 0;
}

void reader_close_blocks(struct image_reader *reader)
{
	for (uint32_t i = 0; i < reader->npacks; i++)
		blocks_pack_close(&reader->packs[i]);
	free(reader->packs);
	reader->packs = NULL;
	reader->npacks = 0;
}
