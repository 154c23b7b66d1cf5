/*
 * Replaces the husk's address space with that of the saved process.
 *
 * The kernel's own mappings are moved (fill_kernel.c). Everything else is unmapped and mapped again with
 * MAP_FIXED_NOREPLACE, so that no mapping in use can be overwritten unnoticed. Mappings to be filled stay
 * writable until they are. PR_SET_MM_MAP with exe_fd -1 needs no privilege.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/prctl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "scip/fill/fill_batch.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef PR_SET_VMA
#define PR_SET_VMA	     0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

uint32_t fill_mapping_prot_needed(const Pbeam__Mapping *map)
{
	uint32_t fill = map->n_pages && (map->flags & MAP_PRIVATE) ? PROT_READ | PROT_WRITE : 0;

	return map->prot | fill;
}

bool fill_mapping_is_kernels(const Pbeam__Mapping *map)
{
	return map->kind == PBEAM__MAPPING__KIND__VDSO || map->kind == PBEAM__MAPPING__KIND__VVAR;
}

#define USER_TOP  0x7ffffffff000ull
#define ROOM_FROM 0x100000000ull
#define PARK_GAP  0x10000ull
#define KEEP_FLAGS                                                                                           \
	(MAP_SHARED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_NORESERVE | MAP_STACK |              \
	 MAP_HUGETLB | ((uint32_t)MAP_HUGE_MASK << MAP_HUGE_SHIFT))

/* A file that stays open in the husk while the same batch maps it several times. */
struct open_file {
	const Pbeam__FileIdentity *file;
	struct batch *batch;
	int call;
	int flags;
};

/* The end of a mapping of either layout that overlaps [at, at + bytes), or 0 if there is none. */
static uint64_t in_the_way(const struct fill *fill, const struct procfs_maps *maps, uint64_t at,
			   uint64_t bytes)
{
	const Pbeam__Memory *memory = fill->saved->memory;

	for (size_t i = 0; i < maps->n; i++)
		if (maps->v[i].start < at + bytes && maps->v[i].end > at)
			return maps->v[i].end;
	for (size_t i = 0; i < memory->n_mappings; i++)
		if (memory->mappings[i]->start < at + bytes && memory->mappings[i]->end > at)
			return memory->mappings[i]->end;
	return 0;
}

int fill_mappings_find_room(struct fill *fill, const struct procfs_maps *maps, uint64_t bytes)
{
	uint64_t at = ROOM_FROM;

	bytes = (bytes + 0xfffff) & ~0xfffffull;
	while (at + bytes < USER_TOP) {
		uint64_t end = in_the_way(fill, maps, at, bytes);

		if (end == 0) {
			fill->low = at;
			fill->high = at + bytes;
			return 0;
		}
		if (end > USER_TOP)
			break;
		at = (end + 0x1fffff) & ~0xfffffull;
	}
	return err_set(fill->err, -ENOMEM, "no free range of addresses for the injected code");
}

static int unmap_range(struct fill *fill, uint64_t start, uint64_t end)
{
	return start < end ? fill_do(fill, SYS_munmap, remote_args(start, end - start)) : 0;
}

int fill_mappings_clear(struct fill *fill, const struct procfs_maps *maps)
{
	auto_free struct fill_kernel *kernel = NULL;
	struct taddr start, end;
	uint64_t park;
	int r;

	if (!inject_range(fill->process, &start, &end))
		return -EFAULT;
	park = end.a + PARK_GAP;
	r = fill_kernel_park(fill, maps, park, &kernel);
	if (r == 0)
		r = unmap_range(fill, 0, start.a);
	if (r == 0)
		r = unmap_range(fill, end.a, park);
	if (r == 0)
		r = unmap_range(fill, park + fill_kernel_bytes(kernel), USER_TOP);
	if (r == 0)
		r = fill_kernel_place(fill, kernel);
	if (r == 0)
		r = fill_flush(fill);
	fill->process->syscall_insn.a = 0;
	fill->process->scratch.a = 0;
	return r;
}

struct range {
	uint64_t start, end;
};

static int compare_ranges(const void *a, const void *b)
{
	const struct range *x = a, *y = b;

	return x->start < y->start ? -1 : x->start > y->start;
}

