#include "image/store.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "image/blocks.h"
#include "image/file_guard.h"
#include "image/image.h"

#define SUFFIX	  ".ckpt"
#define COPY	  ".copy"
#define TEMPORARY ".tmp-"

int store_check_name(const char *name, struct err *err)
{
	size_t len = strlen(name);

	if (len == 0 || len >= STORE_JOB_MAX)
		return err_set(err, -EINVAL, "a job's name has 1 to %d characters, not %zu",
			       STORE_JOB_MAX - 1, len);
	if (strspn(name, "0123456789") == len)
		return err_set(err, -EINVAL,
			       "a job's name cannot be a number (%s): it would be taken for a vpid", name);
	if (name[0] == '.' || name[0] == '-')
		return err_set(err, -EINVAL, "a job's name cannot begin with '%c'", name[0]);
	for (size_t i = 0; i < len; i++)
		if (name[i] == '/' || (unsigned char)name[i] < 33 || name[i] == 127)
			return err_set(err, -EINVAL,
				       "a job's name cannot hold '/', spaces or control characters");
	return 0;
}

void store_job_of_vpid(int32_t vpid, char job[STORE_JOB_MAX])
{
	snprintf(job, STORE_JOB_MAX, "%" PRId32, vpid);
}

void store_job_of(const char *name, int32_t root, char job[STORE_JOB_MAX])
{
	if (name[0])
		snprintf(job, STORE_JOB_MAX, "%.*s", STORE_JOB_MAX - 1, name);
	else
		store_job_of_vpid(root, job);
}

/* Makes the path STATE/JOB, not the directory. */
static int job_dir(const char *job, char dir[PATH_MAX], struct err *err)
{
	size_t len;
	int r = dirs_state(dir, NULL, err);

	if (r < 0)
		return r;
	len = strlen(dir);
	if (snprintf(dir + len, PATH_MAX - len, "/%s", job) >= (int)(PATH_MAX - len) - 64)
		return err_code(err, -ENAMETOOLONG, "directory of the checkpoints of %s", job);
	return 0;
}

int store_log_path(const char *name, int32_t root, char path[PATH_MAX], struct err *err)
{
	char job[STORE_JOB_MAX];
	int r;

	store_job_of(name, root, job);
	if (strchr(job, '/') || job[0] == '.')
		return err_set(err, -EBADMSG, "the image's job has a name that cannot be a directory");
	r = job_dir(job, path, err);
	if (r == 0)
		r = io_mkdirs(path, err);
	if (r == 0)
		strcat(path, "/output.log"); /* job_dir() leaves room */
	return r;
}

/* Returns N of "N.ckpt", 0 for any other name. */
static uint32_t store_number_of(const char *name)
{
	char *end;
	unsigned long n;

	if (!isdigit((unsigned char)name[0]) || name[0] == '0')
		return 0;
	errno = 0;
	n = strtoul(name, &end, 10);
	return errno || n > UINT32_MAX || strcmp(end, SUFFIX) != 0 ? 0 : (uint32_t)n;
}

