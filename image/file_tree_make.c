/* Makes what a directory tree lacks, beside; gives it its names. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/fault.h"
#include "image/file_copy.h"
#include "image/file_tree.h"
#include "image/image.h"
#include "proto/message.h"

static int tree_compare_runs(const void *a, const void *b)
{
	const Pbeam__Pages *x = *(Pbeam__Pages *const *)a, *y = *(Pbeam__Pages *const *)b;

	return x->address < y->address ? -1 : x->address > y->address;
}

static int write_contents(const Pbeam__SavedFile *saved, struct image_reader *image, int fd, struct err *err)
{
	auto_free Pbeam__Pages **pages = calloc(saved->n_pages + 1, sizeof(Pbeam__Pages *));
	uint64_t size = saved->file->size, at = 0;
	int r = pages ? 0 : -ENOMEM;

	if (r == 0 && ftruncate(fd, (off_t)size) < 0)
		r = -errno;
	for (size_t i = 0; r == 0 && i < saved->n_pages; i++)
		pages[i] = saved->pages[i];
	if (r == 0)
		bytes_sort(pages, saved->n_pages, sizeof(*pages), tree_compare_runs);
	for (size_t i = 0; r == 0 && i < saved->n_pages; i++) {
		uint64_t start = pages[i]->address, end = start + pages[i]->count * IMAGE_PAGE, offset;
		uint64_t shared;
		int home = image_reader_home(image, pages[i], &offset, err);

		if (home < 0)
			return home;
		if (start < at || start >= size || end <= start)
			return -EBADMSG;
		shared = file_copy_clone(home, fd, offset, start, end - start, UINT64_MAX);
		if (end > size)
			end = size;
		if (shared < end - start)
			r = file_copy_bytes(home, fd, offset + shared, start + shared, end - start - shared,
					    false);
		at = end;
	}
	/* Whole blocks are shared, and may be longer than the file. */
	return r == 0 && ftruncate(fd, (off_t)size) < 0 ? -errno : r;
}

static int set_time(const char *path, uint64_t mtime_ns)
{
	const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
					  {(time_t)(mtime_ns / 1000000000u), (long)(mtime_ns % 1000000000u)}};

	return utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

static int tree_make_file(const Pbeam__TreeEntry *entry, const Pbeam__SavedFile *saved,
			  struct image_reader *image, const char *path, struct err *err)
{
	auto_close int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	int r = fd < 0 ? -errno : write_contents(saved, image, fd, err);

	if (r == 0 && fchmod(fd, entry->mode & 07777) < 0)
		r = -errno;
	return r == 0 ? set_time(path, entry->mtime_ns) : r;
}

/* What the first entry with the same inode is, or was made as; NULL: this is the first. */
static const char *tree_find_link(const struct file_tree *tree, const size_t *first, size_t i)
{
	size_t other = first[tree->saved->entries[i]->saved - 1];

	if (other == 0 || other - 1 == i)
		return NULL;
	return tree->nodes[other - 1].made ? tree->nodes[other - 1].made : tree->nodes[other - 1].path;
}

static int make_entry(struct file_tree *tree, struct image_reader *image, const size_t *first, size_t i,
		      const char *path, struct err *err)
{
	const Pbeam__TreeEntry *entry = tree->saved->entries[i];
	auto_free char *target = NULL;
	const char *other;
	int r;

	if (!entry->mode)
		return 0;
	tree->nodes[i].made = strdup(path);
	if (!tree->nodes[i].made)
		return -ENOMEM;
	if (S_ISDIR(entry->mode))
		return mkdir(path, 0700) < 0 ? -errno : 0;
	if (S_ISREG(entry->mode)) {
		other = tree_find_link(tree, first, i);
		if (other)
			return link(other, path) < 0 ? -errno : 0;
		return tree_make_file(entry, tree->manifest->files[entry->saved - 1], image, path, err);
	}
	target = message_dup_text(&entry->target);
	if (!target)
		return -ENOMEM;
	r = symlink(target, path) < 0 ? -errno : 0;
	return r == 0 ? set_time(path, entry->mtime_ns) : r;
}

static int make_step(struct file_tree *tree, struct image_reader *image, const size_t *first,
		     const struct tree_step *step, struct err *err)
{
	size_t n = strlen(step->path), end = step->top;
	int r = 0;

	for (; r == 0 && end < tree->saved->n_entries; end++) {
		const char *path = tree->nodes[end].path;
		auto_free char *made = NULL;

		if (!dirs_contain(step->path, path))
			break;
		if (asprintf(&made, "%s%s", step->new, path + n) < 0) {
			made = NULL;
			return -ENOMEM;
		}
		r = make_entry(tree, image, first, end, made, err);
		if (r < 0)
			return err->code ? r : err_code(err, r, "make %s again (as %s at first)", path, made);
	}
	while (r == 0 && end-- > step->top) { /* with what is in them, directories are complete */
		const Pbeam__TreeEntry *entry = tree->saved->entries[end];

		if (!S_ISDIR(entry->mode))
			continue;
		if (chmod(tree->nodes[end].made, entry->mode & 07777) < 0)
			r = -errno;
		if (r == 0)
			r = set_time(tree->nodes[end].made, entry->mtime_ns);
	}
	return r < 0 ? err_code(err, r, "set the attributes of %s", step->new) : 0;
}

/* Writes the whole file system of a path to disk: cheaper than each of many files. */
static int sync_file_system(const char *path, struct err *err)
{
	const char *slash = strrchr(path, '/');
	auto_free char *dir = strndup(path, slash == path ? 1 : (size_t)(slash - path));
	auto_close int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

	return fd < 0 || syncfs(fd) < 0 ? err_sys(err, "write %s to disk", path) : 0;
}

int file_tree_make(struct file_tree *tree, struct image_reader *image, Pbeam__UndoJournal *journal,
		   size_t first_step, struct err *err)
{
	auto_free size_t *first = calloc(tree->manifest->n_files + 1, sizeof(*first));
	struct stat st;
	int r = 0;

	if (!first)
		return err_code(err, -ENOMEM, "make what is missing");
	for (size_t i = tree->saved->n_entries; i-- > 0;)
		if (S_ISREG(tree->saved->entries[i]->mode))
			first[tree->saved->entries[i]->saved - 1] = i + 1;
	for (size_t i = 0; i < tree->nsteps && r == 0; i++) {
		struct tree_step *step = &tree->steps[i];

		if (!step->new)
			continue;
		r = make_step(tree, image, first, step, err);
		if (r == 0 && lstat(step->new, &st) < 0)
			r = err_sys(err, "look at %s", step->new);
		if (r == 0)
			journal->steps[first_step + i]->new_ino = step->new_ino = st.st_ino;
		if (r == 0)
			r = fault_point("tree-made", err);
	}
	return r == 0 && tree->nsteps ? sync_file_system(tree->steps[0].path, err) : r;
}

static int place_step(const struct tree_step *step)
{
	struct stat st;
	int r = 0;

	if (step->old) {
		if (lstat(step->path, &st) < 0)
			return -errno;
		if (st.st_ino != step->old_ino)
			return -ESTALE;
		r = file_tree_move(step->path, step->old);
	}
	return r == 0 && step->new ? file_tree_move(step->new, step->path) : r;
}

int file_tree_place(const struct file_tree *tree, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < tree->nsteps && r == 0; i++) {
		r = place_step(&tree->steps[i]);
		r = r < 0 ? err_code(err, r, "change what has the name %s", tree->steps[i].path)
			  : fault_point("tree-placed", err);
	}
	return r == 0 && tree->nsteps ? sync_file_system(tree->steps[0].path, err) : r;
}
