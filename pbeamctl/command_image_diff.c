/*
 * `pbeamctl image diff`: what changed from one image to another, process by process: threads, descriptors,
 * mappings, and the pages whose contents differ.
 */
#include "pbeamctl/image_diff.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/io.h"
#include "pbeamctl/format.h"

enum { BATCH = 64 }; /* pages compared at a time */

/* Page counts of the comparison. */
struct change {
	uint64_t same, changed, added, gone;
};

/* The saved pages of one address space, sorted by address. */
struct pages {
	const Pbeam__Pages **runs;
	size_t n, run;
	uint64_t done; /* pages of runs[run] already compared */
};

static int compare_runs(const void *a, const void *b)
{
	uint64_t x = (*(const Pbeam__Pages *const *)a)->address,
		 y = (*(const Pbeam__Pages *const *)b)->address;

	return x < y ? -1 : x > y;
}

static int pages_collect(const Pbeam__Process *process, struct pages *out)
{
	size_t n = 0;

	*out = (struct pages){0};
	for (size_t i = 0; process && process->memory && i < process->memory->n_mappings; i++)
		n += process->memory->mappings[i]->n_pages;
	out->runs = calloc(n + 1, sizeof(Pbeam__Pages *));
	if (!out->runs)
		return -ENOMEM;
	for (size_t i = 0; process && process->memory && i < process->memory->n_mappings; i++)
		for (size_t k = 0; k < process->memory->mappings[i]->n_pages; k++)
			if (process->memory->mappings[i]->pages[k]->count)
				out->runs[out->n++] = process->memory->mappings[i]->pages[k];
	bytes_sort(out->runs, out->n, sizeof(Pbeam__Pages *), compare_runs);
	return 0;
}

/* The next contiguous run of pages; false at the end. */
static bool pages_next(const struct pages *pages, uint64_t *address, uint64_t *count)
{
	const Pbeam__Pages *run;

	if (pages->run >= pages->n)
		return false;
	run = pages->runs[pages->run];
	*address = run->address + pages->done * IMAGE_PAGE;
	*count = run->count - pages->done;
	return true;
}

static void pages_advance(struct pages *pages, uint64_t count)
{
	pages->done += count;
	if (pages->done >= pages->runs[pages->run]->count) {
		pages->run++;
		pages->done = 0;
	}
}

static int read_compared(struct image_reader *image, const struct pages *pages, uint64_t count, void *buffer,
			 struct err *err)
{
	uint64_t offset;
	int fd = image_reader_home(image, pages->runs[pages->run], &offset, err);
	ssize_t n;

	if (fd < 0)
		return fd;
	offset += pages->done * IMAGE_PAGE;
	n = io_pread_full(fd, buffer, count * IMAGE_PAGE, (off_t)offset);
	if (n != (ssize_t)(count * IMAGE_PAGE))
		return err_code(err, n < 0 ? (int)n : -EIO, "read an image at offset %" PRIu64, offset);
	return 0;
}

static int compare_pages(struct image_reader *const images[2], const struct pages sides[2], uint64_t count,
			 struct change *change, struct err *err)
{
	static uint8_t buffers[2][BATCH * IMAGE_PAGE];

	for (int side = 0; side < 2; side++) {
		int r = read_compared(images[side], &sides[side], count, buffers[side], err);

		if (r < 0)
			return r;
	}
	for (uint64_t i = 0; i < count; i++) {
		bool same = memcmp(buffers[0] + i * IMAGE_PAGE, buffers[1] + i * IMAGE_PAGE, IMAGE_PAGE) == 0;

		*(same ? &change->same : &change->changed) += 1;
	}
	return 0;
}

static int pages_walk(struct image_reader *const images[2], struct pages sides[2], struct change *change,
		      struct err *err)
{
	uint64_t address[2], count[2];

	for (;;) {
		bool has[2] = {pages_next(&sides[0], &address[0], &count[0]),
			       pages_next(&sides[1], &address[1], &count[1])};
		int first = !has[0] || (has[1] && address[1] < address[0]);
		uint64_t step;

		if (!has[0] && !has[1])
			return 0;
		if (has[0] && has[1] && address[0] == address[1]) {
			int r;

			step = count[0] < count[1] ? count[0] : count[1];
			step = step < BATCH ? step : BATCH;
			r = compare_pages(images, sides, step, change, err);
			if (r < 0)
				return r;
			pages_advance(&sides[0], step);
			pages_advance(&sides[1], step);
			continue;
		}
		step = count[first];
		if (has[!first] && (address[!first] - address[first]) / IMAGE_PAGE < step)
			step = (address[!first] - address[first]) / IMAGE_PAGE;
		*(first ? &change->added : &change->gone) += step ? step : 1;
		pages_advance(&sides[first], step ? step : 1);
	}
}

