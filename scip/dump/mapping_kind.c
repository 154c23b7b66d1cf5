/*
 * Derives kind and flags of a mapping from its lines in smaps. Pure.
 *
 * The letters of VmFlags are those of fs/proc/task_mmu.c, show_smap_vma_flags(); unknown letters are ignored.
 * The name shows the rest: "/dev/zero (deleted)" is shared anonymous memory, "/memfd:NAME (deleted)" a memfd,
 * "/SYSV%08x (deleted)" a System V segment whose inode number is its id.
 */
#include "scip/dump/mappings.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "proto/message.h"

#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08
#endif

static bool has_flag(const struct procfs_map *map, const char *flag)
{
	for (const char *p = map->vm_flags; p[0] && p[1]; p += p[2] ? 3 : 2)
		if (p[0] == flag[0] && p[1] == flag[1])
			return true;
	return false;
}

static const struct {
	char flag[3];
	uint32_t advice;
} ADVICE[] = {
	{"dc", PBEAM__MAPPING__ADVICE__DONTFORK},   {"dd", PBEAM__MAPPING__ADVICE__DONTDUMP},
	{"wf", PBEAM__MAPPING__ADVICE__WIPEONFORK}, {"hg", PBEAM__MAPPING__ADVICE__HUGEPAGE},
	{"nh", PBEAM__MAPPING__ADVICE__NOHUGEPAGE}, {"mg", PBEAM__MAPPING__ADVICE__MERGEABLE},
	{"sr", PBEAM__MAPPING__ADVICE__SEQUENTIAL}, {"rr", PBEAM__MAPPING__ADVICE__RANDOM},
};

/* Mappings that cannot be saved, by a letter of VmFlags or the beginning of the name. */
static const struct {
	const char *flag, *name, *what, *todo;
} REFUSED[] = {
	{"um", NULL, "watched by a userfaultfd", "let the program unregister it first"},
	{"uw", NULL, "watched by a userfaultfd", "let the program unregister it first"},
	{"ui", NULL, "watched by a userfaultfd", "let the program unregister it first"},
	{NULL, "anon_inode:[io_uring]", "a ring of an io_uring instance",
	 "run the program with io_uring switched off"},
	{NULL, "anon_inode:[perf_event]", "the buffer of a perf event", "stop profiling it first"},
	{NULL, "anon_inode:", "that of a kernel object without a file", "let the program close it first"},
	{NULL, "/[aio]", "the ring of asynchronous I/O (io_setup)", "run the program without native AIO"},
	{NULL, "socket:", "the ring of a packet socket", "let the program close it first"},
	{NULL, "/dev/hugepages/", "a file of huge pages", "run the program without huge pages"},
	{"ht", NULL, "made of reserved huge pages (hugetlbfs)",
	 "run the program without them; transparent ones are saved"},
	{"ss", NULL, "a shadow stack", "run the program with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off"},
	{"io", NULL, "that of a device", "let the program close the device first"},
	{"pf", NULL, "that of a device", "let the program close the device first"},
};

static int refuse_mapping(const struct procfs_map *map, struct err *err)
{
	for (size_t i = 0; i < sizeof(REFUSED) / sizeof(REFUSED[0]); i++) {
		bool hit = (REFUSED[i].flag && has_flag(map, REFUSED[i].flag)) ||
			   (REFUSED[i].name && !strncmp(map->name, REFUSED[i].name, strlen(REFUSED[i].name)));

		if (hit)
			return err_set(err, -ENOTSUP, "its memory at 0x%lx (%s) is %s; %s",
				       (unsigned long)map->start, map->name[0] ? map->name : "anonymous",
				       REFUSED[i].what, REFUSED[i].todo);
	}
	return 0;
}

static bool begins_with(const struct procfs_map *map, const char *with)
{
	return !strncmp(map->name, with, strlen(with));
}

