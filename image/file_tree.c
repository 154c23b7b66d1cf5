#include "image/file_tree.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "base/u64_map.h"
#include "image/hash.h"
#include "proto/message.h"

#define KEPT_COPY ".before-rollback-"

/* While a tree is compared. */
struct planning {
	struct file_tree *tree;
	struct file_undo *undo;
	struct u64_map paths;  /* of the entries, by their hash */
	struct u64_map inodes; /* that are there and stay: to the first entry with it */
	struct u64_map saved;  /* Manifest.files to the first entry with it */
	struct u64_map mapped; /* inodes that processes map */
	const struct stat *image;
	bool has_copy;
	struct err *err;
};

static const Pbeam__TreeEntry *tree_entry_of(const struct file_tree *tree, size_t i)
{
	return tree->saved->entries[i];
}

static const Pbeam__SavedFile *saved_of(const struct file_tree *tree, size_t i)
{
	return tree->manifest->files[tree_entry_of(tree, i)->saved - 1];
}

static uint64_t hash_path(const char *path)
{
	return XXH3_64bits(path, strlen(path));
}

/* ---- what the image says ---- */

/* No component of a path may lead out of the tree. */
static bool is_plain(const ProtobufCBinaryData *path)
{
	size_t start = 0;

	if (!path->len || memchr(path->data, 0, path->len))
		return false;
	for (size_t i = 0; i <= path->len; i++) {
		size_t n = i - start;

		if (i < path->len && path->data[i] != '/')
			continue;
		if (n == 0 || (n <= 2 && !memcmp(path->data + start, "..", n)))
			return false;
		start = i + 1;
	}
	return true;
}

static int check_entry(const struct planning *planning, size_t i)
{
	const struct file_tree *tree = planning->tree;
	const Pbeam__TreeEntry *entry = tree_entry_of(tree, i);
	const char *slash = strrchr(tree->nodes[i].path, '/');
	auto_free char *parent = strndup(tree->nodes[i].path, (size_t)(slash - tree->nodes[i].path));
	size_t above;

	if (!parent)
		return -ENOMEM;
	if (u64_map_find(&planning->paths, hash_path(tree->nodes[i].path)) != U64_MAP_NONE)
		return -EBADMSG;
	above = i ? u64_map_find(&planning->paths, hash_path(parent)) : 0;
	if (i && (!is_plain(&entry->path) || above == U64_MAP_NONE ||
		  !S_ISDIR(tree_entry_of(tree, above)->mode) || strcmp(tree->nodes[above].path, parent) != 0))
		return -EBADMSG;
	if (S_ISREG(entry->mode))
		return entry->saved && entry->saved <= tree->manifest->n_files && saved_of(tree, i)->file
			       ? 0
			       : -EBADMSG;
	return !entry->mode || S_ISDIR(entry->mode) || (S_ISLNK(entry->mode) && entry->target.len) ? 0
												   : -EBADMSG;
}

static int take_entries(struct planning *planning)
{
	struct file_tree *tree = planning->tree;
	size_t n = tree->saved->n_entries;
	auto_free char *root = message_dup_text(&tree->saved->path);
	int r = 0;

	if (!root || root[0] != '/' || strlen(root) < 2 || !n || tree_entry_of(tree, 0)->path.len ||
	    !S_ISDIR(tree_entry_of(tree, 0)->mode))
		return root ? -EBADMSG : -ENOMEM;
	tree->nodes = calloc(n, sizeof(*tree->nodes));
	for (size_t i = 0; tree->nodes && i < n && r == 0; i++) {
		auto_free char *below = message_dup_text(&tree_entry_of(tree, i)->path);

		if (!below || asprintf(&tree->nodes[i].path, "%s%s%s", root, i ? "/" : "", below) < 0) {
			tree->nodes[i].path = NULL;
			return -ENOMEM;
		}
		r = check_entry(planning, i);
		if (r == 0)
			r = u64_map_set(&planning->paths, hash_path(tree->nodes[i].path), i);
	}
	for (size_t i = 0; i < tree->manifest->n_shared && r == 0; i++)
		if (tree->manifest->shared[i]->file)
			r = u64_map_set(&planning->mapped, tree->manifest->shared[i]->file->ino, i);
	return tree->nodes ? r : -ENOMEM;
}

/* ---- comparing ---- */

static struct tree_step *tree_add_step(struct file_tree *tree, const char *path)
{
	struct tree_step *more = tree->steps;