static int unmap_between(struct fill *fill, struct range *kept, size_t n)
{
	uint64_t at = 0;
	int r = 0;

	bytes_sort(kept, n, sizeof(*kept), compare_ranges);
	for (size_t i = 0; i < n && r == 0; i++) {
		r = unmap_range(fill, at, kept[i].start);
		at = kept[i].end > at ? kept[i].end : at;
	}
	return r < 0 ? r : unmap_range(fill, at, USER_TOP);
}

int fill_mappings_keep(struct fill *fill)
{
	const Pbeam__Memory *memory = fill->saved->memory;
	auto_free struct range *kept = calloc(memory->n_mappings + fill->request->n_kept + 1, sizeof(*kept));
	struct taddr start, end;
	size_t n = 0;
	int r;

	if (!kept || !inject_range(fill->process, &start, &end))
		return err_code(fill->err, -ENOMEM, "mappings");
	kept[n++] = (struct range){start.a, end.a};
	for (size_t i = 0; i < memory->n_mappings; i++)
		if (fill_mapping_is_kernels(memory->mappings[i]))
			kept[n++] = (struct range){memory->mappings[i]->start, memory->mappings[i]->end};
	for (size_t i = 0; i < fill->request->n_kept; i++) {
		const Pbeam__KeptMapping *entry = fill->request->kept[i];

		if (entry->index >= memory->n_mappings)
			return err_set(fill->err, -EINVAL, "mapping %u does not exist", entry->index);
		fill->prot[entry->index] = entry->prot;
		kept[n++] = (struct range){memory->mappings[entry->index]->start,
					   memory->mappings[entry->index]->end};
	}
	r = unmap_between(fill, kept, n);
	for (size_t i = 0; i < fill->request->n_dropped && r == 0; i++)
		r = fill_do(fill, SYS_madvise,
			    remote_args(fill->request->dropped[i]->address,
					fill->request->dropped[i]->count * IMAGE_PAGE, MADV_DONTNEED));
	return r;
}

static int do_mmap(struct fill *fill, const Pbeam__Mapping *map, uint64_t flags, int fd_call, uint64_t offset)
{
	int call = fill_call(fill, 0, SYS_mmap,
			     remote_args(map->start, map->end - map->start, fill_mapping_prot_needed(map),
					 flags | MAP_FIXED_NOREPLACE, (uint64_t)-1, offset));

	if (call >= 0 && fd_call >= 0)
		fill_from(fill, call, fd_call, 4);
	return call < 0 ? call : 0;
}

static int open_mapped_file(struct fill *fill, const Pbeam__Mapping *map, struct open_file *open)
{
	int flags = O_CLOEXEC |
		    (map->flags & MAP_SHARED && (map->prot | map->max_prot) & PROT_WRITE ? O_RDWR : O_RDONLY);
	const ProtobufCBinaryData *path = &map->file->path;
	uint64_t where;
	char *text;
	int r;

	if (open->file && open->batch == fill->batch && open->flags == flags &&
	    open->file->path.len == path->len && bytes_equal(open->file->path.data, path->data, path->len))
		return open->call;
	if (open->file && open->batch == fill->batch) {
		r = fill_call(fill, INJECT_CALL_ANY, SYS_close, remote_args(0));
		if (r < 0)
			return r;
		fill_from(fill, r, open->call, 0);
	}
	r = fill_data(fill, NULL, path->len + 1, &where);
	if (r < 0)
		return r;
	text = batch_local(fill->batch, (struct taddr){where});
	bytes_copy(text, path->data, path->len);
	text[path->len] = 0;
	r = fill_call(fill, 0, SYS_openat, remote_args((uint64_t)AT_FDCWD, where, (uint64_t)flags, 0));
	*open = (struct open_file){map->file, fill->batch, r, flags};
	return r;
}

static int map_file(struct fill *fill, const Pbeam__Mapping *map, struct open_file *open)
{
	int r;

	if (!map->file)
		return err_set(fill->err, -EINVAL, "mapping at %#lx has no file", (unsigned long)map->start);
	r = fill_reserve(fill, 4, map->file->path.len + 64);
	if (r < 0)
		return r;
	r = open_mapped_file(fill, map, open);
	if (r < 0)
		return r;
	return do_mmap(fill, map, map->flags & KEEP_FLAGS & ~(uint32_t)MAP_ANONYMOUS, r, map->file_offset);
}

