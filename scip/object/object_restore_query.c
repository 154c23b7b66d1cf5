/* Queries that a kind makes to the restore that it is part of. */
#include <errno.h>
#include <unistd.h>

#include "scip/object/common.h"
#include "scip/object/object_end.h"
#include "scip/object/object_restore.h"
#include "scip/object/object_table.h"
#include "scip/object/terminal.h"

struct names *object_restore_names(struct object_restore *restore)
{
	return restore->names;
}

struct image_reader *object_restore_image(struct object_restore *restore)
{
	return restore->image;
}

const Pbeam__Manifest *object_restore_manifest(const struct object_restore *restore)
{
	return restore->manifest;
}

bool object_restore_force(const struct object_restore *restore)
{
	return restore->force;
}

int object_restore_console(struct object_restore *restore, int index)
{
	return index >= 0 && index < 3 ? restore->console[index] : -1;
}

const struct object_ops *object_ops_of(const Pbeam__Object *object)
{
	for (size_t i = 0; object_table[i]; i++)
		if (object_table[i]->kind == object->kind_case)
			return object_table[i];
	return NULL;
}

int object_restore_peek(struct object_restore *restore, uint32_t id)
{
	return id >= 1 && id <= restore->nslots ? restore->slots[id - 1].fd : -1;
}

const Pbeam__Object *object_restore_object(const struct object_restore *restore, uint32_t id)
{
	return id >= 1 && id <= restore->nslots ? restore->slots[id - 1].object : NULL;
}

const Pbeam__Object *object_restore_same_inode(struct object_restore *restore, uint64_t ino,
					       const Pbeam__Object *after)
{
	const struct object_slot *slot;
	size_t first;

	if (after) {
		slot = restore->slots[after->id - 1].next_same;
		return slot ? slot->object : NULL;
	}
	first = u64_map_find(&restore->inodes, ino);
	return first == U64_MAP_NONE ? NULL : restore->slots[first].object;
}

const Pbeam__Object *object_restore_find_inode(struct object_restore *restore, uint64_t ino,
					       const Pbeam__Object *skip)
{
	const Pbeam__Object *object = object_restore_same_inode(restore, ino, NULL);

	return object && object == skip ? object_restore_same_inode(restore, ino, object) : object;
}

void object_restore_put(struct object_restore *restore, uint32_t id, int fd)
{
	struct object_slot *slot = id >= 1 && id <= restore->nslots ? &restore->slots[id - 1] : NULL;

	if (!slot || slot->fd >= 0) {
		close(fd);
		return;
	}
	slot->fd = fd;
	slot->state = OBJECT_MADE;
}

int object_restore_keep(struct object_restore *restore, Pbeam__Object__KindCase kind, uint64_t key, int fd,
			struct err *err)
{
	size_t same = u64_map_find(&restore->kept_keys, key);
	struct object_kept kept = {
		.kind = kind, .key = key, .fd = fd, .next = same == U64_MAP_NONE ? 0 : same + 1};

	if (u64_map_set(&restore->kept_keys, key, restore->nkept) == 0 &&
	    object_append(restore->kept, restore->nkept, kept) == 0)
		return 0;
	close(fd);
	return object_no_memory(err);
}

int object_restore_kept(struct object_restore *restore, Pbeam__Object__KindCase kind, uint64_t key)
{
	size_t at = restore->nkept ? u64_map_find(&restore->kept_keys, key) : U64_MAP_NONE;

	for (size_t next = at == U64_MAP_NONE ? 0 : at + 1; next; next = restore->kept[next - 1].next)
		if (restore->kept[next - 1].kind == kind)
			return restore->kept[next - 1].fd;
	return -1;
}

int object_restore_renamed_pts(struct object_restore *restore, int saved, int now, struct err *err)
{
	struct object_pts pts = {.saved = saved, .now = now};

	return object_append(restore->pts, restore->npts, pts) == 0 ? 0 : object_no_memory(err);
}

int object_restore_map_path(struct object_restore *restore, const char *path, char *buf, size_t size,
			    struct err *err)
{
	int number = terminal_path_number(path);

	for (size_t i = 0; i < restore->nslots && number >= 0; i++) {
		const Pbeam__Tty *tty = object_tty_of(restore->slots[i].object);
		int fd;

		if (!tty || !tty->path.len || tty->pty != (uint64_t)number)
			continue;
		fd = object_restore_get(restore, restore->slots[i].object->id, err);
		if (fd < 0)
			return fd;
		for (size_t j = 0; j < restore->npts; j++)
			if (restore->pts[j].saved == number) {
				snprintf(buf, size, "/dev/pts/%d", restore->pts[j].now);
				return 1;
			}
	}
	return 0;
}

int object_get_extent(struct object_restore *restore, const Pbeam__Extent *extent, char **data, size_t *len,
		      struct err *err)
{
	auto_free char *buf = NULL;
	int r;

	*data = NULL;
	*len = extent ? extent->length : 0;
	buf = malloc(*len ? *len : 1);
	if (!buf)
		return object_no_memory(err);
	if (*len) {
		r = image_reader_get(object_restore_image(restore), extent, buf, err);
		if (r < 0)
			return r;
	}
	*data = steal_ptr(&buf);
	return 0;
}

bool object_restore_is_beside(const struct object_restore *restore)
{
	return restore->beside;
}

int object_restore_name_error(const struct object_restore *restore, const struct object_slot *slot, int code,
			      struct err *err)
{
	for (size_t i = 0; i < restore->manifest->n_processes; i++) {
		const Pbeam__Process *process = restore->manifest->processes[i];

		for (size_t j = 0; j < process->n_descriptors; j++)
			if (process->descriptors[j]->object == slot->object->id)
				return err_wrap(err, code, "vpid %d: fd %d (%s)", process->vpid,
						process->descriptors[j]->fd, slot->ops->name);
	}
	return err_wrap(err, code, "a passed descriptor (%s)", slot->ops->name);
}

int object_restore_get(struct object_restore *restore, uint32_t id, struct err *err)
{
	struct object_slot *slot;
	int fd = -1, r;

	if (id < 1 || id > restore->nslots)
		return err_set(err, -EBADMSG, "the image refers to object %u, which it does not have", id);
	slot = &restore->slots[id - 1];
	if (slot->state == OBJECT_MADE)
		return slot->fd;
	if (slot->state == OBJECT_MAKING)
		return err_set(err, -ELOOP, "the image's object %u needs itself", id);
	slot->state = OBJECT_MAKING;
	if (slot->object->external)
		r = restore->external->make(restore->external->arg, restore, slot->object, &fd, err);
	else
		r = slot->ops->restore(restore, slot->object, &fd, err);
	if (r == 0 && !restore->beside)
		r = object_locks_restore(slot->object, fd, err);
	if (r < 0) {
		if (fd >= 0 && fd != slot->fd)
			close(fd);
		slot->state = OBJECT_ABSENT;
		return object_restore_name_error(restore, slot, r, err);
	}
	slot->fd = fd;
	slot->state = OBJECT_MADE;
	return fd;
}
