#include "image/file_undo.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "image/file_copy.h"
#include "image/file_tree.h"
#include "image/file_undo_parts.h"
#include "image/image.h"
#include "proto/message.h"

#define CLONE_LEAST (256u << 10)

struct file_undo {
	struct image_reader *image;
	pid_t keeper;
	struct file_change *changes;
	size_t n;
	struct file_tree **trees;
	size_t ntrees;
	struct file_journal journal; /* fd -1: no file changes, or not yet prepared */
	bool armed;		     /* files may have changed */
	bool placed, switched;
};

int file_undo_open(struct file_undo **out, struct image_reader *image, pid_t keeper, struct err *err)
{
	struct file_undo *undo = calloc(1, sizeof(*undo));

	*out = undo;
	if (!undo)
		return err_code(err, -ENOMEM, "prepare the files that change");
	undo->image = image;
	undo->keeper = keeper;
	undo->journal.fd = -1;
	return 0;
}

bool file_undo_has(const struct file_undo *undo, int fd)
{
	struct stat st;

	if (!undo || fstat(fd, &st) < 0)
		return false;
	for (size_t i = 0; i < undo->n; i++) {
		const struct file_change *change = &undo->changes[i];

		if (change->fd >= 0 && change->before.st_dev == st.st_dev &&
		    change->before.st_ino == st.st_ino)
			return true;
	}
	return false;
}

static bool has_path(const struct file_undo *undo, const char *path)
{
	for (size_t i = 0; i < undo->n; i++)
		if (!strcmp(undo->changes[i].path, path))
			return true;
	return false;
}

static bool is_in_tree(const struct file_undo *undo, const char *path)
{
	for (size_t i = 0; i < undo->ntrees; i++)
		if (file_tree_has(undo->trees[i], path))
			return true;
	return false;
}

int file_undo_add_trees(struct file_undo *undo, const Pbeam__Manifest *manifest, struct err *err)
{
	undo->trees = calloc(manifest->n_trees + 1, sizeof(*undo->trees));
	if (!undo->trees)
		return err_code(err, -ENOMEM, "prepare the directories that change");
	for (size_t i = 0; i < manifest->n_trees; i++) {
		struct file_tree *tree = NULL;
		struct stat image;
		int r = fstat(image_reader_fd(undo->image), &image) < 0
				? err_sys(err, "look at the image")
				: file_tree_plan(&tree, undo, manifest, manifest->trees[i], &image, err);

		if (r < 0) {
			file_tree_free(tree);
			return r;
		}
		undo->trees[undo->ntrees++] = tree;
	}
	return 0;
}

/* A file that was added as unchanged may have been changed through a mapping: it is compared now. */
static void drop_entry(struct file_undo *undo, const char *path)
{
	for (size_t i = 0; i < undo->n; i++)
		if (undo->changes[i].unchanged && !strcmp(undo->changes[i].path, path)) {
			file_change_free(&undo->changes[i]);
			undo->changes[i] = undo->changes[--undo->n];
			return;
		}
}

int file_undo_add(struct file_undo *undo, const struct file_wish *wish, struct err *err)
{
	struct file_change change = {.wish = *wish, .fd = -1}, *more;
	int r;

	if (!wish->by_tree && is_in_tree(undo, wish->path))
		return 0;
	if (!wish->by_tree) {
		drop_entry(undo, wish->path);
		if (has_path(undo, wish->path))
			return 0;
	}
	change.path = strdup(wish->path);
	change.wish.path = change.path;
	r = change.path ? file_change_plan(&change, undo->image, err)
			: err_code(err, -ENOMEM, "prepare %s", wish->path);
	more = r < 0 || (change.fd >= 0 && file_undo_has(undo, change.fd))
		       ? NULL
		       : reallocarray(undo->changes, undo->n + 1, sizeof(*more));
	if (!more) {
		file_change_free(&change);
		return r < 0 ? r : 0;
	}
	undo->changes = more;
	more[undo->n++] = change;
	return 0;
}

int file_undo_add_unchanged(struct file_undo *undo, const char *path, const struct stat *st, struct err *err)
{
	struct file_change change = {.fd = -1,
				     .unchanged = true,
				     .before = *st,
				     .wish.size = (uint64_t)st->st_size},
			   *more;

	if (has_path(undo, path))
		return 0;
	change.path = strdup(path);
	change.wish.path = change.path;
	more = change.path ? reallocarray(undo->changes, undo->n + 1, sizeof(*more)) : NULL;
	if (!more) {
		file_change_free(&change);
		return err_code(err, -ENOMEM, "look at %s", path);
	}
	undo->changes = more;
	more[undo->n++] = change;
	return 0;
}

