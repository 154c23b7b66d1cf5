#include "scip/capture/track.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/page.h"
#include "proto/message.h"
#include "scip/dump/pagemap_scan.h"
#include "scip/tracee/procfs.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_ASYNC (1 << 15)
#endif

/* PAGEMAP_SCAN also write-protects here, but without PM_SCAN_CHECK_WPASYNC: with it the call fails at the
 * first memory that is not registered (because it was moved or mapped again), after it has protected pages
 * before that memory, which it then does not report. Without it the call skips the memory. */
enum { REGIONS = 512, ANSWER_MS = 30000, WORDS = 512, SHARED_LEAST = 4 << 20 };

/* ---- in the frozen process ---- */

static void read_identity(struct tracked *t)
{
	struct procfs_stat stat_now;
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/exe", t->rpid.n);
	if (stat(path, &st) == 0) {
		t->dev = st.st_dev;
		t->ino = st.st_ino;
	}
	if (procfs_stat_read(t->rpid.n, 0, &stat_now, NULL) == 0) {
		t->parent = stat_now.ppid;
		t->group = stat_now.pgrp;
		t->session = stat_now.session;
		t->terminal = stat_now.tty_nr;
		t->stack = stat_now.start_stack;
	}
}

/* Makes one call in the frozen process. Returns its return value, or -errno with err set. */
static int64_t call_inside(struct group *group, struct member *member, int64_t nr, const uint64_t args[6],
			   struct err *err)
{
	Pbeam__ScipCall__One one = PBEAM__SCIP_CALL__ONE__INIT, *ones[1] = {&one};
	Pbeam__ScipCall request = PBEAM__SCIP_CALL__INIT;
	const Pbeam__ScipCalled *called;
	uint64_t copy[6];
	int r;

	memcpy(copy, args, sizeof(copy));
	one.number = nr;
	one.n_args = 6;
	one.args = copy;
	request.n_calls = 1;
	request.calls = ones;
	group_ask(member, PBEAM__SCIP_REQUEST__SCIP_RESTORE_CALL, &request.base, NULL, 0);
	r = group_gather(group, &pbeam__scip_called__descriptor, ANSWER_MS, err);
	if (r == 0 && member->problem.code)
		r = err_set(err, member->problem.code, "%s", member->problem.text);
	if (r < 0)
		return r;
	called = (const void *)member->reply;
	return called && called->n_results == 1 ? called->results[0] : -EPROTO;
}

/* Creates a userfaultfd in the process and takes it. Returns the descriptor or -errno. */
static int take_uffd(struct group *group, struct member *member, struct err *err)
{
	struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_WP_ASYNC};
	const uint64_t flags[6] = {O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY};
	int64_t there = call_inside(group, member, SYS_userfaultfd, flags, err);
	uint64_t close_args[6] = {(uint64_t)there};
	auto_close int pidfd = -1, fd = -1;

	if (there < 0)
		return err_code(err, (int)there, "make a userfaultfd in vpid %d", member->vpid.n);
	pidfd = (int)syscall(SYS_pidfd_open, member->rpid.n, 0);
	fd = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, (int)there, 0);
	if (call_inside(group, member, SYS_close, close_args, err) < 0)
		return -EIO;
	if (fd < 0)
		return err_sys(err, "take the userfaultfd of vpid %d", member->vpid.n);
	if (ioctl(fd, UFFDIO_API, &api) < 0)
		return err_sys(err, "track writes (WP_ASYNC)");
	return steal_fd(&fd);
}

static bool is_tracked(const Pbeam__Mapping *map)
{
	bool anonymous = map->kind == PBEAM__MAPPING__KIND__ANON_PRIVATE ||
			 map->kind == PBEAM__MAPPING__KIND__HEAP || map->kind == PBEAM__MAPPING__KIND__STACK;

	return anonymous && (map->flags & MAP_PRIVATE) && !(map->flags & MAP_HUGETLB) && map->prot;
}

static int open_proc_files(struct tracked *t, struct err *err)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/pagemap", t->rpid.n);
	t->pagemap = open(path, O_RDONLY | O_CLOEXEC);
	if (t->pagemap < 0)
		return err_sys(err, "open %s", path);
	snprintf(path, sizeof(path), "/proc/%d/mem", t->rpid.n);
	t->mem = open(path, O_RDONLY | O_CLOEXEC);
	return t->mem < 0 ? err_sys(err, "open %s", path) : 0;
}