static const Pbeam__Process *diff_find_process(const Pbeam__Manifest *manifest, int32_t vpid)
{
	for (size_t i = 0; i < manifest->n_processes; i++)
		if (manifest->processes[i]->vpid == vpid)
			return manifest->processes[i];
	return NULL;
}

static const Pbeam__Descriptor *find_descriptor(const Pbeam__Process *process, int32_t fd)
{
	for (size_t i = 0; i < process->n_descriptors; i++)
		if (process->descriptors[i]->fd == fd)
			return process->descriptors[i];
	return NULL;
}

static const Pbeam__Mapping *diff_find_mapping(const Pbeam__Process *process, const Pbeam__Mapping *like)
{
	for (size_t i = 0; process->memory && i < process->memory->n_mappings; i++) {
		const Pbeam__Mapping *m = process->memory->mappings[i];

		if (m->start == like->start && m->end == like->end && m->prot == like->prot)
			return m;
	}
	return NULL;
}

static void print_descriptors(const Pbeam__Process *one, const Pbeam__Process *other, char sign)
{
	for (size_t i = 0; i < one->n_descriptors; i++)
		if (!find_descriptor(other, one->descriptors[i]->fd))
			printf("  %c fd %d\n", sign, one->descriptors[i]->fd);
}

static void print_mappings(const Pbeam__Process *one, const Pbeam__Process *other, char sign)
{
	for (size_t i = 0; one->memory && i < one->memory->n_mappings; i++) {
		const Pbeam__Mapping *m = one->memory->mappings[i];

		if (diff_find_mapping(other, m))
			continue;
		printf("  %c mapping %" PRIx64 "-%" PRIx64 " %c%c%c\n", sign, m->start, m->end,
		       m->prot & 1 ? 'r' : '-', m->prot & 2 ? 'w' : '-', m->prot & 4 ? 'x' : '-');
	}
}

static int diff_process(struct image_reader *const images[2], const Pbeam__Process *const sides[2],
			struct change *total, struct err *err)
{
	struct pages pages[2] = {0};
	struct change change = {0};
	int r = pages_collect(sides[0], &pages[0]);

	if (r == 0)
		r = pages_collect(sides[1], &pages[1]);
	r = r == 0 ? pages_walk(images, pages, &change, err) : err_code(err, r, "pages");
	free(pages[0].runs);
	free(pages[1].runs);
	if (r < 0)
		return r;
	printf("%s vpid %d: %" PRIu64 " pages changed, %" PRIu64 " new, %" PRIu64 " gone, %" PRIu64
	       " the same\n",
	       !sides[0]   ? "+"
	       : !sides[1] ? "-"
			   : " ",
	       (sides[0] ? sides[0] : sides[1])->vpid, change.changed, change.added, change.gone,
	       change.same);
	total->changed += change.changed;
	total->added += change.added;
	total->gone += change.gone;
	total->same += change.same;
	if (!sides[0] || !sides[1])
		return 0;
	if (sides[0]->n_threads != sides[1]->n_threads)
		printf("    threads %zu -> %zu\n", sides[0]->n_threads, sides[1]->n_threads);
	print_descriptors(sides[0], sides[1], '-');
	print_descriptors(sides[1], sides[0], '+');
	print_mappings(sides[0], sides[1], '-');
	print_mappings(sides[1], sides[0], '+');
	return 0;
}

int image_diff(struct image_reader *older, struct image_reader *newer, struct err *err)
{
	struct image_reader *const images[2] = {older, newer};
	const Pbeam__Manifest *a = image_reader_manifest(older), *b = image_reader_manifest(newer);
	struct change total = {0};
	char size[16];

	for (size_t i = 0; i < a->n_processes; i++) {
		const Pbeam__Process *const sides[2] = {a->processes[i],
							diff_find_process(b, a->processes[i]->vpid)};
		int r = diff_process(images, sides, &total, err);

		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < b->n_processes; i++) {
		const Pbeam__Process *const sides[2] = {NULL, b->processes[i]};
		int r = diff_find_process(a, b->processes[i]->vpid)
				? 0
				: diff_process(images, sides, &total, err);

		if (r < 0)
			return r;
	}
	format_size((total.changed + total.added) * IMAGE_PAGE, size);
	printf("total: %" PRIu64 " pages changed, %" PRIu64 " new, %" PRIu64 " gone, %" PRIu64
	       " the same: %s to write\n",
	       total.changed, total.added, total.gone, total.same, size);
	return 0;
}