static const Pbeam__FillFd *find_shared_fd(const struct fill *fill, uint32_t id)
{
	for (size_t i = 0; i < fill->request->n_fds; i++)
		if (fill->request->fds[i]->shared_id == id)
			return fill->request->fds[i];
	return NULL;
}

static int map_shared(struct fill *fill, const Pbeam__Mapping *map)
{
	const Pbeam__FillFd *source = find_shared_fd(fill, map->shared_id);
	int r, get;

	if (!source)
		return err_set(fill->err, -EINVAL, "shared memory %u of the mapping at %#lx was not made",
			       map->shared_id, (unsigned long)map->start);
	r = fill_reserve(fill, 3, 0);
	if (r < 0)
		return r;
	get = fill_call(fill, 0, SYS_pidfd_getfd,
			remote_args(FILL_FD_COORDINATOR, (uint64_t)source->source, 0));
	if (get < 0)
		return get;
	r = do_mmap(fill, map, MAP_SHARED | (map->flags & MAP_NORESERVE), get, map->file_offset);
	if (r < 0)
		return r;
	r = fill_call(fill, 0, SYS_close, remote_args(0));
	if (r >= 0)
		fill_from(fill, r, get, 0);
	return r < 0 ? r : 0;
}

/* shmat() maps a whole segment. The segment is attached at its saved start; then the parts that were not
 * mapped are unmapped. */
static int map_sysv(struct fill *fill, const Pbeam__Mapping *map, uint64_t *attached)
{
	const Pbeam__FillFd *source = find_shared_fd(fill, map->shared_id);
	uint64_t base = map->start - map->file_offset, size = 0;
	int r;

	for (size_t i = 0; i < fill->request->n_shared; i++)
		if (fill->request->shared[i]->id == map->shared_id)
			size = (fill->request->shared[i]->size + IMAGE_PAGE - 1) &
			       ~(uint64_t)(IMAGE_PAGE - 1);
	if (!source || size < map->file_offset + (map->end - map->start))
		return err_set(fill->err, -EINVAL, "the shared memory segment at %#lx was not made",
			       (unsigned long)map->start);
	if (*attached == base + 1)
		return err_set(fill->err, -ENOTSUP, "the shared memory segment at %#lx is mapped in pieces",
			       (unsigned long)map->start);
	*attached = base + 1;
	r = fill_do(fill, SYS_shmat,
		    remote_args((uint64_t)source->source, base,
				(map->prot & PROT_WRITE ? 0u : SHM_RDONLY) |
					(map->prot & PROT_EXEC ? SHM_EXEC : 0u)));
	if (r < 0)
		return r;
	r = unmap_range(fill, base, map->start);
	return r < 0 ? r : unmap_range(fill, map->end, base + size);
}

static int advise_mapping(struct fill *fill, const Pbeam__Mapping *map, uint32_t bit, int advice)
{
	if (!(map->advice & bit))
		return 0;
	return fill_try(fill, SYS_madvise, remote_args(map->start, map->end - map->start, (uint64_t)advice));
}

