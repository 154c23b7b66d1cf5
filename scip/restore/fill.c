/*
 * A husk becomes the saved process.
 *
 * The order is given by what destroys what: first the injected code is mapped where neither the husk nor the
 * saved program has anything; then the husk's own mappings go, the saved ones come and are filled while they
 * are writable; then protections and the kernel's notes of the layout; descriptors when the temporary ones
 * are no longer needed; then threads, which share all of this; signals and timers, which would disturb, last.
 * The injected code is unmapped through the restored vdso's own syscall instruction, so that nothing of ours
 * is left but the traces of the supervisor.
 */
#include "scip/restore/fill.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "scip/tracee/regs.h"

enum {
	AREA_BYTES = 1 << 20,
	AREA_SLACK = 16384,
	CALL_BYTES = sizeof(struct inject_call),
	BATCH_OVERHEAD = 4096
};

static int begin(struct fill *fill)
{
	int r = batch_begin(fill->process, &fill->batch, fill->err);

	fill->ncalls = 0;
	fill->room = fill->space;
	return r;
}

int fill_flush(struct fill *fill)
{
	int r = 0;

	if (!fill->batch)
		return 0;
	if (fill->ncalls)
		r = batch_run(fill->batch, fill->runner, fill->err);
	batch_end(fill->batch);
	fill->batch = NULL;
	return r;
}

int fill_reserve(struct fill *fill, int calls, size_t bytes)
{
	size_t need = (size_t)calls * CALL_BYTES + bytes + 64;
	int r;

	if (fill->batch && fill->room >= need)
		return 0;
	r = fill_flush(fill);
	if (r == 0)
		r = begin(fill);
	if (r == 0 && fill->room < need)
		r = err_set(fill->err, -ENOSPC, "%zu bytes are too much for one batch of calls", need);
	return r;
}

int fill_call(struct fill *fill, uint32_t flags, int64_t nr, const uint64_t args[6])
{
	int r = fill_reserve(fill, 1, 0);

	if (r < 0)
		return r;
	r = batch_add(fill->batch, flags, nr, args);
	if (r < 0)
		return err_code(fill->err, r, "batch of calls");
	fill->room -= CALL_BYTES;
	fill->ncalls++;
	return r;
}

int fill_do(struct fill *fill, int64_t nr, const uint64_t args[6])
{
	int r = fill_call(fill, 0, nr, args);

	return r < 0 ? r : 0;
}

int fill_try(struct fill *fill, int64_t nr, const uint64_t args[6])
{
	int r = fill_call(fill, INJECT_CALL_ANY, nr, args);

	return r < 0 ? r : 0;
}

void fill_from(struct fill *fill, int number, int from, unsigned arg)
{
	struct inject_call *call = batch_call(fill->batch, number);

	call->flags |= INJECT_CALL_FROM;
	call->from_call = (uint16_t)from;
	call->from_arg = (uint16_t)arg;
}

void fill_expect(struct fill *fill, int number, int64_t value)
{
	struct inject_call *call = batch_call(fill->batch, number);

	call->flags |= INJECT_CALL_EXACT;
	call->expect = value;
}

int fill_data(struct fill *fill, const void *data, size_t len, uint64_t *where)
{
	struct taddr at;
	int r = fill_reserve(fill, 0, len + 16);

	if (r == 0)
		r = batch_data(fill->batch, data, len, &at);
	if (r < 0)
		return err_code(fill->err, r, "data of a batch of calls");
	fill->room -= len + 16 < fill->room ? len + 16 : fill->room;
	*where = at.a;
	return 0;
}

/* The injected code, and an empty table of descriptors but for our own. */
static int open_area(struct fill *fill, const struct procfs_maps *maps)
{
	size_t bytes = AREA_BYTES + fill->saved->n_descriptors * 512;
	struct taddr start, end;
	int r;

	for (size_t i = 0; i < fill->request->n_late; i++)
		if (fill->request->late[i]->kind_case == PBEAM__OBJECT__KIND_EPOLL)
			bytes += fill->request->late[i]->epoll->n_entries * 128;
	if (inject_room(fill->process) >= bytes) {
		fill->space = bytes - BATCH_OVERHEAD; /* it has been filled once already */
		return 0;
	}
	r = mappings_find_room(fill, maps, bytes + (8u << 20));
	if (r == 0)
		r = inject_open(fill->leader, bytes, (struct taddr){fill->low}, fill->err);
	if (r < 0)
		return r;
	if (!inject_range(fill->process, &start, &end) || start.a < fill->low ||
	    end.a + (1u << 20) > fill->high)
		return err_set(fill->err, -EFAULT, "the injected code is not where it was to be");
	fill->low = start.a;
	fill->space = bytes - BATCH_OVERHEAD;
	return 0;
}

