/*
 * Makes an image fit a kernel with another vdso, before anything is made of it.
 *
 *	saved		[vvar]		[vdso]
 *	made		zeroes		old text, patched ── jumps ──► [vdso] of this kernel, [vvar] before it
 *
 * The manifest is changed as if the program had been saved here: the old text becomes anonymous memory at its
 * old address, with its functions led to the new ones (vdso_bridge.h); the new vdso with its data is a
 * mapping of the kernel at a free place. AT_SYSINFO_EHDR of the auxiliary vector still leads to the old text,
 * whose headers are unchanged. So the next checkpoint needs no more of it, and a third kernel is bridged from
 * there.
 *
 * The old data become zeroes: a signal handler that interrupted a function of the vdso returns into its
 * middle. With zeroes in the place of the data the sequence number differs and the clock's mode is none, so
 *that the function makes the system call (do_hres in lib/vdso/gettimeofday.c). Without the data it would
 *fault.
 *
 * The new place follows the old text where nothing else is up to the end of the address space: as random as
 *the old one, and the same for the skeleton of a migration as for its last state.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/fill/fill.h"
#include "scip/rebuild/rebuild_parts.h"
#include "scip/rebuild/vdso_bridge.h"
#include "scip/tracee/procfs.h"
#include "scip/tracee/vdso.h"

#define USER_TOP  0x7ffffffff000ull
#define USER_LOW  0x100000000ull
#define PLACE_GAP 0x2000000ull /* from other mappings: a stack grows */

enum { TEXT_MAX = 1 << 20 };

/* This kernel's vdso and its data, in the coordinator. */
struct present {
	const uint8_t *vdso;
	size_t len;
	struct procfs_maps maps; /* these alone are used */
	uint64_t start, end;
};

static bool is_kernels(const struct procfs_map *map)
{
	return !strncmp(map->name, "[vvar", 5) || !strcmp(map->name, "[vdso]");
}

static bool same_as_here(const Pbeam__Host *host, const uint8_t *vdso, size_t len)
{
	return !host->vdso.len || (host->vdso.len == len && bytes_equal(host->vdso.data, vdso, len));
}

int rebuild_vdso_check(const Pbeam__Host *host, struct err *err)
{
	size_t len;
	const uint8_t *vdso = vdso_bytes(&len);
	int r;

	if (same_as_here(host, vdso, len))
		return 0;
	r = vdso_bridge_patch(host->vdso.data, host->vdso.len, vdso, len, 0, NULL, err);
	return r < 0 ? err_wrap(err, r, "the image is of kernel %s; restore it there", host->kernel) : 0;
}

static int find_present(struct present *present, struct err *err)
{
	int r = procfs_maps_read(getpid(), false, &present->maps, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < present->maps.n; i++)
		if (is_kernels(&present->maps.v[i])) {
			present->start = present->start ? present->start : present->maps.v[i].start;
			present->end = present->maps.v[i].end;
		}
	return present->end ? 0 : err_set(err, -ENOTSUP, "this kernel gives processes no vdso");
}

/* The end of a mapping that is too near to [at, at + bytes), 0 if there is none. */
static uint64_t too_near(const Pbeam__Memory *memory, uint64_t at, uint64_t bytes, uint64_t *start)
{
	for (size_t i = 0; i < memory->n_mappings; i++) {
		const Pbeam__Mapping *map = memory->mappings[i];

		if (map->start < at + bytes + PLACE_GAP && map->end + PLACE_GAP > at &&
		    map->end < USER_TOP + 1) {
			*start = map->start;
			return map->end;
		}
	}
	return 0;
}

/* The first free place above `old`, else the first below it; 0 if there is none. */
static uint64_t find_place(const Pbeam__Memory *memory, uint64_t old, uint64_t bytes)
{
	uint64_t at = old, start = 0, end;

	while (at + bytes + PLACE_GAP < USER_TOP) {
		end = too_near(memory, at, bytes, &start);
		if (!end)
			return at;
		at = end + PLACE_GAP;
	}
	for (at = old; at > USER_LOW;) {
		end = too_near(memory, at, bytes, &start);
		if (!end)
			return at;
		if (start < USER_LOW + bytes + PLACE_GAP)
			break;
		at = start - bytes - PLACE_GAP;
	}
	return 0;
}

/* Inserts the mapping, which was appended, in the order of addresses. */
static void sort_last(Pbeam__Memory *memory)
{
	size_t i = memory->n_mappings - 1;
	Pbeam__Mapping *last = memory->mappings[i];

	for (; i > 0 && memory->mappings[i - 1]->start > last->start; i--)
		memory->mappings[i] = memory->mappings[i - 1];
	memory->mappings[i] = last;
}

