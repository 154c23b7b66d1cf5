/*
 * System V semaphores and message queues, and the semaphore adjustments of processes.
 *
 * An object that outlived its processes (its id exists with its key and size) is reused; else a new one is
 * made under another id, which is translated from then on. Objects that the job made after the checkpoint are
 * removed when the whole job is rolled back.
 *
 * A process gets its adjustments by operations of its own that leave the values as they are: the semaphore
 * down to zero, the adjustment with SEM_UNDO and back without, the semaphore up again, all in one semop().
 * Setting values from outside would clear adjustments, and comes before.
 *
 * In a rollback an object that the old processes have keeps its contents until the commit, and so do the
 * names. When they have ended, which applies their adjustments, it gets the saved contents, and the new
 * processes their adjustments (SCIP_RESTORE_TAKE). An object that was made for a rollback that fails is
 * removed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/page.h"
#include "namespace/record.h"
#include "scip/rebuild/rebuild_parts.h"
#include "scip/tracee/remote.h"

enum { MODE_BITS = 0777, VALUE_MAX = 32767, OPS_MAX = 4 };

#define HOW_TO_REMOVE                                                                                        \
	"remove the old one with ipcrm, or use --replace if the program has made it since the checkpoint"

union semun {
	int val;
	struct semid_ds *buf;
	unsigned short *array;
};

/* ---- objects that exist but are not in the image ---- */

static bool is_saved(const Pbeam__Manifest *manifest, unsigned kind, int32_t virtual)
{
	for (size_t i = 0; kind == NAMES_IPC_SHM && i < manifest->n_shared; i++)
		if (manifest->shared[i]->kind == PBEAM__SHARED_MEMORY__KIND__SYSV &&
		    manifest->shared[i]->sysv_id == virtual)
			return true;
	for (size_t i = 0; kind == NAMES_IPC_SEM && i < manifest->n_sysv_sets; i++)
		if (manifest->sysv_sets[i]->id == virtual)
			return true;
	for (size_t i = 0; kind == NAMES_IPC_MSG && i < manifest->n_sysv_queues; i++)
		if (manifest->sysv_queues[i]->id == virtual)
			return true;
	return false;
}

static void remove_object(struct rebuild *rebuild, unsigned kind, int32_t real)
{
	int32_t virtual = names_ipc_virtual(rebuild->names, kind, real);
	int r = kind == NAMES_IPC_SHM	? shmctl(real, IPC_RMID, NULL)
		: kind == NAMES_IPC_SEM ? semctl(real, 0, IPC_RMID)
					: msgctl(real, IPC_RMID, NULL);

	if (r == 0)
		log_info("restore: System V object %d was made after the checkpoint and is removed", virtual);
	names_ipc_release(rebuild->names, kind, virtual);
}

int rebuild_sysv_clear(struct rebuild *rebuild)
{
	for (unsigned kind = 0; kind < NAMES_IPC_KINDS; kind++) {
		auto_free int32_t *ids = NULL;
		size_t n;
		int r = record_ipc_list(rebuild->options->keeper, kind, &ids, &n);

		if (r < 0)
			return err_code(rebuild->err, r, "read which System V objects the job has made");
		for (size_t i = 0; i < n; i++)
			if (!is_saved(rebuild->manifest, kind,
				      names_ipc_virtual(rebuild->names, kind, ids[i])))
				remove_object(rebuild, kind, ids[i]);
	}
	return 0;
}

/* ---- semaphores ---- */

/* Both return the real id of the object that exists, or of a new one. */
static int find_set(struct rebuild *rebuild, const Pbeam__SysvSet *saved, bool *made)
{
	int real = names_ipc_real(rebuild->names, NAMES_IPC_SEM, saved->id);
	struct semid_ds ds;

	*made = real < 0 || semctl(real, 0, IPC_STAT, (union semun){.buf = &ds}) < 0 ||
		ds.sem_perm.__key != saved->key || ds.sem_nsems != saved->n_values;
	if (!*made)
		return real;
	return semget(saved->key, (int)saved->n_values,
		      IPC_CREAT | IPC_EXCL | (int)(saved->mode & MODE_BITS));
}

