#include "namespace/record.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "namespace/record_file.h"
#include "namespace/table.h"

#define WATCHES_MAX (16u << 20)
#define FILTERS_MAX (64u << 20)
#define FILTER_MAX  (4096u * 8u) /* BPF_MAXINSNS */

int record_path(char *out, struct rpid keeper, const char *suffix)
{
	size_t len;
	int r = dirs_runtime(out, "record", NULL);

	if (r < 0)
		return r;
	len = strlen(out);
	r = snprintf(out + len, PATH_MAX - len, "/%d.%s", keeper.n, suffix);
	return r >= (int)(PATH_MAX - len) ? -ENAMETOOLONG : 0;
}

static int watches_path(char *out, struct rpid keeper)
{
	return record_path(out, keeper, "watches");
}

static int filters_path(char *out, struct rpid keeper, struct vpid vpid)
{
	char suffix[32];

	snprintf(suffix, sizeof(suffix), "%d.filters", vpid.n);
	return record_path(out, keeper, suffix);
}

/* One write with O_APPEND is whole beside others'. */
int record_append(const char *path, const void *data, size_t len)
{
	auto_close int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	ssize_t n = fd < 0 ? -1 : write(fd, data, len);

	if (n < 0)
		return -errno;
	return (size_t)n == len ? 0 : -ENOSPC;
}

/* ---- inotify ---- */

/* A line is "sdev ino path", with newlines in the path as \n and backslashes doubled. */
int record_watch_add(struct rpid keeper, uint32_t sdev, uint64_t ino, const char *path)
{
	char file[PATH_MAX], known[PATH_MAX];
	auto_free char *line = malloc(2 * strlen(path) + 64);
	char *at;
	int r = watches_path(file, keeper);

	if (r < 0)
		return r;
	if (!line)
		return -ENOMEM;
	if (record_watch_find(keeper, sdev, ino, known, sizeof(known)) == 0 && !strcmp(known, path))
		return 0;
	at = line + sprintf(line, "%x %llu ", sdev, (unsigned long long)ino);
	for (const char *p = path; *p; p++) {
		if (*p == '\n' || *p == '\\')
			*at++ = '\\';
		*at++ = *p == '\n' ? 'n' : *p;
	}
	*at++ = '\n';
	return record_append(file, line, (size_t)(at - line));
}

static int record_unescape(const char *from, const char *end, char *to, size_t size)
{
	size_t n = 0;

	for (; from < end; from++) {
		char c = *from;

		if (c == '\\' && from + 1 < end) {
			from++;
			c = *from == 'n' ? '\n' : *from;
		}
		if (n + 1 >= size)
			return -ENAMETOOLONG;
		to[n++] = c;
	}
	to[n] = 0;
	return 0;
}

int record_watch_find(struct rpid keeper, uint32_t sdev, uint64_t ino, char *path, size_t size)
{
	auto_free char *text = NULL;
	char file[PATH_MAX];
	int r = watches_path(file, keeper);

	if (r == 0)
		r = io_slurp(AT_FDCWD, file, WATCHES_MAX, &text, NULL);
	if (r < 0)
		return r;
	r = -ENOENT;
	for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
		char *rest;
		unsigned long dev = strtoul(line, &rest, 16);
		unsigned long long number = strtoull(rest, &rest, 10);

		if (dev == sdev && number == ino && *rest == ' ')
			r = record_unescape(rest + 1, end, path, size); /* the last entry counts */
	}
	return r;
}

/* ---- seccomp ---- */

int record_filter_add(struct rpid keeper, struct vpid vpid, const void *filter, size_t bytes)
{
	char file[PATH_MAX];
	auto_free char *whole = malloc(sizeof(uint64_t) + bytes);
	uint64_t head = bytes;
	int r = filters_path(file, keeper, vpid);

	if (r < 0)
		return r;
	if (bytes == 0 || bytes % 8 || bytes > FILTER_MAX)
		return -EINVAL;
	if (!whole)
		return -ENOMEM;
	memcpy(whole, &head, sizeof(head));
	memcpy(whole + sizeof(head), filter, bytes);
	return record_append(file, whole, sizeof(head) + bytes);
}

