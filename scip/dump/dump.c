/*
 * Dumps one frozen process, in its scip: collects from outside, injects, collects and writes from inside,
 * withdraws.
 *
 * Invariant: on every path the process stays frozen, with the registers, masks, descriptors and mappings that
 * it had. The one exit of dump_process() removes the injected area, unless it was there before.
 */
#include "scip/dump/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/page.h"
#include "proto/message.h"
#include "scip/dump/dump_parts.h"
#include "scip/dump/mappings.h"
#include "scip/dump/page_writer.h"
#include "scip/dump/prescan.h"

enum { STATUS_MAX = 1 << 20, MCL_FUTURE_FLAG = 2 };

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
	int r;

	if (inject_range(process, &start, &end))
		return 0;
	r = inject_open(caller, DUMP_AREA, (struct taddr){0}, err);
	*opened = r >= 0;
	return r;
}

int dump_withdraw(struct tracee *caller, bool opened, int r, struct err *err)
{
	struct err inner = ERR_INIT;
	int undone;

	if (!opened || r == -ESRCH)
		return r;
	undone = inject_withdraw(caller, &inner);
	return undone < 0 && r >= 0 ? err_set(err, undone, "%s", inner.text) : r;
}

static int read_status(struct dump *dump, struct err *err)
{
	pid_t pid = dump->caller->tid;
	const char *ignored;
	char path[64];
	int r = procfs_stat_read(pid, 0, &dump->stat, err);

	if (r >= 0 && pid != dump->process->pid) {
		struct procfs_stat leader;

		r = procfs_stat_read(dump->process->pid, 0, &leader, err);
		dump->stat.exit_signal = leader.exit_signal;
		memcpy(dump->stat.comm, leader.comm, sizeof(leader.comm));
	}
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	r = io_slurp(AT_FDCWD, path, STATUS_MAX, &dump->status, NULL);
	if (r < 0)
		return err_code(err, r, "read %s", path);
	ignored = procfs_field(dump->status, "SigIgn");
	dump->process->trap_unignored = ignored && !(strtoull(ignored, NULL, 16) >> (SIGTRAP - 1) & 1);
	return 0;
}

/* No file of /proc shows mlockall(MCL_FUTURE), but with it a new mapping has its page at once. Tried only in
 * processes that have locked memory. */
static int ask_lock_future(struct dump *dump, struct err *err)
{
	Pbeam__Memory *memory = dump->out->memory;
	const uint64_t vec[] = {PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS};
	struct batch *batch;
	struct taddr at;
	bool locked = false;
	int map, look, unmap, r;

	for (size_t i = 0; i < memory->n_mappings; i++)
		locked = locked || memory->mappings[i]->locked;
	if (!locked)
		return 0;
	r = batch_begin(dump->process, &batch, err);
	if (r < 0)
		return r;
	r = batch_data(batch, NULL, 8, &at);
	if (r < 0)
		goto out_batch;
	map = batch_add(batch, 0, SYS_mmap, remote_args(0, vec[0], vec[1], vec[2], (uint64_t)-1, 0));
	look = batch_add(batch, INJECT_CALL_FROM, SYS_mincore, remote_args(0, PAGE, at.a));
	unmap = batch_add(batch, INJECT_CALL_FROM, SYS_munmap, remote_args(0, PAGE));
	if (map < 0 || look < 0 || unmap < 0) {
		r = -ENOSPC;
		goto out_batch;
	}
	batch_call(batch, look)->from_call = (uint16_t)map;
	batch_call(batch, unmap)->from_call = (uint16_t)map;
	/* mmap() may fail (RLIMIT_MEMLOCK, RLIMIT_AS); then the program cannot map more either. */
	if (batch_run(batch, dump->caller, NULL) == 0 && (*(uint8_t *)batch_local(batch, at) & 1))
		memory->mlockall_flags = MCL_FUTURE_FLAG;
out_batch:
	batch_end(batch);
	return r;
}

