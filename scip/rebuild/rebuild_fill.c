/*
 * Fills the husks, and releases them.
 *
 * All are filled at the same time: a fill depends on nothing but what the coordinator has made before, and on
 * memory inherited by fork (inherit.h), which is a step of the plan.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "base/u64_map.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/rebuild/rebuild_parts.h"

enum { TAKE_AGAIN_US = 10000, TAKE_S = 10 };

static const Pbeam__Object *find_saved_object(const Pbeam__Manifest *manifest, uint32_t id)
{
	size_t low = 0, high = manifest->n_objects;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (manifest->objects[middle]->id == id)
			return manifest->objects[middle];
		if (manifest->objects[middle]->id < id)
			low = middle + 1;
		else
			high = middle;
	}
	for (size_t i = 0; i < manifest->n_objects; i++)
		if (manifest->objects[i]->id == id)
			return manifest->objects[i];
	return NULL;
}

/* The request of one fill; the arrays are freed by the caller. */
struct fill_request {
	Pbeam__ScipFill message;
	Pbeam__FillFd *fds;
	Pbeam__FillFd **list;
	Pbeam__Object **late;
	Pbeam__SharedMemory **shared;
};

/* `late`: ids of the objects that are listed in fill->late already. */
static int fill_add_descriptor(struct rebuild *rebuild, const Pbeam__Process *process,
			       const Pbeam__Descriptor *descriptor, struct fill_request *fill,
			       struct u64_map *late)
{
	Pbeam__ScipFill *message = &fill->message;
	const Pbeam__Object *object = find_saved_object(rebuild->manifest, descriptor->object);
	Pbeam__FillFd *fd = &fill->fds[message->n_fds];
	int source;

	if (!object)
		return err_set(rebuild->err, -EINVAL,
			       "vpid %d: fd %d refers to object %u, which does not exist", process->vpid,
			       descriptor->fd, descriptor->object);
	source = object_restore_get(rebuild->objects, descriptor->object, rebuild->err);
	if (source < 0)
		return source;
	pbeam__fill_fd__init(fd);
	fd->source = source;
	fd->fd = descriptor->fd;
	fd->cloexec = descriptor->cloexec;
	fill->list[message->n_fds++] = fd;
	if (!object_wants_install(object) || u64_map_find(late, object->id) != U64_MAP_NONE)
		return 0;
	fill->late[message->n_late] = (Pbeam__Object *)(uintptr_t)object;
	return u64_map_set(late, object->id, message->n_late++);
}

static int add_descriptors(struct rebuild *rebuild, const Pbeam__Process *process, struct fill_request *fill)
{
	struct u64_map late = {0};
	int r = 0;

	for (size_t i = 0; i < process->n_descriptors && r >= 0; i++)
		r = fill_add_descriptor(rebuild, process, process->descriptors[i], fill, &late);
	u64_map_free(&late);
	return r;
}

static int add_shared_memory(struct rebuild *rebuild, const Pbeam__Process *process,
			     struct fill_request *fill)
{
	Pbeam__ScipFill *message = &fill->message;

	for (size_t i = 0; i < process->memory->n_mappings; i++) {
		uint32_t id = process->memory->mappings[i]->shared_id;
		const struct shared_made *made = id ? rebuild_shared_find(&rebuild->shared, id) : NULL;
		Pbeam__FillFd *fd = &fill->fds[message->n_fds];
		bool listed = false;

		for (size_t n = 0; n < message->n_shared; n++)
			listed = listed || fill->shared[n]->id == id;
		if (!made || listed)
			continue;
		pbeam__fill_fd__init(fd);
		fd->source = made->sysv_id >= 0 ? made->sysv_id : made->fd;
		fd->fd = -1;
		fd->shared_id = id;
		fill->list[message->n_fds++] = fd;
		fill->shared[message->n_shared++] = (Pbeam__SharedMemory *)(uintptr_t)made->saved;
	}
	return 0;
}

_Static_assert(IMAGE_ANCESTORS_MAX < FRAME_FDS_MAX, "a fill passes the whole chain");

/* The descriptors of the image and of its ancestors. Returns how many. */
static int list_images(const struct image_reader *image, int images[1 + IMAGE_ANCESTORS_MAX])
{
	uint32_t n = image_reader_ancestors(image);

	images[0] = image_reader_fd(image);
	for (uint32_t i = 1; i <= n; i++)
		images[i] = image_reader_ancestor_fd(image, i);
	return (int)n + 1;
}

