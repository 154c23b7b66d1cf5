/*
 * The dump of one frozen process, in its scip: collect from outside, inject, collect and write from inside,
 * withdraw.
 *
 * Invariant: whatever happens, the process is left frozen and as it was: its registers, masks, descriptors
 * and mappings. The one exit of dump_process() takes the injected area away again, unless it was
 * there before.
 */
#include "scip/dump/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "proto/message.h"
#include "scip/dump/dump_parts.h"
#include "scip/dump/mappings.h"
#include "scip/dump/page_writer.h"
#include "scip/dump/prescan.h"

enum { PAGE = 4096, STATUS_MAX = 1 << 20, MCL_FUTURE_FLAG = 2 };

struct tracee *dump_caller(struct process *process)
{
	struct tracee *leader = process_leader(process);

	if (leader && leader->stop != TRACEE_EXITED && leader->stop != TRACEE_RUNNING)
		return leader;
	for (struct tracee *t = process->tracees; t; t = t->next)
		if (t->stop != TRACEE_EXITED && t->stop != TRACEE_RUNNING)
			return t;
	return NULL;
}

int dump_inject(struct process *process, struct tracee *caller, bool *opened, struct err *err)
{
	struct taddr start, end;
	int rc;

	if (inject_range(process, &start, &end))
		return 0;
	rc = inject_open(caller, DUMP_AREA, (struct taddr){0}, err);
	*opened = rc >= 0;
	return rc;
}

int dump_withdraw(struct tracee *caller, bool opened, int rc, struct err *err)
{
	struct err inner = ERR_INIT;
	int undone;

	if (!opened || rc == -ESRCH)
		return rc;
	undone = inject_withdraw(caller, &inner);
	return undone < 0 && rc >= 0 ? err_set(err, undone, "%s", inner.text) : rc;
}

static int read_status(struct dump *dump, struct err *err)
{
	pid_t pid = dump->caller->tid;
	char path[64];
	int rc = procfs_stat_read(pid, 0, &dump->stat, err);

	if (rc >= 0 && pid != dump->process->pid) {
		struct procfs_stat leader;

		rc = procfs_stat_read(dump->process->pid, 0, &leader, err);
		dump->stat.exit_signal = leader.exit_signal;
		memcpy(dump->stat.comm, leader.comm, sizeof(leader.comm));
	}
	if (rc < 0)
		return rc;
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	rc = io_slurp(AT_FDCWD, path, STATUS_MAX, &dump->status, NULL);
	return rc < 0 ? err_code(err, rc, "read %s", path) : 0;
}

/* mlockall(MCL_FUTURE) is in no file of /proc, but a new mapping then has its page at once. Asked only where
 * something is locked. */
static int ask_lock_future(struct dump *dump, struct err *err)
{
	Pbeam__Memory *memory = dump->out->memory;
	const uint64_t vec[] = {PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS};
	struct batch *batch;
	struct taddr at;
	bool locked = false;
	int map, look, unmap, rc;

	for (size_t i = 0; i < memory->n_mappings; i++)
		locked = locked || memory->mappings[i]->locked;
	if (!locked)
		return 0;
	rc = batch_begin(dump->process, &batch, err);
	if (rc < 0)
		return rc;
	rc = batch_data(batch, NULL, 8, &at);
	if (rc < 0)
		goto out_batch;
	map = batch_add(batch, 0, SYS_mmap, remote_args(0, vec[0], vec[1], vec[2], (uint64_t)-1, 0));
	look = batch_add(batch, INJECT_CALL_FROM, SYS_mincore, remote_args(0, PAGE, at.a));
	unmap = batch_add(batch, INJECT_CALL_FROM, SYS_munmap, remote_args(0, PAGE));
	if (map < 0 || look < 0 || unmap < 0) {
		rc = -ENOSPC;
		goto out_batch;
	}
	batch_call(batch, look)->from_call = (uint16_t)map;
	batch_call(batch, unmap)->from_call = (uint16_t)map;
	/* It may be refused (RLIMIT_MEMLOCK, RLIMIT_AS): then nothing more can be mapped anyway. */
	if (batch_run(batch, dump->caller, NULL) == 0 && (*(uint8_t *)batch_local(batch, at) & 1))
		memory->mlockall_flags = MCL_FUTURE_FLAG;
out_batch:
	batch_end(batch);
	return rc;
}