static int scan_mapping(struct dump *dump, struct page_scanner *scanner, struct mapping *m, struct err *err)
{
	uint64_t start = m->out->start, end = m->out->end;
	struct page_runs found = {NULL, 0, 0};
	int r;

	if (!prescan_take(dump->prescan, start, end, m->shares ? &found : &m->runs, &r))
		return page_scan(scanner, start, end, m->shares, &m->runs, err);
	if (r >= 0)
		r = page_split(scanner, &found, &m->runs, err);
	page_runs_free(&found);
	return r;
}

static int scan_mappings(struct dump *dump, struct mappings *mappings, bool written, uint64_t *own,
			 struct err *err)
{
	struct page_scanner scanner;
	int r = page_scanner_open(&scanner, dump->caller->tid, err);

	*own = 0;
	scanner.written = written;
	for (size_t i = 0; i < mappings->n && r >= 0; i++) {
		struct mapping *m = &mappings->v[i];

		if (m->contents != MAPPING_ANONYMOUS)
			continue;
		r = scan_mapping(dump, &scanner, m, err);
		for (size_t j = 0; j < m->runs.n; j++)
			if (m->runs.v[j].kind == PAGE_OWN)
				*own += m->runs.v[j].count;
	}
	page_scanner_close(&scanner);
	return r < 0 ? err_wrap(err, r, "pages") : 0;
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
	int r = 0;

	for (size_t i = 0; i < m->runs.n && r >= 0; i++) {
		const struct page_run *run = &m->runs.v[i];

		switch (run->kind) {
		case PAGE_OWN:
			r = pages_append(&out->n_pages, &out->pages, run->start, run->count, *offset);
			if (r >= 0)
				r = page_writer_add(writer, run->start, run->count, *offset, m->unreadable,
						    err);
			*offset += run->count * PAGE;
			break;
		case PAGE_COMMON:
			r = page_writer_common(writer, run->start, run->count, 0, false, &out->n_pages,
					       &out->pages, err);
			break;
		case PAGE_SENT:
			r = pages_append(&out->n_pages, &out->pages, run->start, run->count, 0);
			break;
		case PAGE_GUARD:
			r = append_guard(out, run);
			break;
		}
	}
	return r;
}

static int write_mappings(struct dump *dump, struct mappings *mappings, bool written, int image_fd,
			  struct image_arena *arena, uint64_t *bytes, struct err *err)
{
	struct page_writer *writer;
	uint64_t own, offset;
	int r = scan_mappings(dump, mappings, written, &own, err);

	if (r < 0)
		return r;
	r = page_writer_open(&writer, dump->process, dump->caller, image_fd, arena, err);
	if (r < 0)
		return r;
	offset = image_arena_take(arena, own * PAGE);
	for (size_t i = 0; i < mappings->n && r >= 0; i++) {
		struct mapping *m = &mappings->v[i];

		r = write_runs(writer, m, &offset, err);
		if (r >= 0 && m->contents == MAPPING_ALL)
			r = page_writer_common(writer, m->out->start, (m->out->end - m->out->start) / PAGE, 0,
					       true, &m->out->n_pages, &m->out->pages, err);
	}
	if (r >= 0)
		r = fault_point("mid-dump", err);
	if (r >= 0)
		r = page_writer_flush(writer, err);
	*bytes = page_writer_bytes(writer);
	page_writer_close(writer);
	return r < 0 ? err_wrap(err, r, "memory") : 0;
}

typedef int dump_step_fn(struct dump *dump, struct err *err);

static dump_step_fn *const OUTSIDE[] = {dump_threads, dump_attributes, dump_filters, dump_memory_fields,
					NULL};
static dump_step_fn *const INSIDE[] = {
	dump_timers, dump_threads_inside, dump_semaphores, dump_policies, ask_lock_future, NULL,
};

/* What the first batch asks. */
static const struct question {
	int (*ask)(struct dump *dump, struct batch *batch, struct dump_asked *asked);
	int (*take)(struct dump *dump, struct batch *batch, const struct dump_asked *asked);
} QUESTIONS[] = {
	{dump_ask_attributes, dump_take_attributes}, {dump_ask_actions, dump_take_actions},
	{dump_ask_itimers, dump_take_itimers},	     {dump_ask_thread, dump_take_thread},
	{dump_ask_policies, dump_take_policies},
};

