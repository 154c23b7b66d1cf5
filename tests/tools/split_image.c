/*
 * Writes an image that has most of its pages in another one: as an incremental checkpoint would if the
 * program had written a third of its memory without changing a byte. Each further image of a chain stores
 * another third, so that pages come from three files.
 *
 *     split_image PARENT CHILD
 *
 * CHILD is in the directory of PARENT and restores to the same state.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "image/image.h"
#include "proto/message.h"

enum {
	PIECE = 5, /* pages of a piece */
	EVERY = 3  /* CHILD stores every third piece of the pages of PARENT, in the order of places */
};

struct split {
	struct image_reader *parent;
	struct image_writer *child;
	struct err *err;
};

/* The runs of one mapping, object or file. */
struct runs {
	Pbeam__Pages **v;
	size_t n;
};

static bool is_stored(const struct split *split, uint64_t place)
{
	return place / IMAGE_PAGE / PIECE % EVERY == image_reader_ancestors(split->parent) % EVERY;
}

/* Stores a page unless an equal one is in CHILD. */
static int store_page(const struct split *split, Pbeam__Pages *page, const Pbeam__Pages *run, uint64_t number)
{
	struct image_arena *arena = image_writer_arena(split->child);
	uint8_t contents[IMAGE_PAGE];
	uint64_t from;
	int home = image_reader_home(split->parent, run, &from, split->err), r;

	if (home < 0)
		return home;
	if (io_pread_full(home, contents, IMAGE_PAGE, (off_t)(from + number * IMAGE_PAGE)) != IMAGE_PAGE)
		return -EIO;
	if (image_arena_dedup(arena, contents, &page->offset))
		return 0;
	r = io_pwrite_full(image_writer_fd(split->child), contents, IMAGE_PAGE, (off_t)page->offset);
	if (r == 0)
		image_arena_written(arena, page->offset, IMAGE_PAGE);
	return r;
}

/* Appends a page, or joins it to the last run. */
static int append_page(struct runs *runs, const Pbeam__Pages *page)
{
	Pbeam__Pages *last = runs->n ? runs->v[runs->n - 1] : NULL, **v;
	uint64_t bytes = last ? last->count * IMAGE_PAGE : 0;

	if (last && last->address + bytes == page->address &&
	    image_pages_place(last) + bytes == image_pages_place(page)) {
		last->count++;
		return 0;
	}
	v = reallocarray(runs->v, runs->n + 1, sizeof(*v));
	if (!v)
		return -ENOMEM;
	runs->v = v;
	v[runs->n] = message_new(&pbeam__pages__descriptor);
	if (!v[runs->n])
		return -ENOMEM;
	*v[runs->n++] = *page;
	return 0;
}

static int split_run(const struct split *split, const Pbeam__Pages *run, struct runs *out)
{
	int r = 0;

	for (uint64_t i = 0; i < run->count && r == 0; i++) {
		Pbeam__Pages page = PBEAM__PAGES__INIT;

		page.address = run->address + i * IMAGE_PAGE;
		page.count = 1;
		r = is_stored(split, image_pages_place(run) + i * IMAGE_PAGE)
			    ? store_page(split, &page, run, i)
			    : image_pages_in_parent(&page, run, i);
		if (r == 0)
			r = append_page(out, &page);
	}
	return r;
}

static int split_runs(const struct split *split, size_t *n, Pbeam__Pages ***list)
{
	struct runs runs = {NULL, 0};
	int r = 0;

	for (size_t i = 0; i < *n && r == 0; i++) {
		r = split_run(split, (*list)[i], &runs);
		message_free((*list)[i]);
	}
	free(*list);
	*list = runs.v;
	*n = runs.n;
	return r;
}

static int split_pages(const struct split *split, Pbeam__Manifest *manifest)
{
	int r = 0;

	for (size_t i = 0; i < manifest->n_processes; i++) {
		Pbeam__Memory *memory = manifest->processes[i]->memory;

		for (size_t k = 0; memory && k < memory->n_mappings && r == 0; k++)
			r = split_runs(split, &memory->mappings[k]->n_pages, &memory->mappings[k]->pages);
	}
	for (size_t i = 0; i < manifest->n_shared && r == 0; i++)
		r = split_runs(split, &manifest->shared[i]->n_pages, &manifest->shared[i]->pages);
	for (size_t i = 0; i < manifest->n_files && r == 0; i++)
		r = split_runs(split, &manifest->files[i]->n_pages, &manifest->files[i]->pages);
	return r;
}

static int copy_extent(void *arg, ProtobufCMessage *message)
{
	const struct split *split = arg;
	Pbeam__Extent *extent = (void *)message;
	auto_free uint8_t *contents = NULL;
	int r;

	if (message->descriptor != &pbeam__extent__descriptor || !extent->length)
		return 0;
	contents = malloc(extent->length);
	if (!contents)
		return -ENOMEM;
	r = image_reader_get(split->parent, extent, contents, split->err);
	return r < 0 ? r : image_writer_put(split->child, contents, extent->length, extent, split->err);
}

static int write_child(struct split *split)
{
	Pbeam__Manifest *manifest = (Pbeam__Manifest *)(uintptr_t)image_reader_manifest(split->parent);
	uint64_t bytes;
	int r = message_walk(&manifest->base, copy_extent, split);

	if (r == 0)
		r = split_pages(split, manifest);
	if (r == 0)
		r = image_writer_set_parent(split->child, manifest, split->parent, split->err);
	return r < 0 ? r : image_writer_commit(split->child, manifest, false, &bytes, split->err);
}

int main(int argc, char **argv)
{
	struct err err = ERR_INIT;
	struct split split = {.err = &err};
	int r;

	if (argc != 3) {
		fprintf(stderr, "usage: split_image PARENT CHILD\n");
		return 2;
	}
	r = image_reader_open(&split.parent, argv[1], &err);
	if (r == 0)
		r = image_reader_verify(split.parent, &err);
	if (r == 0)
		r = image_writer_open(&split.child, argv[2], 1 << 16, &err);
	if (r == 0)
		r = write_child(&split);
	image_writer_close(split.child);
	image_reader_close(split.parent);
	if (r < 0)
		fprintf(stderr, "split_image: %s (%d)\n", err.text, r);
	return r < 0;
}