static int add_present(Pbeam__Memory *memory, const struct present *present, uint64_t place)
{
	for (size_t i = 0; i < present->maps.n; i++) {
		const struct procfs_map *map = &present->maps.v[i];
		Pbeam__Mapping *out;

		if (!is_kernels(map))
			continue;
		out = message_add(memory, mappings, pbeam__mapping__descriptor);
		if (!out)
			return -ENOMEM;
		out->kind = !strcmp(map->name, "[vdso]") ? PBEAM__MAPPING__KIND__VDSO
							 : PBEAM__MAPPING__KIND__VVAR;
		out->start = place + (map->start - present->start);
		out->end = place + (map->end - present->start);
		out->prot = (uint32_t)map->prot;
		out->flags = MAP_PRIVATE;
		if (message_text(&out->name, map->name) < 0)
			return -ENOMEM;
		sort_last(memory);
	}
	return 0;
}

/* Where the vdso itself is in [start, end). */
static uint64_t offset_of_vdso(const struct present *present)
{
	for (size_t i = 0; i < present->maps.n; i++)
		if (!strcmp(present->maps.v[i].name, "[vdso]"))
			return present->maps.v[i].start - present->start;
	return 0;
}

/* Gives the old text's mapping its contents. */
static int patch_text(const Pbeam__Host *host, Pbeam__Mapping *map, const struct present *present,
		      uint64_t now_at, struct err *err)
{
	uint64_t bytes = map->end - map->start;
	const ProtobufCBinaryData *old = map->text.len ? &map->text : &host->vdso;
	uint8_t *text;
	int r;

	if (map->start >= map->end || bytes > TEXT_MAX || old->len > bytes)
		return err_set(err, -EINVAL,
			       "the vdso at %#lx has %lu bytes in an image whose kernel had one of %zu",
			       (unsigned long)map->start, (unsigned long)bytes, old->len);
	text = calloc(1, bytes);
	if (!text)
		return err_code(err, -ENOMEM, "the image's vdso");
	bytes_copy(text, old->data, old->len);
	r = vdso_bridge_patch(old->data, old->len, present->vdso, present->len, now_at, text, err);
	if (r < 0) {
		free(text);
		return r;
	}
	free(map->text.data);
	map->text.data = text;
	map->text.len = bytes;
	return 0;
}

static void make_anonymous(Pbeam__Mapping *map)
{
	map->kind = PBEAM__MAPPING__KIND__ANON_PRIVATE;
	map->flags = MAP_PRIVATE | MAP_ANONYMOUS;
	map->file_offset = 0;
	free(map->name.data);
	map->name = (ProtobufCBinaryData){0, NULL};
}

static int adapt_memory(const Pbeam__Host *host, Pbeam__Memory *memory, const struct present *present,
			struct err *err)
{
	Pbeam__Mapping *text = NULL;
	uint64_t place = 0;
	int r;

	for (size_t i = 0; i < memory->n_mappings; i++)
		if (memory->mappings[i]->kind == PBEAM__MAPPING__KIND__VDSO)
			text = memory->mappings[i];
	if (text) {
		place = find_place(memory, text->start, present->end - present->start);
		if (!place)
			return err_set(err, -ENOMEM, "no free range of addresses for this kernel's vdso");
		r = patch_text(host, text, present, place + offset_of_vdso(present), err);
		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < memory->n_mappings; i++)
		if (fill_mapping_is_kernels(memory->mappings[i]))
			make_anonymous(memory->mappings[i]);
	return text && add_present(memory, present, place) < 0 ? err_code(err, -ENOMEM, "this kernel's vdso")
							       : 0;
}

int rebuild_vdso_adapt(const Pbeam__Manifest *saved, struct err *err)
{
	Pbeam__Manifest *manifest =
		(Pbeam__Manifest *)(uintptr_t)saved; /* of the reader, which only holds it */
	struct present present = {NULL, 0, {NULL, 0}, 0, 0};
	int r;

	present.vdso = vdso_bytes(&present.len);
	if (!manifest->host || same_as_here(manifest->host, present.vdso, present.len))
		return 0;
	r = rebuild_vdso_check(manifest->host, err);
	if (r == 0)
		r = find_present(&present, err);
	for (size_t i = 0; i < manifest->n_processes && r == 0; i++)
		if (manifest->processes[i]->memory)
			r = adapt_memory(manifest->host, manifest->processes[i]->memory, &present, err);
	procfs_maps_free(&present.maps);
	if (r < 0)
		return r;
	log_info("the image is of kernel %s: its vdso is led to this kernel's", manifest->host->kernel);
	free(manifest->host->vdso.data);
	manifest->host->vdso = (ProtobufCBinaryData){0, NULL};
	return message_bytes(&manifest->host->vdso, present.vdso, present.len);
}
