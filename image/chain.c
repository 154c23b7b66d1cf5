/*
 * Chains of images: pages of an image may be in its parent, in the parent's parent, and so on.
 *
 * The manifest names its parent, a file in the same directory, with the digest of the parent's digest table,
 * which covers every byte of it. A run of pages names the ancestor that has its contents, and the place
 * there. So a restore reads every page from one place, however long the chain is. Ancestors are opened when
 * they are needed, and only as far as they have pages.
 */
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "image/reader.h"
#include "proto/message.h"

enum { PLACE_BITS = 56 }; /* bits of a place with the offset; the ancestor is above them */

/* ---- reading ---- */

int reader_check_parent(const struct image_reader *reader, struct err *err)
{
	const Pbeam__ImageParent *parent = reader->manifest->parent;

	if (!parent)
		return 0;
	if (reader->manifest->partial || parent->identity.len != IMAGE_DIGEST || !parent->name[0] ||
	    strchr(parent->name, '/') || !strcmp(parent->name, ".") || !strcmp(parent->name, ".."))
		return reader_damaged(reader, err, "its manifest does not name its parent properly");
	return 0;
}

static bool have_same_inode(const struct image_reader *a, const struct image_reader *b)
{
	struct stat x, y;

	return fstat(a->fd, &x) == 0 && fstat(b->fd, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static int check_identity(const struct image_reader *reader, const struct image_reader *child,
			  const struct image_reader *parent, struct err *err)
{
	bool again = have_same_inode(reader, parent);

	for (uint32_t i = 0; i < reader->nchain; i++)
		again = again || have_same_inode(reader->chain[i], parent);
	if (again)
		return err_set(err, -ELOOP,
			       "%s is damaged: %s is an ancestor of itself; use another checkpoint",
			       reader->name, parent->name);
	if (memcmp(child->manifest->parent->identity.data, parent->trailer.digests_digest, IMAGE_DIGEST) != 0)
		return err_set(
			err, -EBADMSG,
			"%s needs its parent %s, but another checkpoint has that name now; use another "
			"checkpoint",
			child->name, parent->name);
	return 0;
}

/* Opens the next ancestor: the parent of the last open one. */
static int open_next(struct image_reader *reader, struct err *err)
{
	const struct image_reader *child = reader->nchain ? reader->chain[reader->nchain - 1] : reader;
	struct image_reader *parent;
	char directory[PATH_MAX], path[2 * PATH_MAX];
	int r;

	if (!child->manifest->parent)
		return reader_damaged(reader, err, "its manifest points to pages that no parent has");
	if (!child->has_path)
		return err_set(err, -EINVAL, "%s needs its parent %s, but is not in a directory", child->name,
			       child->manifest->parent->name);
	snprintf(directory, sizeof(directory), "%s", child->name);
	snprintf(path, sizeof(path), "%s/%s", dirname(directory), child->manifest->parent->name);
	r = image_reader_open(&parent, path, err);
	if (r == -ENOENT)
		return err_set(err, r, "%s needs its parent %s, which is missing; use another checkpoint",
			       child->name, path);
	if (r < 0)
		return err_wrap(err, r, "the parent of %s", child->name);
	r = check_identity(reader, child, parent, err);
	if (r < 0) {
		image_reader_close(parent);
		return r;
	}
	reader->chain[reader->nchain++] = parent;
	return 0;
}

struct check {
	const struct image_reader *reader;
	struct err *err;
};

static int check_home(void *arg, ProtobufCMessage *message)
{
	const struct check *check = arg;
	const Pbeam__Pages *pages = (const void *)message;

	if (message->descriptor != &pbeam__pages__descriptor || !pages->ancestor ||
	    pages->ancestor >= IMAGE_BLOCKS_FIRST)
		return 0;
	if (reader_in_data(check->reader->chain[pages->ancestor - 1], pages->ancestor_offset,
			   pages->count * IMAGE_PAGE))
		return 0;
	return reader_damaged(check->reader, check->err, "its manifest points to pages that no parent has");
}

int image_reader_open_chain(struct image_reader *reader, struct err *err)
{
	int r = 0;

	if (reader->chain_checked || !reader->depth)
		return 0;
	while (reader->nchain < reader->depth && r == 0)
		r = open_next(reader, err);
	if (r < 0)
		return r;
	r = message_walk(&reader->manifest->base, check_home, &(struct check){reader, err});
	reader->chain_checked = r == 0;
	return r;
}

uint32_t image_reader_ancestors(const struct image_reader *reader)
{
	return reader->depth;
}

int image_reader_ancestor_fd(const struct image_reader *reader, uint32_t ancestor)
{
	return reader->chain[ancestor - 1]->fd;
}

int image_reader_home(struct image_reader *reader, const Pbeam__Pages *pages, uint64_t *offset,
		      struct err *err)
{
	int r;

	*offset = pages->ancestor ? pages->ancestor_offset : pages->offset;
	if (!pages->ancestor)
		return reader->fd;
	if (pages->ancestor >= IMAGE_BLOCKS_FIRST) {
		r = reader_open_blocks(reader, err);
		return r < 0 ? r : reader->packs[pages->ancestor - IMAGE_BLOCKS_FIRST].fd;
	}
	r = image_reader_open_chain(reader, err);
	return r < 0 ? r : image_reader_ancestor_fd(reader, pages->ancestor);
}

uint64_t image_pages_place(const Pbeam__Pages *pages)
{
	return pages->ancestor ? (uint64_t)pages->ancestor << PLACE_BITS | pages->ancestor_offset
			       : pages->offset;
}

void image_pages_set_place(Pbeam__Pages *pages, uint64_t place)
{
	pages->ancestor = (uint32_t)(place >> PLACE_BITS);
	pages->offset = pages->ancestor ? 0 : place;
	pages->ancestor_offset = pages->ancestor ? place & ((UINT64_C(1) << PLACE_BITS) - 1) : 0;
}

/* ---- writing ---- */

static bool same_directory(const char *a, const char *b)
{
	char first[PATH_MAX], second[PATH_MAX];
	struct stat x, y;

	snprintf(first, sizeof(first), "%s", a);
	snprintf(second, sizeof(second), "%s", b);
	return stat(dirname(first), &x) == 0 && stat(dirname(second), &y) == 0 && x.st_dev == y.st_dev &&
	       x.st_ino == y.st_ino;
}

int image_writer_set_parent(const struct image_writer *writer, Pbeam__Manifest *manifest,
			    const struct image_reader *parent, struct err *err)
{
	const char *slash = strrchr(parent->name, '/'), *path = image_writer_path(writer);

	if (!path[0] || !parent->has_path || !same_directory(path, parent->name))
		return err_set(err, -EXDEV, "an image and its parent %s must be in the same directory",
			       parent->name);
	if (!manifest->parent)
		manifest->parent = message_new(&pbeam__image_parent__descriptor);
	if (!manifest->parent ||
	    message_string(&manifest->parent->name, slash ? slash + 1 : parent->name) < 0 ||
	    message_bytes(&manifest->parent->identity, parent->trailer.digests_digest, IMAGE_DIGEST) < 0)
		return err_code(err, -ENOMEM, "name the parent %s", parent->name);
	return 0;
}

int image_pages_in_parent(Pbeam__Pages *out, const Pbeam__Pages *run, uint64_t first)
{
	if (run->ancestor >= IMAGE_ANCESTORS_MAX)
		return -E2BIG;
	out->offset = 0;
	out->ancestor = run->ancestor + 1;
	out->ancestor_offset = (run->ancestor ? run->ancestor_offset : run->offset) + first * IMAGE_PAGE;
	return 0;
}