bool file_undo_forecast(const struct file_undo *undo, size_t i, struct file_forecast *out)
{
	const struct file_change *change = undo && i < undo->n ? &undo->changes[i] : NULL;

	if (!change)
		return false;
	*out = (struct file_forecast){.path = change->path,
				      .before = change->missing ? 0 : (uint64_t)change->before.st_size,
				      .size = change->wish.size};
	for (size_t j = 0; j < change->nranges; j++)
		if (change->ranges[j].start < change->wish.size)
			out->bytes += change->ranges[j].end - change->ranges[j].start;
	if (change->missing)
		out->fate = FILE_MADE;
	else if (out->bytes || out->before < out->size)
		out->fate = FILE_OVERWRITTEN;
	else if (out->before > out->size)
		out->fate = FILE_TRUNCATED;
	else
		out->fate = change->wish.mtime_ns ? FILE_TIMES : FILE_UNCHANGED;
	return true;
}

int file_undo_list_fates(const struct file_undo *undo, Pbeam__FileFate ***fates, size_t *n)
{
	static const char *const names[] = {[FILE_UNCHANGED] = "unchanged",
					    [FILE_OVERWRITTEN] = "replaced",
					    [FILE_TRUNCATED] = "truncated",
					    [FILE_MADE] = "created",
					    [FILE_TIMES] = "times"};
	struct file_forecast forecast;

	for (size_t i = 0; file_undo_forecast(undo, i, &forecast); i++) {
		Pbeam__FileFate *fate = message_append_new(fates, n, &pbeam__file_fate__descriptor);

		if (!fate || message_string(&fate->path, forecast.path) < 0 ||
		    message_string(&fate->fate, names[forecast.fate]) < 0)
			return -ENOMEM;
		fate->bytes = forecast.bytes;
		fate->before = forecast.before;
		fate->size = forecast.size;
	}
	for (size_t i = 0; i < undo->ntrees; i++)
		if (file_tree_list_fates(undo->trees[i], fates, n) < 0)
			return -ENOMEM;
	return 0;
}

/* ---- preparing ---- */

/* Names the copy, or the new file, beside the file; in the directory of the journal if the other one cannot
 * be written to. */
static int name_copy(struct file_undo *undo, size_t i)
{
	struct file_change *change = &undo->changes[i];
	const char *slash = strrchr(change->path, '/');
	auto_free char *dir =
		slash ? strndup(change->path, (size_t)(slash - change->path) + 1) : strdup("./");
	const char *what = change->missing ? "new" : "undo", *base = slash ? slash + 1 : change->path;
	int n;

	if (!dir)
		return -ENOMEM;
	if (change->missing || access(dir, W_OK | X_OK) == 0)
		n = asprintf(&change->copy, "%s.%.180s.pbeam-%s-%d.%zu", dir, base, what, (int)getpid(), i);
	else
		n = asprintf(&change->copy, "%s.%zu", undo->journal.path, i);
	if (n < 0)
		change->copy = NULL;
	return n < 0 ? -ENOMEM : 0;
}

/* True if the file has contents that will be overwritten. */
static bool needs_copy(const struct file_change *change)
{
	return change->missing ||
	       (change->nranges && change->ranges[0].start < (uint64_t)change->before.st_size);
}

static int list_ranges(const struct file_change *change, Pbeam__UndoFile *file)
{
	for (size_t i = 0; i < change->nranges && !change->missing; i++) {
		Pbeam__UndoRange *last = file->n_ranges ? file->ranges[file->n_ranges - 1] : NULL;

		if (last && last->end == change->ranges[i].start) {
			last->end = change->ranges[i].end;
			continue;
		}
		last = message_add(file, ranges, pbeam__undo_range__descriptor);
		if (!last)
			return -ENOMEM;
		last->start = change->ranges[i].start;
		last->end = change->ranges[i].end;
	}
	return 0;
}

