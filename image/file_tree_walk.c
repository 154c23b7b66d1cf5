/* Walks directory trees without leaving their mount. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "image/file_tree.h"

enum { DEPTH_MAX = 512 };

int file_tree_mount(const char *path, uint64_t *mount)
{
	struct statx st;

	if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_MNT_ID, &st) < 0)
		return -errno;
	if (!(st.stx_mask & STATX_MNT_ID)) /* before Linux 5.8 */
		return -EOPNOTSUPP;
	*mount = st.stx_mnt_id;
	return 0;
}

struct names {
	char **v;
	size_t n;
};

static void names_free(struct names *names)
{
	for (size_t i = 0; i < names->n; i++)
		free(names->v[i]);
	free(names->v);
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Reads the whole directory first: visits may change it. Returns 0 or -errno. */
static int read_names(const char *path, struct names *names)
{
	auto_closedir DIR *dir = opendir(path);
	const struct dirent *entry;

	if (!dir)
		return -errno;
	while ((errno = 0, entry = readdir(dir)) != NULL) {
		char **more;

		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		if ((names->n & (names->n + 1)) == 0) { /* room for 1, 3, 7 ... is used up */
			more = reallocarray(names->v, 2 * names->n + 1, sizeof(*more));
			if (!more)
				return -ENOMEM;
			names->v = more;
		}
		names->v[names->n] = strdup(entry->d_name);
		if (!names->v[names->n++])
			return -ENOMEM;
	}
	if (errno)
		return -errno;
	bytes_sort(names->v, names->n, sizeof(*names->v), compare_names);
	return 0;
}

static int walk(const char *path, uint64_t mount, unsigned depth, file_tree_visit_fn visit, void *arg);

static int visit_one(const char *path, uint64_t mount, unsigned depth, file_tree_visit_fn visit, void *arg)
{
	uint64_t own;
	struct stat st;
	int r;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	r = file_tree_mount(path, &own);
	if (r < 0)
		return r;
	r = visit(arg, path, &st, own != mount);
	if (r != 0 || !S_ISDIR(st.st_mode) || own != mount)
		return r == FILE_TREE_SKIP ? 0 : r;
	return walk(path, mount, depth + 1, visit, arg);
}

static int walk(const char *path, uint64_t mount, unsigned depth, file_tree_visit_fn visit, void *arg)
{
	struct names names = {0};
	int r = depth > DEPTH_MAX ? -ELOOP : read_names(path, &names);

	for (size_t i = 0; i < names.n && r == 0; i++) {
		auto_free char *name = NULL;

		if (asprintf(&name, "%s/%s", path, names.v[i]) < 0) {
			name = NULL;
			r = -ENOMEM;
		} else {
			r = visit_one(name, mount, depth, visit, arg);
		}
	}
	names_free(&names);
	return r;
}

int file_tree_walk(const char *path, file_tree_visit_fn visit, void *arg)
{
	uint64_t mount;
	int r = file_tree_mount(path, &mount);

	return r < 0 ? r : walk(path, mount, 0, visit, arg);
}
