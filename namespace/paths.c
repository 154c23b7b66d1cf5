/*
 * The file is a sequence of strings, each with its terminating zero: kind, name, path here; for a written
 * file also host, inode, size and mtime of the original as one string. A reader takes no lock: the file is
 * replaced as a whole.
 */
#include "namespace/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "namespace/record_file.h"
#include "namespace/table.h"

enum { FILE_MAX = 32 << 20, FIELDS = 4 };

void paths_free(struct paths *paths)
{
	for (size_t i = 0; i < paths->n; i++) {
		free(paths->v[i].name);
		free(paths->v[i].real);
	}
	free(paths->v);
	*paths = (struct paths){0};
}

/* execve() may use another entry of the same name. */
static struct path_entry *paths_find_name(const struct paths *paths, const char *name, bool program)
{
	for (size_t i = 0; i < paths->n; i++)
		if ((paths->v[i].kind == PATH_PROGRAM) == program && !strcmp(paths->v[i].name, name))
			return &paths->v[i];
	return NULL;
}

const struct path_entry *paths_program(const struct paths *paths, const char *name)
{
	return paths_find_name(paths, name, true);
}

int paths_add(struct paths *paths, enum path_kind kind, const char *name, const char *real,
	      const struct path_home *home)
{
	struct path_entry *entry = paths_find_name(paths, name, kind == PATH_PROGRAM);
	char *here = strdup(real);

	if (!here)
		return -ENOMEM;
	if (!entry) {
		struct path_entry *more = reallocarray(paths->v, paths->n + 1, sizeof(*more));
		char *copy = more ? strdup(name) : NULL;

		if (more)
			paths->v = more;
		if (!copy) {
			free(here);
			return -ENOMEM;
		}
		entry = &more[paths->n++];
		*entry = (struct path_entry){.name = copy};
	}
	free(entry->real);
	entry->real = here;
	entry->kind = kind;
	entry->home = home ? *home : (struct path_home){0};
	return 0;
}

/* Returns the next string of the text, or NULL. */
static const char *paths_next_name(const char **at, const char *end)
{
	const char *text = *at, *zero = text < end ? memchr(text, 0, (size_t)(end - text)) : NULL;

	if (zero)
		*at = zero + 1;
	return zero ? text : NULL;
}

static bool is_kind(const char *text)
{
	static const char kinds[] = {PATH_MAP, PATH_SENT, PATH_LIBRARY, PATH_PROGRAM, PATH_WRITTEN};

	return text[0] && !text[1] && memchr(kinds, text[0], sizeof(kinds));
}

static int paths_parse_text(struct paths *out, const char *text, size_t len)
{
	const char *end = text + len;
	int r = 0;

	while (r == 0 && text < end) {
		const char *field[FIELDS];
		struct path_home home = {0};

		for (int i = 0; i < FIELDS; i++)
			if (!(field[i] = paths_next_name(&text, end)))
				return -EBADMSG;
		if (!is_kind(field[0]))
			return -EBADMSG;
		if (field[3][0] && sscanf(field[3], "%" SCNu64 " %" SCNu64 " %" SCNu64 " %63s", &home.ino,
					  &home.size, &home.mtime_ns, home.host) < 3)
			return -EBADMSG;
		r = paths_add(out, (enum path_kind)field[0][0], field[1], field[2], &home);
	}
	return r;
}

int paths_load(struct paths *out, struct rpid keeper)
{
	auto_free char *text = NULL;
	char file[PATH_MAX];
	size_t len;
	int r = record_path(file, keeper, "paths");

	*out = (struct paths){0};
	if (r == 0)
		r = io_slurp(AT_FDCWD, file, FILE_MAX, &text, &len);
	if (r == 0)
		r = paths_parse_text(out, text, len);
	if (r < 0)
		paths_free(out);
	return r == -ENOENT ? 0 : r;
}

bool paths_exist(struct rpid keeper)
{
	char file[PATH_MAX];

	return record_path(file, keeper, "paths") == 0 && access(file, F_OK) == 0;
}

