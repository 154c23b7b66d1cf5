/*
 * The restore of all objects, in the coordinator. check_all() changes nothing. make_all() makes every object,
 * also on demand of others, except those that name processes. finish_all() makes those, refills queues, then
 * sets what would disturb the refilling or names processes: status flags, owners. Files change as one
 * transaction (image/file_undo.h).
 */
#include "scip/object/object_restore.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/io.h"
#include "image/file_undo.h"
#include "namespace/record.h"
#include "scip/object/common.h"
#include "scip/object/object_end.h"
#include "scip/object/terminal.h"

/* Adds the slot to those with an end of its inode number. 0 or -ENOMEM. */
static int index_inode(struct object_restore *restore, struct object_slot *slot)
{
	const struct object_end_ops *end = slot->ops->end;
	uint64_t ino = end && end->ino ? end->ino(slot->object) : 0;
	struct object_slot *first;
	size_t at;

	if (!ino)
		return 0;
	at = u64_map_find(&restore->inodes, ino);
	if (at == U64_MAP_NONE) {
		slot->last_same = slot;
		return u64_map_set(&restore->inodes, ino, (size_t)(slot - restore->slots));
	}
	first = &restore->slots[at];
	first->last_same->next_same = slot;
	first->last_same = slot;
	return 0;
}

static int fill_slots(struct object_restore *restore, struct err *err)
{
	const Pbeam__Manifest *manifest = restore->manifest;

	restore->slots = calloc(manifest->n_objects ? manifest->n_objects : 1, sizeof(*restore->slots));
	if (!restore->slots)
		return object_no_memory(err);
	restore->nslots = manifest->n_objects;
	for (size_t i = 0; i < restore->nslots; i++)
		restore->slots[i].fd = -1;
	for (size_t i = 0; i < restore->nslots; i++) {
		const Pbeam__Object *object = manifest->objects[i];
		struct object_slot *slot;

		if (object->id < 1 || object->id > restore->nslots || restore->slots[object->id - 1].object)
			return err_set(err, -EBADMSG, "the image's object ids are malformed");
		slot = &restore->slots[object->id - 1];
		slot->object = object;
		slot->ops = object_ops_of(object);
		/* Every pointer of the union is of the same kind: set, or the image is malformed. */
		if (!slot->ops || !object->regular)
			return err_set(err, -EBADMSG, "the image's object %u is of no known kind",
				       object->id);
		if (index_inode(restore, slot) < 0)
			return object_no_memory(err);
	}
	for (size_t i = 0; i < manifest->n_processes; i++)
		for (size_t j = 0; j < manifest->processes[i]->n_descriptors; j++) {
			uint32_t id = manifest->processes[i]->descriptors[j]->object;

			if (id < 1 || id > restore->nslots)
				return err_set(err, -EBADMSG, "vpid %d: fd %d refers to no object",
					       manifest->processes[i]->vpid,
					       manifest->processes[i]->descriptors[j]->fd);
		}
	return 0;
}

int object_restore_open(struct object_restore **out, struct names *names, struct image_reader *image,
			bool force, const int console[3], struct err *err)
{
	struct object_restore *restore = calloc(1, sizeof(*restore));
	int r;

	if (!restore)
		return object_no_memory(err);
	restore->names = names;
	restore->image = image;
	restore->manifest = image_reader_manifest(image);
	restore->force = force;
	for (int i = 0; i < 3; i++)
		restore->console[i] = console ? console[i] : -1;
	io_raise_descriptor_limit();
	r = fill_slots(restore, err);
	if (r < 0) {
		object_restore_close(restore);
		return r;
	}
	*out = restore;
	return 0;
}

static void release_descriptors(struct object_restore *restore)
{
	for (size_t i = 0; i < restore->nslots; i++) {
		if (restore->slots[i].fd >= 0)
			close(restore->slots[i].fd);
		restore->slots[i].fd = -1;
	}
	for (size_t i = 0; i < restore->nkept; i++)
		close(restore->kept[i].fd);
	restore->nkept = 0;
}

void object_restore_close(struct object_restore *restore)
{
	if (!restore)
		return;
	object_restore_give_back(restore);
	file_undo_close(restore->undo);
	release_descriptors(restore);
	free(restore->slots);
	free(restore->kept);
	u64_map_free(&restore->inodes);
	u64_map_free(&restore->kept_keys);
	free(restore->pts);
	free(restore);
}

void object_restore_set_external(struct object_restore *restore, const struct object_external *external)
{
	restore->external = external;
}

static int check_slot(struct object_restore *restore, const struct object_slot *slot, struct err *err)
{
	int r;

	if (slot->object->external && !restore->external)
		return err_set(err, -ENOTSUP, "the image's object %u is of a migration: it needs who sent it",
			       slot->object->id);
	if (slot->object->external || !slot->ops->check)
		return 0;
	r = slot->ops->check(restore, slot->object, err);
	return r < 0 ? object_restore_name_error(restore, slot, r, err) : r;
}

