/*
 * Shared memory of the group.
 *
 * All mappings with the same (dev, ino) belong to one SharedMemory. Its contents are saved once:
 *   - from the file, by its name, where it has one (a file of shm_open(), or any writable file small enough),
 *   - by the dump of the objects, where a process of the group has a descriptor of it (memfd, unlinked file),
 *   - else by the scips: each part from the first process that maps it.
 * A file over the limit that is mapped shared is not saved: it remains a mapping of that file, whose identity
 * the restore checks.
 *
 * In a migration, anonymous memory, memory files and System V segments may have been pre-copied
 * (limits.precopy); of these nothing is saved.
 */
#include "scip/capture/group.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/page.h"
#include "proto/message.h"
#include "scip/dump/mappings.h"
#include "scip/dump/page_writer.h"
#include "scip/object/object.h"

#define PRECOPY_LEAST (1ull << 20) /* bytes of an object; less takes no time to send */
#define PRECOPY_MAX   (1ull << 38) /* listing the pages of more takes long */
enum { ANSWER_MS = 600000, SHM_REMOVED = 01000 };

/* One object and its mappings. */
struct object {
	Pbeam__SharedMemory *memory; /* in the manifest; NULL: the mappings remain those of a file */
	bool copied;		     /* from the file */
	struct shared_use *uses;
	size_t n;
};
struct sharing {
	struct object *v;
	size_t n;
};

static void sharing_free(struct sharing *sharing)
{
	for (size_t i = 0; i < sharing->n; i++)
		free(sharing->v[i].uses);
	free(sharing->v);
}

static struct object *find_shared_object(struct sharing *sharing, const Pbeam__SharedRef *ref)
{
	struct object *v;

	for (size_t i = sharing->n; i-- > 0;)
		if (shared_is_same(sharing->v[i].uses[0].ref, ref))
			return &sharing->v[i];
	v = reallocarray(sharing->v, sharing->n + 1, sizeof(*v));
	if (!v)
		return NULL;
	sharing->v = v;
	v[sharing->n] = (struct object){NULL, false, NULL, 0};
	return &v[sharing->n++];
}

static int add_use(struct sharing *sharing, struct member *member, Pbeam__SharedRef *ref)
{
	struct object *object = find_shared_object(sharing, ref);
	struct shared_use *uses;

	if (!object)
		return -ENOMEM;
	uses = reallocarray(object->uses, object->n + 1, sizeof(*uses));
	if (!uses) {
		if (!object->n)
			sharing->n--;
		return -ENOMEM;
	}
	object->uses = uses;
	uses[object->n++] = (struct shared_use){member, ref};
	return 0;
}

static int gather_uses(struct group *group, struct sharing *sharing)
{
	for (size_t i = 0; i < group->n; i++) {
		const Pbeam__ScipDumped *dumped = group->v[i]->dumped;

		for (size_t j = 0; dumped && j < dumped->n_shared; j++)
			if (add_use(sharing, group->v[i], dumped->shared[j]) < 0)
				return -ENOMEM;
	}
	return 0;
}

static bool is_named(const Pbeam__SharedRef *ref)
{
	return ref->kind == PBEAM__SHARED_MEMORY__KIND__POSIX_FILE && ref->file && !ref->file->deleted;
}

static bool any_writable(const struct object *object)
{
	for (size_t i = 0; i < object->n; i++)
		if (object->uses[i].ref->writable)
			return true;
	return false;
}

/* Opens the file of a named object. -1: it is not saved. */
static int open_named(const struct object *object, const struct sharing_limits *limits)
{
	const Pbeam__FileIdentity *file = object->uses[0].ref->file;
	auto_free char *path = message_dup_text(&file->path);
	auto_close int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
	struct statfs fs;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || st.st_ino != file->ino || fstatfs(fd, &fs) < 0)
		return -1;
	if (fs.f_type != TMPFS_MAGIC &&
	    (!any_writable(object) ||
	     (uint64_t)st.st_size > object_file_limit(limits->external, &st, limits->max)))
		return -1;
	return steal_fd(&fd);
}

static int take_identity(Pbeam__SharedMemory *memory, Pbeam__SharedRef *ref)
{
	const char *name = (const char *)ref->name.data;
	size_t len = ref->name.len;

	if (len > 7 && !memcmp(name, "/memfd:", 7)) {
		name += 7;
		len -= 7;
	}
	memory->kind = (Pbeam__SharedMemory__Kind)ref->kind;
	memory->dev = ref->dev;
	memory->ino = ref->ino;
	memory->file = ref->file;
	ref->file = NULL;
	return message_bytes(&memory->name, name, len);
}

