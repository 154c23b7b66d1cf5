/*
 * The kernel's own mappings of a husk: [vdso] and its data ([vvar], [vvar_vclock] ...).
 *
 * mremap() can move each of them as a whole, and the kernel notes the vdso's new place (6.18, x86-64). None
 * can be moved, unmapped or protected in part: the kernel refuses to split them (special_mapping_split in
 * mm/mmap.c, since 5.11). So they are parked behind the injected code while everything else is unmapped, and
 * each is then moved to the address that the mapping of the same name had in the program, wherever the
 * program has moved it. One that the program had unmapped is unmapped.
 *
 * A husk forked from one without a vdso gets another by ARCH_MAP_VDSO_64 (CONFIG_CHECKPOINT_RESTORE), which
 * fails as long as the process has any of these mappings.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "scip/fill/fill_batch.h"
#include "scip/tracee/memory.h"

#ifndef ARCH_MAP_VDSO_64
#define ARCH_MAP_VDSO_64 0x2003
#endif

enum { PARTS_MAX = 8 };

struct part {
	char name[32];
	uint64_t parked, bytes;
	uint64_t to; /* 0: the program had none */
};

struct fill_kernel {
	struct part parts[PARTS_MAX];
	size_t n;
	uint64_t bytes;
};

/* Lists the parts in `maps`, with their offsets from the first. Returns the address of the first. */
static uint64_t list_kernel_parts(struct fill_kernel *kernel, const struct procfs_maps *maps)
{
	uint64_t first = 0;

	for (size_t i = 0; i < maps->n && kernel->n < PARTS_MAX; i++) {
		const struct procfs_map *map = &maps->v[i];
		struct part *part = &kernel->parts[kernel->n];

		if (strncmp(map->name, "[vvar", 5) != 0 && strcmp(map->name, "[vdso]") != 0)
			continue;
		if (strlen(map->name) >= sizeof(part->name))
			continue;
		memcpy(part->name, map->name, strlen(map->name) + 1);
		first = kernel->n ? first : map->start;
		part->parked = map->start - first;
		part->bytes = map->end - map->start;
		kernel->bytes = part->parked + part->bytes;
		kernel->n++;
	}
	return first;
}

/* Finds the place of each part in the program. */
static int match_parts(const struct fill *fill, struct fill_kernel *kernel)
{
	const Pbeam__Memory *memory = fill->saved->memory;

	for (size_t i = 0; i < memory->n_mappings; i++) {
		const Pbeam__Mapping *map = memory->mappings[i];
		struct part *part = NULL;

		if (!fill_mapping_is_kernels(map))
			continue;
		for (size_t p = 0; p < kernel->n && !part; p++)
			if (strlen(kernel->parts[p].name) == map->name.len &&
			    bytes_equal(kernel->parts[p].name, map->name.data, map->name.len))
				part = &kernel->parts[p];
		if (!part || part->to || !map->start || map->end - map->start != part->bytes)
			return err_set(fill->err, -ENOTSUP,
				       "the kernel's mapping at %#lx (%.*s, %lu bytes) is not one of this "
				       "kernel's",
				       (unsigned long)map->start,
				       (int)(map->name.len < 32 ? map->name.len : 32),
				       (const char *)map->name.data, (unsigned long)(map->end - map->start));
		part->to = map->start;
	}
	return 0;
}

static bool wants_any(const struct fill *fill)
{
	const Pbeam__Memory *memory = fill->saved->memory;

	for (size_t i = 0; i < memory->n_mappings; i++)
		if (fill_mapping_is_kernels(memory->mappings[i]))
			return true;
	return false;
}

static int move_part(struct fill *fill, const struct part *part, uint64_t from, uint64_t to)
{
	return fill_do(fill, SYS_mremap,
		       remote_args(from, part->bytes, part->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to));
}

/* Makes the parts for a husk that has none. They are the same as in every process of this kernel. */
static int make_parts(struct fill *fill, struct fill_kernel *kernel, uint64_t park)
{
	struct procfs_maps own = {0};
	int call, r = procfs_maps_read(getpid(), false, &own, fill->err);

	if (r < 0)
		return r;
	list_kernel_parts(kernel, &own);
	procfs_maps_free(&own);
	call = fill_call(fill, 0, SYS_arch_prctl, remote_args(ARCH_MAP_VDSO_64, park));
	return call < 0 ? call : 0;
}

int fill_kernel_park(struct fill *fill, const struct procfs_maps *maps, uint64_t park,
		     struct fill_kernel **out)
{
	struct fill_kernel *kernel = calloc(1, sizeof(*kernel));
	uint64_t first;
	int r = 0;

	*out = kernel;
	if (!kernel)
		return err_code(fill->err, -ENOMEM, "mappings of the kernel");
	first = list_kernel_parts(kernel, maps);
	if (kernel->n == 0 && wants_any(fill))
		r = make_parts(fill, kernel, park);
	else
		for (size_t i = 0; i < kernel->n && r == 0; i++)
			r = move_part(fill, &kernel->parts[i], first + kernel->parts[i].parked,
				      park + kernel->parts[i].parked);
	for (size_t i = 0; i < kernel->n; i++)
		kernel->parts[i].parked += park;
	return r < 0 ? r : match_parts(fill, kernel);
}

uint64_t fill_kernel_bytes(const struct fill_kernel *kernel)
{
	return kernel->bytes;
}

int fill_kernel_place(struct fill *fill, const struct fill_kernel *kernel)
{
	int r = 0;

	for (size_t i = 0; i < kernel->n && r == 0; i++) {
		const struct part *part = &kernel->parts[i];

		r = part->to ? move_part(fill, part, part->parked, part->to)
			     : fill_do(fill, SYS_munmap, remote_args(part->parked, part->bytes));
	}
	return r;
}

int fill_kernel_finish(struct fill *fill, const Pbeam__Mapping *map)
{
	uint32_t usual = map->kind == PBEAM__MAPPING__KIND__VDSO ? PROT_READ | PROT_EXEC : PROT_READ;

	return map->prot == usual ? 0
				  : fill_do(fill, SYS_mprotect,
					    remote_args(map->start, map->end - map->start, map->prot));
}

int fill_kernel_text(struct fill *fill)
{
	const Pbeam__Memory *memory = fill->saved->memory;
	int r = fill_flush(fill);

	for (size_t i = 0; i < memory->n_mappings && r == 0; i++) {
		const Pbeam__Mapping *map = memory->mappings[i];

		if (!map->text.len)
			continue;
		if (map->text.len > map->end - map->start || !(map->flags & MAP_PRIVATE))
			return err_set(fill->err, -EINVAL, "the text at %#lx does not fit its mapping",
				       (unsigned long)map->start);
		r = memory_write_force(fill->process, (struct taddr){map->start}, map->text.data,
				       map->text.len);
		if (r < 0)
			return err_code(fill->err, r, "write the vdso's text at %#lx",
					(unsigned long)map->start);
	}
	return r;
}