	if ((tree->nsteps & (tree->nsteps + 1)) == 0) /* room for 1, 3, 7 ... is used up */
		more = reallocarray(tree->steps, 2 * tree->nsteps + 1, sizeof(*more));
	if (!more)
		return NULL;
	tree->steps = more;
	more[tree->nsteps] = (struct tree_step){.path = strdup(path), .top = SIZE_MAX};
	return more[tree->nsteps].path ? &more[tree->nsteps++] : NULL;
}

static int refuse_image(const struct planning *planning, const char *path, const struct stat *st)
{
	return st->st_dev == planning->image->st_dev && st->st_ino == planning->image->st_ino
		       ? err_set(planning->err, -EBUSY,
				 "the image is %s, in the directory that it would put back; move it out of "
				 "there, then try again",
				 path)
		       : 0;
}

static int look_at_one(void *arg, const char *path, const struct stat *st, bool mounted)
{
	struct planning *planning = arg;
	int r = refuse_image(planning, path, st);

	if (r < 0)
		return r;
	if (strstr(strrchr(path, '/'), KEPT_COPY))
		planning->has_copy = true;
	return mounted ? err_set(planning->err, -EBUSY,
				 "%s, which would be removed, has another file system mounted on it; unmount "
				 "that, then try again",
				 path)
		       : 0;
}

/* Refuses a directory that cannot be moved away; notes whether it has copies that a rollback kept. */
static int look_into(struct planning *planning, const char *path)
{
	int r;

	planning->has_copy = false;
	r = file_tree_walk(path, look_at_one, planning);
	return r < 0 && !planning->err->code ? err_code(planning->err, r, "look into %s", path) : r;
}

/* What has the name now, if anything, is replaced by what the image has. */
static int plan_new(struct planning *planning, size_t i, const struct stat *st)
{
	const char *path = planning->tree->nodes[i].path;
	int r = st && S_ISDIR(st->st_mode) ? look_into(planning, path) : 0;
	struct tree_step *step;

	if (r == 0 && st && S_ISDIR(st->st_mode) && planning->has_copy)
		r = err_set(planning->err, -EEXIST,
			    "%s, which was no directory at the checkpoint, has files *" KEPT_COPY
			    "N; move these away, then try again",
			    path);
	if (r < 0)
		return r;
	step = tree_add_step(planning->tree, path);
	if (!step)
		return -ENOMEM;
	step->top = i;
	step->old_ino = st ? st->st_ino : 0;
	step->old_mode = st ? st->st_mode : 0;
	planning->tree->nodes[i].state = NODE_NEW;
	return 0;
}

static bool is_same_link(const char *path, const Pbeam__TreeEntry *entry)
{
	char target[PATH_MAX];
	ssize_t n = readlink(path, target, sizeof(target));

	return n > 0 && (size_t)n == entry->target.len && !memcmp(target, entry->target.data, (size_t)n);
}

static int plan_write(struct planning *planning, size_t i)
{
	struct tree_node *node = &planning->tree->nodes[i];
	const Pbeam__SavedFile *saved = saved_of(planning->tree, i);

	node->state = NODE_WRITTEN;
	return file_undo_add(planning->undo,
			     &(struct file_wish){.path = node->path,
						 .contents = true,
						 .by_tree = true,
						 .size = saved->file->size,
						 .mtime_ns = saved->file->mtime_ns,
						 .mode = saved->mode & 07777,
						 .n_pages = saved->n_pages,
						 .pages = saved->pages},
			     planning->err);
}

/* A regular file where the image has one. */
static int plan_file(struct planning *planning, size_t i)
{
	struct tree_node *node = &planning->tree->nodes[i];
	const Pbeam__SavedFile *saved = saved_of(planning->tree, i);
	const struct stat *st = &node->before;
	uint64_t key = u64_map_mix(st->st_dev, st->st_ino);
	size_t first = u64_map_find(&planning->saved, tree_entry_of(planning->tree, i)->saved);
	size_t owner = u64_map_find(&planning->inodes, key);

	if (first != U64_MAP_NONE) /* another name of that file */
		return owner == first && planning->tree->nodes[first].state != NODE_NEW
			       ? 0
			       : plan_new(planning, i, st);
	if (u64_map_set(&planning->saved, tree_entry_of(planning->tree, i)->saved, i) < 0)
		return -ENOMEM;
	/* Another file by now: it gets its inode back in no case, and the present one may have other names.
	 */
	if (owner != U64_MAP_NONE || st->st_dev != saved->file->dev || st->st_ino != saved->file->ino)
		return plan_new(planning, i, st);
	if (u64_map_set(&planning->inodes, key, i) < 0)
		return -ENOMEM;
	if (u64_map_find(&planning->mapped, st->st_ino) == U64_MAP_NONE &&
	    saved->ctime_ns + FILE_TICK_NS < planning->tree->manifest->created_ns &&
	    file_undo_is_unchanged(saved, st))
		return 0;
	return plan_write(planning, i);
}