static int describe_sysv(struct names *names, Pbeam__SharedMemory *memory, struct err *err)
{
	struct shmid_ds ds;

	if (shmctl((int)memory->ino, IPC_STAT, &ds) < 0)
		return err_sys(err, "System V segment %lu", (unsigned long)memory->ino);
	memory->sysv_id = names_ipc_virtual(names, NAMES_IPC_SHM, (int32_t)memory->ino);
	memory->sysv_key = ds.shm_perm.__key;
	memory->sysv_mode = ds.shm_perm.mode & 0777;
	memory->sysv_removed = (ds.shm_perm.mode & SHM_REMOVED) != 0;
	memory->size = ds.shm_segsz;
	return 0;
}

/* Adds the manifest's entry of one object; the contents of a named one are copied at once. */
static int describe_object(struct object *object, struct names *names, struct image_writer *writer,
			   Pbeam__Manifest *manifest, const struct sharing_limits *limits, struct err *err)
{
	Pbeam__SharedRef *first = object->uses[0].ref;
	auto_close int fd = -1;
	struct stat st;
	int r;

	if (is_named(first)) {
		fd = open_named(object, limits);
		if (fd < 0)
			return 0;
	}
	object->memory = message_add(manifest, shared, pbeam__shared_memory__descriptor);
	if (!object->memory)
		return -ENOMEM;
	object->memory->id = (uint32_t)manifest->n_shared;
	r = take_identity(object->memory, first);
	for (size_t i = 0; i < object->n; i++) {
		const struct shared_use *use = &object->uses[i];
		Pbeam__Mapping *mapping = use->member->process->memory->mappings[use->ref->mapping];
		uint64_t end = use->ref->offset + (use->ref->end - use->ref->start);

		mapping->shared_id = object->memory->id;
		if (mapping->kind == PBEAM__MAPPING__KIND__FILE_SHARED)
			mapping->kind = PBEAM__MAPPING__KIND__SHARED_MEMORY;
		if (object->memory->size < end)
			object->memory->size = end;
	}
	if (r >= 0 && object->memory->kind == PBEAM__SHARED_MEMORY__KIND__SYSV)
		r = describe_sysv(names, object->memory, err);
	if (r < 0 || fd < 0)
		return r;
	if (fstat(fd, &st) < 0)
		return err_sys(err, "look at a shared file");
	object->memory->size = (uint64_t)st.st_size;
	object->copied = true;
	return object_files_write(writer, manifest, fd, &st, &object->memory->n_pages, &object->memory->pages,
				  err);
}

/* True if the process has a descriptor of this object; *size is the object's size then. */
static bool holds_object(const struct member *member, uint64_t dev, uint64_t ino, uint64_t *size)
{
	auto_closedir DIR *dir = NULL;
	const struct dirent *entry;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fd", member->rpid.n);
	dir = opendir(path);
	while (dir && (entry = readdir(dir))) {
		struct stat st;

		if (entry->d_name[0] != '.' && fstatat(dirfd(dir), entry->d_name, &st, 0) == 0 &&
		    st.st_ino == ino && st.st_dev == dev) {
			*size = (uint64_t)st.st_size;
			return true;
		}
	}
	return false;
}

/* True if the dump of the objects will save it. */
static bool is_held(const struct group *group, const struct object *object, uint64_t *size)
{
	const Pbeam__SharedRef *ref = object->uses[0].ref;

	if (ref->kind != PBEAM__SHARED_MEMORY__KIND__MEMFD &&
	    ref->kind != PBEAM__SHARED_MEMORY__KIND__POSIX_FILE)
		return false;
	for (size_t i = 0; i < group->n; i++)
		if (group_has_contents(group->v[i]) && holds_object(group->v[i], ref->dev, ref->ino, size))
			return true;
	return false;
}

/* The request to one member, and the objects that the pages of its reply belong to. */
struct order {
	Pbeam__ScipDumpShared request;
	Pbeam__SharedMemory **whose;
	size_t n;
};

static int order_part(struct order *order, const struct shared_use *use, struct mapping_range part,
		      Pbeam__SharedMemory *memory)
{
	Pbeam__SharedRef *range = message_add(&order->request, ranges, pbeam__shared_ref__descriptor);
	Pbeam__SharedMemory **whose;

	if (!range)
		return -ENOMEM;
	range->start = use->ref->start + (part.start - use->ref->offset);
	range->end = use->ref->start + (part.end - use->ref->offset);
	range->offset = part.start;
	range->swapped = use->ref->swapped;
	range->unreadable = use->ref->unreadable;
	whose = reallocarray(order->whose, order->n + 1, sizeof(Pbeam__SharedMemory *));
	if (!whose)
		return -ENOMEM;
	order->whose = whose;
	whose[order->n++] = memory;
	return 0;
}