static int journal_file(struct file_undo *undo, const struct file_change *change)
{
	Pbeam__UndoJournal *message = undo->journal.message;
	Pbeam__UndoFile *file = message_add(message, files, pbeam__undo_file__descriptor);
	int r = file ? message_text(&file->path, change->path) : -ENOMEM;

	if (r == 0 && change->copy)
		r = message_text(&file->copy, change->copy);
	if (r < 0)
		return r;
	file->made = change->missing;
	file->ino = change->before.st_ino;
	file->size = change->missing ? 0 : (uint64_t)change->before.st_size;
	file->mode = change->before.st_mode & 07777;
	file->atime_ns = change->missing ? 0 : io_time_ns(&change->before.st_atim);
	file->mtime_ns = change->missing ? 0 : io_time_ns(&change->before.st_mtim);
	file->cut = change->cut_late;
	file->length = change->wish.size;
	file->new_mtime_ns = change->wish.mtime_ns;
	return list_ranges(change, file);
}

/* The journal names the copies before they exist. */
static int begin_journal(struct file_undo *undo, bool keep_tails, struct err *err)
{
	int r = file_journal_create(&undo->journal, undo->keeper, err);

	for (size_t i = 0; i < undo->n && r == 0; i++) {
		struct file_change *change = &undo->changes[i];

		if (keep_tails)
			r = file_change_keep_tail(change);
		else
			change->cut_late =
				!change->missing && (uint64_t)change->before.st_size > change->wish.size;
		if (r == 0 && needs_copy(change))
			r = name_copy(undo, i);
		if (r == 0)
			r = journal_file(undo, change);
	}
	for (size_t i = 0; i < undo->ntrees && r == 0; i++)
		r = file_tree_list(undo->trees[i], undo->journal.message, err);
	if (r < 0)
		return err->code ? r : err_code(err, r, "prepare the files that change");
	return file_journal_write(&undo->journal, err);
}

static int copy_ranges(const struct file_change *change, int to)
{
	uint64_t size = (uint64_t)change->before.st_size, sum = 0;
	int r = 0;

	for (size_t i = 0; i < change->nranges; i++)
		sum += change->ranges[i].end - change->ranges[i].start;
	if (sum >= CLONE_LEAST && ioctl(to, FICLONE, change->fd) == 0)
		return 0;
	if (ftruncate(to, (off_t)size) < 0)
		return -errno;
	for (size_t i = 0; i < change->nranges && r == 0; i++) {
		const struct change_range *range = &change->ranges[i];
		uint64_t end = range->end < size ? range->end : size;

		if (range->start < end)
			r = file_copy_range(change->fd, to, range->start, end);
	}
	return r;
}