static bool is_inside_new(const struct planning *planning, size_t i)
{
	const char *path = planning->tree->nodes[i].path;
	auto_free char *parent = strndup(path, (size_t)(strrchr(path, '/') - path));
	size_t above = parent && i ? u64_map_find(&planning->paths, hash_path(parent)) : U64_MAP_NONE;

	return above != U64_MAP_NONE && planning->tree->nodes[above].state == NODE_NEW;
}

static int plan_directory(struct planning *planning, size_t i)
{
	struct tree_node *node = &planning->tree->nodes[i];
	uint64_t mount;
	int r = file_tree_mount(node->path, &mount);

	if (r < 0)
		return r;
	if (i == 0)
		planning->tree->mount = mount;
	if (mount != planning->tree->mount)
		return err_set(planning->err, -EXDEV,
			       "%s was a directory at the checkpoint and has another file system mounted on "
			       "it now; unmount that, then try again",
			       node->path);
	return 0;
}

static int plan_entry(struct planning *planning, size_t i)
{
	struct tree_node *node = &planning->tree->nodes[i];
	const Pbeam__TreeEntry *entry = tree_entry_of(planning->tree, i);

	if (!entry->mode)
		return 0;
	if (is_inside_new(planning, i) || lstat(node->path, &node->before) < 0) {
		bool inside = is_inside_new(planning, i);

		if (!inside && errno != ENOENT && errno != ENOTDIR)
			return err_sys(planning->err, "look at %s", node->path);
		if (S_ISREG(entry->mode) && u64_map_find(&planning->saved, entry->saved) == U64_MAP_NONE &&
		    u64_map_set(&planning->saved, entry->saved, i) < 0)
			return -ENOMEM;
		node->state = NODE_NEW;
		return inside ? 0 : plan_new(planning, i, NULL);
	}
	if ((node->before.st_mode & S_IFMT) == (entry->mode & S_IFMT)) {
		if (S_ISDIR(entry->mode))
			return plan_directory(planning, i);
		if (S_ISREG(entry->mode))
			return plan_file(planning, i);
		return is_same_link(node->path, entry) ? 0 : plan_new(planning, i, &node->before);
	}
	if (S_ISREG(entry->mode) && u64_map_find(&planning->saved, entry->saved) == U64_MAP_NONE &&
	    u64_map_set(&planning->saved, entry->saved, i) < 0)
		return -ENOMEM;
	return plan_new(planning, i, &node->before);
}

/* ---- what the image does not have ---- */

static int plan_extra(void *arg, const char *path, const struct stat *st, bool mounted)
{
	struct planning *planning = arg;
	struct tree_step *step;
	size_t known = u64_map_find(&planning->paths, hash_path(path));
	int r;

	if (known != U64_MAP_NONE) {
		const struct tree_node *node = &planning->tree->nodes[known];

		if (strcmp(node->path, path) != 0)
			return -EBADMSG;
		return node->state == NODE_NEW || !tree_entry_of(planning->tree, known)->mode ? FILE_TREE_SKIP
											      : 0;
	}
	if (mounted || !(S_ISREG(st->st_mode) || S_ISDIR(st->st_mode) || S_ISLNK(st->st_mode)) ||
	    strstr(strrchr(path, '/'), KEPT_COPY))
		return FILE_TREE_SKIP;
	r = refuse_image(planning, path, st);
	if (r < 0)
		return r;
	if (S_ISDIR(st->st_mode)) {
		r = look_into(planning, path);
		if (r < 0 || planning->has_copy)
			return r; /* what else is in it goes one by one */
	}
	step = tree_add_step(planning->tree, path);
	if (!step)
		return -ENOMEM;
	step->old_ino = st->st_ino;
	step->old_mode = st->st_mode;
	return S_ISDIR(st->st_mode) ? FILE_TREE_SKIP : 0;
}