/* Orders each part of the object from the first member that maps it. `orders[i]` is for group->v[i]. */
static int distribute_pages(const struct group *group, const struct object *object,
			    Pbeam__SharedMemory *memory, struct order *orders)
{
	auto_free struct mapping_range *covered = calloc(object->n, sizeof(*covered));
	auto_free struct mapping_range *parts = calloc(object->n + 1, sizeof(*parts));
	size_t who = 0;

	if (!covered || !parts)
		return -ENOMEM;
	for (size_t i = 0; i < object->n; i++) {
		const struct shared_use *use = &object->uses[i];
		struct mapping_range whole = {use->ref->offset,
					      use->ref->offset + (use->ref->end - use->ref->start)};
		size_t n = mapping_without(whole, covered, i, parts);

		while (group->v[who] != use->member)
			who++;
		for (size_t j = 0; j < n; j++)
			if (order_part(&orders[who], use, parts[j], memory) < 0)
				return -ENOMEM;
		covered[i] = whole;
	}
	return 0;
}

static int take_pages(const struct order *order, Pbeam__ScipDumpedShared *answer, struct err *err)
{
	if (answer->n_ranges != order->n)
		return err_set(err, -EPROTO, "a scip answered for %zu parts of shared memory instead of %zu",
			       answer->n_ranges, order->n);
	for (size_t i = 0; i < order->n; i++) {
		const Pbeam__SharedPages *from = answer->ranges[i];
		Pbeam__SharedMemory *to = order->whose[i];

		for (size_t j = 0; j < from->n_pages; j++)
			if (pages_append(&to->n_pages, &to->pages, from->pages[j]->address,
					 from->pages[j]->count, from->pages[j]->offset) < 0)
				return -ENOMEM;
	}
	return 0;
}

static int send_orders(struct group *group, struct image_writer *writer, struct order *orders,
		       struct err *err)
{
	const int fds[2] = {image_writer_fd(writer), image_writer_arena_fd(writer)};
	int r;

	for (size_t i = 0; i < group->n; i++)
		if (orders[i].n)
			group_ask(group->v[i], PBEAM__SCIP_REQUEST__SCIP_DUMP_SHARED, &orders[i].request.base,
				  fds, 2);
	r = group_gather(group, &pbeam__scip_dumped_shared__descriptor, ANSWER_MS, err);
	if (r >= 0)
		r = group_problem(group, err);
	for (size_t i = 0; i < group->n && r >= 0; i++)
		if (orders[i].n)
			r = take_pages(&orders[i], (void *)group->v[i]->reply, err);
	return r;
}

static struct order *new_orders(const struct group *group, const struct sharing_limits *limits,
				bool list_only)
{
	struct order *orders = calloc(group->n, sizeof(*orders));

	for (size_t i = 0; i < group->n && orders; i++) {
		pbeam__scip_dump_shared__init(&orders[i].request);
		orders[i].request.list_only = list_only;
		orders[i].request.swapped_out = limits->swapped_out;
	}
	return orders;
}

static void free_orders(const struct group *group, struct order *orders)
{
	for (size_t i = 0; orders && i < group->n; i++) {
		for (size_t j = 0; j < orders[i].request.n_ranges; j++)
			message_free(orders[i].request.ranges[j]);
		free(orders[i].request.ranges);
		free(orders[i].whose);
	}
	free(orders);
}

static int dump_by_scips(struct group *group, struct image_writer *writer, struct sharing *sharing,
			 const struct sharing_limits *limits, struct err *err)
{
	struct order *orders = new_orders(group, limits, false);
	int r = orders ? 0 : -ENOMEM;
	uint64_t size;

	for (size_t i = 0; i < sharing->n && r >= 0; i++) {
		const struct object *object = &sharing->v[i];

		if (object->memory && !object->copied && !object->memory->precopied &&
		    !is_held(group, object, &size))
			r = distribute_pages(group, object, object->memory, orders);
	}
	if (r >= 0)
		r = send_orders(group, writer, orders, err);
	free_orders(group, orders);
	return r;
}

/* ---- pre-copy ---- */

/* True if the object is large enough to be pre-copied, and all of it is mapped, readable and in memory. A
 * named file is left out, as the target may have it. */
static bool can_be_precopied(const struct group *group, const struct object *object, uint64_t *size)
{
	const Pbeam__SharedRef *first = object->uses[0].ref;
	auto_free struct mapping_range *covered = calloc(object->n, sizeof(*covered));
	auto_free struct mapping_range *parts = calloc(object->n + 1, sizeof(*parts));

	*size = 0;
	if (!covered || !parts ||
	    (first->kind != PBEAM__SHARED_MEMORY__KIND__ANON &&
	     first->kind != PBEAM__SHARED_MEMORY__KIND__MEMFD &&
	     first->kind != PBEAM__SHARED_MEMORY__KIND__SYSV))
		return false;
	for (size_t i = 0; i < object->n; i++) {
		const Pbeam__SharedRef *ref = object->uses[i].ref;

		if (ref->swapped || ref->unreadable)
			return false;
		covered[i] = (struct mapping_range){ref->offset, ref->offset + (ref->end - ref->start)};
		*size = *size > covered[i].end ? *size : covered[i].end;
	}
	if (is_held(group, object, size) &&
	    mapping_without((struct mapping_range){0, *size}, covered, object->n, parts))
		return false;
	return *size >= PRECOPY_LEAST && *size <= PRECOPY_MAX;
}

