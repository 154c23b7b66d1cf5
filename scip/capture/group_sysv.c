/*
 * Dumps the System V objects that the job has made: segments that no process has attached, sets of
 * semaphores, message queues. They outlive processes, so the name table records which ones a job has made.
 * The dump changes no contents: messages are copied (MSG_COPY), segments are attached read-only for a moment,
 * which shows in shm_lpid, shm_atime and shm_dtime.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/page.h"
#include "namespace/record.h"
#include "proto/message.h"
#include "scip/capture/group.h"
#include "scip/dump/page_writer.h"

#ifndef MSG_COPY
#define MSG_COPY 040000
#endif
#define RUN_MAX 256u /* pages written at once */

/* ---- segments ---- */

/* Attached segments have been saved already; they are only marked as made by the job. */
static bool is_attached(Pbeam__Manifest *manifest, int32_t virtual)
{
	for (size_t i = 0; i < manifest->n_shared; i++)
		if (manifest->shared[i]->kind == PBEAM__SHARED_MEMORY__KIND__SYSV &&
		    manifest->shared[i]->sysv_id == virtual) {
			manifest->shared[i]->sysv_own = true;
			return true;
		}
	return false;
}

static int write_segment(struct image_writer *writer, const uint8_t *data, Pbeam__SharedMemory *out,
			 struct err *err)
{
	struct image_arena *arena = image_writer_arena(writer);
	uint64_t pages = (out->size + PAGE - 1) / PAGE;
	int r = 0;

	for (uint64_t at = 0, n; at < pages && r >= 0; at += n ? n : 1) {
		uint64_t offset;

		for (n = 0; at + n < pages && n < RUN_MAX && !page_is_zero(data + (at + n) * PAGE);)
			n++;
		if (n == 0)
			continue;
		offset = image_arena_take(arena, n * PAGE);
		r = io_pwrite_full(image_writer_fd(writer), data + at * PAGE, n * PAGE, (off_t)offset);
		if (r < 0)
			return err_code(err, r, "write the image");
		image_arena_written(arena, offset, n * PAGE);
		r = pages_append(&out->n_pages, &out->pages, at * PAGE, n, offset);
	}
	return r;
}

static int save_segment(struct group *group, struct image_writer *writer, Pbeam__Manifest *manifest, int real,
			struct err *err)
{
	int32_t virtual = names_ipc_virtual(group->names, NAMES_IPC_SHM, real);
	Pbeam__SharedMemory *out;
	struct shmid_ds ds;
	void *data;
	int r;

	if (virtual < 0 || shmctl(real, IPC_STAT, &ds) < 0 || is_attached(manifest, virtual))
		return 0;
	data = shmat(real, NULL, SHM_RDONLY);
	if (data == (void *)-1)
		return err_sys(
			err,
			"the shared memory segment %d (key %#x) cannot be read, so it cannot be saved; "
			"change its mode, or remove it",
			virtual, (unsigned)ds.shm_perm.__key);
	out = message_add(manifest, shared, pbeam__shared_memory__descriptor);
	if (out) {
		out->id = (uint32_t)manifest->n_shared;
		out->kind = PBEAM__SHARED_MEMORY__KIND__SYSV;
		out->ino = (uint64_t)real;
		out->sysv_id = virtual;
		out->sysv_own = true;
		out->sysv_key = ds.shm_perm.__key;
		out->sysv_mode = ds.shm_perm.mode & 0777;
		out->size = ds.shm_segsz;
	}
	r = out ? write_segment(writer, data, out, err) : -ENOMEM;
	shmdt(data);
	return r;
}

/* ---- semaphores ---- */

static int save_set(struct group *group, struct image_writer *writer, Pbeam__Manifest *manifest, int real,
		    struct err *err)
{
	int32_t virtual = names_ipc_virtual(group->names, NAMES_IPC_SEM, real);
	struct semid_ds ds;
	Pbeam__SysvSet *out;