static int scan_mapping(struct dump *dump, struct page_scanner *scanner, struct mapping *m, struct err *err)
{
	uint64_t start = m->out->start, end = m->out->end;
	struct page_runs found = {NULL, 0, 0};
	int rc;

	if (!prescan_take(dump->prescan, start, end, m->shares ? &found : &m->runs, &rc))
		return page_scan(scanner, start, end, m->shares, &m->runs, err);
	if (rc >= 0)
		rc = page_split(scanner, &found, &m->runs, err);
	page_runs_free(&found);
	return rc;
}

static int scan_mappings(struct dump *dump, struct mappings *mappings, bool written, uint64_t *own,
			 struct err *err)
{
	struct page_scanner scanner;
	int rc = page_scanner_open(&scanner, dump->caller->tid, err);

	*own = 0;
	scanner.written = written;
	for (size_t i = 0; i < mappings->n && rc >= 0; i++) {
		struct mapping *m = &mappings->v[i];

		if (m->contents != MAPPING_ANONYMOUS)
			continue;
		rc = scan_mapping(dump, &scanner, m, err);
		for (size_t j = 0; j < m->runs.n; j++)
			if (m->runs.v[j].kind == PAGE_OWN)
				*own += m->runs.v[j].count;
	}
	page_scanner_close(&scanner);
	return rc < 0 ? err_wrap(err, rc, "pages") : 0;
}

static int append_guard(Pbeam__Mapping *out, const struct page_run *run)
{
	Pbeam__Range *guard = message_add(out, guards, pbeam__range__descriptor);

	if (!guard)
		return -ENOMEM;
	guard->address = run->start;
	guard->count = run->count;
	return 0;
}

static int write_runs(struct page_writer *writer, struct mapping *m, uint64_t *offset, struct err *err)
{
	Pbeam__Mapping *out = m->out;
	int rc = 0;

	for (size_t i = 0; i < m->runs.n && rc >= 0; i++) {
		const struct page_run *run = &m->runs.v[i];

		switch (run->kind) {
		case PAGE_OWN:
			rc = pages_append(&out->n_pages, &out->pages, run->start, run->count, *offset);
			if (rc >= 0)
				rc = page_writer_add(writer, run->start, run->count, *offset, m->unreadable,
						     err);
			*offset += run->count * PAGE;
			break;
		case PAGE_COMMON:
			rc = page_writer_common(writer, run->start, run->count, 0, false, &out->n_pages,
						&out->pages, err);
			break;
		case PAGE_SENT:
			rc = pages_append(&out->n_pages, &out->pages, run->start, run->count, 0);
			break;
		case PAGE_GUARD:
			rc = append_guard(out, run);
			break;
		}
	}
	return rc;
}

static int write_mappings(struct dump *dump, struct mappings *mappings, bool written, int image_fd,
			  struct image_arena *arena, uint64_t *bytes, struct err *err)
{
	struct page_writer *writer;
	uint64_t own, offset;
	int rc = scan_mappings(dump, mappings, written, &own, err);

