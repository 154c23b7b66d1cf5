/*
 * Which open file descriptions there are, and which descriptors refer to each.
 *
 * Each descriptor of each process is duplicated into the coordinator with pidfd_getfd, and looked for among
 * those that are known: they are kept in a balanced tree whose order is (device, inode, kind of device,
 * type, status flags) and, among equals, the order that kcmp(KCMP_FILE) gives: it compares the addresses of
 * the two struct file, obfuscated but consistently. So n descriptions of one inode (all eventfds have one)
 * cost n log n kcmp. kcmp compares our own duplicates only, so it needs no permission for other processes. A
 * duplicate that turns out to be known is closed again.
 *
 * Processes that share a descriptor table (CLONE_FILES) are found by kcmp(KCMP_FILES): only those whose
 * tables hold as many descriptors are compared. The later one gets no descriptors of its own, but files_of.
 */
#include "scip/object/object_dump.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/io.h"
#include "scip/object/common.h"

#ifndef PIDFD_THREAD
#define PIDFD_THREAD O_EXCL /* Linux 6.9 */
#endif
#define FDINFO_MAX (64u << 20)

static int compare_u64(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

static int compare_files(int a, int b)
{
	pid_t self = getpid();
	long r = syscall(SYS_kcmp, self, self, KCMP_FILE, (unsigned long)a, (unsigned long)b);

	return r == 0 ? 0 : r == 1 ? -1 : 1;
}

/* For tsearch(3): of two entries. */
static int scan_compare_entries(const void *one, const void *other)
{
	const struct object_source *a = &((const struct object_entry *)one)->source;
	const struct object_source *b = &((const struct object_entry *)other)->source;
	int r = compare_u64(a->st.st_dev, b->st.st_dev);

	if (!r)
		r = compare_u64(a->st.st_ino, b->st.st_ino);
	if (!r)
		r = compare_u64(a->st.st_rdev, b->st.st_rdev);
	if (!r)
		r = compare_u64(a->st.st_mode & S_IFMT, b->st.st_mode & S_IFMT);
	if (!r)
		r = compare_u64((uint64_t)a->flags, (uint64_t)b->flags);
	return r ? r : compare_files(a->local, b->local);
}

static void entry_free(struct object_entry *entry)
{
	free(entry->source.link);
	free(entry->source.fdinfo);
	free(entry);
}

/* Gives the entry its id, and its place among those of its inode number. */
static int append_entry(struct object_dump *dump, struct object_entry *entry, struct err *err)
{
	size_t first = u64_map_find(&dump->inodes, entry->source.st.st_ino);

	if (dump->nentries == dump->room) {
		size_t room = dump->room ? dump->room * 2 : 64;
		struct object_entry **entries = realloc(dump->entries, room * sizeof(*entries));

		if (!entries)
			return object_no_memory(err);
		dump->entries = entries;
		dump->room = room;
	}
	if (first == U64_MAP_NONE && u64_map_set(&dump->inodes, entry->source.st.st_ino, dump->nentries) < 0)
		return object_no_memory(err);
	if (first == U64_MAP_NONE) {
		entry->last_same = entry;
	} else {
		dump->entries[first]->last_same->next_same = entry;
		dump->entries[first]->last_same = entry;
	}
	dump->entries[dump->nentries++] = entry;
	entry->source.id = (uint32_t)dump->nentries;
	return 0;
}

/* The link of a pipe without a name is known from its inode number: one walk through /proc less. */
static int read_link(struct object_dump *dump, struct object_source *source, struct err *err)
{
	char path[64], link[4096 + 16];
	int r;

	if (S_ISFIFO(source->st.st_mode) && dump->pipefs && source->st.st_dev == dump->pipefs) {
		snprintf(link, sizeof(link), "pipe:[%lu]", (unsigned long)source->st.st_ino);
	} else {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", source->local);
		r = io_readlink(AT_FDCWD, path, link, sizeof(link));
		if (r < 0)
			return err_code(err, r, "read link of a descriptor");
		if (strncmp(link, "pipe:[", 6) == 0)
			dump->pipefs = source->st.st_dev;
	}
	source->link = strdup(link);
	return source->link ? 0 : object_no_memory(err);
}

/* Fills what belongs to a new description and gives it its place in the manifest. */
static int fill_entry(struct object_dump *dump, struct object_entry *entry, const char *fdinfo,
		      struct err *err)
{
	struct object_source *source = &entry->source;
	char path[64];
	int r = read_link(dump, source, err);

	if (r < 0)
		return r;
	if (fdinfo) {
		source->fdinfo = strdup(fdinfo);
		r = source->fdinfo ? 0 : -ENOMEM;
	} else {
		snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", source->local);
		r = io_slurp(AT_FDCWD, path, FDINFO_MAX, &source->fdinfo, NULL);
	}
	if (r < 0)
		return err_code(err, r, "read fdinfo of a descriptor");
	entry->out = object_message(Pbeam__Object, pbeam__object__init);
	if (!entry->out)
		return object_no_memory(err);
	r = append_entry(dump, entry, err);
	if (r == 0) {
		entry->out->id = source->id;
		entry->out->flags = (uint32_t)source->flags;
		r = object_append(dump->manifest->objects, dump->manifest->n_objects, entry->out);
		if (r == 0)
			return 0;
		dump->nentries--; /* the dump ends; nothing looks for it any more */
	}
	pbeam__object__free_unpacked(entry->out, NULL);
	entry->out = NULL;
	return object_no_memory(err);
}

static int scan_take_entry(struct object_dump *dump, struct object_entry *entry, const char *fdinfo,
			   struct object_entry **out, struct err *err)
{
	struct object_entry *const *found;
	int r;

	entry->source.flags = fcntl(entry->source.local, F_GETFL);
	if (entry->source.flags < 0 || fstat(entry->source.local, &entry->source.st) < 0)
		return err_sys(err, "look at a descriptor");
	found = tsearch(entry, &dump->tree, scan_compare_entries);
	if (!found)
		return object_no_memory(err);
	*out = *found;
	if (*found != entry)
		return 0;
	r = fill_entry(dump, entry, fdinfo, err);
	if (r < 0)
		tdelete(entry, &dump->tree, scan_compare_entries);
	return r;
}

int object_scan_add(struct object_dump *dump, const struct object_source *found, const char *fdinfo,
		    struct object_entry **out, struct err *err)
{
	struct object_entry *entry = calloc(1, sizeof(*entry));
	int r;

	if (!entry) {
		close(found->local);
		return object_no_memory(err);
	}
	entry->source = *found;
	r = scan_take_entry(dump, entry, fdinfo, out, err);
	if (r < 0 || *out != entry) {
		close(found->local);
		entry_free(entry);
	}
	return r;
}

static void leave_entry(void *entry)
{
	(void)entry; /* owned by dump->entries */
}

void object_scan_free(struct object_dump *dump)
{
	tdestroy(dump->tree, leave_entry);
	u64_map_free(&dump->inodes);
}

/* ---- the descriptor table of one process ---- */

struct table {
	struct rpid tid; /* the thread it is read from: the leader, or another where the leader has exited */
	int *fds;
	size_t n;
};

static int compare_ints(const void *a, const void *b)
{
	return *(const int *)a < *(const int *)b ? -1 : *(const int *)a > *(const int *)b;
}

/* `folder`: "fd" or "fdinfo" of the thread. A walk through it costs the kernel an inode for each entry, and
 * the fdinfo files are opened later. */
static int read_table(struct rpid tid, const char *folder, struct table *table, struct err *err)
{
	char path[64];
	auto_closedir DIR *dir = NULL;
	struct dirent *item;
	int r;

	snprintf(path, sizeof(path), "/proc/%d/%s", tid.n, folder);
	dir = opendir(path);
	if (!dir)
		return err_sys(err, "open %s", path);
	table->tid = tid;
	table->n = 0;
	while (errno = 0, (item = readdir(dir)) != NULL) {
		if (item->d_name[0] < '0' || item->d_name[0] > '9')
			continue;
		r = object_append(table->fds, table->n, atoi(item->d_name));
		if (r < 0)
			return object_no_memory(err);
	}
	if (errno)
		return err_sys(err, "read %s", path);
	if (table->n)
		bytes_sort(table->fds, table->n, sizeof(*table->fds), compare_ints);
	return 0;
}

/* The process whose descriptors are being looked at. */
struct scan {
	struct object_dump *dump;
	Pbeam__Process *process;
	struct rpid tid;
	int pidfd;
	int fdinfo; /* the directory */
};

/* Most processes have what their parent had at the same number: this is tried first, one kcmp instead of a
 * duplicate and a search. */
static struct object_entry *scan_find_inherited(const struct scan *scan, int fd)
{
	struct object_dump *dump = scan->dump;
	struct object_entry *hint = fd < OBJECT_HINTS ? dump->hints[fd] : NULL;

	return hint && syscall(SYS_kcmp, dump->self, scan->tid.n, KCMP_FILE,
			       (unsigned long)hint->source.local, (unsigned long)fd) == 0
		       ? hint
		       : NULL;
}

static int find_entry(const struct scan *scan, int fd, const char *fdinfo, struct object_entry **out,
		      struct err *err)
{
	struct object_source found = {
		.holder = scan->tid, .holder_vpid = {scan->process->vpid}, .holder_fd = fd};
	int r;

	*out = scan_find_inherited(scan, fd);
	if (*out)
		return 0;
	found.local = pidfd_getfd(scan->pidfd, fd, 0);
	if (found.local < 0)
		return err_sys(err, "vpid %d: duplicate fd %d", scan->process->vpid, fd);
	r = object_scan_add(scan->dump, &found, fdinfo, out, err);
	if (r < 0)
		return err_wrap(err, r, "vpid %d: fd %d", scan->process->vpid, fd);
	if (fd < OBJECT_HINTS)
		scan->dump->hints[fd] = *out;
	return 0;
}

/* Into `buf`, or where that is too small into memory that *more gets. */
static int scan_read_fdinfo(const struct scan *scan, int fd, char *buf, size_t size, char **more,
			    struct err *err)
{
	auto_close int file = -1;
	char name[16];
	ssize_t n;
	int r;

	snprintf(name, sizeof(name), "%d", fd);
	file = openat(scan->fdinfo, name, O_RDONLY | O_CLOEXEC);
	n = file < 0 ? -1 : read(file, buf, size - 1);
	if (n < 0)
		return err_sys(err, "vpid %d: read fdinfo of fd %d", scan->process->vpid, fd);
	buf[n] = 0;
	if ((size_t)n < size / 2)
		return 0;
	r = io_slurp(scan->fdinfo, name, FDINFO_MAX, more, NULL);
	return r < 0 ? err_code(err, r, "vpid %d: read fdinfo of fd %d", scan->process->vpid, fd) : 0;
}

static int scan_descriptor(const struct scan *scan, int fd, struct err *err)
{
	auto_free char *more = NULL;
	char buf[4096], *fdinfo;
	struct object_entry *entry;
	Pbeam__Descriptor *descriptor;
	Pbeam__Process *process = scan->process;
	int r = scan_read_fdinfo(scan, fd, buf, sizeof(buf), &more, err);

	fdinfo = more ? more : buf;
	if (r == 0)
		r = find_entry(scan, fd, fdinfo, &entry, err);
	if (r < 0)
		return r;
	entry->source.holders++;
	r = object_locks_parse(fdinfo, fd, &entry->source.st, entry->out, process, err);
	if (r < 0)
		return r;
	descriptor = object_message(Pbeam__Descriptor, pbeam__descriptor__init);
	if (!descriptor || object_append(process->descriptors, process->n_descriptors, descriptor) < 0) {
		free(descriptor);
		return object_no_memory(err);
	}
	descriptor->fd = fd;
	descriptor->object = entry->source.id;
	descriptor->cloexec = (object_fdinfo_number(fdinfo, "flags", 8, 0) & O_CLOEXEC) != 0;
	return 0;
}

static int scan_process(struct object_dump *dump, const struct table *table, struct rpid rpid,
			Pbeam__Process *process, struct err *err)
{
	auto_close int pidfd = pidfd_open(table->tid.n, table->tid.n == rpid.n ? 0 : PIDFD_THREAD);
	auto_close int fdinfo = -1;
	struct scan scan = {.dump = dump, .process = process, .tid = table->tid, .pidfd = pidfd};
	char path[64];
	int r = 0;

	if (pidfd < 0)
		return err_sys(err, "vpid %d: open a pidfd", process->vpid);
	snprintf(path, sizeof(path), "/proc/%d/fdinfo", table->tid.n);
	scan.fdinfo = fdinfo = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fdinfo < 0)
		return err_sys(err, "vpid %d: open %s", process->vpid, path);
	for (size_t i = 0; i < table->n && r == 0; i++)
		r = scan_descriptor(&scan, table->fds[i], err);
	return r;
}