static int compare_numbers(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static int list_dir(const char *dir, uint32_t **numbers, struct err *err)
{
	auto_closedir DIR *d = opendir(dir);
	auto_free uint32_t *v = NULL;
	size_t n = 0, room = 0;
	const struct dirent *entry;
	int r;

	*numbers = NULL;
	if (!d)
		return errno == ENOENT ? 0 : err_sys(err, "list %s", dir);
	while ((r = io_next_entry(d, &entry)) > 0) {
		uint32_t number = store_number_of(entry->d_name);

		if (!number)
			continue;
		if (n == room) {
			uint32_t *bigger = realloc(v, (room = room ? room * 2 : 16) * sizeof(*v));

			if (!bigger)
				return err_code(err, -ENOMEM, "list %s", dir);
			v = bigger;
		}
		v[n++] = number;
	}
	if (r < 0)
		return err_code(err, r, "list %s", dir);
	if (n)
		bytes_sort(v, n, sizeof(*v), compare_numbers);
	*numbers = steal_ptr(&v);
	return (int)n;
}

int store_list(const char *job, uint32_t **numbers, struct err *err)
{
	char dir[PATH_MAX];
	int r = job_dir(job, dir, err);

	return r < 0 ? r : list_dir(dir, numbers, err);
}

int store_find(const char *job, uint32_t number, char path[PATH_MAX], struct err *err)
{
	auto_free uint32_t *numbers = NULL;
	int n = store_list(job, &numbers, err), r;

	if (n < 0)
		return n;
	if (n == 0)
		return err_set(err, -ENOENT,
			       "there is no checkpoint of %s; make one with `pbeamctl checkpoint`", job);
	if (!number)
		number = numbers[n - 1];
	for (int i = 0;; i++) {
		if (i == n)
			return err_set(err, -ENOENT,
				       "there is no checkpoint %u of %s; `pbeamctl log %s` lists them",
				       number, job, job);
		if (numbers[i] == number)
			break;
	}
	r = job_dir(job, path, err);
	if (r == 0)
		snprintf(path + strlen(path), 64, "/%u" SUFFIX, number);
	return r;
}

struct image_reader *store_open_before(const char *path)
{
	const char *slash = strrchr(path, '/');
	uint32_t number = slash ? store_number_of(slash + 1) : 0;
	auto_free uint32_t *numbers = NULL;
	char dir[PATH_MAX], earlier[PATH_MAX + 32];
	struct image_reader *image;
	int n;

	if (!number)
		return NULL;
	snprintf(dir, sizeof(dir), "%.*s", (int)(slash - path), path);
	for (n = list_dir(dir, &numbers, NULL); n > 0; n--) {
		snprintf(earlier, sizeof(earlier), "%s/%u" SUFFIX, dir, numbers[n - 1]);
		if (numbers[n - 1] < number && image_reader_open(&image, earlier, NULL) == 0)
			return image;
	}
	return NULL;
}

/* ---- claiming a number ---- */

struct owner {
	char uuid[40];
	uint32_t last;
};

static int read_owner(int fd, struct owner *owner)
{
	char text[128];
	ssize_t n = io_pread_full(fd, text, sizeof(text) - 1, 0);

	memset(owner, 0, sizeof(*owner));
	if (n < 0)
		return (int)n;
	text[n] = 0;
	if (sscanf(text, "%u %39s", &owner->last, owner->uuid) < 1)
		owner->last = 0;
	return 0;
}

/* Opens and locks STATE/JOB/job, creating both. The lock ends with the descriptor. */
static int lock_dir(const char *dir, struct err *err)
{
	char path[PATH_MAX + 8];
	int fd, r = io_mkdirs(dir, err);

	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "%s/job", dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_sys(err, "write to %s", path);
	if (flock(fd, LOCK_EX) < 0) {
		r = err_sys(err, "lock %s", path);
		close(fd);
		return r;
	}
	return fd;
}

static bool is_copy(const char *name)
{
	return strspn(name, "0123456789") > 0 && !strcmp(name + strspn(name, "0123456789"), COPY);
}

/* Removes N.ckpt.tmp-PID and N.copy.tmp-PID of processes that have ended, and copies: a job that is being
 * saved is not being rolled back. */
static void sweep_leftovers(const char *dir)
{
	auto_closedir DIR *d = opendir(dir);
	struct dirent *entry;

	while (d && (entry = readdir(d))) {
		const char *tail =
			isdigit((unsigned char)entry->d_name[0]) ? strstr(entry->d_name, TEMPORARY) : NULL;
		pid_t pid = tail ? atoi(tail + strlen(TEMPORARY)) : 0;

		if ((pid > 0 && kill(pid, 0) < 0 && errno == ESRCH) || is_copy(entry->d_name))
			unlinkat(dirfd(d), entry->d_name, 0);
	}
}

/* The directory belongs to another job that had the same vpid: moves it aside, and moves ours back if it
 * had been moved aside before. */
static int move_aside(const char *dir, const struct owner *owner, const char *uuid, struct err *err)
{
	char aside[PATH_MAX + 64];

	snprintf(aside, sizeof(aside), "%s.%s", dir, owner->uuid[0] ? owner->uuid : "earlier");
	if (rename(dir, aside) < 0)
		return err_sys(err, "move %s to %s", dir, aside);
	snprintf(aside, sizeof(aside), "%s.%.39s", dir, uuid);
	if (uuid[0] && rename(aside, dir) < 0 && errno != ENOENT)
		return err_sys(err, "move %s back to %s", aside, dir);
	return 0;
}

/* Opens and locks the job's directory for the job with this `uuid`. Returns the descriptor of
 * STATE/JOB/job. */
static int lock_for(const char *job, const char *uuid, char dir[PATH_MAX], struct owner *owner,
		    struct err *err)
{
	bool by_vpid = strspn(job, "0123456789") == strlen(job);
	auto_close int fd = -1;
	int r = job_dir(job, dir, err);

	if (r < 0)
		return r;
	fd = lock_dir(dir, err);
	if (fd < 0)
		return fd;
	r = read_owner(fd, owner);
	if (r == 0 && by_vpid && owner->uuid[0] && strcmp(owner->uuid, uuid) != 0) {
		r = move_aside(dir, owner, uuid, err);
		if (r < 0)
			return r;
		close(steal_fd(&fd));
		fd = lock_dir(dir, err);
		if (fd < 0)
			return fd;
		r = read_owner(fd, owner);
	}
	return r < 0 ? err_code(err, r, "read %s/job", dir) : steal_fd(&fd);
}

/* Returns the last number that was claimed. */
static int last_number(const char *dir, const struct owner *owner, uint32_t *number, struct err *err)
{
	auto_free uint32_t *numbers = NULL;
	int n = list_dir(dir, &numbers, err);

	if (n < 0)
		return n;
	*number = owner->last;
	if (n && numbers[n - 1] > *number)
		*number = numbers[n - 1];
	return 0;
}

static int write_owner(int fd, const char *dir, uint32_t number, const char *uuid, struct err *err)
{
	char text[64];
	int r;

	snprintf(text, sizeof(text), "%u %.39s\n", number, uuid);
	/* In this order a full disk does not lose what was there. */
	r = io_pwrite_full(fd, text, strlen(text), 0);
	if (r == 0 && ftruncate(fd, (off_t)strlen(text)) < 0)
		r = -errno;
	return r < 0 ? err_code(err, r, "write to %s/job", dir) : 0;
}

int store_claim(const char *job, const char *uuid, char path[PATH_MAX], uint32_t *number, struct err *err)
{
	auto_close int fd = -1;
	struct owner owner;
	char dir[PATH_MAX];
	int r = fd = lock_for(job, uuid, dir, &owner, err);

	if (r < 0)
		return r;
	sweep_leftovers(dir);
	blocks_prune(dir);
	r = last_number(dir, &owner, number, err);
	if (r < 0)
		return r;
	if (++*number == 0)
		return err_set(err, -EOVERFLOW, "%s has had 2^32 checkpoints; move them elsewhere", dir);
	r = write_owner(fd, dir, *number, uuid, err);
	if (r < 0)
		return r;
	memcpy(path, dir, strlen(dir) + 1);
	snprintf(path + strlen(path), 64, "/%u" SUFFIX, *number);
	file_guard_forget(path); /* the job runs */
	return 0;
}

/* ---- cuts over several hosts ---- */

int store_last(const char *job, uint32_t *number, struct err *err)
{
	struct owner owner = {.uuid = ""};
	char dir[PATH_MAX], path[PATH_MAX + 8];
	int r = job_dir(job, dir, err);

	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "%s/job", dir);
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		r = read_owner(fd, &owner);
	return r < 0 ? err_code(err, r, "read %s", path) : last_number(dir, &owner, number, err);
}

