/*
 * Turns a husk into the saved process.
 *
 * The order follows from what each step destroys. The injected code is mapped first, where neither the husk
 * nor the saved program has anything. The husk's own mappings are removed; the saved ones are made and
 * filled while they are writable; then they get their protection, and the kernel its record of the layout.
 * Descriptors follow when the temporary ones are no longer needed, then threads, which share all of this.
 * Signals and timers would disturb and come last. The injected code is unmapped through the restored vdso's
 * own syscall instruction, so that only the supervisor's traces are left.
 */
#include "scip/fill/fill.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "scip/fill/fill_batch.h"
#include "scip/tracee/regs.h"

enum { AREA_BYTES = 1 << 20, BATCH_OVERHEAD = 4096 };

/* Maps the injected code. */
static int open_area(struct fill *fill, const struct procfs_maps *maps)
{
	size_t bytes = AREA_BYTES + fill->saved->n_descriptors * 512;
	struct taddr start, end;
	int r;

	for (size_t i = 0; i < fill->request->n_late; i++)
		if (fill->request->late[i]->kind_case == PBEAM__OBJECT__KIND_EPOLL)
			bytes += fill->request->late[i]->epoll->n_entries * 128;
	if (inject_room(fill->process) >= bytes) {
		fill->space = bytes - BATCH_OVERHEAD; /* the husk has been filled before */
		return 0;
	}
	r = fill_mappings_find_room(fill, maps, bytes + (8u << 20));
	if (r == 0)
		r = inject_open(fill->leader, bytes, (struct taddr){fill->low}, fill->err);
	if (r < 0)
		return r;
	if (!inject_range(fill->process, &start, &end) || start.a < fill->low ||
	    end.a + (1u << 20) > fill->high)
		return err_set(fill->err, -EFAULT, "the injected code is not at the requested address");
	fill->low = start.a;
	fill->space = bytes - BATCH_OVERHEAD;
	return 0;
}

/* Empties the descriptor table, and installs the scip's, the image's and the coordinator's descriptors
 * where the batches expect them. */
static int open_fill_descriptors(struct fill *fill)
{
	int r = fill_do(fill, SYS_close_range, remote_args(0, ~0u, 0));
	int call;

	call = r < 0 ? r : fill_call(fill, 0, SYS_pidfd_open, remote_args((uint64_t)getpid(), 0));
	if (call < 0)
		return call;
	fill_expect(fill, call, FILL_FD_SCIP);
	call = fill_call(fill, 0, SYS_pidfd_getfd, remote_args(FILL_FD_SCIP, (uint64_t)fill->images[0], 0));
	if (call < 0)
		return call;
	fill_expect(fill, call, FILL_FD_IMAGE);
	call = fill_call(fill, 0, SYS_pidfd_open, remote_args((uint64_t)fill->request->coordinator_rpid, 0));
	if (call < 0)
		return call;
	fill_expect(fill, call, FILL_FD_COORDINATOR);
	return 0;
}

/* Between two fills the husk forks or makes other calls, whose arguments go below its stack pointer
 * (fill_husk.c). The husk's own stack is gone, so the pointer is set into the injected area. */
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
		r = open_fill_descriptors(fill);
	if (r == 0)
		r = fill->request->inherits ? fill_mappings_keep(fill) : fill_mappings_clear(fill, &maps);
	procfs_maps_free(&maps);
	if (r < 0)
		return r;
	r = fill_mappings_make(fill);
	if (r < 0)
		return r;
	r = fill_contents(fill);
	if (r < 0)
		return r;
	r = fill_kernel_text(fill);
	if (r < 0)
		return r;
	return fill->request->memory_only ? fill_flush(fill) : fill_mappings_finish(fill);
}

static int fill_rest(struct fill *fill)
{
	int r = fill_descriptors(fill);

	if (r < 0)
		return r;
	r = fill_attributes(fill);
	if (r < 0)
		return r;
	r = fill_signal_actions(fill);
	if (r < 0)
		return r;
	r = fill_flush(fill);
	if (r < 0)
		return r;
	return fill_threads(fill);
}

int fill_husk(struct process *process, const Pbeam__ScipFill *request, const int *images, size_t nimages,
	      struct err *err)
{
	struct fill fill = {.process = process,
			    .leader = process_leader(process),
			    .request = request,
			    .saved = request->process,
			    .images = images,
			    .nimages = nimages,
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