static bool same_files(struct rpid a, struct rpid b)
{
	return syscall(SYS_kcmp, a.n, b.n, KCMP_FILES, 0, 0) == 0;
}

/* Looks at the other threads: the leader may have exited, then the table is read from one of them; and one
 * with a table of its own (unshare(CLONE_FILES)) has descriptors that would not be saved. A thread that has
 * exited shows none. */
static int check_threads(struct rpid rpid, struct table *table, const Pbeam__Process *process,
			 struct err *err)
{
	char path[64];
	auto_closedir DIR *dir = NULL;
	const struct dirent *item;
	int more;

	snprintf(path, sizeof(path), "/proc/%d/task", rpid.n);
	dir = opendir(path);
	if (!dir)
		return err_sys(err, "open %s", path);
	while ((more = io_next_entry(dir, &item)) > 0) {
		struct rpid tid = {atoi(item->d_name)};
		struct table other = {.n = 0};
		int r;

		if (tid.n <= 0 || tid.n == rpid.n || same_files(table->tid, tid))
			continue;
		r = read_table(tid, "fd", &other, err);
		if (r < 0 || other.n == 0) {
			free(other.fds);
			if (r < 0 && r != -ENOENT)
				return r;
			continue;
		}
		if (table->n) {
			free(other.fds);
			return err_set(err, -ENOTSUP,
				       "thread %d has a descriptor table of its own (unshare(CLONE_FILES)), "
				       "which cannot be saved; make it a process",
				       tid.n);
		}
		free(table->fds);
		*table = other;
	}
	return more < 0 ? err_code(err, more, "list %s", path) : 0;
}

