/* The store of file contents from other hosts, described in files.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "base/log.h"
#include "image/digest.h"
#include "image/file_copy.h"
#include "scip/files/files.h"

#define DAY_S	 (24 * 3600)
#define YOUNG_S	 600 /* just published: the job's link is about to be made */
#define NEW_NAME "new-"

enum { HEX = 2 * IMAGE_DIGEST + 1 };

int files_digest(int fd, uint64_t size, uint8_t digest[IMAGE_DIGEST])
{
	return digest_range(fd, 0, size, digest);
}

static int join_path(char out[PATH_MAX], const char *dir, const char *sub, const char *name)
{
	int n = snprintf(out, PATH_MAX, "%s%s%s%s", dir, sub, *name && *name != '/' ? "/" : "", name);

	return n < 0 || n >= PATH_MAX ? -ENAMETOOLONG : 0;
}

/* Makes TOP/SUB and returns TOP/SUB/NAME in `out`. */
static int make_place(const struct files_store *store, const char *sub, const char *name, char out[PATH_MAX],
		      struct err *err)
{
	int r = join_path(out, store->top, sub, "");

	if (r == 0)
		r = io_mkdirs(out, err);
	if (r == 0)
		r = join_path(out, store->top, sub, name);
	return r < 0 && !(err && err->code) ? err_code(err, r, "%s%s/%s", store->top, sub, name) : r;
}

int files_store_open(struct files_store *store, const char *host, const char *uuid, struct err *err)
{
	char sub[NAME_TEXT_MAX + 16];

	if (strchr(host, '/') || strchr(uuid, '/') || !uuid[0] || uuid[0] == '.')
		return err_set(err, -EINVAL, "job `%s` on host `%s`: a name that cannot be a directory", uuid,
			       host);
	snprintf(sub, sizeof(sub), ".files/%s", host);
	snprintf(store->uuid, sizeof(store->uuid), "%s", uuid);
	return dirs_state(store->top, sub, err);
}

static void to_hex(const uint8_t digest[IMAGE_DIGEST], char out[HEX])
{
	for (int i = 0; i < (int)IMAGE_DIGEST; i++)
		sprintf(out + 2 * i, "%02x", digest[i]);
}

static int cache_path(const struct files_store *store, const uint8_t digest[IMAGE_DIGEST], bool executable,
		      char out[PATH_MAX], struct err *err)
{
	char hex[HEX], name[HEX + 2];

	to_hex(digest, hex);
	snprintf(name, sizeof(name), "%s.%c", hex, executable ? 'x' : 'r');
	return make_place(store, "/cache", name, out, err);
}

int files_store_has(const struct files_store *store, const uint8_t digest[IMAGE_DIGEST], bool executable)
{
	uint8_t now[IMAGE_DIGEST];
	char path[PATH_MAX];
	struct stat st;

	if (cache_path(store, digest, executable, path, NULL) < 0)
		return 0;
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0 || fstat(fd, &st) < 0)
		return 0;
	if (files_digest(fd, (uint64_t)st.st_size, now) == 0 && !memcmp(now, digest, sizeof(now)))
		return 1;
	log_warn("%s is damaged and is not used", path);
	return unlink(path) < 0 ? -errno : 0;
}

/* Copies `from` to `to`, which has its name when it is whole and durable: a name that exists is taken for the
 * whole file later. With `interpreter` the copy is a program that asks for that one. */
static int copy_whole(const struct files_store *store, const char *from, const char *to,
		      const char *interpreter, struct err *err)
{
	auto_close int in = open(from, O_RDONLY | O_CLOEXEC), out = -1;
	char name[48], temporary[PATH_MAX];
	struct stat st;
	int r;

	/* The pid in the name tells a later sweep whether the file is in use. */
	snprintf(name, sizeof(name), NEW_NAME "%d-copy", (int)getpid());
	r = make_place(store, "/cache", name, temporary, err);
	if (r < 0)
		return r;
	if (in < 0 || fstat(in, &st) < 0)
		return err_sys(err, "read %s", from);
	out = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (out < 0)
		return err_sys(err, "make %s", temporary);
	r = ftruncate(out, st.st_size) < 0 ? -errno : file_copy_range(in, out, 0, (uint64_t)st.st_size);
	if (r == 0 && interpreter)
		r = files_elf_set_interpreter(out, interpreter);
	if (r == 0 && (fchmod(out, interpreter ? 0500 : st.st_mode & 0500) < 0 || fsync(out) < 0 ||
		       rename(temporary, to) < 0))
		r = -errno;
	if (r < 0)
		unlink(temporary);
	return r < 0 ? err_code(err, r, "copy %s to %s", from, to) : 0;
}