bool track_register(const struct tracked *t, uint64_t start, uint64_t end)
{
	struct uffdio_register args = {.range = {start, end - start}, .mode = UFFDIO_REGISTER_MODE_WP};

	return ioctl(t->uffd, UFFDIO_REGISTER, &args) == 0;
}

int track_begin(struct tracked *t, struct group *group, struct member *member, struct err *err)
{
	const Pbeam__Memory *memory = member->process->memory; /* NULL: a stub */
	int r;

	*t = (struct tracked){
		.rpid = member->rpid, .vpid = member->vpid, .uffd = -1, .pagemap = -1, .mem = -1};
	read_identity(t);
	if (!group_has_contents(member))
		return 0;
	r = open_proc_files(t, err);
	if (r < 0)
		return r;
	t->uffd = take_uffd(group, member, err);
	if (t->uffd < 0)
		return t->uffd;
	t->ranges = calloc(memory->n_mappings + 1, sizeof(*t->ranges));
	if (!t->ranges)
		return err_code(err, -ENOMEM, "track memory");
	for (size_t i = 0; i < memory->n_mappings; i++) {
		const Pbeam__Mapping *map = memory->mappings[i];
		struct track_range *range = &t->ranges[t->nranges];

		if (!is_tracked(map) || !track_register(t, map->start, map->end))
			continue;
		*range = (struct track_range){.start = map->start, .end = map->end};
		t->nranges++;
	}
	return 0;
}

void track_end(struct tracked *t)
{
	if (t->uffd >= 0)
		close(steal_fd(&t->uffd));
	if (t->pagemap >= 0)
		close(steal_fd(&t->pagemap));
	if (t->mem >= 0)
		close(steal_fd(&t->mem));
	free(t->ranges);
	t->ranges = NULL;
	t->nranges = 0;
}

bool track_matches(const struct tracked *t, const struct member *member)
{
	struct tracked now = {.rpid = member->rpid};

	if (member->rpid.n != t->rpid.n || member->vpid.n != t->vpid.n)
		return false;
	read_identity(&now);
	if (now.parent != t->parent || now.group != t->group || now.session != t->session)
		return false;
	return member->zombie || (!t->lost && now.dev == t->dev && now.ino == t->ino &&
				  now.stack == t->stack && now.terminal == t->terminal);
}

/* ---- from outside ---- */

/* Scans from *start on, which is advanced. Returns the number of regions, or -1 when the address space is
 * gone. */
static int scan_pages(const struct tracked *t, uint64_t *start, uint64_t end, uint64_t flags,
		      struct scan_region regions[REGIONS])
{
	struct scan_arg arg = {.size = sizeof(arg),
			       .flags = flags,
			       .start = *start,
			       .end = end,
			       .vec = (uint64_t)(uintptr_t)regions,
			       .vec_len = REGIONS,
			       .category_inverted = SCAN_PFNZERO,
			       .category_mask = SCAN_WRITTEN | SCAN_PFNZERO,
			       .category_anyof_mask = SCAN_PRESENT | SCAN_SWAPPED,
			       .return_mask = SCAN_WRITTEN | SCAN_TRACKED};
	const int n = ioctl(t->pagemap, SCAN_CALL, &arg);

	*start = arg.walk_end;
	return n;
}

int track_report(struct tracked *t, track_fn fn, void *arg)
{
	struct scan_region regions[REGIONS];
	int r = 0;

	for (size_t i = 0; i < t->nranges; i++)
		for (uint64_t at = t->ranges[i].start; at < t->ranges[i].end;) {
			int n = scan_pages(t, &at, t->ranges[i].end, SCAN_WP, regions);

			if (n < 0) {
				t->lost = true;
				return 0;
			}
			for (int j = 0; j < n && r == 0; j++)
				r = fn(arg, t, &t->ranges[i], regions[j].start, regions[j].end);
			if (r < 0)
				return r;
		}
	return 0;
}

void track_count(const struct tracked *t, uint64_t *written, uint64_t *untracked)
{
	struct scan_region regions[REGIONS];

	for (size_t i = 0; i < t->nranges; i++)
		for (uint64_t at = t->ranges[i].start; at < t->ranges[i].end;) {
			int n = scan_pages(t, &at, t->ranges[i].end, 0, regions);

			if (n < 0)
				break;
			for (int j = 0; j < n; j++)
				*(regions[j].categories & SCAN_TRACKED ? written : untracked) +=
					regions[j].end - regions[j].start;
		}
}