static int set_permissions(struct semid_ds *ds, const Pbeam__SysvSet *saved, int real)
{
	if (ds->sem_perm.uid == saved->uid && ds->sem_perm.gid == saved->gid &&
	    (ds->sem_perm.mode & MODE_BITS) == saved->mode)
		return 0;
	ds->sem_perm.uid = saved->uid;
	ds->sem_perm.gid = saved->gid;
	ds->sem_perm.mode = saved->mode & MODE_BITS;
	return semctl(real, 0, IPC_SET, (union semun){.buf = ds});
}

static int make_set(struct rebuild *rebuild, const Pbeam__SysvSet *saved, struct sysv_object *object)
{
	object->real = saved->id < 0 || saved->n_values == 0 ? -1 : find_set(rebuild, saved, &object->made);
	return object->real < 0 ? err_sys(rebuild->err, "make the semaphores with key %#x; " HOW_TO_REMOVE,
					  (unsigned)saved->key)
				: 0;
}

static int fill_set(struct rebuild *rebuild, const Pbeam__SysvSet *saved, int real)
{
	auto_free unsigned short *values = calloc(saved->n_values + 1, sizeof(*values));
	struct semid_ds ds;

	if (!values)
		return err_code(rebuild->err, -ENOMEM, "set semaphores");
	for (size_t i = 0; i < saved->n_values; i++)
		values[i] = (unsigned short)(saved->values[i] & VALUE_MAX);
	if (semctl(real, 0, SETALL, (union semun){.array = values}) < 0 ||
	    semctl(real, 0, IPC_STAT, (union semun){.buf = &ds}) < 0 || set_permissions(&ds, saved, real) < 0)
		return err_sys(rebuild->err, "set the semaphores with key %#x", (unsigned)saved->key);
	return 0;
}

/* ---- queues ---- */

struct text {
	long type;
	char data[];
};

static int find_queue(struct rebuild *rebuild, const Pbeam__SysvQueue *saved, bool *made)
{
	int real = names_ipc_real(rebuild->names, NAMES_IPC_MSG, saved->id);
	struct msqid_ds ds;

	*made = real < 0 || msgctl(real, IPC_STAT, &ds) < 0 || ds.msg_perm.__key != saved->key;
	if (!*made)
		return real;
	return msgget(saved->key, IPC_CREAT | IPC_EXCL | (int)(saved->mode & MODE_BITS));
}

static int refill_queue(struct rebuild *rebuild, const Pbeam__SysvQueue *saved, int real)
{
	while (msgrcv(real, &(struct text){.type = 0}, 0, 0, IPC_NOWAIT | MSG_NOERROR) >= 0)
		;
	for (size_t i = 0; i < saved->n_messages; i++) {
		const Pbeam__SysvMessage *message = saved->messages[i];
		size_t len = message->data ? message->data->length : 0;
		auto_free struct text *buf = malloc(sizeof(*buf) + len + 1);
		int r = 0;

		if (!buf)
			return err_code(rebuild->err, -ENOMEM, "refill a message queue");
		buf->type = message->type;
		if (len)
			r = image_reader_get(rebuild->image, message->data, buf->data, rebuild->err);
		if (r < 0)
			return r;
		if (msgsnd(real, buf, len, IPC_NOWAIT) < 0)
			return err_sys(rebuild->err, "refill the message queue with key %#x",
				       (unsigned)saved->key);
	}
	return 0;
}

static int make_queue(struct rebuild *rebuild, const Pbeam__SysvQueue *saved, struct sysv_object *object)
{
	object->real = saved->id < 0 ? -1 : find_queue(rebuild, saved, &object->made);
	return object->real < 0 ? err_sys(rebuild->err, "make the message queue with key %#x; " HOW_TO_REMOVE,
					  (unsigned)saved->key)
				: 0;
}