int files_store_link(const struct files_store *store, const uint8_t digest[IMAGE_DIGEST], bool executable,
		     const char *base, char path[PATH_MAX], struct err *err)
{
	char from[PATH_MAX], sub[128], hex[HEX];
	int r = cache_path(store, digest, executable, from, err);

	to_hex(digest, hex);
	snprintf(sub, sizeof(sub), "/job/%s/%s.%c", store->uuid, hex, executable ? 'x' : 'r');
	if (r == 0)
		r = make_place(store, sub, base, path, err);
	if (r < 0)
		return r;
	if (link(from, path) == 0 || errno == EEXIST)
		return 0;
	/* A file system without hard links, or one with a limit to them. */
	if (errno != EPERM && errno != EMLINK && errno != ENOTSUP)
		return err_sys(err, "link %s to %s", path, from);
	return copy_whole(store, from, path, NULL, err);
}

int files_store_program(const struct files_store *store, const uint8_t digest[IMAGE_DIGEST], const char *from,
			const char *interpreter, char path[PATH_MAX], struct err *err)
{
	char sub[128], hex[HEX], now[PATH_MAX];
	auto_close int in = open(from, O_RDONLY | O_CLOEXEC);
	int r;

	if (in < 0 || !files_elf_interpreter(in, now))
		return 0;
	to_hex(digest, hex);
	snprintf(sub, sizeof(sub), "/job/%s/%s.p", store->uuid, hex);
	r = make_place(store, sub, strrchr(from, '/') + 1, path, err);
	if (r < 0)
		return r;
	if (access(path, F_OK) == 0)
		return 1;
	r = copy_whole(store, from, path, interpreter, err);
	return r < 0 ? r : 1;
}

int files_store_written(const struct files_store *store, const char *name, bool make, char path[PATH_MAX],
			struct err *err)
{
	char sub[64], *slash;
	int r;

	snprintf(sub, sizeof(sub), "/written/%s", store->uuid);
	r = make_place(store, sub, name, path, err);
	if (r < 0 || !make)
		return r;
	slash = strrchr(path, '/');
	*slash = 0;
	r = io_mkdirs(path, err);
	*slash = '/';
	return r;
}

void files_store_drop(const struct files_store *store, const char *path)
{
	char dir[PATH_MAX], top[PATH_MAX], *slash;

	if (join_path(top, store->top, "/written", "") < 0 || strncmp(path, top, strlen(top)) != 0 ||
	    unlink(path) < 0)
		return;
	snprintf(dir, sizeof(dir), "%s", path);
	while ((slash = strrchr(dir, '/')) != NULL && (size_t)(slash - dir) > strlen(top)) {
		*slash = 0;
		if (rmdir(dir) < 0)
			return;
	}
}

int files_store_new(const struct files_store *store, char temporary[PATH_MAX], struct err *err)
{
	char name[32];
	int r, fd;

	snprintf(name, sizeof(name), NEW_NAME "%d", (int)getpid());
	r = make_place(store, "/cache", "", temporary, err);
	if (r < 0)
		return r;
	fd = open(temporary, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd >= 0) {
		temporary[0] = 0;
		return fd;
	}
	/* NFS has no O_TMPFILE. The pid in the name tells a later sweep whether the file is in use. */
	r = make_place(store, "/cache", name, temporary, err);
	fd = r < 0 ? r : open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	return r < 0 ? r : fd < 0 ? err_sys(err, "make %s", temporary) : fd;
}

