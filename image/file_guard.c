#include "image/file_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "base/u64_map.h"
#include "image/file_copy.h"
#include "image/file_tree.h"
#include "image/hash.h"
#include "image/image.h"
#include "proto/message.h"
#include "proto/undo.pb-c.h"

enum { RECORD_MAX = 64 << 20, COPIES_MAX = 1000 };

static int guard_path(const char *image, char path[PATH_MAX])
{
	const char *slash = strrchr(image, '/');
	int n = snprintf(path, PATH_MAX, "%.*sended", slash ? (int)(slash - image + 1) : 0, image);

	return n < PATH_MAX - 8 ? 0 : -ENAMETOOLONG;
}

static int add_path(Pbeam__FileStates *states, const char *path)
{
	Pbeam__FileState *state;
	struct stat st;

	if (stat(path, &st) < 0)
		return 0;
	state = message_add(states, files, pbeam__file_state__descriptor);
	if (!state || message_text(&state->path, path) < 0)
		return -ENOMEM;
	state->dev = st.st_dev;
	state->ino = st.st_ino;
	state->size = (uint64_t)st.st_size;
	state->mtime_ns = io_time_ns(&st.st_mtim);
	return 0;
}

static int add_state(Pbeam__FileStates *states, const Pbeam__FileIdentity *file)
{
	auto_free char *path = file ? strndup((const char *)file->path.data, file->path.len) : NULL;

	return path ? add_path(states, path) : 0;
}

static int add_named(void *arg, const char *path, const struct stat *st, bool mounted)
{
	return S_ISREG(st->st_mode) && !mounted ? add_path(arg, path) : 0;
}

/* All files of the tracked directories, so that one that others make is known. */
static int list_trees(Pbeam__FileStates *states, const Pbeam__Manifest *manifest)
{
	int r = 0;

	for (size_t i = 0; i < manifest->n_trees && r == 0; i++) {
		auto_free char *path = message_dup_text(&manifest->trees[i]->path);

		if (!path || message_append_bytes(&states->trees, &states->n_trees, path, strlen(path)) < 0)
			return -ENOMEM;
		r = file_tree_walk(path, add_named, states);
		if (r == -ENOENT || r == -ENOTDIR)
			r = 0;
	}
	return r;
}

static int list_states(Pbeam__FileStates *states, const Pbeam__Manifest *manifest)
{
	int r = 0;

	for (size_t i = 0; i < manifest->n_files && r == 0; i++)
		if (!manifest->files[i]->unlinked && !manifest->files[i]->by_tree)
			r = add_state(states, manifest->files[i]->file);
	for (size_t i = 0; i < manifest->n_shared && r == 0; i++)
		if (manifest->shared[i]->kind == PBEAM__SHARED_MEMORY__KIND__POSIX_FILE &&
		    manifest->shared[i]->file && !manifest->shared[i]->file->deleted)
			r = add_state(states, manifest->shared[i]->file);
	return r == 0 ? list_trees(states, manifest) : r;
}

static int write_record(const char *path, const Pbeam__FileStates *states)
{
	size_t len = pbeam__file_states__get_packed_size(states);
	auto_free uint8_t *packed = malloc(len + 1);
	char beside[PATH_MAX + 8];
	auto_close int fd = -1;
	int r;

	snprintf(beside, sizeof(beside), "%s.new", path);
	fd = packed ? open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
	if (fd < 0)
		return packed ? -errno : -ENOMEM;
	pbeam__file_states__pack(states, packed);
	r = io_write_full(fd, packed, len);
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	if (r == 0 && rename(beside, path) < 0)
		r = -errno;
	if (r < 0)
		unlink(beside);
	return r;
}

void file_guard_record(const char *image_path)
{
	Pbeam__FileStates *states = message_new(&pbeam__file_states__descriptor);
	struct image_reader *image;
	char path[PATH_MAX];
	int r = states ? guard_path(image_path, path) : -ENOMEM;

	if (r == 0 && image_reader_open(&image, image_path, NULL) == 0) {
		r = list_states(states, image_reader_manifest(image));
		image_reader_close(image);
		if (r == 0)
			r = write_record(path, states);
	}
	if (r < 0)
		log_warn("the files of %s at the end of the job cannot be recorded: %s", image_path,
			 strerror(-r));
	message_free(states);
}

void file_guard_forget(const char *image_path)
{
	char path[PATH_MAX];

	if (guard_path(image_path, path) == 0)
		unlink(path);
}

bool file_guard_has_record(const char *image_path)
{
	char path[PATH_MAX];

	return guard_path(image_path, path) == 0 && access(path, F_OK) == 0;
}

/* ---- before a restore ---- */

static bool is_as_recorded(const Pbeam__FileState *state, const struct stat *st)
{
	return state->dev == st->st_dev && state->ino == st->st_ino && state->size == (uint64_t)st->st_size &&
	       state->mtime_ns == io_time_ns(&st->st_mtim);
}

static bool is_in_recorded_tree(const Pbeam__FileStates *states, const char *path)
{
	for (size_t i = 0; i < states->n_trees; i++)
		if (strlen(path) > states->trees[i].len && path[states->trees[i].len] == '/' &&
		    !strncmp(path, (const char *)states->trees[i].data, states->trees[i].len))
			return true;
	return false;
}