/* The names beside are in the same directory. */
static int check_steps(const struct planning *planning)
{
	for (size_t i = 0; i < planning->tree->nsteps; i++) {
		const char *path = planning->tree->steps[i].path, *slash = strrchr(path, '/');
		auto_free char *dir = strndup(path, (size_t)(slash - path) + 1);

		if (!dir)
			return -ENOMEM;
		if (access(dir, W_OK | X_OK) < 0)
			return err_sys(planning->err, "%s changes, and its directory may not be written to",
				       path);
	}
	return 0;
}

/* The directory of another host may be another one. */
static int tree_check_host(const struct planning *planning)
{
	const struct file_tree *tree = planning->tree;
	const Pbeam__Host *host = tree->manifest->host;
	struct utsname here;
	struct stat st;

	if (!host || uname(&here) < 0 || !strcmp(host->name, here.nodename))
		return 0;
	if (stat(tree->nodes[0].path, &st) == 0 && st.st_ino == tree->saved->ino)
		return 0;
	return err_set(
		planning->err, -EXDEV,
		"%s was tracked on host %s and is another directory on this host; restore the image there",
		tree->nodes[0].path, host->name);
}

static int plan_all(struct planning *planning)
{
	struct file_tree *tree = planning->tree;
	int r = take_entries(planning);

	if (r == 0)
		r = tree_check_host(planning);

	if (r == -EBADMSG && !planning->err->code)
		return err_set(planning->err, r, "the image's record of a tracked directory is malformed");
	for (size_t i = 0; i < tree->saved->n_entries && r == 0; i++)
		r = plan_entry(planning, i);
	if (r == 0 && tree->nodes[0].state != NODE_NEW)
		r = file_tree_walk(tree->nodes[0].path, plan_extra, planning);
	return r == 0 ? check_steps(planning) : r;
}

int file_tree_plan(struct file_tree **out, struct file_undo *undo, const Pbeam__Manifest *manifest,
		   const Pbeam__SavedTree *saved, const struct stat *image, struct err *err)
{
	struct planning planning = {
		.tree = calloc(1, sizeof(struct file_tree)), .undo = undo, .image = image, .err = err};
	int r = -ENOMEM;

	*out = planning.tree;
	if (planning.tree) {
		planning.tree->saved = saved;
		planning.tree->manifest = manifest;
		r = plan_all(&planning);
	}
	u64_map_free(&planning.paths);
	u64_map_free(&planning.inodes);
	u64_map_free(&planning.saved);
	u64_map_free(&planning.mapped);
	return r < 0 && !err->code ? err_code(err, r, "compare a tracked directory with what was saved") : r;
}

/* ---- afterwards ---- */

bool file_tree_has(const struct file_tree *tree, const char *path)
{
	for (size_t i = 0; i < tree->saved->n_entries; i++)
		if (!strcmp(tree->nodes[i].path, path))
			return true;
	return false;
}

static bool differs(const struct tree_node *node, const Pbeam__TreeEntry *entry)
{
	if (node->state == NODE_NEW || !entry->mode || S_ISLNK(entry->mode))
		return false;
	return (node->before.st_mode & 07777) != (entry->mode & 07777) ||
	       (S_ISDIR(entry->mode) && io_time_ns(&node->before.st_mtim) != entry->mtime_ns);
}

bool file_tree_changes(const struct file_tree *tree)
{
	for (size_t i = 0; i < tree->saved->n_entries; i++)
		if (tree->nodes[i].state == NODE_WRITTEN || differs(&tree->nodes[i], tree_entry_of(tree, i)))
			return true;
	return tree->nsteps > 0;
}

static int list_step(struct file_tree *tree, size_t i, Pbeam__UndoJournal *journal)
{
	struct tree_step *step = &tree->steps[i];
	Pbeam__UndoStep *out = message_add(journal, steps, pbeam__undo_step__descriptor);
	const char *slash = strrchr(step->path, '/');
	int dir = (int)(slash - step->path) + 1;
	size_t number = journal->n_steps;

	if (!out || message_text(&out->path, step->path) < 0)
		return -ENOMEM;
	out->old_ino = step->old_ino;
	if (step->old_ino && asprintf(&step->old, "%.*s.%.180s" TREE_OLD "%d.%zu", dir, step->path, slash + 1,
				      (int)getpid(), number) < 0) {
		step->old = NULL;
		return -ENOMEM;
	}
	if (step->top != SIZE_MAX && asprintf(&step->new, "%.*s.%.180s" TREE_NEW "%d.%zu", dir, step->path,
					      slash + 1, (int)getpid(), number) < 0) {
		step->new = NULL;
		return -ENOMEM;
	}
	return (step->old && message_text(&out->old, step->old) < 0) ||
			       (step->new &&message_text(&out->new_, step->new) < 0)
		       ? -ENOMEM
		       : 0;
}