static int list_pages(struct group *group, struct image_writer *writer, const struct sharing *sharing,
		      const struct sharing_limits *limits, struct shared_object *list, struct err *err)
{
	struct order *orders = new_orders(group, limits, true);
	int r = orders ? 0 : -ENOMEM;

	for (size_t i = 0; i < sharing->n && r >= 0; i++)
		if (list[i].there)
			r = distribute_pages(group, &sharing->v[i], list[i].there, orders);
	if (r >= 0)
		r = send_orders(group, writer, orders, err);
	free_orders(group, orders);
	return r;
}

/* Lists the objects that can be pre-copied (the others have `there` NULL), and lets limits->precopy choose.
 */
static int choose_precopied(struct group *group, struct image_writer *writer, const struct sharing *sharing,
			    const struct sharing_limits *limits, struct shared_object *list, struct err *err)
{
	size_t n = 0;
	int r;

	for (size_t i = 0; i < sharing->n; i++) {
		list[i].uses = sharing->v[i].uses;
		list[i].n = sharing->v[i].n;
		if (!can_be_precopied(group, &sharing->v[i], &list[i].size))
			continue;
		list[i].there = message_new(&pbeam__shared_memory__descriptor);
		if (!list[i].there)
			return -ENOMEM;
		n++;
	}
	r = n ? list_pages(group, writer, sharing, limits, list, err) : 0;
	return r < 0 ? r : limits->precopy(limits->precopy_arg, list, sharing->n, err);
}

/* Marks the objects of which everything has been pre-copied. */
static int mark_precopied(struct group *group, struct image_writer *writer, struct sharing *sharing,
			  const struct sharing_limits *limits, struct err *err)
{
	struct shared_object *list = calloc(sharing->n + 1, sizeof(*list));
	int r = list ? choose_precopied(group, writer, sharing, limits, list, err) : -ENOMEM;

	for (size_t i = 0; list && i < sharing->n; i++) {
		Pbeam__SharedMemory *memory = sharing->v[i].memory, *there = list[i].there;

		if (r >= 0 && there && there->precopied && memory) {
			memory->precopied = there->precopied;
			if (memory->kind != PBEAM__SHARED_MEMORY__KIND__SYSV)
				memory->size = list[i].size;
			memory->n_sent = there->n_sent;
			memory->sent = there->sent;
			there->n_sent = 0;
			there->sent = NULL;
		}
		message_free(there);
	}
	free(list);
	return r;
}

int group_list_shared(struct group *group, struct image_writer *writer, Pbeam__Manifest *manifest,
		      const struct sharing_limits *limits, struct err *err)
{
	struct sharing sharing = {NULL, 0};
	struct shared_object *list = NULL;
	int r = gather_uses(group, &sharing);

	if (r >= 0 && sharing.n) {
		list = calloc(sharing.n, sizeof(*list));
		r = list ? choose_precopied(group, writer, &sharing, limits, list, err) : -ENOMEM;
	}
	for (size_t i = 0; list && i < sharing.n; i++) {
		Pbeam__SharedMemory *there = list[i].there, *out;

		out = r >= 0 && there && there->precopied
			      ? message_add(manifest, shared, pbeam__shared_memory__descriptor)
			      : NULL;
		if (out) {
			out->id = out->precopied = there->precopied;
			out->size = list[i].size;
			r = take_identity(out, sharing.v[i].uses[0].ref);
		} else if (r >= 0 && there && there->precopied) {
			r = -ENOMEM;
		}
		message_free(there);
	}
	free(list);
	sharing_free(&sharing);
	return r < 0 ? err_wrap(err, r, "shared memory") : 0;
}

int group_dump_shared(struct group *group, struct image_writer *writer, Pbeam__Manifest *manifest,
		      const struct sharing_limits *limits, struct err *err)
{
	struct sharing sharing = {NULL, 0};
	int r = gather_uses(group, &sharing);

	for (size_t i = 0; i < sharing.n && r >= 0; i++)
		r = describe_object(&sharing.v[i], group->names, writer, manifest, limits, err);
	if (r >= 0 && sharing.n && limits->precopy)
		r = mark_precopied(group, writer, &sharing, limits, err);
	if (r >= 0 && sharing.n)
		r = dump_by_scips(group, writer, &sharing, limits, err);
	sharing_free(&sharing);
	return r < 0 ? err_wrap(err, r, "shared memory") : 0;
}