int files_store_publish(const struct files_store *store, int fd, const char *temporary,
			const uint8_t digest[IMAGE_DIGEST], bool executable, struct err *err)
{
	char path[PATH_MAX], by_fd[40];
	int r = cache_path(store, digest, executable, path, err);

	if (r < 0)
		return r;
	snprintf(by_fd, sizeof(by_fd), "/proc/self/fd/%d", fd);
	if (fchmod(fd, executable ? 0500 : 0400) < 0)
		return err_sys(err, "mode of %s", path);
	/* It is found by its name alone later: a name must not outlive a power cut that its contents do not.
	 */
	if (fsync(fd) < 0)
		return err_sys(err, "write a received file to disk in %s", store->top);
	r = temporary[0] ? rename(temporary, path)
			 : linkat(AT_FDCWD, by_fd, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
	return r < 0 && errno != EEXIST ? err_sys(err, "put a received file into %s", path) : 0;
}

/* ---- removing ---- */

static void remove_tree(int at, const char *name)
{
	int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	auto_closedir DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *item;

	while (dir && (item = readdir(dir)) != NULL) {
		if (!strcmp(item->d_name, ".") || !strcmp(item->d_name, ".."))
			continue;
		if (unlinkat(dirfd(dir), item->d_name, 0) < 0)
			remove_tree(dirfd(dir), item->d_name);
	}
	if (unlinkat(at, name, AT_REMOVEDIR) < 0)
		log_debug("files: %s cannot be removed: %s", name, strerror(errno));
}

static bool is_job_here(const struct name_job *jobs, int n, const char *uuid)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(jobs[i].uuid, uuid))
			return true;
	return false;
}

static void sweep_jobs(const struct files_store *store, struct names *names)
{
	auto_free struct name_job *jobs = NULL;
	int n = names_jobs_snapshot(names, &jobs);
	char path[PATH_MAX];
	const struct dirent *item;

	if (n < 0 || join_path(path, store->top, "/job", "") < 0)
		return;
	auto_closedir DIR *dir = opendir(path);
	while (dir && (item = readdir(dir)) != NULL)
		if (item->d_name[0] != '.' && !is_job_here(jobs, n, item->d_name) &&
		    strcmp(item->d_name, store->uuid) != 0)
			remove_tree(dirfd(dir), item->d_name);
}

struct unused {
	char name[HEX + 2];
	time_t since;
	uint64_t bytes;
};

static int by_age(const void *a, const void *b)
{
	const struct unused *x = a, *y = b;

	return x->since > y->since ? -1 : x->since < y->since;
}

/* Lists cached files without a link, the last used first. Removes temporary files of processes that are gone.
 */
static size_t list_unused(DIR *dir, struct unused **out)
{
	const struct dirent *item;
	time_t now = time(NULL);
	struct stat st;
	size_t n = 0;

	while ((item = readdir(dir)) != NULL) {
		struct unused *more;

		if (item->d_name[0] == '.' || fstatat(dirfd(dir), item->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		if (!strncmp(item->d_name, NEW_NAME, strlen(NEW_NAME))) {
			if (kill(atoi(item->d_name + strlen(NEW_NAME)), 0) < 0 && errno == ESRCH)
				unlinkat(dirfd(dir), item->d_name, 0);
			continue;
		}
		if (st.st_nlink > 1 || now - st.st_ctime < YOUNG_S || strlen(item->d_name) >= HEX + 2)
			continue;
		more = reallocarray(*out, n + 1, sizeof(*more));
		if (!more)
			break;
		*out = more;
		more[n] = (struct unused){.since = st.st_ctime, .bytes = (uint64_t)st.st_blocks * 512};
		strcpy(more[n++].name, item->d_name);
	}
	return n;
}

static void sweep_cache(const struct files_store *store)
{
	auto_free struct unused *unused = NULL;
	uint64_t kept = 0;
	char path[PATH_MAX];
	size_t n;

	if (join_path(path, store->top, "/cache", "") < 0)
		return;
	auto_closedir DIR *dir = opendir(path);
	n = dir ? list_unused(dir, &unused) : 0;
	if (n)
		bytes_sort(unused, n, sizeof(*unused), by_age);
	for (size_t i = 0; i < n; i++) {
		if (kept + unused[i].bytes > FILES_KEEP_BYTES ||
		    time(NULL) - unused[i].since > FILES_KEEP_DAYS * DAY_S)
			unlinkat(dirfd(dir), unused[i].name, 0);
		else
			kept += unused[i].bytes;
	}
}

void files_store_sweep(const struct files_store *store, struct names *names)
{
	sweep_jobs(store, names);
	sweep_cache(store);
}

void files_job_ended(struct names *names, const char *uuid)
{
	struct files_store store;
	char host[NAME_TEXT_MAX], path[PATH_MAX];

	if (!names_cluster(names, host) || files_store_open(&store, host, uuid, NULL) < 0 ||
	    join_path(path, store.top, "/job", uuid) < 0 || access(path, F_OK) < 0)
		return;
	remove_tree(AT_FDCWD, path);
	sweep_cache(&store);
}