static int make_mapping(struct fill *fill, const Pbeam__Mapping *map, struct open_file *open)
{
	uint64_t anonymous = map->flags & KEEP_FLAGS & ~(uint32_t)MAP_SHARED;
	int r;

	switch (map->kind) {
	case PBEAM__MAPPING__KIND__ANON_PRIVATE:
	case PBEAM__MAPPING__KIND__STACK:
	case PBEAM__MAPPING__KIND__HEAP:
		anonymous |= MAP_PRIVATE | MAP_ANONYMOUS | (map->grows_down ? MAP_GROWSDOWN : 0);
		r = do_mmap(fill, map, anonymous, -1, 0);
		break;
	case PBEAM__MAPPING__KIND__FILE_PRIVATE:
		if (map->file && map->file->deleted)
			r = do_mmap(fill, map, anonymous | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		else
			r = map_file(fill, map, open);
		break;
	case PBEAM__MAPPING__KIND__FILE_SHARED:
		r = map->shared_id && find_shared_fd(fill, map->shared_id) ? map_shared(fill, map)
									   : map_file(fill, map, open);
		break;
	case PBEAM__MAPPING__KIND__SHARED_MEMORY:
		r = map_shared(fill, map);
		break;
	case PBEAM__MAPPING__KIND__VDSO:
	case PBEAM__MAPPING__KIND__VVAR:
	case PBEAM__MAPPING__KIND__VSYSCALL:
	case PBEAM__MAPPING__KIND__SYSV:
		return 0;
	case _PBEAM__MAPPING__KIND_IS_INT_SIZE:
	default:
		return err_set(fill->err, -EINVAL, "mapping at %#lx has unknown kind %d",
			       (unsigned long)map->start, (int)map->kind);
	}
	return r;
}

/* Settings that must be made while the mapping is empty. */
static int advise_size(struct fill *fill, const Pbeam__Mapping *map)
{
	int r = advise_mapping(fill, map, PBEAM__MAPPING__ADVICE__HUGEPAGE, MADV_HUGEPAGE);

	return r < 0 ? r : advise_mapping(fill, map, PBEAM__MAPPING__ADVICE__NOHUGEPAGE, MADV_NOHUGEPAGE);
}

/* Makes an existing mapping writable if it will be filled. */
static int open_mapping(struct fill *fill, const Pbeam__Mapping *map, uint32_t prot)
{
	uint32_t needed = fill_mapping_prot_needed(map);

	return needed & ~prot
		       ? fill_do(fill, SYS_mprotect, remote_args(map->start, map->end - map->start, needed))
		       : 0;
}

int fill_mappings_make(struct fill *fill)
{
	const Pbeam__Memory *memory = fill->saved->memory;
	struct open_file open = {0};
	uint64_t attached = 0;
	int r = 0;

	for (size_t i = 0; i < memory->n_mappings && r == 0; i++)
		if (memory->mappings[i]->kind == PBEAM__MAPPING__KIND__SYSV &&
		    fill->prot[i] == FILL_NOT_MAPPED)
			r = map_sysv(fill, memory->mappings[i], &attached);
	for (size_t i = 0; i < memory->n_mappings && r == 0; i++) {
		const Pbeam__Mapping *map = memory->mappings[i];

		if (map->start >= map->end || (map->start | map->end) & (IMAGE_PAGE - 1))
			return err_set(fill->err, -EINVAL, "mapping %#lx-%#lx", (unsigned long)map->start,
				       (unsigned long)map->end);
		r = fill->prot[i] == FILL_NOT_MAPPED ? make_mapping(fill, map, &open)
						     : open_mapping(fill, map, fill->prot[i]);
		if (fill->prot[i] == FILL_NOT_MAPPED || fill_mapping_prot_needed(map) & ~fill->prot[i])
			fill->prot[i] = fill_mapping_prot_needed(map);
		if (r == 0)
			r = advise_size(fill, map);
		if (r == 0)
			r = fill_policy_mapping(fill, map);
	}
	return r;
}

/* The kernel allocates protection keys from 1 up: all are allocated up to the highest in use. */
static int take_keys(struct fill *fill)
{
	uint32_t highest = 0;
	int r = 0;

	for (size_t i = 0; i < fill->saved->memory->n_mappings; i++)
		if (fill->saved->memory->mappings[i]->pkey > highest)
			highest = fill->saved->memory->mappings[i]->pkey;
	for (uint32_t key = 1; key <= highest && r == 0; key++)
		r = fill_do(fill, SYS_pkey_alloc, remote_args(0, 0));
	return r;
}

static int name_mapping(struct fill *fill, const Pbeam__Mapping *map)
{
	static const char prefix[] = "[anon:";
	size_t skip = sizeof(prefix) - 1, len = map->name.len;
	uint64_t where;
	char *text;
	int r;

	if (map->kind != PBEAM__MAPPING__KIND__ANON_PRIVATE || len <= skip + 1 || len > 100 ||
	    memcmp(map->name.data, prefix, skip))
		return 0;
	r = fill_reserve(fill, 1, len + 1);
	if (r == 0)
		r = fill_data(fill, NULL, len + 1, &where);
	if (r < 0)
		return r;
	text = batch_local(fill->batch, (struct taddr){where});
	bytes_copy(text, map->name.data + skip, len - skip);
	text[len - skip - 1] = 0;
	return fill_try(
		fill, SYS_prctl,
		remote_args(PR_SET_VMA, PR_SET_VMA_ANON_NAME, map->start, map->end - map->start, where));
}

static int finish_mapping(struct fill *fill, const Pbeam__Mapping *map, uint32_t prot)
{
	static const struct {
		uint32_t bit;
		int advice;
	} advices[] = {
		{PBEAM__MAPPING__ADVICE__DONTFORK, MADV_DONTFORK},
		{PBEAM__MAPPING__ADVICE__DONTDUMP, MADV_DONTDUMP},
		{PBEAM__MAPPING__ADVICE__WIPEONFORK, MADV_WIPEONFORK},
		{PBEAM__MAPPING__ADVICE__MERGEABLE, MADV_MERGEABLE},
		{PBEAM__MAPPING__ADVICE__SEQUENTIAL, MADV_SEQUENTIAL},
		{PBEAM__MAPPING__ADVICE__RANDOM, MADV_RANDOM},
	};
	uint64_t bytes = map->end - map->start;
	int r = 0;

	if (fill_mapping_is_kernels(map))
		return fill_kernel_finish(fill, map);
	if (map->kind == PBEAM__MAPPING__KIND__VSYSCALL)
		return 0;
	for (size_t i = 0; i < map->n_guards && r == 0; i++)
		r = fill_do(fill, SYS_madvise,
			    remote_args(map->guards[i]->address, map->guards[i]->count * IMAGE_PAGE,
					MADV_GUARD_INSTALL));
	if (r == 0)
		r = name_mapping(fill, map);
	if (r == 0 && map->pkey)
		r = fill_do(fill, SYS_pkey_mprotect, remote_args(map->start, bytes, map->prot, map->pkey));
	else if (r == 0 && prot != map->prot)
		r = fill_do(fill, SYS_mprotect, remote_args(map->start, bytes, map->prot));
	for (size_t i = 0; i < sizeof(advices) / sizeof(advices[0]) && r == 0; i++)
		r = advise_mapping(fill, map, advices[i].bit, advices[i].advice);
	if (r == 0 && map->locked)
		r = fill_do(fill, SYS_mlock2,
			    remote_args(map->start, bytes, map->lock_on_fault ? MLOCK_ONFAULT : 0u));
	return r;
}

static int set_layout(struct fill *fill)
{
	const Pbeam__Memory *memory = fill->saved->memory;
	struct prctl_mm_map layout = {.start_code = memory->start_code,
				      .end_code = memory->end_code,
				      .start_data = memory->start_data,
				      .end_data = memory->end_data,
				      .start_brk = memory->start_brk,
				      .brk = memory->brk,
				      .start_stack = memory->start_stack,
				      .arg_start = memory->arg_start,
				      .arg_end = memory->arg_end,
				      .env_start = memory->env_start,
				      .env_end = memory->env_end,
				      .auxv_size = (uint32_t)memory->auxv.len,
				      .exe_fd = (uint32_t)-1};
	uint64_t auxv, where;
	int r = fill_reserve(fill, 1, memory->auxv.len + sizeof(layout) + 64);

	if (r == 0)
		r = fill_data(fill, memory->auxv.data, memory->auxv.len, &auxv);
	if (r < 0)
		return r;
	layout.auxv = (__typeof__(layout.auxv))(uintptr_t)auxv;
	r = fill_data(fill, &layout, sizeof(layout), &where);
	if (r < 0)
		return r;
	return fill_do(fill, SYS_prctl, remote_args(PR_SET_MM, PR_SET_MM_MAP, where, sizeof(layout), 0));
}

int fill_mappings_finish(struct fill *fill)
{
	const Pbeam__Memory *memory = fill->saved->memory;
	int r = take_keys(fill);

	for (size_t i = 0; i < memory->n_mappings && r == 0; i++)
		r = finish_mapping(fill, memory->mappings[i], fill->prot[i]);
	if (r == 0)
		r = set_layout(fill);
	if (r == 0 && memory->thp_disable)
		r = fill_do(fill, SYS_prctl, remote_args(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	if (r == 0 && memory->mlockall_flags & ~(uint64_t)MCL_CURRENT)
		r = fill_do(fill, SYS_mlockall, remote_args(memory->mlockall_flags & ~(uint64_t)MCL_CURRENT));
	for (size_t i = 0; i < memory->n_mappings && r == 0; i++)
		if (memory->mappings[i]->sealed)
			r = fill_do(fill, SYS_mseal,
				    remote_args(memory->mappings[i]->start,
						memory->mappings[i]->end - memory->mappings[i]->start, 0));
	if (r == 0)
		r = fill_flush(fill);
	fill->process->syscall_insn.a = 0; /* the protection of its mapping may have changed */
	return r;
}