static int fill_queue_again(struct rebuild *rebuild, const Pbeam__SysvQueue *saved, int real)
{
	struct msqid_ds ds;

	if (msgctl(real, IPC_STAT, &ds) < 0)
		return err_sys(rebuild->err, "look at the message queue with key %#x", (unsigned)saved->key);
	if (ds.msg_perm.uid != saved->uid || ds.msg_perm.gid != saved->gid ||
	    (ds.msg_perm.mode & MODE_BITS) != saved->mode || ds.msg_qbytes != saved->max_bytes) {
		ds.msg_perm.uid = saved->uid;
		ds.msg_perm.gid = saved->gid;
		ds.msg_perm.mode = saved->mode & MODE_BITS;
		ds.msg_qbytes = saved->max_bytes;
		if (msgctl(real, IPC_SET, &ds) < 0)
			return err_sys(rebuild->err, "set owner and size of the message queue with key %#x",
				       (unsigned)saved->key);
	}
	return refill_queue(rebuild, saved, real);
}

/* ---- all objects ---- */

/* Records the object under its old name, as the job's. */
static int record_object(struct rebuild *rebuild, unsigned kind, int32_t virtual, int32_t real)
{
	struct rpid keeper = rebuild->options->keeper;
	auto_free int32_t *ids = NULL;
	size_t n, i = 0;
	int r = names_ipc_bind(rebuild->names, kind, virtual, real, keeper);

	if (r == 0)
		r = record_ipc_list(keeper, kind, &ids, &n);
	if (r < 0)
		return err_code(rebuild->err, r, "name System V object %d", virtual);
	while (i < n && ids[i] != real)
		i++;
	r = i < n ? 0 : record_ipc_add(keeper, kind, real);
	return r < 0 ? err_code(rebuild->err, r, "record System V object %d", virtual) : 0;
}

/* The objects of the image with their contents: sets, then queues. */
static int fill_object(struct rebuild *rebuild, size_t i)
{
	const Pbeam__Manifest *manifest = rebuild->manifest;
	const size_t sets = manifest->n_sysv_sets;

	return i < sets ? fill_set(rebuild, manifest->sysv_sets[i], rebuild->sysv[i].real)
			: fill_queue_again(rebuild, manifest->sysv_queues[i - sets], rebuild->sysv[i].real);
}

static int record_all(struct rebuild *rebuild)
{
	const size_t sets = rebuild->manifest->n_sysv_sets;
	int r = 0;

	for (size_t i = 0; i < rebuild->nsysv && r == 0; i++)
		r = i < sets ? record_object(rebuild, NAMES_IPC_SEM, rebuild->manifest->sysv_sets[i]->id,
					     rebuild->sysv[i].real)
			     : record_object(rebuild, NAMES_IPC_MSG,
					     rebuild->manifest->sysv_queues[i - sets]->id,
					     rebuild->sysv[i].real);
	for (size_t i = 0; i < rebuild->shared.n && r == 0; i++) {
		const struct shared_made *made = &rebuild->shared.v[i];

		if (made->sysv_id >= 0 && (made->made || made->saved->sysv_own))
			r = record_object(rebuild, NAMES_IPC_SHM, made->saved->sysv_id, made->sysv_id);
	}
	return r;
}

int rebuild_sysv_make_all(struct rebuild *rebuild)
{
	const Pbeam__Manifest *manifest = rebuild->manifest;
	const size_t n = manifest->n_sysv_sets + manifest->n_sysv_queues;
	int r = 0;

	rebuild->sysv = calloc(n + 1, sizeof(*rebuild->sysv));
	if (!rebuild->sysv)
		return err_code(rebuild->err, -ENOMEM, "System V objects");
	for (size_t i = 0; i < n && r == 0; i++) {
		struct sysv_object *object = &rebuild->sysv[rebuild->nsysv++];

		r = i < manifest->n_sysv_sets
			    ? make_set(rebuild, manifest->sysv_sets[i], object)
			    : make_queue(rebuild, manifest->sysv_queues[i - manifest->n_sysv_sets], object);
		if (r == 0 && (!rebuild->beside || object->made))
			r = fill_object(rebuild, i);
	}
	return r < 0 || rebuild->beside ? r : record_all(rebuild);
}