	if (rc < 0)
		return rc;
	rc = page_writer_open(&writer, dump->process, dump->caller, image_fd, arena, err);
	if (rc < 0)
		return rc;
	offset = image_arena_take(arena, own * PAGE);
	for (size_t i = 0; i < mappings->n && rc >= 0; i++) {
		struct mapping *m = &mappings->v[i];

		rc = write_runs(writer, m, &offset, err);
		if (rc >= 0 && m->contents == MAPPING_ALL)
			rc = page_writer_common(writer, m->out->start, (m->out->end - m->out->start) / PAGE,
						0, true, &m->out->n_pages, &m->out->pages, err);
	}
	if (rc >= 0)
		rc = fault_point("mid-dump", err);
	if (rc >= 0)
		rc = page_writer_flush(writer, err);
	*bytes = page_writer_bytes(writer);
	page_writer_close(writer);
	return rc < 0 ? err_wrap(err, rc, "memory") : 0;
}

static int dump_inside(struct dump *dump, struct err *err)
{
	int rc = dump_attributes_inside(dump, err);

	if (rc >= 0)
		rc = dump_actions(dump, err);
	if (rc >= 0)
		rc = dump_timers(dump, err);
	if (rc >= 0)
		rc = dump_threads_inside(dump, err);
	if (rc >= 0)
		rc = dump_semaphores(dump, err);
	if (rc >= 0)
		rc = dump_policies(dump, err);
	if (rc >= 0)
		rc = ask_lock_future(dump, err);
	return rc;
}

static int dump_frozen(struct dump *dump, Pbeam__ScipDump__What what, struct mappings *mappings, int image_fd,
		       struct image_arena *arena, Pbeam__ScipDumped *out, bool *injected, struct err *err)
{
	struct procfs_maps maps = {NULL, 0};
	int rc = read_status(dump, err);

	if (rc >= 0 && what != PBEAM__SCIP_DUMP__WHAT__SKELETON)
		dump->prescan = prescan_start(dump->caller->tid, what == PBEAM__SCIP_DUMP__WHAT__WRITTEN);
	if (rc >= 0)
		rc = dump_threads(dump, err);
	if (rc >= 0)
		rc = dump_attributes(dump, err);
	if (rc >= 0)
		rc = dump_filters(dump, err);
	if (rc >= 0)
		rc = dump_memory_fields(dump, err);
	if (rc >= 0)
		rc = procfs_maps_read(dump->caller->tid, true, &maps, err);
	if (rc >= 0)
		rc = mappings_collect(dump->process, dump->caller->tid, &maps, dump->out->memory, out,
				      mappings, err);
	if (rc >= 0)
		rc = dump_inject(dump->process, dump->caller, injected, err);
	if (rc >= 0)
		rc = dump_inside(dump, err);
	if (rc >= 0 && what != PBEAM__SCIP_DUMP__WHAT__SKELETON)
		rc = write_mappings(dump, mappings, what == PBEAM__SCIP_DUMP__WHAT__WRITTEN, image_fd, arena,
				    &out->bytes, err);
	procfs_maps_free(&maps);
	prescan_free(dump->prescan);
	return rc;
}

int dump_process(struct process *process, Pbeam__ScipDump__What what, int image_fd, struct image_arena *arena,
		 Pbeam__ScipDumped *out, struct err *err)
{
	struct dump dump = {.process = process, .caller = dump_caller(process)};
	struct mappings mappings = {NULL, 0};
	bool injected = false;
	int rc = -ENOMEM;

	if (!dump.caller)
		return err_set(err, -ESRCH, "vpid %d has ended", process->vpid.n);
	process->tracked = what != PBEAM__SCIP_DUMP__WHAT__ALL;
	out->process = dump.out = message_new(&pbeam__process__descriptor);
	if (dump.out)
		dump.out->memory = message_new(&pbeam__memory__descriptor);
	if (dump.out && dump.out->memory)
		rc = dump_frozen(&dump, what, &mappings, image_fd, arena, out, &injected, err);
	mappings_free(&mappings);
	rc = dump_withdraw(dump.caller, injected, rc, err);
	free(dump.status);
	return rc < 0 ? err_wrap(err, rc, "vpid %d (%s)", process->vpid.n, dump.stat.comm) : 0;
}