/* `index`: of the record's files, by the hash of their paths. */
static bool is_foreign(const Pbeam__FileStates *states, const struct u64_map *index, const char *path)
{
	size_t i = u64_map_find(index, XXH3_64bits(path, strlen(path)));
	struct stat st;

	if (lstat(path, &st) < 0)
		return false;
	if (i == U64_MAP_NONE) /* it was not there, or is no file of the job's */
		return S_ISREG(st.st_mode) && is_in_recorded_tree(states, path);
	return stat(path, &st) == 0 && !is_as_recorded(states->files[i], &st);
}

static int index_record(const Pbeam__FileStates *states, struct u64_map *index)
{
	int r = 0;

	for (size_t i = 0; i < states->n_files && r == 0; i++)
		r = u64_map_set(index, XXH3_64bits(states->files[i]->path.data, states->files[i]->path.len),
				i);
	return r;
}

int file_guard_mark(const char *image_path, Pbeam__FileFate *const *fates, size_t n, struct err *err)
{
	auto_free char *packed = NULL;
	Pbeam__FileStates *states;
	struct u64_map index = {0};
	char path[PATH_MAX];
	size_t len;
	int r = guard_path(image_path, path);

	if (r == 0)
		r = io_slurp(AT_FDCWD, path, RECORD_MAX, &packed, &len);
	if (r < 0)
		return r == -ENOENT ? 0 : err_code(err, r, "read %s", path);
	states = pbeam__file_states__unpack(NULL, len, (const uint8_t *)packed);
	if (!states)
		return err_set(err, -EBADMSG,
			       "%s, which says how the job left its files, is damaged; look at them, then "
			       "remove it",
			       path);
	r = index_record(states, &index);
	for (size_t i = 0; i < n && r == 0; i++)
		fates[i]->foreign = strcmp(fates[i]->fate, "unchanged") != 0 &&
				    is_foreign(states, &index, fates[i]->path);
	u64_map_free(&index);
	message_free(states);
	return r < 0 ? err_code(err, r, "read %s", path) : 0;
}

static int copy_file(const char *from, const char *to)
{
	auto_close int in = open(from, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), out = -1;
	struct stat st;
	int r = 0;

	if (in < 0 || fstat(in, &st) < 0)
		return -errno;
	out = open(to, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (out < 0)
		return -errno;
	if (ioctl(out, FICLONE, in) < 0) {
		if (ftruncate(out, st.st_size) < 0)
			r = -errno;
		else
			r = file_copy_range(in, out, 0, (uint64_t)st.st_size);
		if (r == 0 && ftruncate(out, st.st_size) < 0)
			r = -errno;
	}
	if (r == 0 &&
	    (fchmod(out, st.st_mode & 0777) < 0 ||
	     futimens(out, (const struct timespec[2]){st.st_atim, st.st_mtim}) < 0 || fsync(out) < 0))
		r = -errno;
	if (r == 0)
		r = file_copy_sync_directory(to);
	if (r < 0)
		unlink(to);
	return r;
}

/* Copies to the first free NAME.before-rollback-N. Returns its path, NULL on failure. */
static char *keep_beside(const char *path, struct err *err)
{
	char *name;

	for (int i = 1; i <= COPIES_MAX; i++) {
		int r = asprintf(&name, "%s.before-rollback-%d", path, i);

		if (r < 0)
			break;
		r = copy_file(path, name);
		if (r == 0)
			return name;
		if (r != -EEXIST) {
			err_code(err, r,
				 "keep %s, which somebody else has written, as %s; nothing has been "
				 "changed",
				 path, name);
			free(name);
			return NULL;
		}
		free(name);
	}
	err_set(err, -EEXIST, "there are too many files %s.before-rollback-N; move some away", path);
	return NULL;
}

static int guard_keep_one(const char *path, char ***notes, size_t *nnotes, char ***kept, size_t *nkept,
			  struct err *err)
{
	auto_free char *copy = keep_beside(path, err), *note = NULL;

	if (!copy)
		return err->code ? err->code : -ENOMEM;
	if (message_append_string(kept, nkept, copy) < 0) {
		unlink(copy);
		return err_code(err, -ENOMEM, "keep %s", path);
	}
	if (asprintf(&note, "%s had been written to since the job ended; what it held is in %s", path, copy) <
	    0) {
		note = NULL;
		return err_code(err, -ENOMEM, "keep %s", path);
	}
	return message_append_string(notes, nnotes, note) < 0 ? err_code(err, -ENOMEM, "keep %s", path) : 0;
}

int file_guard_keep(Pbeam__FileFate *const *fates, size_t n, bool force, char ***notes, size_t *nnotes,
		    char ***kept, size_t *nkept, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		if (!fates[i]->foreign)
			continue;
		r = force ? guard_keep_one(fates[i]->path, notes, nnotes, kept, nkept, err)
			  : err_set(err, -ESTALE,
				    "file %s has been written to since the job ended, and would be "
				    "overwritten; move it away, or use --force, which keeps it as "
				    "%s.before-rollback-N",
				    fates[i]->path, fates[i]->path);
	}
	if (r < 0) {
		file_guard_drop(*kept, *nkept);
		*nkept = 0;
	}
	return r;
}

void file_guard_drop(char *const *kept, size_t n)
{
	for (size_t i = 0; i < n; i++)
		unlink(kept[i]);
}