/* Errors are logged. */
static void note_sysv(struct rebuild *rebuild, int r)
{
	if (r < 0)
		log_error("restore: %s", rebuild->err->text);
	err_clear(rebuild->err);
}

void rebuild_sysv_undo(struct rebuild *rebuild)
{
	for (size_t i = 0; i < rebuild->nsysv; i++) {
		if (!rebuild->sysv[i].made || rebuild->sysv[i].real < 0)
			continue;
		if (i < rebuild->manifest->n_sysv_sets)
			(void)!semctl(rebuild->sysv[i].real, 0, IPC_RMID);
		else
			(void)!msgctl(rebuild->sysv[i].real, IPC_RMID, NULL);
	}
	for (size_t i = 0; i < rebuild->shared.n; i++)
		if (rebuild->shared.v[i].sysv_id >= 0 && rebuild->shared.v[i].made)
			(void)!shmctl(rebuild->shared.v[i].sysv_id, IPC_RMID, NULL);
}

/* ---- in the processes ---- */

/* A page shared by the coordinator and the husk; the husk's mapping goes away when the husk is filled. */
struct page {
	struct sembuf *ops;
	uint64_t there;
	int fd;
};

static int map_page(struct rebuild *rebuild, int node, struct page *page)
{
	int64_t pidfd = rebuild_husk_call(rebuild, node, SYS_pidfd_open, remote_args((uint64_t)getpid(), 0)),
		fd, at;

	fd = pidfd < 0 ? pidfd
		       : rebuild_husk_call(rebuild, node, SYS_pidfd_getfd,
					   remote_args((uint64_t)pidfd, (uint64_t)page->fd, 0));
	at = fd < 0 ? fd
		    : rebuild_husk_call(
			      rebuild, node, SYS_mmap,
			      remote_args(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, (uint64_t)fd, 0));
	page->there = at < 0 ? 0 : (uint64_t)at;
	return at < 0 ? (int)at : 0;
}

static unsigned sembuf_add_operation(struct sembuf *ops, unsigned n, uint32_t number, int op, int flags)
{
	if (op)
		ops[n++] = (struct sembuf){(unsigned short)number, (short)op, (short)flags};
	return n;
}

/* The operations that give a process its adjustment, or make it the last user, and keep the value. */
static unsigned write_ops(struct sembuf *ops, const Pbeam__SysvUndo *undo, int value)
{
	unsigned n = 0;

	if (undo->value > 0) {
		n = sembuf_add_operation(ops, n, undo->number, -value, 0);
		n = sembuf_add_operation(ops, n, undo->number, undo->value, 0);
		n = sembuf_add_operation(ops, n, undo->number, -undo->value, SEM_UNDO);
		return sembuf_add_operation(ops, n, undo->number, value, 0);
	}
	if (undo->value < 0) {
		n = sembuf_add_operation(ops, n, undo->number, -value, 0);
		n = sembuf_add_operation(ops, n, undo->number, -undo->value, SEM_UNDO);
		n = sembuf_add_operation(ops, n, undo->number, undo->value, 0);
		return sembuf_add_operation(ops, n, undo->number, value, 0);
	}
	n = sembuf_add_operation(ops, n, undo->number, value == VALUE_MAX ? -1 : 1, 0);
	return sembuf_add_operation(ops, n, undo->number, value == VALUE_MAX ? 1 : -1, 0);
}

/* Writes the operations of one adjustment. Returns how many, or a negative error. */
static int plan_adjustment(struct rebuild *rebuild, int node, const Pbeam__SysvUndo *undo, int *real,
			   struct sembuf *ops)
{
	int value;

	*real = names_ipc_real(rebuild->names, NAMES_IPC_SEM, undo->id);
	value = semctl(*real, (int)undo->number, GETVAL);
	if (value < 0 || undo->value > VALUE_MAX || undo->value < -VALUE_MAX)
		return err_set(rebuild->err, -EINVAL,
			       "vpid %d has an adjustment for a semaphore that does not exist",
			       rebuild->plan.nodes[node].vpid);
	return (int)write_ops(ops, undo, value);
}