bool track_scan_shared(const struct tracked *t, uint64_t start, uint64_t end, bool again, track_shared_fn fn,
		       void *arg)
{
	struct scan_region regions[REGIONS];

	for (uint64_t at = start; at < end;) {
		int n = scan_pages(t, &at, end, again ? SCAN_WP : 0, regions);

		if (n < 0)
			return false;
		for (int j = 0; j < n; j++)
			fn(arg, regions[j].start, regions[j].end);
	}
	return true;
}

/* The kernel walks all page tables to compute Pss_Shmem, so it is read only where there is much. */
uint64_t track_shared(const struct tracked *t)
{
	return procfs_bytes(t->rpid.n, "status", "RssShmem") < SHARED_LEAST
		       ? 0
		       : procfs_bytes(t->rpid.n, "smaps_rollup", "Pss_Shmem");
}

void track_set_read(struct tracked *t)
{
	for (size_t i = 0; i < t->nranges; i++)
		t->ranges[i].read = true;
}

/* Objects need nothing, as they are compared at the end. Goes page by page: the ioctl ends at the first page
 * that is not registered. */
void track_report_again(struct tracked *t, const struct track_run *run)
{
	if (run->range->object)
		__atomic_store_n(run->range->missed, true, __ATOMIC_RELAXED);
	for (uint64_t at = run->start; at < run->end && !run->range->object; at += PAGE) {
		struct uffdio_writeprotect args = {.range = {at, PAGE}};

		if (ioctl(t->uffd, UFFDIO_WRITEPROTECT, &args) < 0 && errno != ENOENT)
			__atomic_store_n(&t->lost, true, __ATOMIC_RELAXED);
	}
}

/* True if other processes map some of the pages too. */
static bool is_shared(const struct tracked *t, uint64_t start, size_t len)
{
	uint64_t words[WORDS];

	for (size_t pages = len / PAGE; pages;) {
		const size_t n = pages < WORDS ? pages : WORDS;

		if (io_pread_full(t->pagemap, words, n * 8, (off_t)(start / PAGE * 8)) != (ssize_t)(n * 8))
			return true;
		for (size_t i = 0; i < n; i++)
			if ((words[i] & WORD_PRESENT) && !(words[i] & WORD_EXCLUSIVE))
				return true;
		start += n * PAGE;
		pages -= n;
	}
	return false;
}

/* process_vm_readv() pins the pages, and pinning a page that is shared copy-on-write for reading makes a copy
 * of it in the process (gup_must_unshare(), Linux 5.19). */
static bool read_shared(const struct tracked *t, const struct track_run *run, void *to)
{
	const size_t len = run->end - run->start;

	return io_pread_full(t->mem, to, len, (off_t)run->start) == (ssize_t)len;
}

static bool read_own(const struct tracked *t, const struct track_run *runs, size_t n, void *to)
{
	struct iovec local = {to, 0}, remote[TRACK_RUNS];

	for (size_t i = 0; i < n; i++) {
		remote[i] = (struct iovec){(void *)(uintptr_t)runs[i].start, // NOLINT: an address there
					   runs[i].end - runs[i].start};
		local.iov_len += remote[i].iov_len;
	}
	return process_vm_readv(t->rpid.n, &local, 1, remote, n, 0) == (ssize_t)local.iov_len;
}

void track_read(const struct tracked *t, struct track_run *runs, size_t n, void *to)
{
	uint8_t *at = to;
	bool own = true;

	for (size_t i = 0; i < n; i++) {
		runs[i].missing = false;
		own = own && runs[i].range->read && !runs[i].range->shares;
	}
	if (own && read_own(t, runs, n, to))
		return;
	for (size_t i = 0; i < n; i++) {
		const size_t len = runs[i].end - runs[i].start;
		const bool shared = !runs[i].range->object && is_shared(t, runs[i].start, len);

		if (shared)
			__atomic_store_n(&runs[i].range->shares, true, __ATOMIC_RELAXED);
		runs[i].missing = (shared || !read_own(t, &runs[i], 1, at)) && !read_shared(t, &runs[i], at);
		at += len;
	}
}