int record_filter_inherit(struct rpid keeper, struct vpid parent, struct vpid child)
{
	char from[PATH_MAX], to[PATH_MAX];
	auto_free char *data = NULL;
	size_t len;
	int r = filters_path(from, keeper, parent);

	if (r == 0)
		r = filters_path(to, keeper, child);
	if (r == 0)
		r = io_slurp(AT_FDCWD, from, FILTERS_MAX, &data, &len);
	if (r == -ENOENT)
		return unlink(to) < 0 && errno != ENOENT ? -errno
							 : 0; /* left by an older process with this number */
	if (r < 0)
		return r;
	if (unlink(to) < 0 && errno != ENOENT)
		return -errno;
	return record_append(to, data, len);
}

int record_filter_get(struct rpid keeper, struct vpid vpid, unsigned index, void **filter, size_t *bytes)
{
	char file[PATH_MAX];
	auto_free char *data = NULL;
	size_t len, at = 0;
	uint64_t head;
	int r = filters_path(file, keeper, vpid);

	if (r == 0)
		r = io_slurp(AT_FDCWD, file, FILTERS_MAX, &data, &len);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	for (;; at += sizeof(head) + head, index--) {
		if (at == len)
			return 0;
		if (len - at < sizeof(head))
			return -EBADMSG;
		memcpy(&head, data + at, sizeof(head));
		if (head > FILTER_MAX || head > len - at - sizeof(head))
			return -EBADMSG;
		if (index == 0)
			break;
	}
	*filter = malloc(head);
	if (!*filter)
		return -ENOMEM;
	memcpy(*filter, data + at + sizeof(head), head);
	*bytes = head;
	return 1;
}

/* A process without filters leaves an empty file: the new one may have some. */
int record_filter_set_aside(struct rpid keeper, struct vpid vpid)
{
	struct vpid aside = {vpid.n | NUMBER_ASIDE};
	char from[PATH_MAX], to[PATH_MAX];
	int r = filters_path(from, keeper, vpid);

	if (r == 0)
		r = filters_path(to, keeper, aside);
	if (r < 0)
		return r;
	if (rename(from, to) == 0)
		return 0;
	return errno == ENOENT ? record_append(to, "", 0) : -errno;
}

static void put_filters_back(struct rpid keeper, struct vpid vpid, int dir, const char *name)
{
	char path[PATH_MAX];
	struct stat st;

	if (filters_path(path, keeper, vpid) < 0)
		return;
	if (fstatat(dir, name, &st, 0) == 0 && st.st_size > 0)
		(void)!renameat(dir, name, AT_FDCWD, path);
	else
		unlink(path);
}

void record_filter_settle(struct rpid keeper, bool committed)
{
	char path[PATH_MAX];
	const struct dirent *entry;

	if (dirs_runtime(path, "record", NULL) < 0)
		return;
	auto_closedir DIR *dir = opendir(path);
	while (dir && (entry = readdir(dir)) != NULL) {
		int job, number, end = 0;

		if (sscanf(entry->d_name, "%d.%d.filters%n", &job, &number, &end) != 2 || !end ||
		    entry->d_name[end] || job != keeper.n || !number_is_aside((uint32_t)number))
			continue;
		if (!committed)
			put_filters_back(keeper, (struct vpid){(int)number_plain((uint32_t)number)},
					 dirfd(dir), entry->d_name);
		unlinkat(dirfd(dir), entry->d_name, 0);
	}
}

void record_filter_forget(struct rpid keeper, struct vpid vpid)
{
	char file[PATH_MAX];

	if (filters_path(file, keeper, vpid) == 0)
		unlink(file);
}

void record_forget_job(struct rpid keeper)
{
	char path[PATH_MAX], prefix[16];
	int n = snprintf(prefix, sizeof(prefix), "%d.", keeper.n);
	const struct dirent *entry;

	if (dirs_runtime(path, "record", NULL) < 0)
		return;
	auto_closedir DIR *dir = opendir(path);
	while (dir && (entry = readdir(dir)) != NULL)
		if (!strncmp(entry->d_name, prefix, (size_t)n))
			unlinkat(dirfd(dir), entry->d_name, 0);
}
