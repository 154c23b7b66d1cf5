/*
 * That the image is whole, before anything that exists is changed.
 *
 * A gigabyte is read from memory twice if it is verified first and filled in then. So where nothing is lost
 * if it is found out late, whole chunks of the pages of a large process are left to its fill, which checks
 * them as it copies them: where nothing is running that is going to be replaced, and what exists can wait to
 * be put back until all is filled (shared_may_wait(), object_restore_wait()). All other chunks are verified
 * here, and no process is let go before all are filled.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "scip/restore/contents.h"
#include "scip/restore/coordinate.h"

static bool passes_on_memory(const struct coordinate *coordinate)
{
	for (size_t i = 0; i < coordinate->manifest->n_processes; i++)
		if (coordinate->plan.inherit.passing[i].nrounds)
			return true;
	return false;
}

static bool may_be_late(const struct coordinate *coordinate)
{
	const struct restore_options *options = coordinate->options;

	return options->replace.n <= 0 && !options->step && !options->joins && !options->force &&
	       !coordinate->made && !coordinate->above.found && !passes_on_memory(coordinate) &&
	       shared_may_wait(coordinate->manifest) && object_restore_wait(coordinate->objects);
}

static bool is_large(const Pbeam__Process *process)
{
	return process->state != PBEAM__PROCESS__STATE__ZOMBIE && process->memory &&
	       contents_bytes(process->memory) >= CONTENTS_LARGE;
}

static bool has_large(const Pbeam__Manifest *manifest)
{
	for (size_t i = 0; i < manifest->n_processes; i++)
		if (is_large(manifest->processes[i]))
			return true;
	return false;
}

/* Marks the chunks that are checked when this mapping is filled. */
static void skip_chunks(const Pbeam__Mapping *map, uint8_t *skip)
{
	for (size_t i = 0; i < map->n_pages && contents_has_pages(map); i++) {
		uint64_t at = map->pages[i]->offset, end = at + map->pages[i]->count * IMAGE_PAGE, n;

		for (; at < end; at += n) {
			n = contents_in_chunk(at, end - at);
			if (contents_is_chunk(at, n))
				skip[at / IMAGE_CHUNK] = 1;
		}
	}
}

int verify_image(struct coordinate *coordinate)
{
	const Pbeam__Manifest *manifest = coordinate->manifest;
	uint64_t chunks = image_reader_digests(coordinate->image) / IMAGE_CHUNK + 1;
	auto_free uint8_t *skip = NULL;

	if (coordinate->options->trusted)
		return 0;
	if (!has_large(manifest) || !may_be_late(coordinate))
		return image_reader_verify(coordinate->image, coordinate->err);
	skip = calloc(chunks, 1);
	coordinate->unverified = calloc((size_t)coordinate->plan.nnodes + 1, sizeof(bool));
	if (!skip || !coordinate->unverified)
		return err_code(coordinate->err, -ENOMEM, "verify the image");
	for (size_t i = 0; i < manifest->n_processes; i++) {
		const Pbeam__Process *process = manifest->processes[i];

		if (!is_large(process))
			continue;
		coordinate->unverified[i] = true;
		for (size_t j = 0; j < process->memory->n_mappings; j++)
			skip_chunks(process->memory->mappings[j], skip);
	}
	return image_reader_verify_but(coordinate->image, skip, coordinate->err);
}
