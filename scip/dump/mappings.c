#include "scip/dump/mappings.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "proto/message.h"
#include "scip/dump/dump_parts.h"
#include "scip/tracee/map_query.h"
#include "scip/tracee/remote.h"

enum { OURS_MAX = 3, BUILD_ID_MAX = 32 };

/* State of the walk over the lines. */
struct walk {
	struct process *process;
	struct mappings *out;
	Pbeam__Memory *memory;
	Pbeam__ScipDumped *dumped;
	struct mapping_range ours[OURS_MAX];
	size_t nours;
	int root;	  /* root directory of the paths */
	int maps;	  /* /proc/PID/maps, for build ids; -1 none */
	const char *last; /* path of the last file ... */
	uint64_t last_ino;
	struct stat last_st; /* ... and its stat; st_ino 0: it no longer exists */
};

static int fill_identity(Pbeam__FileIdentity *out, const char *path, const struct stat *st)
{
	out->dev = st->st_dev;
	out->ino = st->st_ino;
	out->size = (uint64_t)st->st_size;
	out->mtime_ns = (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
	out->mode = st->st_mode;
	return message_text(&out->path, path);
}

int mapping_exe_identity(pid_t pid, Pbeam__FileIdentity **out, struct err *err)
{
	static const char GONE[] = " (deleted)";
	char link[64], path[PATH_MAX + 16];
	struct stat st, named;
	size_t len;
	int r;

	snprintf(link, sizeof(link), "/proc/%d/exe", pid);
	r = io_readlink(AT_FDCWD, link, path, sizeof(path));
	if (r < 0)
		return err_code(err, r, "read %s", link);
	if (stat(link, &st) < 0)
		return err_sys(err, "look at %s", link);
	*out = message_new(&pbeam__file_identity__descriptor);
	if (!*out)
		return -ENOMEM;
	if (stat(path, &named) < 0 || named.st_ino != st.st_ino || named.st_dev != st.st_dev) {
		(*out)->deleted = true;
		len = strlen(path);
		if (len > sizeof(GONE) - 1 && !strcmp(path + len - (sizeof(GONE) - 1), GONE))
			path[len - (sizeof(GONE) - 1)] = '\0';
	}
	return fill_identity(*out, path, &st);
}

/* Finds the file of a line; *st has st_ino 0 if the path no longer leads to it. Consecutive lines are mostly
 * of the same file. A file system with a device for each subvolume shows another device in maps than in
 * stat; then the inode decides. */
static void find_file(struct walk *walk, const struct procfs_map *map, struct stat *st)
{
	if (walk->last && walk->last_ino == map->ino && !strcmp(walk->last, map->name)) {
		*st = walk->last_st;
		return;
	}
	memset(st, 0, sizeof(*st));
	if (!map->deleted && fstatat(walk->root, map->name + 1, st, 0) == 0) {
		bool same = st->st_ino == map->ino &&
			    (map->dev_major == 0 || st->st_dev == makedev(map->dev_major, map->dev_minor));

		if (!same)
			memset(st, 0, sizeof(*st));
	}
	walk->last = map->name;
	walk->last_ino = map->ino;
	walk->last_st = *st;
}

static int add_build_id(struct walk *walk, const struct procfs_map *map, Pbeam__FileIdentity *file)
{
	uint8_t id[BUILD_ID_MAX];
	struct map_query query = {.size = sizeof(query),
				  .query_addr = map->start,
				  .build_id_size = sizeof(id),
				  .build_id_addr = (uint64_t)(uintptr_t)id};

	if (walk->maps < 0 || ioctl(walk->maps, MAP_QUERY_CALL, &query) < 0 || !query.build_id_size ||
	    query.build_id_size > sizeof(id))
		return 0;
	return message_bytes(&file->build_id, id, query.build_id_size);
}

/* Fills out->file, and decides how the contents are saved. */
static int add_file(struct walk *walk, const struct procfs_map *map, struct mapping *m, struct err *err)
{
	Pbeam__Mapping *out = m->out;
	struct stat st;
	int r;

	find_file(walk, map, &st);
	if (st.st_ino && S_ISCHR(st.st_mode)) {
		if (!map->shared && st.st_rdev == makedev(1, 5)) {
			out->kind = PBEAM__MAPPING__KIND__ANON_PRIVATE;
			out->device_zero = true;
			return 0;
		}
		return err_set(err, -ENOTSUP,
			       "its memory at 0x%lx is that of the device %s; let the program close it first",
			       (unsigned long)map->start, map->name);
	}
	out->file = message_new(&pbeam__file_identity__descriptor);
	if (!out->file)
		return -ENOMEM;
	if (!st.st_ino) {
		st.st_ino = map->ino;
		st.st_dev = makedev(map->dev_major, map->dev_minor);
		out->file->deleted = true;
		if (out->kind == PBEAM__MAPPING__KIND__FILE_PRIVATE)
			m->contents = MAPPING_ALL;
		else if (out->kind == PBEAM__MAPPING__KIND__FILE_SHARED)
			out->kind = PBEAM__MAPPING__KIND__SHARED_MEMORY;
	}
	r = fill_identity(out->file, map->name, &st);
	if (r < 0)
		return r;
	return map->prot & PROT_EXEC ? add_build_id(walk, map, out->file) : 0;
}

static uint32_t shared_kind(const struct procfs_map *map, const Pbeam__Mapping *out)
{
	if (out->kind == PBEAM__MAPPING__KIND__SYSV)
		return PBEAM__SHARED_MEMORY__KIND__SYSV;
	if (!strncmp(map->name, "/memfd:", 7))
		return PBEAM__SHARED_MEMORY__KIND__MEMFD;
	if (map->name[0] != '/' || !strcmp(map->name, "/dev/zero"))
		return PBEAM__SHARED_MEMORY__KIND__ANON;
	return PBEAM__SHARED_MEMORY__KIND__POSIX_FILE;
}

/* Reports a shared mapping to the coordinator, unless it maps a file that the program can only read. */
static int add_shared(struct walk *walk, const struct procfs_map *map, struct mapping *m)
{
	const Pbeam__Mapping *out = m->out;
	Pbeam__SharedRef *ref;

	if (out->kind == PBEAM__MAPPING__KIND__FILE_SHARED && !(out->max_prot & PROT_WRITE))
		return 0;
	ref = message_add(walk->dumped, shared, pbeam__shared_ref__descriptor);
	if (!ref)
		return -ENOMEM;
	ref->dev = makedev(map->dev_major, map->dev_minor);
	ref->ino = map->ino;
	ref->start = out->start;
	ref->end = out->end;
	ref->offset = out->file_offset;
	ref->kind = shared_kind(map, out);
	ref->writable = (out->prot & PROT_WRITE) != 0;
	ref->unreadable = m->unreadable;
	ref->swapped = map->swap_bytes != 0;
	ref->mapping = (uint32_t)(walk->memory->n_mappings - 1);
	m->contents = MAPPING_SHARED;
	if (out->file) {
		ref->file = message_new(&pbeam__file_identity__descriptor);
		if (!ref->file)
			return -ENOMEM;
		*ref->file = *out->file;
		memset(&ref->file->path, 0, sizeof(ref->file->path));
		memset(&ref->file->build_id, 0, sizeof(ref->file->build_id));
		if (message_bytes(&ref->file->path, out->file->path.data, out->file->path.len) < 0)
			return -ENOMEM;
	}
	return message_text(&ref->name, map->name);
}

static bool has_file(const Pbeam__Mapping *mapping)
{
	return mapping->kind == PBEAM__MAPPING__KIND__FILE_PRIVATE ||
	       mapping->kind == PBEAM__MAPPING__KIND__FILE_SHARED ||
	       mapping->kind == PBEAM__MAPPING__KIND__SHARED_MEMORY;
}

static bool of_kernel(const Pbeam__Mapping *mapping)
{
	return mapping->kind == PBEAM__MAPPING__KIND__VDSO || mapping->kind == PBEAM__MAPPING__KIND__VVAR ||
	       mapping->kind == PBEAM__MAPPING__KIND__VSYSCALL;
}

/* Returns the mapping without the VmFlags letter of a write-protecting userfaultfd, which is ours. */
static const struct procfs_map *without_our_sign(const struct procfs_map *map, struct procfs_map *copy)
{
	char *sign;

	*copy = *map;
	sign = strstr(copy->vm_flags, "uw ");
	if (sign)
		memmove(sign, sign + 3, strlen(sign + 3) + 1);
	return copy;
}

static int add_piece(struct walk *walk, const struct procfs_map *map, struct mapping_range piece,
		     struct err *err)
{
	struct mapping *m = &walk->out->v[walk->out->n];
	struct procfs_map plain;
	int r;

	memset(m, 0, sizeof(*m));
	m->out = message_add(walk->memory, mappings, pbeam__mapping__descriptor);
	if (!m->out)
		return -ENOMEM;
	walk->out->n++;
	r = mapping_from_map(walk->process->tracked ? without_our_sign(map, &plain) : map, m->out, err);
	if (r < 0)
		return r;
	m->out->file_offset += piece.start - map->start;
	m->out->start = piece.start;
	m->out->end = piece.end;
	m->shares = map->shared_bytes != 0;
	m->unreadable = !(map->prot & PROT_READ) || map->pkey;
	if (m->out->kind == PBEAM__MAPPING__KIND__VDSO && map->anonymous_bytes)
		return dump_vdso_text(walk->process, m->out, err);
	if (of_kernel(m->out))
		return 0;
	m->contents = MAPPING_ANONYMOUS;
	if (map->name[0] == '/' && has_file(m->out)) {
		r = add_file(walk, map, m, err);
		if (r < 0)
			return r;
	}
	if (map->shared) {
		m->contents = MAPPING_NOTHING;
		return add_shared(walk, map, m);
	}
	return 0;
}

static void find_ours(struct walk *walk)
{
	struct taddr start, end;

	if (walk->process->scratch.a)
		walk->ours[walk->nours++] = (struct mapping_range){walk->process->scratch.a,
								   walk->process->scratch.a + SCRATCH_BYTES};
	if (walk->process->timeouts.a)
		walk->ours[walk->nours++] =
			(struct mapping_range){walk->process->timeouts.a, walk->process->timeouts.a + 4096};
	if (inject_range(walk->process, &start, &end))
		walk->ours[walk->nours++] = (struct mapping_range){start.a, end.a};
}

static int walk_lines(struct walk *walk, const struct procfs_maps *maps, struct err *err)
{
	for (size_t i = 0; i < maps->n; i++) {
		const struct procfs_map *map = &maps->v[i];
		struct mapping_range pieces[OURS_MAX + 1];
		size_t n = mapping_without((struct mapping_range){map->start, map->end}, walk->ours,
					   walk->nours, pieces);

		if (!strcmp(map->name, "[uprobes]"))
			continue; /* made by the kernel, which makes it again when its probe is hit */
		for (size_t j = 0; j < n; j++) {
			int r = add_piece(walk, map, pieces[j], err);

			if (r < 0)
				return r;
		}
	}
	return 0;
}

int mappings_collect(struct process *process, pid_t tid, const struct procfs_maps *maps,
		     Pbeam__Memory *memory, Pbeam__ScipDumped *dumped, struct mappings *out, struct err *err)
{
	auto_close int root = -1;
	auto_close int fd = -1;
	struct walk walk = {.process = process, .out = out, .memory = memory, .dumped = dumped};
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/root", tid);
	root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return err_sys(err, "open %s", path);
	snprintf(path, sizeof(path), "/proc/%d/maps", tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	walk.root = root;
	walk.maps = fd;
	find_ours(&walk);
	out->v = calloc(maps->n * (OURS_MAX + 1) + 1, sizeof(*out->v));
	if (!out->v)
		return -ENOMEM;
	return walk_lines(&walk, maps, err);
}

void mappings_free(struct mappings *mappings)
{
	for (size_t i = 0; i < mappings->n; i++)
		page_runs_free(&mappings->v[i].runs);
	free(mappings->v);
	memset(mappings, 0, sizeof(*mappings));
}