static int send_described(struct rebuild *rebuild, int node, const struct inherit_request *memory,
			  bool memory_only)
{
	bool verifies = rebuild->unverified && rebuild->unverified[node];
	const Pbeam__Process *process = rebuild->plan.nodes[node].process;
	size_t most = process->n_descriptors + process->memory->n_mappings + 1;
	auto_free Pbeam__FillFd *fds = calloc(most, sizeof(*fds));
	auto_free Pbeam__FillFd **list = calloc(most, sizeof(Pbeam__FillFd *));
	auto_free Pbeam__Object **late = calloc(most, sizeof(Pbeam__Object *));
	auto_free Pbeam__SharedMemory **shared = calloc(most, sizeof(Pbeam__SharedMemory *));
	struct fill_request fill = {PBEAM__SCIP_FILL__INIT, fds, list, late, shared};
	int images[1 + IMAGE_ANCESTORS_MAX], r;

	if (!fds || !list || !late || !shared)
		return err_code(rebuild->err, -ENOMEM, "descriptors of vpid %d", process->vpid);
	r = add_descriptors(rebuild, process, &fill);
	if (r == 0)
		r = add_shared_memory(rebuild, process, &fill);
	if (r < 0)
		return r;
	fill.message.process = (Pbeam__Process *)(uintptr_t)&memory->process;
	if (verifies && (memory_only || memory->inherits))
		return err_set(rebuild->err, -EINVAL,
			       "the memory of vpid %d cannot be verified while it is filled in parts",
			       process->vpid);
	fill.message.digests_offset = verifies ? image_reader_digests(rebuild->image) : 0;
	fill.message.memory_only = memory_only;
	fill.message.inherits = memory->inherits;
	fill.message.n_kept = memory->n_kept;
	fill.message.kept = memory->kept_list;
	fill.message.n_dropped = memory->n_dropped;
	fill.message.dropped = memory->dropped_list;
	fill.message.fds = list;
	fill.message.late = late;
	fill.message.shared = shared;
	fill.message.coordinator_rpid = getpid();
	return scip_link_ask(rebuild->made[node].sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_FILL,
			     &fill.message.base, images, list_images(rebuild->image, images), rebuild->err);
}

/* Requests the rest of the fill, or, with a `round`, the memory that the process passes on in that round. */
static int send_fill(struct rebuild *rebuild, int node, int round)
{
	struct made *made = &rebuild->made[node];
	struct inherit_state *next = NULL;
	struct inherit_request request;
	int r = inherit_request(made->has, rebuild->plan.nodes[node].process,
				&rebuild->plan.inherit.passing[node], round, &request, &next);

	if (rebuild->beside)
		request.process.n_locks = 0; /* the old process has them: rebuild_fill_take() */
	if (r < 0)
		err_code(rebuild->err, r, "memory of vpid %d", rebuild->plan.nodes[node].vpid);
	else
		r = send_described(rebuild, node, &request, round > 0);
	inherit_request_free(&request);
	if (next) {
		next->next = rebuild->states;
		rebuild->states = next;
		made->has = next;
	}
	return r;
}

int rebuild_fill_round(struct rebuild *rebuild, int node, int round)
{
	int r = send_fill(rebuild, node, round);

	return r < 0 ? r
		     : scip_link_answer(rebuild->made[node].sock, &pbeam__scip_done__descriptor, NULL,
					rebuild->err);
}

static bool is_stub(const struct rebuild *rebuild, int node)
{
	const Pbeam__Process *process = rebuild->plan.nodes[node].process;

	return process && process->state == PBEAM__PROCESS__STATE__STUB;
}

/* A stub is emptied, and waits to be released like all others. */
static int send_stub(struct rebuild *rebuild, int node)
{
	Pbeam__ScipFill fill = PBEAM__SCIP_FILL__INIT;
	int image = image_reader_fd(rebuild->image);

	fill.process = (Pbeam__Process *)(uintptr_t)rebuild->plan.nodes[node].process;
	fill.coordinator_rpid = getpid();
	return scip_link_ask(rebuild->made[node].sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_FILL, &fill.base,
			     &image, 1, rebuild->err);
}

bool rebuild_is_filled(const struct rebuild *rebuild, int node)
{
	const Pbeam__Process *process = rebuild->plan.nodes[node].process;

	return process && process->state != PBEAM__PROCESS__STATE__ZOMBIE;
}

static int await_fills(struct rebuild *rebuild)
{
	int r = 0;

	for (int i = 0; i < rebuild->plan.nnodes && r == 0; i++)
		if (rebuild_is_filled(rebuild, i))
			r = scip_link_answer(rebuild->made[i].sock, &pbeam__scip_done__descriptor, NULL,
					     rebuild->err);
	return r;
}