enum { NQUESTIONS = sizeof(QUESTIONS) / sizeof(QUESTIONS[0]) };

/* In one batch: each further one costs two stops and a dozen calls of ptrace. */
static int ask_questions(struct dump *dump, struct err *err)
{
	struct dump_asked asked[NQUESTIONS] = {{.n = 0}};
	struct batch *batch;
	int r = batch_begin(dump->process, &batch, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < NQUESTIONS && r >= 0; i++)
		r = QUESTIONS[i].ask(dump, batch, &asked[i]);
	if (r >= 0)
		r = batch_run(batch, dump->caller, err);
	for (size_t i = 0; i < NQUESTIONS && r >= 0; i++)
		r = QUESTIONS[i].take(dump, batch, &asked[i]);
	batch_end(batch);
	return r < 0 ? err_wrap(err, r, "attributes") : 0;
}

static int run_steps(struct dump *dump, dump_step_fn *const *steps, struct err *err)
{
	for (; *steps; steps++) {
		int r = (*steps)(dump, err);

		if (r < 0)
			return r;
	}
	return 0;
}

static int dump_mappings(struct dump *dump, struct mappings *mappings, Pbeam__ScipDumped *out,
			 struct err *err)
{
	struct procfs_maps maps = {NULL, 0};
	int r = procfs_maps_read(dump->caller->tid, true, &maps, err);

	if (r >= 0)
		r = mappings_collect(dump->process, dump->caller->tid, &maps, dump->out->memory, out,
				     mappings, err);
	procfs_maps_free(&maps);
	return r;
}

static int dump_frozen(struct dump *dump, Pbeam__ScipDump__What what, struct mappings *mappings, int image_fd,
		       struct image_arena *arena, Pbeam__ScipDumped *out, bool *injected, struct err *err)
{
	bool skeleton = what == PBEAM__SCIP_DUMP__WHAT__SKELETON;
	bool written = what == PBEAM__SCIP_DUMP__WHAT__WRITTEN;
	int r = read_status(dump, err);

	if (r < 0)
		return r;
	if (!skeleton)
		dump->prescan = prescan_start(dump->caller->tid, dump->status, written);
	r = skeleton ? 0 : dump_leave_vdso(dump, err);
	if (r < 0)
		return r;
	r = run_steps(dump, OUTSIDE, err);
	if (r < 0)
		return r;
	r = dump_mappings(dump, mappings, out, err);
	if (r < 0)
		return r;
	r = dump_inject(dump->process, dump->caller, injected, err);
	if (r < 0)
		return r;
	r = ask_questions(dump, err);
	if (r >= 0)
		r = run_steps(dump, INSIDE, err);
	if (r < 0 || skeleton)
		return r;
	return write_mappings(dump, mappings, written, image_fd, arena, &out->bytes, err);
}

int dump_process(struct process *process, Pbeam__ScipDump__What what, int image_fd, struct image_arena *arena,
		 Pbeam__ScipDumped *out, struct err *err)
{
	struct dump dump = {.process = process, .caller = dump_caller(process)};
	struct mappings mappings = {NULL, 0};
	bool injected = false;
	int r = -ENOMEM;

	if (!dump.caller)
		return err_set(err, -ESRCH, "vpid %d has ended", process->vpid.n);
	process->tracked = what != PBEAM__SCIP_DUMP__WHAT__ALL;
	out->process = dump.out = message_new(&pbeam__process__descriptor);
	if (dump.out)
		dump.out->memory = message_new(&pbeam__memory__descriptor);
	if (dump.out && dump.out->memory)
		r = dump_frozen(&dump, what, &mappings, image_fd, arena, out, &injected, err);
	prescan_free(dump.prescan);
	mappings_free(&mappings);
	r = dump_withdraw(dump.caller, injected, r, err);
	process->trap_unignored = false;
	free(dump.status);
	return r < 0 ? err_wrap(err, r, "vpid %d (%s)", process->vpid.n, dump.stat.comm) : 0;
}