int store_take(const char *job, const char *uuid, uint32_t number, struct err *err)
{
	auto_close int fd = -1;
	struct owner owner;
	uint32_t last = 0;
	char dir[PATH_MAX];
	int r = fd = lock_for(job, uuid, dir, &owner, err);

	if (r >= 0)
		r = last_number(dir, &owner, &last, err);
	return r < 0 || number <= last ? r : write_owner(fd, dir, number, uuid, err);
}

int store_image_path(const char *job, uint32_t number, uint32_t part, char path[PATH_MAX], struct err *err)
{
	size_t len;
	int r = job_dir(job, path, err);

	if (r < 0)
		return r;
	len = strlen(path);
	snprintf(path + len, PATH_MAX - len,
		 part == STORE_COPY ? "/%u" COPY
		 : part		    ? "/%u.parts"
				    : "/%u" SUFFIX,
		 number);
	if (!part || part == STORE_COPY)
		return 0;
	r = io_mkdirs(path, err);
	len = strlen(path);
	snprintf(path + len, PATH_MAX - len, "/%u" SUFFIX, part);
	return r;
}

bool store_is_cut(const char *path)
{
	size_t len = strlen(path), suffix = strlen(SUFFIX);
	char parts[PATH_MAX];
	struct stat st;

	if (len < suffix || strcmp(path + len - suffix, SUFFIX) != 0)
		return false;
	return snprintf(parts, sizeof(parts), "%.*s.parts", (int)(len - suffix), path) < (int)sizeof(parts) &&
	       stat(parts, &st) == 0 && S_ISDIR(st.st_mode);
}