static int write_entry(FILE *file, const struct path_entry *entry)
{
	const struct path_home *home = &entry->home;

	fprintf(file, "%c%c%s%c%s%c", entry->kind, 0, entry->name, 0, entry->real, 0);
	if (entry->kind == PATH_WRITTEN)
		fprintf(file, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %s", home->ino, home->size, home->mtime_ns,
			home->host);
	return fputc(0, file) == EOF ? -EIO : 0;
}

int paths_store(const struct paths *paths, struct names *names, struct rpid keeper)
{
	char path[PATH_MAX], temporary[PATH_MAX];
	int r = record_path(path, keeper, "paths");
	auto_fclose FILE *file = NULL;

	if (r == 0)
		r = record_path(temporary, keeper, "paths.new");
	if (r < 0)
		return r;
	file = fopen(temporary, "we");
	if (!file)
		return -errno;
	for (size_t i = 0; i < paths->n && r == 0; i++)
		r = write_entry(file, &paths->v[i]);
	if (r == 0 && fflush(file) != 0)
		r = -errno;
	if (r == 0 && rename(temporary, path) < 0)
		r = -errno;
	if (r < 0) {
		unlink(temporary);
		return r;
	}
	atomic_fetch_add(&names->table->paths_generation, 1);
	return 0;
}

uint64_t paths_generation(struct names *names)
{
	return atomic_load_explicit(&names->table->paths_generation, memory_order_acquire);
}

/* Returns the part of `path` below `top`: "" or "/..."; NULL if it is not below it. */
static const char *paths_below(const char *path, const char *top)
{
	size_t len = strlen(top);

	if (strncmp(path, top, len) != 0 || (path[len] && path[len] != '/'))
		return NULL;
	return path + len;
}

static const struct path_entry *paths_look_up(const struct paths *paths, const char *path, bool back)
{
	const struct path_entry *best = NULL;
	size_t best_len = 0;

	for (size_t i = 0; i < paths->n; i++) {
		const struct path_entry *entry = &paths->v[i];
		const char *top = back ? entry->real : entry->name;

		if (!back && entry->kind == PATH_PROGRAM)
			continue;
		if (entry->kind != PATH_MAP && !strcmp(path, top))
			return entry;
		if (entry->kind == PATH_MAP && paths_below(path, top) && strlen(top) > best_len) {
			best = entry;
			best_len = strlen(top);
		}
	}
	return best;
}

const struct path_entry *paths_find(const struct paths *paths, const char *name)
{
	return paths_look_up(paths, name, false);
}

static const struct path_entry *paths_translate(const struct paths *paths, const char *path, bool back,
						char *out, size_t size)
{
	const struct path_entry *entry = paths_look_up(paths, path, back);
	int n;

	if (!entry)
		return NULL;
	n = snprintf(out, size, "%s%s", back ? entry->name : entry->real,
		     paths_below(path, back ? entry->real : entry->name));
	return n < 0 || (size_t)n >= size ? NULL : entry;
}

const struct path_entry *paths_real(const struct paths *paths, const char *name, char *out, size_t size)
{
	return paths_translate(paths, name, false, out, size);
}

const struct path_entry *paths_name(const struct paths *paths, const char *real, char *out, size_t size)
{
	return paths_translate(paths, real, true, out, size);
}

bool paths_has_file(const struct paths *paths, const char *base)
{
	for (size_t i = 0; i < paths->n; i++) {
		const char *slash = strrchr(paths->v[i].name, '/');

		if (paths->v[i].kind != PATH_MAP && slash && !strcmp(slash + 1, base))
			return true;
	}
	return false;
}

static bool copy_path(const char *from, size_t len, char *to, size_t size)
{
	while (len > 1 && from[len - 1] == '/')
		len--;
	if (len < 2 || len >= size || from[0] != '/')
		return false;
	memcpy(to, from, len);
	to[len] = 0;
	return true;
}

bool paths_parse_map(const char *text, char *from, char *to, size_t size)
{
	const char *equals = strchr(text, '=');

	return equals && copy_path(text, (size_t)(equals - text), from, size) &&
	       copy_path(equals + 1, strlen(equals + 1), to, size);
}