/* The time of a directory changes with the names in it: it is set in any case. */
static int list_attributes(const struct file_tree *tree, size_t i, Pbeam__UndoJournal *journal)
{
	const struct tree_node *node = &tree->nodes[i];
	const Pbeam__TreeEntry *entry = tree_entry_of(tree, i);
	Pbeam__UndoAttributes *out;

	if (node->state == NODE_NEW || (!S_ISDIR(entry->mode) && !differs(node, entry)))
		return 0;
	out = message_add(journal, attributes, pbeam__undo_attributes__descriptor);
	if (!out || message_text(&out->path, node->path) < 0)
		return -ENOMEM;
	out->ino = node->before.st_ino;
	out->new_mode = entry->mode & 07777;
	if (S_ISDIR(entry->mode)) {
		out->mtime_ns = io_time_ns(&node->before.st_mtim);
		out->new_mtime_ns = entry->mtime_ns;
	}
	return 0;
}

int file_tree_list(struct file_tree *tree, Pbeam__UndoJournal *journal, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < tree->nsteps && r == 0; i++)
		r = list_step(tree, i, journal);
	for (size_t i = tree->saved->n_entries; i-- > 0 && r == 0;) /* what is inside first */
		r = list_attributes(tree, i, journal);
	return r < 0 ? err_code(err, r, "list the names that change") : 0;
}

/* ---- for the user ---- */

struct listing {
	Pbeam__FileFate ***fates;
	size_t *n;
};

static int add_fate(const struct listing *listing, const char *path, const char *fate, uint64_t before,
		    uint64_t size, bool written)
{
	Pbeam__FileFate *out = message_append_new(listing->fates, listing->n, &pbeam__file_fate__descriptor);

	if (!out || message_string(&out->path, path) < 0 || message_string(&out->fate, fate) < 0)
		return -ENOMEM;
	out->bytes = written ? size : 0;
	out->before = before;
	out->size = size;
	return 0;
}

static int list_removed(void *arg, const char *path, const struct stat *st, bool mounted)
{
	(void)mounted;
	return add_fate(arg, path, "removed", (uint64_t)st->st_size, 0, false);
}

static int list_made(const struct file_tree *tree, const struct tree_step *step,
		     const struct listing *listing, const struct stat *replaced)
{
	for (size_t i = step->top;
	     i < tree->saved->n_entries && dirs_contain(step->path, tree->nodes[i].path); i++) {
		const Pbeam__TreeEntry *entry = tree_entry_of(tree, i);
		uint64_t size = S_ISREG(entry->mode) ? saved_of(tree, i)->file->size : 0;
		bool is_replaced = i == step->top && replaced;

		if (!entry->mode)
			continue;
		if (add_fate(listing, tree->nodes[i].path, is_replaced ? "replaced" : "created",
			     is_replaced ? (uint64_t)replaced->st_size : 0, size, true) < 0)
			return -ENOMEM;
	}
	return 0;
}

int file_tree_list_fates(const struct file_tree *tree, Pbeam__FileFate ***fates, size_t *n)
{
	struct listing listing = {fates, n};
	int r = 0;

	for (size_t i = 0; i < tree->nsteps && r == 0; i++) {
		const struct tree_step *step = &tree->steps[i];
		struct stat st;
		bool there = step->old_ino && lstat(step->path, &st) == 0;

		if (there && S_ISDIR(st.st_mode))
			r = file_tree_walk(step->path, list_removed, &listing);
		if (r == 0 && there && step->top == SIZE_MAX)
			r = list_removed(&listing, step->path, &st, false);
		if (r == 0 && step->top != SIZE_MAX)
			r = list_made(tree, step, &listing, there && !S_ISDIR(st.st_mode) ? &st : NULL);
	}
	return r;
}

void file_tree_free(struct file_tree *tree)
{
	if (!tree)
		return;
	for (size_t i = 0; tree->nodes && i < tree->saved->n_entries; i++) {
		free(tree->nodes[i].path);
		free(tree->nodes[i].made);
	}
	for (size_t i = 0; i < tree->nsteps; i++) {
		free(tree->steps[i].path);
		free(tree->steps[i].old);
		free(tree->steps[i].new);
	}
	free(tree->nodes);
	free(tree->steps);
	free(tree);
}
