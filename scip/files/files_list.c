/* Lists the files that a process uses, from /proc. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "proto/message.h"
#include "scip/files/files.h"
#include "scip/tracee/procfs.h"

#define NFS_MAGIC 0x6969

enum { FDINFO_MAX = 1 << 16 };

/* The listing of one process. */
struct listing {
	struct files_list *list;
	const struct name_process *process;
	const struct paths *paths;
	char comm[64];
	struct err *err;
};

uint64_t files_mtime_ns(const struct stat *st)
{
	return (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
}

uint64_t files_ctime_ns(const struct stat *st)
{
	return (uint64_t)st->st_ctim.tv_sec * 1000000000u + (uint64_t)st->st_ctim.tv_nsec;
}

char *files_text(const ProtobufCBinaryData *field)
{
	return strndup(field->data ? (const char *)field->data : "", field->len);
}

void files_list_free(struct files_list *list)
{
	for (size_t i = 0; i < list->n; i++)
		message_free(list->v[i]);
	free(list->v);
	*list = (struct files_list){0};
}

const char *files_contents(const struct paths *paths, const char *path)
{
	char name[PATH_MAX];
	const struct path_entry *entry = paths_name(paths, path, name, sizeof(name));

	if (!entry || entry->kind != PATH_PROGRAM)
		return path;
	entry = paths_find(paths, name);
	return entry ? entry->real : path;
}

static Pbeam__MigrateFile *find_listed(const struct files_list *list, const char *path)
{
	size_t len = strlen(path);

	for (size_t i = 0; i < list->n; i++)
		if (list->v[i]->path.len == len && bytes_equal(list->v[i]->path.data, path, len))
			return list->v[i];
	return NULL;
}

/* Sets the name that the program knows, and the file at home whose place this one has taken. */
static int set_file_name(Pbeam__MigrateFile *file, const struct paths *paths, const char *path)
{
	char name[PATH_MAX];
	const struct path_entry *entry = paths_name(paths, path, name, sizeof(name));

	if (!entry)
		return message_text(&file->name, path);
	if (entry->kind != PATH_MAP)
		file->use |= PBEAM__MIGRATE_FILE__USE__SENT;
	if (entry->kind == PATH_WRITTEN) {
		file->home_ino = entry->home.ino;
		file->home_size = entry->home.size;
		file->home_mtime_ns = entry->home.mtime_ns;
		if (message_string(&file->home, entry->home.host) < 0)
			return -ENOMEM;
	}
	return message_text(&file->name, name);
}

static int list_file(const struct listing *listing, const char *path, const struct stat *st, uint32_t use,
		     const char *what)
{
	Pbeam__MigrateFile *file = find_listed(listing->list, path);
	const char *contents = files_contents(listing->paths, path);
	struct stat original;
	char who[128];

	if (file) {
		file->use |= use;
		return 0;
	}
	if (contents != path && stat(contents, &original) == 0)
		st = &original;
	file = message_append_new(&listing->list->v, &listing->list->n, &pbeam__migrate_file__descriptor);
	if (!file)
		return -ENOMEM;
	file->use = use;
	file->mode = st->st_mode;
	file->ino = st->st_ino;
	file->size = (uint64_t)st->st_size;
	file->allocated = (uint64_t)st->st_blocks * 512;
	file->mtime_ns = files_mtime_ns(st);
	file->ctime_ns = files_ctime_ns(st);
	snprintf(who, sizeof(who), "vpid %d (%s): %s", listing->process->vpid.n, listing->comm, what);
	if (message_text(&file->path, path) < 0 || message_string(&file->who, who) < 0)
		return -ENOMEM;
	return set_file_name(file, listing->paths, path);
}

/* True for files of the kernel's own file systems, which are made again on the target or refused for other
 * reasons. */
static bool is_kernel_file(const char *path)
{
	static const char *const tops[] = {"/proc", "/sys", "/dev"};

	for (size_t i = 0; i < sizeof(tops) / sizeof(tops[0]); i++) {
		size_t len = strlen(tops[i]);

		if (!strncmp(path, tops[i], len) && (path[len] == '/' || !path[len]))
			return true;
	}
	return path[0] != '/';
}

static int list_link(const struct listing *listing, const char *link, uint32_t use, const char *what)
{
	char proc[64], path[PATH_MAX];
	struct stat st, named;

	snprintf(proc, sizeof(proc), "/proc/%d/%s", listing->process->rpid.n, link);
	if (io_readlink(AT_FDCWD, proc, path, sizeof(path)) < 0 || is_kernel_file(path) ||
	    stat(proc, &st) < 0 || stat(path, &named) < 0 || named.st_ino != st.st_ino ||
	    named.st_dev != st.st_dev)
		return 0;
	return list_file(listing, path, &st, use, what);
}

static int list_mapping(const struct listing *listing, const struct procfs_map *map)
{
	uint32_t use = PBEAM__MIGRATE_FILE__USE__MAPPED;
	struct stat st;

	if (map->deleted || !map->ino || is_kernel_file(map->name) || stat(map->name, &st) < 0 ||
	    st.st_ino != map->ino || !S_ISREG(st.st_mode))
		return 0;
	if (map->shared && map->prot & PROT_WRITE)
		use |= PBEAM__MIGRATE_FILE__USE__WRITTEN;
	return list_file(listing, map->name, &st, use, "a mapping");
}

static int list_mapped_files(const struct listing *listing, struct err *err)
{
	struct procfs_maps maps;
	const char *last = "";
	int r = procfs_maps_read(listing->process->rpid.n, false, &maps, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < maps.n && r == 0; i++) {
		bool again = !strcmp(maps.v[i].name, last) && !(maps.v[i].prot & PROT_WRITE);

		if (!again)
			r = list_mapping(listing, &maps.v[i]);
		last = maps.v[i].name;
	}
	procfs_maps_free(&maps);
	return r;
}

static int read_open_flags(const struct listing *listing, int fd)
{
	auto_free char *text = NULL;
	const char *value;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", listing->process->rpid.n, fd);
	if (io_slurp(AT_FDCWD, path, FDINFO_MAX, &text, NULL) < 0)
		return -ENOENT;
	value = procfs_field(text, "flags");
	return value ? (int)strtol(value, NULL, 8) : -ENOENT;
}

/* Other hosts do not see in a file's times what an NFS client has not written to its server. An error of the
 * server is told by fdatasync() or by close(), once (nfs_file_fsync(), nfs_file_flush() in fs/nfs/file.c):
 * the data that it concerns is lost, so the program must not go where it would read the server's. */
static int flush_nfs(const struct listing *listing, const char *link, struct err *err)
{
	struct statfs fs;
	int fd, r = 0;

	if (statfs(link, &fs) < 0 || fs.f_type != NFS_MAGIC)
		return 0;
	/* The file may have become read-only for us since the program opened it. */
	fd = open(link, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		fd = open(link, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fdatasync(fd) < 0)
		r = -errno;
	if (fd >= 0 && close(fd) < 0 && r == 0)
		r = -errno;
	return r < 0 ? err_code(err, r, "vpid %d (%s): write %s to its NFS server", listing->process->vpid.n,
				listing->comm, link)
		     : 0;
}

static int list_descriptor(int fd, void *arg)
{
	const struct listing *listing = arg;
	uint32_t use = PBEAM__MIGRATE_FILE__USE__READ;
	char link[32], proc[64], what[32];
	struct stat st;
	int flags, r = 0;

	snprintf(link, sizeof(link), "fd/%d", fd);
	snprintf(proc, sizeof(proc), "/proc/%d/%s", listing->process->rpid.n, link);
	if (stat(proc, &st) < 0 || (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) || st.st_nlink == 0)
		return 0;
	flags = read_open_flags(listing, fd);
	if (flags < 0)
		return 0;
	if (S_ISDIR(st.st_mode))
		use = PBEAM__MIGRATE_FILE__USE__DIRECTORY;
	else if (!(flags & O_PATH) && (flags & O_ACCMODE) != O_RDONLY) {
		use = PBEAM__MIGRATE_FILE__USE__WRITTEN;
		r = flush_nfs(listing, proc, listing->err);
	}
	if (r < 0)
		return r;
	snprintf(what, sizeof(what), "fd %d", fd);
	return list_link(listing, link, use, what);
}

/* True also for a process that is about to end: without memory it has no owner, and its /proc directory
 * belongs to root (task_dump_owner() in fs/proc/base.c, 6.18). */
static bool is_exiting(pid_t pid, struct procfs_stat *stat)
{
	return procfs_stat_read(pid, 0, stat, NULL) < 0 || stat->state == 'Z' || stat->state == 'X' ||
	       !stat->start_code;
}

int files_list_add(struct files_list *list, const struct name_process *process, const struct paths *paths,
		   struct err *err)
{
	struct listing listing = {.list = list, .process = process, .paths = paths, .err = err};
	struct procfs_stat stat;
	char dir[64];
	int r;

	if (is_exiting(process->rpid.n, &stat))
		return 0;
	memcpy(listing.comm, stat.comm, sizeof(listing.comm));
	snprintf(dir, sizeof(dir), "/proc/%d/fd", process->rpid.n);
	r = list_link(&listing, "exe", PBEAM__MIGRATE_FILE__USE__PROGRAM | PBEAM__MIGRATE_FILE__USE__MAPPED,
		      "its program");
	if (r == 0)
		r = list_mapped_files(&listing, err);
	if (r == 0)
		r = list_link(&listing, "cwd", PBEAM__MIGRATE_FILE__USE__DIRECTORY, "its working directory");
	if (r == 0)
		r = procfs_each_number(dir, list_descriptor, &listing);
	if (r < 0 && is_exiting(process->rpid.n, &stat)) {
		err_clear(err);
		return 0;
	}
	return r < 0 && !(err && err->code) ? err_code(err, r, "find the files of vpid %d", process->vpid.n)
					    : r;
}