int rebuild_fill_all(struct rebuild *rebuild)
{
	int r = 0;

	for (int i = 0; i < rebuild->plan.nnodes && r == 0; i++)
		if (rebuild_is_filled(rebuild, i))
			r = is_stub(rebuild, i) ? send_stub(rebuild, i) : send_fill(rebuild, i, 0);
	return r < 0 ? r : await_fills(rebuild);
}

/* Takes the record locks of a process, which another program may have got since the old process ended. */
static int take_locks(struct rebuild *rebuild, int node)
{
	const uint64_t end = io_now_ns(CLOCK_MONOTONIC) + TAKE_S * 1000000000ull;
	const Pbeam__Process *process = rebuild->plan.nodes[node].process;
	Pbeam__ScipTake request = PBEAM__SCIP_TAKE__INIT;
	int r;

	request.n_locks = process->n_locks;
	request.locks = process->locks;
	while ((r = scip_link_call(rebuild->made[node].sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_TAKE,
				   &request.base, &pbeam__scip_done__descriptor, NULL, rebuild->err)) ==
		       -EAGAIN &&
	       io_now_ns(CLOCK_MONOTONIC) < end) {
		err_clear(rebuild->err);
		usleep(TAKE_AGAIN_US);
	}
	return r;
}

int rebuild_fill_take(struct rebuild *rebuild)
{
	int r = 0;

	for (int i = 0; i < rebuild->plan.nnodes; i++) {
		if (!rebuild_is_filled(rebuild, i) || is_stub(rebuild, i) ||
		    !rebuild->plan.nodes[i].process->n_locks || take_locks(rebuild, i) == 0)
			continue;
		log_error("restore: %s", rebuild->err->text);
		r = rebuild->err->code;
		err_clear(rebuild->err);
	}
	return r;
}

static void note_release(struct rebuild *rebuild, int node, int r, const struct err *why, int *first)
{
	if (r == 0)
		return;
	log_warn("vpid %d: %s", rebuild->plan.nodes[node].vpid, why->text);
	if (*first == 0)
		*first = err_set(rebuild->err, r, "vpid %d: %s", rebuild->plan.nodes[node].vpid, why->text);
}

/* Closes the connection to a scip that cannot be asked. After a commit the process runs then. */
static int send_run(struct rebuild *rebuild, int node, struct err *err)
{
	struct made *made = &rebuild->made[node];
	int r = scip_link_ask(made->sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_RUN, NULL, NULL, 0, err);

	if (r == 0)
		r = fault_point("restore-let-go", err);
	if (r < 0) {
		close(made->sock);
		made->sock = -1;
	}
	return r;
}

/* Releases all processes, even if one of them does not answer because its scip was killed. After a commit
 * that is the end of a process that runs, not a failure. */
int rebuild_fill_release(struct rebuild *rebuild)
{
	int r = 0;

	for (int i = 0; i < rebuild->plan.nnodes; i++) {
		struct err err = ERR_INIT;

		if (rebuild_is_filled(rebuild, i))
			note_release(rebuild, i, send_run(rebuild, i, &err), &err, &r);
	}
	for (int i = 0; i < rebuild->plan.nnodes; i++) {
		struct err err = ERR_INIT;

		if (rebuild_is_filled(rebuild, i) && rebuild->made[i].sock >= 0)
			note_release(rebuild, i,
				     scip_link_answer(rebuild->made[i].sock, &pbeam__scip_done__descriptor,
						      NULL, &err),
				     &err, &r);
	}
	if (!rebuild->committed)
		return r;
	err_clear(rebuild->err);
	return 0;
}

static int fill_ask_all(struct rebuild *rebuild, uint32_t request)
{
	int r = 0;

	for (int i = 0; i < rebuild->plan.nnodes && r == 0; i++)
		if (rebuild_is_filled(rebuild, i))
			r = scip_link_ask(rebuild->made[i].sock, request, NULL, NULL, 0, rebuild->err);
	return r < 0 ? r : await_fills(rebuild);
}

int rebuild_fill_keep(struct rebuild *rebuild)
{
	return fill_ask_all(rebuild, PBEAM__SCIP_REQUEST__SCIP_KEEP);
}

int rebuild_fill_decide(struct rebuild *rebuild)
{
	int r = fill_ask_all(rebuild, PBEAM__SCIP_REQUEST__SCIP_DECIDE);

	if (r < 0 || rebuild->above.sock < 0)
		return r;
	return scip_link_call(rebuild->above.sock, PBEAM__SCIP_REQUEST__SCIP_DECIDE, NULL,
			      &pbeam__scip_done__descriptor, NULL, rebuild->err);
}
