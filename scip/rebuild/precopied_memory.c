/* The memory of pre-copied processes: pages are written into it from outside as they arrive. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

#include "base/cleanup.h"
#include "scip/rebuild/precopied_parts.h"
#include "scip/tracee/remote.h"

enum { GONE_LOOKS = 4000, GONE_NAP_NS = 500000, SETTLE_LEAST = 8192 };
/* A fork copies the page tables of smaller mappings in negligible time. */
#define HIDDEN_LEAST (4ull << 20)

int precopied_find(const struct precopied *p, int32_t vpid, uint32_t shared_id)
{
	for (size_t i = 0; i < p->nshared && shared_id; i++)
		if (p->shared[i].id == shared_id)
			return (int)(p->n + i);
	if (shared_id)
		return -1;
	for (size_t i = 0; i < p->n; i++)
		if (p->rebuild.manifest->processes[i]->vpid == vpid)
			return (int)i;
	return -1;
}

/* Finds the addresses of the pieces and checks that all lie within the process's memory. */
static int place_pieces(const struct precopied *p, size_t index, const struct precopied_piece *pieces,
			size_t n, struct iovec remote[PRECOPIED_PIECES], struct err *err)
{
	for (size_t i = 0; i < n; i++) {
		const uint64_t address = pieces[i].address, len = pieces[i].len;

		if (index >= p->n || !p->processes[index].state || n > PRECOPIED_PIECES ||
		    address % IMAGE_PAGE || len % IMAGE_PAGE || address >= PRECOPIED_SENT_PROCESS ||
		    len > PRECOPIED_SENT_PROCESS - address)
			return err_set(err, -EPROTO, "pages of an unknown process");
		remote[i] = (struct iovec){(void *)(uintptr_t)address, len}; // NOLINT: an address there
	}
	return 0;
}

/* Records the pieces as if they had been read from the image. Rewritten pages do not lengthen the list. */
static int note_pieces(struct precopied *p, size_t index, const struct precopied_piece *pieces, size_t n)
{
	struct precopied_process *process = &p->processes[index];
	struct extents *list = &process->state->pages;
	int r = 0;

	pthread_mutex_lock(&p->lock);
	for (size_t i = 0; i < n && r == 0; i++)
		r = extents_add(list, (struct extent){pieces[i].address, pieces[i].address + pieces[i].len,
						      precopied_shift(index)});
	if (r == 0 && list->n > 2 * process->settled + SETTLE_LEAST) {
		extents_settle(list);
		process->settled = list->n;
	}
	pthread_mutex_unlock(&p->lock);
	return r;
}

int precopied_write(struct precopied *p, size_t index, const struct precopied_piece *pieces, size_t n,
		    struct err *err)
{
	struct iovec local[PRECOPIED_PIECES], remote[PRECOPIED_PIECES];
	size_t at = 0;
	int r;

	if (index >= p->n)
		return precopied_shared_write(p, index - p->n, pieces, n, err);
	r = place_pieces(p, index, pieces, n, remote, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++)
		local[i] = (struct iovec){(void *)(uintptr_t)pieces[i].data, pieces[i].len};
	while (at < n) {
		ssize_t done = process_vm_writev(p->rebuild.made[index].rpid, local + at, n - at, remote + at,
						 n - at, 0);

		if (done <= 0)
			return err_code(err, done < 0 ? -errno : -EFAULT, "write memory at %#lx",
					(unsigned long)(uintptr_t)remote[at].iov_base);
		for (; at < n && (size_t)done >= remote[at].iov_len; at++)
			done -= (ssize_t)remote[at].iov_len;
		if (at < n && done > 0) {
			local[at].iov_base = (char *)local[at].iov_base + done;
			remote[at].iov_base = (char *)remote[at].iov_base + done;
			local[at].iov_len = remote[at].iov_len -= (size_t)done;
		}
	}
	return note_pieces(p, index, pieces, n) < 0 ? err_code(err, -ENOMEM, "pages") : 0;
}

int precopied_read(const struct precopied *p, size_t index, const struct precopied_piece *pieces, size_t n,
		   uint8_t *to, struct err *err)
{
	struct iovec local = {to, 0}, remote[PRECOPIED_PIECES];
	int r;

	if (index >= p->n)
		return precopied_shared_read(p, index - p->n, pieces, n, to, err);
	r = place_pieces(p, index, pieces, n, remote, err);
	for (size_t i = 0; i < n && r == 0; i++)
		local.iov_len += pieces[i].len;
	if (r == 0 &&
	    process_vm_readv(p->rebuild.made[index].rpid, &local, 1, remote, n, 0) != (ssize_t)local.iov_len)
		r = err_set(err, -EPROTO, "changes of pages that were never sent");
	return r;
}

int precopied_hide(struct rebuild *rebuild, int node, bool hide)
{
	const struct precopied *p = rebuild->precopied;
	const Pbeam__Process *process = rebuild->plan.nodes[node].process;
	int index = p && process ? precopied_find(p, process->vpid, 0) : -1;
	const Pbeam__Memory *memory = index >= 0 && rebuild->made[node].has == p->processes[index].state
					      ? &p->processes[index].memory
					      : NULL;

	for (size_t i = 0; memory && i < memory->n_mappings; i++) {
		const Pbeam__Mapping *map = memory->mappings[i];
		int64_t ret;

		if (map->end - map->start < HIDDEN_LEAST || map->advice)
			continue;
		ret = rebuild_husk_call(
			rebuild, node, SYS_madvise,
			remote_args(map->start, map->end - map->start, hide ? MADV_DONTFORK : MADV_DOFORK));
		if (ret < 0)
			return (int)ret;
	}
	return 0;
}

void precopied_release(struct precopied *p)
{
	if (!p)
		return;
	image_reader_close(p->rebuild.image);
	for (size_t i = 0; i < p->n && p->processes; i++) {
		free(p->processes[i].memory.mappings);
		free(p->processes[i].copies);
		for (size_t j = 0; j < p->processes[i].nmore; j++)
			free(p->processes[i].more[j]);
		free(p->processes[i].more);
	}
	free(p->processes);
	precopied_shared_release(p);
	free(p);
}

void precopied_await_gone(struct names *names, struct vpid vpid)
{
	struct name_process process;

	for (int looks = 0; looks < GONE_LOOKS; looks++) {
		if (names_process_get(names, vpid, &process) < 0 || process.state == NAME_STATE_STUB)
			return;
		nanosleep(&(struct timespec){.tv_nsec = GONE_NAP_NS}, NULL);
	}
}