static int give_one(struct rebuild *rebuild, int node, const struct page *page, const Pbeam__SysvUndo *undo)
{
	int real, n = plan_adjustment(rebuild, node, undo, &real, page->ops);

	return n < 0 ? n
		     : (int)rebuild_husk_call(rebuild, node, SYS_semop,
					      remote_args((uint64_t)real, page->there, (uint64_t)n));
}

/* The last process to operate on a semaphore is its last user: the others come first. */
static int give_adjustments(struct rebuild *rebuild, struct page *page, bool last)
{
	int r = 0;

	for (int node = 0; node < rebuild->plan.nnodes && r >= 0; node++) {
		const Pbeam__Process *process = rebuild->plan.nodes[node].process;

		page->there = 0;
		for (size_t i = 0; process && i < process->n_sysv_undo && r >= 0; i++) {
			if (process->sysv_undo[i]->last != last)
				continue;
			if (!page->there)
				r = map_page(rebuild, node, page);
			if (r >= 0)
				r = give_one(rebuild, node, page, process->sysv_undo[i]);
		}
	}
	return r < 0 ? r : 0;
}

int rebuild_sysv_give_undo(struct rebuild *rebuild)
{
	struct page page = {.fd = -1};
	bool any = false;
	int r;

	for (int node = 0; node < rebuild->plan.nnodes; node++)
		any = any ||
		      (rebuild->plan.nodes[node].process && rebuild->plan.nodes[node].process->n_sysv_undo);
	if (!any)
		return 0;
	auto_close int fd = memfd_create("semaphores", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, PAGE) < 0)
		return err_sys(rebuild->err, "make a memory file");
	page.fd = fd;
	page.ops = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page.ops == MAP_FAILED)
		return err_sys(rebuild->err, "map a memory file");
	r = give_adjustments(rebuild, &page, false);
	if (r == 0)
		r = give_adjustments(rebuild, &page, true);
	munmap(page.ops, PAGE);
	return r;
}

static int take_adjustment(struct rebuild *rebuild, int node, const Pbeam__SysvUndo *undo)
{
	Pbeam__ScipTake__Semop semop = PBEAM__SCIP_TAKE__SEMOP__INIT, *semops[1] = {&semop};
	Pbeam__ScipTake request = PBEAM__SCIP_TAKE__INIT;
	struct sembuf ops[OPS_MAX];
	int n = plan_adjustment(rebuild, node, undo, &semop.id, ops);

	if (n < 0)
		return n;
	semop.operations = (ProtobufCBinaryData){(size_t)n * sizeof(ops[0]), (uint8_t *)ops};
	request.n_semops = 1;
	request.semops = semops;
	return scip_link_call(rebuild->made[node].sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_TAKE, &request.base,
			      &pbeam__scip_done__descriptor, NULL, rebuild->err);
}

/* The same when the processes are complete. All are tried. */
static void take_adjustments(struct rebuild *rebuild)
{
	for (int last = 0; last <= 1; last++)
		for (int node = 0; node < rebuild->plan.nnodes; node++) {
			const Pbeam__Process *process = rebuild->plan.nodes[node].process;

			for (size_t i = 0; rebuild_is_filled(rebuild, node) && i < process->n_sysv_undo; i++)
				if (process->sysv_undo[i]->last == (last != 0))
					note_sysv(rebuild,
						  take_adjustment(rebuild, node, process->sysv_undo[i]));
		}
}

void rebuild_sysv_take_over(struct rebuild *rebuild)
{
	note_sysv(rebuild, record_all(rebuild));
	for (size_t i = 0; i < rebuild->nsysv; i++)
		if (!rebuild->sysv[i].made)
			note_sysv(rebuild, fill_object(rebuild, i));
	for (size_t i = 0; i < rebuild->shared.n; i++)
		if (rebuild->shared.v[i].sysv_id >= 0 && !rebuild->shared.v[i].made)
			note_sysv(rebuild, rebuild_shared_fill_sysv(rebuild, &rebuild->shared.v[i]));
	take_adjustments(rebuild);
}