int store_parts(const char *job, uint32_t number, uint32_t **parts, struct err *err)
{
	char dir[PATH_MAX];
	int r = job_dir(job, dir, err);

	if (r < 0)
		return r;
	snprintf(dir + strlen(dir), 64, "/%u.parts", number);
	return list_dir(dir, parts, err);
}

void store_drop_parts(const char *job, uint32_t number)
{
	char dir[PATH_MAX];
	auto_closedir DIR *d = NULL;
	struct dirent *entry;

	if (job_dir(job, dir, NULL) < 0)
		return;
	snprintf(dir + strlen(dir), 64, "/%u.parts", number);
	d = opendir(dir);
	while (d && (entry = readdir(d)))
		if (entry->d_name[0] != '.')
			unlinkat(dirfd(d), entry->d_name, 0);
	rmdir(dir);
}

void store_drop_copy(const char *job, uint32_t number)
{
	char path[PATH_MAX];

	if (store_image_path(job, number, STORE_COPY, path, NULL) == 0)
		unlink(path);
}

void store_sweep_parts(const char *job, uint32_t below)
{
	char dir[PATH_MAX], path[PATH_MAX + 32];
	auto_closedir DIR *d = NULL;
	struct dirent *entry;

	if (job_dir(job, dir, NULL) < 0)
		return;
	d = opendir(dir);
	while (d && (entry = readdir(d))) {
		char *end;
		unsigned long number = strtoul(entry->d_name, &end, 10);

		if (!number || number >= below || strcmp(end, ".parts") != 0)
			continue;
		snprintf(path, sizeof(path), "%s/%lu" SUFFIX, dir, number);
		if (access(path, F_OK) < 0 && errno == ENOENT)
			store_drop_parts(job, (uint32_t)number);
	}
}