/* Finds a process of those in `order` with the same descriptor table, or takes this one in: sorted as
 * kcmp(KCMP_FILES) sorts. Returns the index of the one that was there, or -1. */
static ssize_t find_same_table(const struct table *tables, size_t *order, size_t *n, size_t index)
{
	size_t low = 0, high = *n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		long r =
			syscall(SYS_kcmp, tables[index].tid.n, tables[order[middle]].tid.n, KCMP_FILES, 0, 0);

		if (r == 0)
			return (ssize_t)order[middle];
		if (r == 1)
			high = middle;
		else
			low = middle + 1;
	}
	memmove(order + low + 1, order + low, (*n - low) * sizeof(*order));
	order[low] = index;
	(*n)++;
	return -1;
}

static int scan_descriptors(struct rpid rpid, struct table *table, const Pbeam__Process *process,
			    struct err *err)
{
	int r = 0;

	/* /proc of a leader that has exited belongs to root. */
	table->tid = rpid;
	if (!process->leader_exited)
		r = read_table(rpid, "fdinfo", table, err);
	if (r == 0)
		r = check_threads(rpid, table, process, err);
	return r < 0 ? err_wrap(err, r, "vpid %d", process->vpid) : 0;
}

int object_scan_processes(struct object_dump *dump, const struct rpid *rpids, struct err *err)
{
	size_t n = dump->manifest->n_processes, nordered = 0;
	auto_free size_t *order = calloc(n + 1, sizeof(*order));
	struct table *tables = calloc(n + 1, sizeof(*tables));
	int r = tables && order ? 0 : object_no_memory(err);

	for (size_t i = 0; i < n && r == 0; i++) {
		Pbeam__Process *process = dump->manifest->processes[i];
		ssize_t same = -1;

		if (rpids[i].n == 0 || process->state == PBEAM__PROCESS__STATE__ZOMBIE ||
		    process->state == PBEAM__PROCESS__STATE__STUB)
			continue;
		r = scan_descriptors(rpids[i], &tables[i], process, err);
		if (r == 0 && tables[i].n > 0)
			same = find_same_table(tables, order, &nordered, i);
		if (same >= 0)
			process->files_of = dump->manifest->processes[same]->vpid;
		else if (r == 0)
			r = scan_process(dump, &tables[i], rpids[i], process, err);
	}
	for (size_t i = 0; i < n && tables; i++)
		free(tables[i].fds);
	free(tables);
	return r;
}
