/*
 * Chooses how pages get from the image into the husk's memory. The husk reads a small amount itself, straight
 * from the page cache; a large amount, and pages of other images of the chain, are written from outside
 * (fill_copy.c).
 */
#include "scip/fill/fill_contents.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>

bool fill_contents_has_pages(const Pbeam__Mapping *map)
{
	return map->kind != PBEAM__MAPPING__KIND__VDSO && map->kind != PBEAM__MAPPING__KIND__VVAR &&
	       map->kind != PBEAM__MAPPING__KIND__VSYSCALL;
}

uint64_t fill_contents_bytes(const Pbeam__Memory *memory)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < memory->n_mappings; i++)
		for (size_t p = 0;
		     p < memory->mappings[i]->n_pages && fill_contents_has_pages(memory->mappings[i]); p++)
			sum += memory->mappings[i]->pages[p]->count * IMAGE_PAGE;
	return sum;
}

uint64_t fill_contents_in_chunk(uint64_t offset, uint64_t left)
{
	uint64_t room = IMAGE_CHUNK - offset % IMAGE_CHUNK;

	return left < room ? left : room;
}

bool fill_contents_is_chunk(uint64_t offset, uint64_t bytes)
{
	return offset % IMAGE_CHUNK == 0 && bytes == IMAGE_CHUNK;
}

static int append_piece(struct fill_pieces *pieces, struct fill_piece piece)
{
	struct fill_piece *last = pieces->n ? &pieces->v[pieces->n - 1] : NULL;

	pieces->bytes += piece.bytes;
	if (last && last->map == piece.map && last->image == piece.image &&
	    last->address + last->bytes == piece.address && last->offset + last->bytes == piece.offset &&
	    piece.offset % IMAGE_CHUNK) {
		last->bytes += piece.bytes;
		return 0;
	}
	if (pieces->n == pieces->room) {
		size_t room = pieces->room ? pieces->room * 2 : 256;
		struct fill_piece *more = reallocarray(pieces->v, room, sizeof(*more));

		if (!more)
			return -ENOMEM;
		pieces->v = more;
		pieces->room = room;
	}
	pieces->v[pieces->n++] = piece;
	return 0;
}

bool fill_contents_is_fresh(const struct fill *fill, const Pbeam__Mapping *map)
{
	bool anonymous =
		map->kind == PBEAM__MAPPING__KIND__ANON_PRIVATE || map->kind == PBEAM__MAPPING__KIND__HEAP;

	return anonymous && !fill->request->inherits && !(map->flags & MAP_HUGETLB);
}

static int collect_mapping(struct fill *fill, const Pbeam__Mapping *map, struct fill_pieces *out)
{
	for (size_t p = 0; p < map->n_pages; p++) {
		const Pbeam__Pages *pages = map->pages[p];
		uint64_t offset = pages->ancestor ? pages->ancestor_offset : pages->offset;
		uint64_t bytes = pages->count * IMAGE_PAGE, done = 0;

		if (pages->address < map->start || pages->count > (map->end - map->start) / IMAGE_PAGE ||
		    pages->address + bytes > map->end)
			return err_set(fill->err, -EINVAL, "pages at %#lx are not in their mapping",
				       (unsigned long)pages->address);
		if (pages->ancestor >= fill->nimages)
			return err_set(fill->err, -EINVAL,
				       "pages at %#lx are in ancestor %u, which is missing",
				       (unsigned long)pages->address, pages->ancestor);
		out->in_ancestors = out->in_ancestors || pages->ancestor;
		while (done < bytes) {
			struct fill_piece piece = {
				.map = map,
				.address = pages->address + done,
				.image = pages->ancestor,
				.offset = offset + done,
				.bytes = fill_contents_in_chunk(offset + done, bytes - done),
				.fresh = fill_contents_is_fresh(fill, map)};

			if (append_piece(out, piece) < 0)
				return err_code(fill->err, -ENOMEM, "list of pages");
			done += piece.bytes;
		}
	}
	return 0;
}

static int read_inside(struct fill *fill, const struct fill_pieces *pieces)
{
	int r = 0;

	for (size_t i = 0; i < pieces->n && r >= 0; i++)
		r = fill_call(fill, INJECT_CALL_FULL, SYS_pread64,
			      remote_args(FILL_FD_IMAGE, pieces->v[i].address, pieces->v[i].bytes,
					  pieces->v[i].offset));
	return r < 0 ? r : fill_flush(fill);
}

int fill_contents(struct fill *fill)
{
	const Pbeam__Memory *memory = fill->saved->memory;
	struct fill_pieces pieces = {0};
	int r = 0;

	for (size_t i = 0; i < memory->n_mappings && r == 0; i++)
		if (fill_contents_has_pages(memory->mappings[i]))
			r = collect_mapping(fill, memory->mappings[i], &pieces);
	if (r == 0)
		r = fill_flush(fill);
	if (r == 0)
		r = pieces.bytes >= FILL_CONTENTS_LARGE || pieces.in_ancestors ? fill_copy(fill, &pieces)
									       : read_inside(fill, &pieces);
	free(pieces.v);
	return r;
}