int object_restore_check_each(struct object_restore *restore, int (*pass)(void *arg, int r), void *arg,
			      struct err *err)
{
	int r = pass(arg, object_files_check(restore, err));

	for (size_t i = 0; i < restore->nslots && r == 0; i++)
		r = pass(arg, check_slot(restore, &restore->slots[i], err));
	return r;
}

static int pass_result(void *arg, int r)
{
	return r;
}

int object_restore_check_all(struct object_restore *restore, struct err *err)
{
	return object_restore_check_each(restore, pass_result, NULL, err);
}

static int slot_record_peer(const struct object_slot *slot, struct rpid keeper, struct err *err)
{
	const Pbeam__Object *object = slot->object;
	struct stat st;
	int r;

	if (object->kind_case != PBEAM__OBJECT__KIND_UNIX_SOCKET || !object->unix_socket->peer_cred)
		return 0;
	if (fstat(slot->fd, &st) < 0)
		return err_sys(err, "look at a UNIX socket");
	r = record_peer_add(keeper, st.st_ino, (struct vpid){object->unix_socket->peer_cred->vid});
	return r < 0 ? err_code(err, r, "record the peer of a UNIX socket") : 0;
}

int object_restore_record(struct object_restore *restore, struct rpid keeper, struct err *err)
{
	for (size_t i = 0; i < restore->nslots; i++) {
		int r = slot_record_peer(&restore->slots[i], keeper, err);

		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < restore->npts; i++) {
		int r = record_pts_bind(restore->names, keeper, restore->pts[i].saved, restore->pts[i].now);

		if (r < 0)
			return err_code(err, r, "record what /dev/pts/%d is now", restore->pts[i].saved);
	}
	return 0;
}

int object_restore_make_all(struct object_restore *restore, struct err *err)
{
	int r = file_undo_place(restore->undo, err);

	if (r == 0 && restore->early)
		r = file_undo_switch(restore->undo, err);
	/* The others would use up pages of the user's that the large pipes need (pipe(7)). */
	for (size_t i = 0; i < restore->nslots && r >= 0; i++)
		if (object_pipe_is_large(restore->slots[i].object))
			r = object_restore_get(restore, (uint32_t)i + 1, err);
	for (size_t i = 0; i < restore->nslots && r >= 0; i++)
		if (!restore->slots[i].ops->late)
			r = object_restore_get(restore, (uint32_t)i + 1, err);
	return r < 0 ? r : 0;
}

/* These would be affected by a restored file: watches report it, queues are written, leases break. */
static bool minds_files(const Pbeam__Object *object)
{
	return object->kind_case == PBEAM__OBJECT__KIND_INOTIFY ||
	       object->kind_case == PBEAM__OBJECT__KIND_MQUEUE || object->lease;
}

bool object_restore_wait(struct object_restore *restore)
{
	for (size_t i = 0; i < restore->nslots; i++)
		if (minds_files(restore->slots[i].object))
			return false;
	return true;
}

int object_restore_prepare_files(struct object_restore *restore, struct err *err)
{
	int r = file_undo_open(&restore->undo, restore->image, getppid(), err);

	if (r == 0)
		r = object_files_list(restore, restore->undo, err);
	restore->early = !object_restore_wait(restore);
	return r < 0 ? r : file_undo_prepare(restore->undo, restore->early || restore->external, err);
}

bool object_restore_puts_back(const struct object_restore *restore, int fd)
{
	return file_undo_has(restore->undo, fd);
}

int object_restore_put_back(struct object_restore *restore, struct err *err)
{
	return file_undo_switch(restore->undo, err);
}

int object_restore_hold(struct object_restore *restore, struct err *err)
{
	return file_undo_hold(restore->undo, err);
}

void object_restore_take_back(struct object_restore *restore, struct err *err)
{
	release_descriptors(restore); /* there may be none left to open a file with */
	file_undo_take_back(restore->undo, err);
}

void object_restore_settle(struct object_restore *restore)
{
	file_undo_settle(restore->undo);
}

static int set_status(const Pbeam__Object *object, int fd, struct err *err)
{
	int flags;

	if (object->flags & O_PATH)
		return 0;
	flags = fcntl(fd, F_GETFL);
	if (flags < 0)
		return err_sys(err, "read its flags");
	if ((flags ^ (int)object->flags) & OBJECT_STATUS_FLAGS &&
	    fcntl(fd, F_SETFL, (flags & ~OBJECT_STATUS_FLAGS) | (int)(object->flags & OBJECT_STATUS_FLAGS)) <
		    0)
		return err_sys(err, "set its flags to 0%o", object->flags);
	return 0;
}