	(void)writer;
	for (size_t i = 0; i < manifest->n_sysv_sets; i++)
		if (manifest->sysv_sets[i]->id == virtual)
			return 0;
	if (virtual < 0)
		return 0;
	if (semctl(real, 0, IPC_STAT, &ds) < 0) {
		if (errno != EACCES)
			return 0; /* removed */
		return err_sys(err,
			       "the set of semaphores %d cannot be read, so it cannot be saved; change its "
			       "mode, or remove it",
			       virtual);
	}
	auto_free unsigned short *values = calloc(ds.sem_nsems + 1, sizeof(*values));
	if (!values)
		return -ENOMEM;
	if (semctl(real, 0, GETALL, values) < 0)
		return err_sys(err,
			       "the set of semaphores %d cannot be read, so it cannot be saved; change its "
			       "mode, or remove it",
			       virtual);
	out = message_add(manifest, sysv_sets, pbeam__sysv_set__descriptor);
	if (!out)
		return -ENOMEM;
	out->id = virtual;
	out->key = ds.sem_perm.__key;
	out->mode = ds.sem_perm.mode & 0777;
	out->uid = ds.sem_perm.uid;
	out->gid = ds.sem_perm.gid;
	for (size_t i = 0; i < ds.sem_nsems; i++)
		if (message_append_u32(&out->values, &out->n_values, values[i]) < 0)
			return -ENOMEM;
	return 0;
}

/* ---- queues ---- */

struct text {
	long type;
	char data[];
};

/* `room` is the size of the largest possible message. */
static int copy_messages(struct image_writer *writer, int real, struct text *buf, size_t room,
			 Pbeam__SysvQueue *out, struct err *err)
{
	for (long index = 0;; index++) {
		ssize_t n = msgrcv(real, buf, room, index, MSG_COPY | IPC_NOWAIT | MSG_NOERROR);
		Pbeam__SysvMessage *message;

		if (n < 0 && errno == ENOMSG)
			return 0;
		if (n < 0)
			return err_sys(
				err,
				"the message queue %d (key %#x) cannot be read, so it cannot be saved; "
				"let the program take its messages, or remove it",
				out->id, (unsigned)out->key);
		message = message_add(out, messages, pbeam__sysv_message__descriptor);
		if (!message)
			return -ENOMEM;
		message->type = buf->type;
		if (n == 0)
			continue;
		message->data = message_new(&pbeam__extent__descriptor);
		if (!message->data)
			return -ENOMEM;
		n = image_writer_put(writer, buf->data, (uint64_t)n, message->data, err);
		if (n < 0)
			return (int)n;
	}
}

static int save_queue(struct group *group, struct image_writer *writer, Pbeam__Manifest *manifest, int real,
		      struct err *err)
{
	int32_t virtual = names_ipc_virtual(group->names, NAMES_IPC_MSG, real);
	struct msqid_ds ds;
	Pbeam__SysvQueue *out;

	for (size_t i = 0; i < manifest->n_sysv_queues; i++)
		if (manifest->sysv_queues[i]->id == virtual)
			return 0;
	if (virtual < 0)
		return 0;
	if (msgctl(real, IPC_STAT, &ds) < 0) {
		if (errno != EACCES)
			return 0; /* removed */
		return err_sys(err,
			       "the message queue %d cannot be read, so it cannot be saved; change its mode, "
			       "or remove it",
			       virtual);
	}
	auto_free struct text *buf = malloc(sizeof(*buf) + ds.__msg_cbytes + 1);
	out = message_add(manifest, sysv_queues, pbeam__sysv_queue__descriptor);
	if (!out || !buf)
		return -ENOMEM;
	out->id = virtual;
	out->key = ds.msg_perm.__key;
	out->mode = ds.msg_perm.mode & 0777;
	out->uid = ds.msg_perm.uid;
	out->gid = ds.msg_perm.gid;
	out->max_bytes = ds.msg_qbytes;
	return copy_messages(writer, real, buf, ds.__msg_cbytes, out, err);
}

/* ---- all ---- */

int group_dump_sysv(struct group *group, struct image_writer *writer, Pbeam__Manifest *manifest,
		    struct err *err)
{
	static int (*const save[NAMES_IPC_KINDS])(struct group *, struct image_writer *, Pbeam__Manifest *,
						  int, struct err *) = {
		[NAMES_IPC_SHM] = save_segment,
		[NAMES_IPC_SEM] = save_set,
		[NAMES_IPC_MSG] = save_queue,
	};
	int r = 0;

	for (unsigned kind = 0; kind < NAMES_IPC_KINDS && r >= 0; kind++) {
		auto_free int32_t *ids = NULL;
		size_t n;

		r = record_ipc_list(group->keeper, kind, &ids, &n);
		for (size_t i = 0; i < n && r >= 0; i++)
			r = save[kind](group, writer, manifest, ids[i], err);
	}
	return r < 0 ? err_wrap(err, r, "System V objects") : 0;
}