static int make_undo_copy(const struct file_change *change, struct err *err)
{
	auto_close int fd = open(change->copy, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	int r = fd < 0 ? -errno : copy_ranges(change, fd);

	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	if (r == 0)
		r = file_copy_sync_directory(change->copy);
	return r < 0 ? err_code(err, r, "keep a copy of what changes in %s as %s; nothing has been changed",
				change->path, change->copy)
		     : 0;
}

static int make_new_file(struct file_undo *undo, struct file_change *change, struct err *err)
{
	mode_t mode = change->wish.mode & 07777;
	int r;

	change->fd = open(change->copy, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (change->fd < 0 || ftruncate(change->fd, (off_t)change->wish.size) < 0 ||
	    fchmod(change->fd, mode) < 0)
		return err_sys(err, "make %s again (as %s at first)", change->path, change->copy);
	r = file_change_reserve(change, err);
	if (r == 0)
		r = file_change_write(change, undo->image, err);
	if (r < 0)
		return r;
	if (fstat(change->fd, &change->before) < 0)
		return err_sys(err, "look at %s", change->copy);
	r = file_copy_sync_directory(change->copy);
	return r < 0 ? err_code(err, r, "sync the directory of %s", change->copy) : 0;
}

static int make_undo_files(struct file_undo *undo, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < undo->n && r == 0; i++) {
		struct file_change *change = &undo->changes[i];

		if (change->missing)
			r = make_new_file(undo, change, err);
		else if (change->copy)
			r = make_undo_copy(change, err);
		if (change->missing)
			undo->journal.message->files[i]->ino = change->before.st_ino;
		if (r == 0)
			r = fault_point("files-copied", err);
	}
	return r;
}

static int make_trees(struct file_undo *undo, struct err *err)
{
	size_t step = 0;
	int r = 0;

	for (size_t i = 0; i < undo->ntrees && r == 0; i++) {
		r = file_tree_make(undo->trees[i], undo->image, undo->journal.message, step, err);
		step += undo->trees[i]->nsteps;
	}
	return r;
}

static bool trees_change(const struct file_undo *undo)
{
	for (size_t i = 0; i < undo->ntrees; i++)
		if (file_tree_changes(undo->trees[i]))
			return true;
	return false;
}

static void drop_unchanged(struct file_undo *undo)
{
	size_t kept = 0;

	for (size_t i = 0; i < undo->n; i++) {
		const struct file_change *change = &undo->changes[i];
		bool none = file_change_is_none(change) &&
			    (!change->wish.mtime_ns ||
			     io_time_ns(&change->before.st_mtim) == change->wish.mtime_ns);

		if (none)
			file_change_free(&undo->changes[i]);
		else
			undo->changes[kept++] = undo->changes[i];
	}
	undo->n = kept;
}

static int prepare_all(struct file_undo *undo, bool keep_tails, struct err *err)
{
	int r = begin_journal(undo, keep_tails, err);

	if (r < 0)
		return r;
	r = make_undo_files(undo, err);
	if (r == 0)
		r = make_trees(undo, err);
	if (r < 0)
		return r;
	r = file_journal_write(&undo->journal, err);
	if (r < 0)
		return r;
	r = file_journal_set_state(&undo->journal, JOURNAL_ARMED, err);
	undo->armed = r == 0;
	for (size_t i = 0; i < undo->n && r == 0; i++)
		if (!undo->changes[i].missing)
			r = file_change_reserve(&undo->changes[i], err);
	return r < 0 ? r : fault_point("files-prepared", err);
}

int file_undo_prepare(struct file_undo *undo, bool keep_tails, struct err *err)
{
	int r;

	drop_unchanged(undo);
	if (undo->n == 0 && !trees_change(undo))
		return 0;
	r = prepare_all(undo, keep_tails, err);
	if (r < 0)
		file_undo_take_back(undo, err);
	return r;
}

/* ---- changing ---- */

/* Where the file system cannot rename without replacing, a second name serves. */
static int give_name(const char *from, const char *to)
{
	if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -errno;
	return link(from, to) < 0 || unlink(from) < 0 ? -errno : 0;
}

int file_undo_place(struct file_undo *undo, struct err *err)
{
	int r = 0;

	if (!undo || undo->placed)
		return 0;
	undo->placed = true;
	if (undo->journal.fd < 0)
		return 0;
	for (size_t i = 0; i < undo->ntrees && r == 0; i++)
		r = file_tree_place(undo->trees[i], err);
	for (size_t i = 0; i < undo->n && r == 0; i++) {
		const struct file_change *change = &undo->changes[i];

		if (!change->missing)
			continue;
		r = give_name(change->copy, change->path);
		if (r == 0)
			r = file_copy_sync_directory(change->path);
		r = r < 0 ? err_code(err, r, "make %s again", change->path)
			  : fault_point("files-placed", err);
	}
	return r;
}

int file_undo_switch(struct file_undo *undo, struct err *err)
{
	int r = 0;

	if (!undo || undo->switched)
		return 0;
	undo->switched = true;
	for (size_t i = 0; i < undo->n && r == 0; i++) {
		if (undo->changes[i].missing)
			continue;
		r = file_change_write(&undo->changes[i], undo->image, err);
		if (r == 0)
			r = fault_point("files-switched", err);
	}
	return r;
}

int file_undo_hold(struct file_undo *undo, struct err *err)
{
	return undo && undo->journal.fd >= 0 ? file_journal_set_state(&undo->journal, JOURNAL_HELD, err) : 0;
}

void file_undo_take_back(struct file_undo *undo, struct err *err)
{
	if (!undo || undo->journal.fd < 0 || !undo->journal.message)
		return;
	if (undo->armed)
		file_journal_take_back(&undo->journal, err);
	else
		file_journal_drop(&undo->journal);
}

void file_undo_settle(struct file_undo *undo)
{
	struct err err = ERR_INIT;

	if (!undo || undo->journal.fd < 0)
		return;
	if (file_journal_set_state(&undo->journal, JOURNAL_SETTLED, &err) < 0)
		log_error("%s", err.text);
	(void)!fault_point("files-settled", NULL); /* killed here; it cannot fail */
	file_journal_finish(&undo->journal);
}

void file_undo_close(struct file_undo *undo)
{
	if (!undo)
		return;
	file_undo_take_back(undo, NULL);
	file_journal_close(&undo->journal);
	for (size_t i = 0; i < undo->n; i++)
		file_change_free(&undo->changes[i]);
	for (size_t i = 0; i < undo->ntrees; i++)
		file_tree_free(undo->trees[i]);
	free(undo->trees);
	free(undo->changes);
	free(undo);
}