static int set_owner(struct object_restore *restore, const Pbeam__Object *object, int fd, struct err *err)
{
	struct f_owner_ex owner = {.type = object->owner_type};

	if (object->owner_signal && fcntl(fd, F_SETSIG, object->owner_signal) < 0)
		return err_sys(err, "set the signal of its owner");
	if (object->owner_vid == 0)
		return 0;
	owner.pid = names_real(restore->names, (struct vpid){object->owner_vid}).n;
	if (fcntl(fd, F_SETOWN_EX, &owner) < 0 && errno != ESRCH) /* an owner that has ended stays so */
		return err_sys(err, "set its owner");
	return 0;
}

static int finish_slot(struct object_restore *restore, const struct object_slot *slot, struct err *err)
{
	int r = 0;

	if (slot->shared)
		return 0; /* object_restore_take_over() */
	if (slot->object->external)
		r = restore->external->finish(restore->external->arg, restore, slot->object, slot->fd, err);
	else if (slot->ops->finish)
		r = slot->ops->finish(restore, slot->object, slot->fd, err);
	return r < 0 ? object_restore_name_error(restore, slot, r, err) : 0;
}

/* A stream of the present console. */
static bool slot_is_stream(const struct object_restore *restore, const struct object_slot *slot)
{
	pid_t self = getpid();

	if (slot->object->kind_case == PBEAM__OBJECT__KIND_CONSOLE)
		return true;
	for (int i = 0; i < 3; i++)
		if (slot->object->kind_case == PBEAM__OBJECT__KIND_REGULAR &&
		    slot->object->regular->console && restore->console[i] >= 0 &&
		    syscall(SYS_kcmp, self, self, KCMP_FILE, (unsigned long)slot->fd,
			    (unsigned long)restore->console[i]) == 0)
			return true;
	return false;
}

int object_restore_set_state(struct object_restore *restore, const struct object_slot *slot, struct err *err)
{
	int r = set_status(slot->object, slot->fd, err);

	if (r == 0)
		r = set_owner(restore, slot->object, slot->fd, err);
	return r < 0 ? object_restore_name_error(restore, slot, r, err) : 0;
}

int object_restore_finish_all(struct object_restore *restore, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < restore->nslots && r >= 0; i++)
		r = object_restore_get(restore, (uint32_t)i + 1, err);
	for (int phase = 0; phase <= 2; phase++)
		for (size_t i = 0; i < restore->nslots && r >= 0; i++)
			if (restore->slots[i].ops->phase == phase)
				r = finish_slot(restore, &restore->slots[i], err);
	for (size_t i = 0; i < restore->nslots && r >= 0; i++) {
		const struct object_slot *slot = &restore->slots[i];

		if (slot->shared || slot_is_stream(restore, slot))
			continue; /* the keeper's is shared with the outside */
		r = object_restore_set_state(restore, slot, err);
	}
	for (size_t i = 0; i < restore->nkept; i++)
		close(restore->kept[i].fd);
	restore->nkept = 0;
	u64_map_free(&restore->kept_keys);
	return r < 0 ? r : 0;
}

/* ---- in the processes ---- */

bool object_wants_install(const Pbeam__Object *object)
{
	const struct object_ops *ops = object_ops_of(object);

	return (ops && ops->install) || object->lease || (object->flags & O_ASYNC);
}

static int install_object(struct names *names, const Pbeam__Object *object, const Pbeam__Process *process,
			  int fd, struct batch *batch, struct err *err)
{
	const struct object_ops *ops = object_ops_of(object);
	int r = 0;

	if (object->lease)
		r = batch_add(batch, 0, SYS_fcntl,
			      remote_args((uint64_t)fd, F_SETLEASE, object->lease == 2 ? F_WRLCK : F_RDLCK));
	if (r >= 0 && object->flags & O_ASYNC)
		r = batch_add(batch, 0, SYS_fcntl,
			      remote_args((uint64_t)fd, F_SETFL, object->flags & ~(uint32_t)O_PATH));
	if (r >= 0 && ops && ops->install)
		r = ops->install(names, object, process, fd, batch, err);
	return r < 0 ? r : 0;
}

int object_install_all(struct names *names, Pbeam__Object *const *objects, size_t nobjects,
		       const Pbeam__Process *process, struct batch *batch, struct err *err)
{
	int r = object_locks_install(process, batch);
	struct u64_map ids = {0};

	for (size_t i = 0; i < nobjects && r >= 0; i++)
		r = object_wants_install(objects[i]) ? u64_map_set(&ids, objects[i]->id, i) : 0;
	for (size_t i = 0; i < process->n_descriptors && r >= 0; i++) {
		size_t at = u64_map_find(&ids, process->descriptors[i]->object);

		if (at != U64_MAP_NONE)
			r = install_object(names, objects[at], process, process->descriptors[i]->fd, batch,
					   err);
	}
	u64_map_free(&ids);
	return r < 0 ? r : 0;
}