/* Kind of a mapping with a name in brackets, or without one. */
static Pbeam__Mapping__Kind kind_unnamed(const struct procfs_map *map)
{
	if (!strcmp(map->name, "[vdso]"))
		return PBEAM__MAPPING__KIND__VDSO;
	if (begins_with(map, "[vvar"))
		return PBEAM__MAPPING__KIND__VVAR;
	if (!strcmp(map->name, "[vsyscall]"))
		return PBEAM__MAPPING__KIND__VSYSCALL;
	if (map->shared)
		return PBEAM__MAPPING__KIND__SHARED_MEMORY;
	if (!strcmp(map->name, "[stack]"))
		return PBEAM__MAPPING__KIND__STACK;
	if (!strcmp(map->name, "[heap]"))
		return PBEAM__MAPPING__KIND__HEAP;
	return PBEAM__MAPPING__KIND__ANON_PRIVATE;
}

static Pbeam__Mapping__Kind choose_kind(const struct procfs_map *map)
{
	if (map->name[0] != '/')
		return kind_unnamed(map);
	if (!map->shared)
		return PBEAM__MAPPING__KIND__FILE_PRIVATE;
	if (map->deleted && begins_with(map, "/SYSV"))
		return PBEAM__MAPPING__KIND__SYSV;
	if (map->deleted)
		return PBEAM__MAPPING__KIND__SHARED_MEMORY;
	return PBEAM__MAPPING__KIND__FILE_SHARED;
}

static uint32_t flags_of(const struct procfs_map *map, Pbeam__Mapping__Kind kind)
{
	uint32_t flags = map->shared ? MAP_SHARED : MAP_PRIVATE;

	if (map->name[0] != '/')
		flags |= MAP_ANONYMOUS;
	if (has_flag(map, "dp"))
		flags = MAP_DROPPABLE | MAP_ANONYMOUS;
	if (has_flag(map, "gd"))
		flags |= MAP_GROWSDOWN;
	if (has_flag(map, "nr"))
		flags |= MAP_NORESERVE;
	if (kind == PBEAM__MAPPING__KIND__STACK)
		flags |= MAP_STACK;
	return flags;
}

int mapping_from_map(const struct procfs_map *map, Pbeam__Mapping *out, struct err *err)
{
	out->kind = choose_kind(map);
	if (out->kind != PBEAM__MAPPING__KIND__VDSO && out->kind != PBEAM__MAPPING__KIND__VVAR) {
		int r = refuse_mapping(map, err);

		if (r < 0)
			return r;
	}
	out->start = map->start;
	out->end = map->end;
	out->prot = (uint32_t)map->prot;
	out->flags = flags_of(map, out->kind);
	out->file_offset = map->offset;
	for (size_t i = 0; i < sizeof(ADVICE) / sizeof(ADVICE[0]); i++)
		if (has_flag(map, ADVICE[i].flag))
			out->advice |= ADVICE[i].advice;
	out->max_prot = (has_flag(map, "mr") ? PROT_READ : 0u) | (has_flag(map, "mw") ? PROT_WRITE : 0u) |
			(has_flag(map, "me") ? PROT_EXEC : 0u);
	out->locked = has_flag(map, "lo");
	out->lock_on_fault = has_flag(map, "lf");
	out->grows_down = has_flag(map, "gd");
	out->sealed = has_flag(map, "sl");
	out->pkey = map->pkey;
	return message_text(&out->name, map->name);
}

size_t mapping_without(struct mapping_range whole, const struct mapping_range *ours, size_t n,
		       struct mapping_range *out)
{
	size_t pieces = 0;

	while (whole.start < whole.end) {
		struct mapping_range next = {whole.end, whole.end};

		for (size_t i = 0; i < n; i++)
			if (ours[i].end > whole.start && ours[i].start < next.start)
				next = ours[i];
		if (next.start > whole.start)
			out[pieces++] = (struct mapping_range){whole.start, next.start};
		whole.start = next.end > whole.end ? whole.end : next.end;
	}
	return pieces;
}
