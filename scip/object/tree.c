/*
 * Saves a directory as a whole, for `scip run --track`: image/file_tree.h puts it back.
 *
 * Saved are regular files, directories and symbolic links with modes and times; names of one inode are hard
 * links. Sockets, FIFOs and devices, and what is mounted in the tree, are left out.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/u64_map.h"
#include "image/file_tree.h"
#include "proto/message.h"
#include "scip/object/common.h"
#include "scip/object/object_dump.h"

struct saving {
	struct image_writer *writer;
	Pbeam__Manifest *manifest;
	Pbeam__SavedTree *tree;
	size_t root_length;
	struct u64_map *inodes; /* to the index in Manifest.files */
	struct err *err;
};

static int save_file(const struct saving *saving, const char *path, const struct stat *named,
		     Pbeam__TreeEntry *entry)
{
	auto_close int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	size_t known = u64_map_find(saving->inodes, u64_map_mix(named->st_dev, named->st_ino));
	struct stat st;
	int r;

	if (known != U64_MAP_NONE) {
		entry->saved = (uint32_t)known + 1;
		return 0;
	}
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_sys(saving->err, "read %s, in a directory that is tracked", path);
	if (!S_ISREG(st.st_mode) || st.st_ino != named->st_ino || st.st_dev != named->st_dev)
		return err_set(saving->err, -EBUSY,
			       "%s, in a directory that is tracked, is being replaced by "
			       "a program outside the job",
			       path);
	r = object_files_save_new(saving->writer, saving->manifest, fd, &st, path, false, &entry->saved,
				  saving->err);
	if (r < 0)
		return err_wrap(saving->err, r, "%s, in a directory that is tracked", path);
	saving->manifest->files[entry->saved - 1]->by_tree = true;
	return u64_map_set(saving->inodes, u64_map_mix(st.st_dev, st.st_ino), entry->saved - 1);
}

static int save_entry(void *arg, const char *path, const struct stat *st, bool mounted)
{
	const struct saving *saving = arg;
	Pbeam__TreeEntry *entry;
	char target[PATH_MAX];
	ssize_t n;

	if (!mounted && !(S_ISREG(st->st_mode) || S_ISDIR(st->st_mode) || S_ISLNK(st->st_mode))) {
		log_info("%s is left out: it is no file, directory or symbolic link", path);
		return FILE_TREE_SKIP;
	}
	entry = message_add(saving->tree, entries, pbeam__tree_entry__descriptor);
	if (!entry ||
	    (path[saving->root_length] && message_text(&entry->path, path + saving->root_length + 1) < 0))
		return -ENOMEM;
	if (mounted)
		return FILE_TREE_SKIP;
	entry->mode = st->st_mode;
	entry->mtime_ns = object_mtime_ns(st);
	if (S_ISREG(st->st_mode))
		return save_file(saving, path, st, entry);
	if (S_ISDIR(st->st_mode))
		return 0;
	n = readlink(path, target, sizeof(target));
	if (n < 0 || n == sizeof(target))
		return err_sys(saving->err, "read the symbolic link %s", path);
	return message_bytes(&entry->target, target, (size_t)n);
}

static int save_tree(struct saving *saving, const char *path)
{
	struct stat st;
	int r;

	saving->tree = message_add(saving->manifest, trees, pbeam__saved_tree__descriptor);
	if (!saving->tree || message_text(&saving->tree->path, path) < 0)
		return -ENOMEM;
	saving->root_length = strlen(path);
	if (lstat(path, &st) < 0)
		return err_sys(saving->err, "look at %s, which is tracked", path);
	if (!S_ISDIR(st.st_mode))
		return err_set(saving->err, -ENOTDIR, "%s, which is tracked, is no directory any more", path);
	saving->tree->ino = st.st_ino;
	r = save_entry(saving, path, &st, false);
	return r < 0 ? r : file_tree_walk(path, save_entry, saving);
}

int object_trees_save(struct image_writer *writer, Pbeam__Manifest *manifest, char *const *paths, size_t n,
		      struct err *err)
{
	struct u64_map inodes = {0};
	struct saving saving = {.writer = writer, .manifest = manifest, .inodes = &inodes, .err = err};
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		r = save_tree(&saving, paths[i]);
		if (r < 0 && !err->code)
			err_code(err, r, "save %s, which is tracked", paths[i]);
	}
	u64_map_free(&inodes);
	return r;
}