static int open_descriptors(struct fill *fill)
{
	int r = fill_do(fill, SYS_close_range, remote_args(0, ~0u, 0));
	int call;

	call = r < 0 ? r : fill_call(fill, 0, SYS_pidfd_open, remote_args((uint64_t)getpid(), 0));
	if (call < 0)
		return call;
	fill_expect(fill, call, FILL_FD_SCIP);
	call = fill_call(fill, 0, SYS_pidfd_getfd, remote_args(FILL_FD_SCIP, (uint64_t)fill->image_fd, 0));
	if (call < 0)
		return call;
	fill_expect(fill, call, FILL_FD_IMAGE);
	call = fill_call(fill, 0, SYS_pidfd_open, remote_args((uint64_t)fill->request->coordinator_rpid, 0));
	if (call < 0)
		return call;
	fill_expect(fill, call, FILL_FD_COORDINATOR);
	return 0;
}

/* Others are forked now, or it is forked itself: whoever uses its stack pointer (husk.c) finds room there,
 * and only there, for the husk's own stack is gone. */
static int lend_stack(struct fill *fill)
{
	struct user_regs_struct regs;
	struct taddr start, end;
	int r = regs_get(fill->leader, &regs);

	if (r == 0 && inject_range(fill->process, &start, &end)) {
		regs.rsp = end.a;
		r = regs_set(fill->leader, &regs);
	}
	return r < 0 ? err_code(fill->err, r, "registers") : 0;
}

static int fill_memory(struct fill *fill)
{
	struct procfs_maps maps = {0};
	int r = procfs_maps_read(fill->process->pid, false, &maps, fill->err);

	if (r < 0)
		return r;
	r = open_area(fill, &maps);
	if (r == 0)
		r = open_descriptors(fill);
	if (r == 0)
		r = fill->request->inherits ? mappings_keep(fill) : mappings_clear(fill, &maps);
	procfs_maps_free(&maps);
	if (r == 0)
		r = mappings_make(fill);
	if (r == 0)
		r = contents_fill(fill);
	if (r == 0)
		r = fill->request->memory_only ? fill_flush(fill) : mappings_finish(fill);
	return r;
}

static int fill_rest(struct fill *fill)
{
	int r = descriptors_fill(fill);

	if (r == 0)
		r = attributes_fill(fill);
	if (r == 0)
		r = signals_fill_actions(fill);
	if (r == 0)
		r = fill_flush(fill);
	return r < 0 ? r : threads_fill(fill);
}

int restore_fill(struct process *process, const Pbeam__ScipFill *request, int image_fd, struct err *err)
{
	struct fill fill = {.process = process,
			    .leader = process_leader(process),
			    .request = request,
			    .saved = request->process,
			    .image_fd = image_fd,
			    .err = err};
	auto_free uint32_t *prot = NULL;
	int r;

	if (!fill.leader || !fill.saved || !fill.saved->memory || fill.saved->n_threads == 0)
		return err_set(err, -EINVAL, "a process without memory or threads cannot be filled");
	fill.runner = fill.leader;
	fill.prot = prot = calloc(fill.saved->memory->n_mappings + 1, sizeof(*prot));
	if (!prot)
		return err_code(err, -ENOMEM, "mappings");
	memset(prot, 0xff, fill.saved->memory->n_mappings * sizeof(*prot));
	r = fill_memory(&fill);
	if (r == 0)
		r = request->memory_only ? lend_stack(&fill) : fill_rest(&fill);
	if (fill.batch) {
		batch_end(fill.batch);
		fill.batch = NULL;
	}
	if (r < 0)
		return err_wrap(err, r, "vpid %d", fill.saved->vpid);
	log_debug("vpid %d is filled: %zu mappings, %zu kept, %zu threads, %zu descriptors", fill.saved->vpid,
		  fill.saved->memory->n_mappings, request->n_kept, fill.saved->n_threads,
		  fill.saved->n_descriptors);
	return 0;
}
