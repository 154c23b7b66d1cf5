/* Files N.blocks: giving back what no image refers to. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "image/blocks_layout.h"
#include "image/image.h"

/* A file N.blocks, and its blocks that an image has. */
struct pruned {
	char name[64];
	bool named; /* by an image */
	uint64_t n;
	uint8_t *needed; /* one byte for each block */
};
struct pruning {
	const char *dir;
	struct pruned *v;
	size_t n;
};

static bool has_suffix(const char *name, const char *suffix)
{
	size_t len = strlen(name), n = strlen(suffix);

	return name[0] >= '1' && name[0] <= '9' && len > n && !strcmp(name + len - n, suffix);
}

static int list_packs(struct pruning *pruning)
{
	auto_closedir DIR *list = opendir(pruning->dir);
	const struct dirent *entry;

	while (list && (entry = readdir(list)) != NULL) {
		struct pruned *more;

		if (!has_suffix(entry->d_name, BLOCKS_SUFFIX) || strlen(entry->d_name) >= sizeof(more->name))
			continue;
		more = reallocarray(pruning->v, pruning->n + 1, sizeof(*more));
		if (!more)
			return -ENOMEM;
		pruning->v = more;
		more[pruning->n] = (struct pruned){.named = false};
		strcpy(more[pruning->n++].name, entry->d_name);
	}
	return 0;
}

static struct pruned *find_pack(const struct pruning *pruning, const char *name)
{
	for (size_t i = 0; i < pruning->n; i++)
		if (!strcmp(pruning->v[i].name, name))
			return &pruning->v[i];
	return NULL;
}

static int need_run(struct pruned *pack, const Pbeam__Pages *run)
{
	uint64_t first = run->ancestor_offset / BLOCKS_SIZE - 1;
	uint64_t end = (run->ancestor_offset + run->count * IMAGE_PAGE - 1) / BLOCKS_SIZE;

	if (end > pack->n) {
		uint8_t *more = realloc(pack->needed, end);

		if (!more)
			return -ENOMEM;
		memset(more + pack->n, 0, end - pack->n);
		pack->needed = more;
		pack->n = end;
	}
	memset(pack->needed + first, 1, end - first);
	return 0;
}

static int need_runs(const struct pruning *pruning, const Pbeam__Manifest *manifest,
		     Pbeam__Pages *const *pages, size_t n)
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		struct pruned *pack =
			pages[i]->ancestor < IMAGE_BLOCKS_FIRST || !pages[i]->count
				? NULL
				: find_pack(pruning,
					    manifest->blocks[pages[i]->ancestor - IMAGE_BLOCKS_FIRST]->name);

		if (pack)
			r = need_run(pack, pages[i]);
	}
	return r;
}

static int need_image(const struct pruning *pruning, const char *name)
{
	char path[PATH_MAX + 300];
	struct image_reader *image;
	const Pbeam__Manifest *manifest;
	int r;

	snprintf(path, sizeof(path), "%s/%s", pruning->dir, name);
	r = image_reader_open(&image, path, NULL);
	if (r < 0) /* what is damaged, or just removed, can no longer be restored */
		return r == -EBADMSG || r == -ENOENT ? 0 : r;
	manifest = image_reader_manifest(image);
	for (size_t i = 0; i < manifest->n_blocks; i++) {
		struct pruned *pack = find_pack(pruning, manifest->blocks[i]->name);

		if (pack)
			pack->named = true;
	}
	for (size_t i = 0; i < manifest->n_files && r == 0; i++)
		r = need_runs(pruning, manifest, manifest->files[i]->pages, manifest->files[i]->n_pages);
	for (size_t i = 0; i < manifest->n_shared && r == 0; i++)
		r = need_runs(pruning, manifest, manifest->shared[i]->pages, manifest->shared[i]->n_pages);
	image_reader_close(image);
	return r;
}

static void punch(int fd, uint64_t from, uint64_t to)
{
	if (from < to && fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)blocks_offset(from),
				   (off_t)((to - from) * BLOCKS_SIZE)) < 0)
		log_debug("give blocks back: %s", strerror(errno));
}

static void prune_pack(const struct pruning *pruning, const struct pruned *pack)
{
	char path[PATH_MAX + 80];
	auto_close int fd = -1;
	struct blocks_pack table;
	uint64_t total, from = 0;

	snprintf(path, sizeof(path), "%s/%s", pruning->dir, pack->name);
	if (blocks_pack_open(&table, path, NULL) == 0) {
		total = table.n;
		blocks_pack_close(&table);
	} else if (!pack->named) {
		total = 0; /* of a checkpoint that was killed, or in use */
	} else {
		return;
	}
	fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
		return;
	if (!pack->named) {
		unlink(path);
		return;
	}
	for (uint64_t i = 0; i < total && i < pack->n; i++)
		if (pack->needed[i]) {
			punch(fd, from, i);
			from = i + 1;
		}
	punch(fd, from, total);
}

void blocks_prune(const char *dir)
{
	struct pruning pruning = {.dir = dir};
	int r = list_packs(&pruning);
	auto_closedir DIR *list = pruning.n ? opendir(dir) : NULL;
	const struct dirent *entry;

	while (list && r == 0 && (entry = readdir(list)) != NULL)
		if (has_suffix(entry->d_name, ".ckpt"))
			r = need_image(&pruning, entry->d_name);
	for (size_t i = 0; i < pruning.n; i++) {
		if (r == 0 && list)
			prune_pack(&pruning, &pruning.v[i]);
		free(pruning.v[i].needed);
	}
	free(pruning.v);
}