int store_place(const char *job, const char *dir, struct err *err)
{
	char link[PATH_MAX], target[PATH_MAX], there[PATH_MAX];
	struct owner owner = {.uuid = ""};
	int r = job_dir(job, link, err);

	if (r < 0)
		return r;
	if (snprintf(target, sizeof(target), "%s/%s", dir, job) >= (int)sizeof(target) - 64)
		return err_code(err, -ENAMETOOLONG, "directory %s", dir);
	r = io_mkdirs(target, err);
	if (r < 0)
		return r;
	if (access(target, W_OK | X_OK) < 0)
		return err_sys(err, "keep checkpoints in %s", target);
	if (io_readlink(AT_FDCWD, link, there, sizeof(there)) == 0) {
		if (!strcmp(there, target))
			return 0;
		if (unlink(link) < 0)
			return err_sys(err, "replace the link %s", link);
	}
	if (symlink(target, link) == 0)
		return 0;
	if (errno != EEXIST)
		return err_sys(err, "make the link %s", link);
	auto_close int fd = lock_dir(link, err);
	if (fd < 0)
		return fd;
	r = read_owner(fd, &owner);
	if (r == 0)
		r = move_aside(link, &owner, "", err);
	if (r < 0)
		return r;
	return symlink(target, link) < 0 ? err_sys(err, "make the link %s", link) : 0;
}

/* Returns the number of the image's parent, 0 if it has none, or -errno if the image cannot be read. A
 * missing or damaged image has no parent from which it could be restored. */
static int64_t find_parent(const char *dir, uint32_t number)
{
	const Pbeam__ImageParent *parent;
	struct image_reader *image;
	char path[PATH_MAX + 32];
	int64_t r;

	snprintf(path, sizeof(path), "%s/%u" SUFFIX, dir, number);
	r = image_reader_open(&image, path, NULL);
	if (r < 0)
		return r == -EBADMSG || r == -ENOENT ? 0 : r;
	parent = image_reader_manifest(image)->parent;
	r = parent ? store_number_of(parent->name) : 0;
	image_reader_close(image);
	return r;
}

static int position_of(const uint32_t *numbers, int n, int64_t number)
{
	for (int i = 0; i < n; i++)
		if (numbers[i] == number)
			return i;
	return -1;
}

/* Marks the image and its ancestors. 0 or -errno. */
static int mark_chain(const char *dir, const uint32_t *numbers, int n, int i, bool *needed)
{
	while (i >= 0 && !needed[i]) {
		int64_t parent = find_parent(dir, numbers[i]);

		if (parent < 0)
			return (int)parent;
		needed[i] = true;
		i = position_of(numbers, n, parent);
	}
	return 0;
}

/* True if a rollback to it was possible when it was made. */
static bool is_complete(const char *dir, uint32_t number)
{
	struct image_reader *image;
	char path[PATH_MAX + 32];
	bool complete;

	snprintf(path, sizeof(path), "%s/%u" SUFFIX, dir, number);
	if (image_reader_open(&image, path, NULL) < 0)
		return false;
	complete = image_reader_manifest(image)->n_incomplete == 0;
	image_reader_close(image);
	return complete;
}

/* The index of the newest complete image, -1 if there is none. */
static int last_complete(const char *dir, const uint32_t *numbers, int n)
{
	while (n > 0 && !is_complete(dir, numbers[n - 1]))
		n--;
	return n - 1;
}

void store_prune(const char *job, uint32_t keep)
{
	auto_free uint32_t *numbers = NULL;
	auto_free bool *needed = NULL;
	char dir[PATH_MAX], path[PATH_MAX + 32];
	int n = store_list(job, &numbers, NULL), complete;

	if (!keep || n < 0 || (uint32_t)n <= keep || job_dir(job, dir, NULL) < 0)
		return;
	needed = calloc((size_t)n, sizeof(*needed));
	if (!needed)
		return;
	complete = last_complete(dir, numbers, n);
	if (complete >= 0 && mark_chain(dir, numbers, n, complete, needed) < 0)
		return;
	for (int i = n - (int)keep; i < n; i++)
		if (mark_chain(dir, numbers, n, i, needed) < 0)
			return;
	for (int i = 0; i < n; i++) {
		if (needed[i])
			continue;
		snprintf(path, sizeof(path), "%s/%u" SUFFIX, dir, numbers[i]);
		unlink(path);
		store_drop_parts(job, numbers[i]);
	}
	blocks_prune(dir);
}
