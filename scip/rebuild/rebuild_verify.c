/*
 * Verifies the image before anything that exists is changed.
 *
 * If a gigabyte is verified first and copied then, it is read from memory twice. So whole chunks of the pages
 * of a large process are verified by its fill while it copies them, where a late discovery loses nothing:
 * where no running process is replaced, and where existing files change only when all processes are filled
 * (rebuild_shared_may_wait(), object_restore_wait()). All other chunks are verified here. No process
 * is released before all are filled.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "scip/fill/fill_contents.h"
#include "scip/rebuild/rebuild_parts.h"

static bool passes_on_memory(const struct rebuild *rebuild)
{
	for (size_t i = 0; i < rebuild->manifest->n_processes; i++)
		if (rebuild->plan.inherit.passing[i].nrounds)
			return true;
	return false;
}

static bool may_be_late(const struct rebuild *rebuild)
{
	const struct rebuild_options *options = rebuild->options;

	return options->replace.n <= 0 && !options->part && !options->joins && !options->force &&
	       !rebuild->made && !rebuild->above.found && !passes_on_memory(rebuild) &&
	       rebuild_shared_may_wait(rebuild->manifest) && object_restore_wait(rebuild->objects);
}

static bool is_large(const Pbeam__Process *process)
{
	return process->state != PBEAM__PROCESS__STATE__ZOMBIE && process->memory &&
	       fill_contents_bytes(process->memory) >= FILL_CONTENTS_LARGE;
}

static bool has_large(const Pbeam__Manifest *manifest)
{
	for (size_t i = 0; i < manifest->n_processes; i++)
		if (is_large(manifest->processes[i]))
			return true;
	return false;
}

/* Marks the chunks of the image itself that are verified when this mapping is filled. */
static void skip_chunks(const Pbeam__Mapping *map, uint8_t *skip)
{
	for (size_t i = 0; i < map->n_pages && fill_contents_has_pages(map); i++) {
		uint64_t at = map->pages[i]->offset, end = at + map->pages[i]->count * IMAGE_PAGE, n;

		if (map->pages[i]->ancestor)
			continue;
		for (; at < end; at += n) {
			n = fill_contents_in_chunk(at, end - at);
			if (fill_contents_is_chunk(at, n))
				skip[at / IMAGE_CHUNK] = 1;
		}
	}
}

int rebuild_verify_image(struct rebuild *rebuild)
{
	const Pbeam__Manifest *manifest = rebuild->manifest;
	uint64_t chunks = image_reader_digests(rebuild->image) / IMAGE_CHUNK + 1;
	auto_free uint8_t *skip = NULL;

	if (rebuild->options->trusted)
		return image_reader_open_chain(rebuild->image, rebuild->err);
	if (!has_large(manifest) || !may_be_late(rebuild))
		return image_reader_verify(rebuild->image, rebuild->err);
	skip = calloc(chunks, 1);
	rebuild->unverified = calloc((size_t)rebuild->plan.nnodes + 1, sizeof(bool));
	if (!skip || !rebuild->unverified)
		return err_code(rebuild->err, -ENOMEM, "verify the image");
	for (size_t i = 0; i < manifest->n_processes; i++) {
		const Pbeam__Process *process = manifest->processes[i];

		if (!is_large(process))
			continue;
		rebuild->unverified[i] = true;
		for (size_t j = 0; j < process->memory->n_mappings; j++)
			skip_chunks(process->memory->mappings[j], skip);
	}
	return image_reader_verify_but(rebuild->image, skip, rebuild->err);
}
