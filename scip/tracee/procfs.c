/*
 * Texts of /proc. Only the kernel's own formatting is trusted; the tracee chooses the names in them. A
 * comm may hold ") R 1", and a path anything, with a newline written as \012 (the only escape in maps).
 */
#include "scip/tracee/procfs.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/page.h"

enum { SLURP_MAX = 512 << 20, STAT_MAX = 4096, FIELDS_MAX = 1 << 20, MAPS_AGAIN = 50 };

/* A cursor over one line; `bad` is sticky. */
struct cursor {
	const char *at, *end;
	bool bad;
};

static int digit_of(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return 99;
}

static uint64_t take_number(struct cursor *cursor, int base)
{
	uint64_t value = 0;
	const char *start = cursor->at;

	for (; cursor->at < cursor->end && digit_of(*cursor->at) < base; cursor->at++) {
		uint64_t digit = (uint64_t)digit_of(*cursor->at);

		if (__builtin_mul_overflow(value, (uint64_t)base, &value) ||
		    __builtin_add_overflow(value, digit, &value))
			cursor->bad = true;
	}
	if (cursor->at == start)
		cursor->bad = true;
	return value;
}

static int64_t take_signed(struct cursor *cursor)
{
	bool negative = cursor->at < cursor->end && *cursor->at == '-';
	uint64_t value;

	if (negative)
		cursor->at++;
	value = take_number(cursor, 10);
	return negative ? -(int64_t)value : (int64_t)value;
}

static void take_char(struct cursor *cursor, char c)
{
	if (cursor->at < cursor->end && *cursor->at == c)
		cursor->at++;
	else
		cursor->bad = true;
}

static void skip_spaces(struct cursor *cursor)
{
	while (cursor->at < cursor->end && *cursor->at == ' ')
		cursor->at++;
}

/* Reads the name at the end of a line: undoes \012, cuts off " (deleted)". */
static char *cursor_take_name(struct cursor *cursor, bool *deleted)
{
	static const char mark[] = " (deleted)";
	size_t len = (size_t)(cursor->end - cursor->at), n = 0;
	char *name = malloc(len + 1);

	if (!name)
		return NULL;
	for (size_t i = 0; i < len; i++) {
		if (len - i >= 4 && !memcmp(cursor->at + i, "\\012", 4)) {
			name[n++] = '\n';
			i += 3;
		} else {
			name[n++] = cursor->at[i];
		}
	}
	name[n] = 0;
	*deleted = n >= sizeof(mark) - 1 && !strcmp(name + n - (sizeof(mark) - 1), mark);
	if (*deleted)
		name[n - (sizeof(mark) - 1)] = 0;
	return name;
}

static int parse_map_line(const char *line, const char *end, struct procfs_map *map)
{
	struct cursor cursor = {.at = line, .end = end};

	memset(map, 0, sizeof(*map));
	map->start = take_number(&cursor, 16);
	take_char(&cursor, '-');
	map->end = take_number(&cursor, 16);
	take_char(&cursor, ' ');
	if (cursor.bad || cursor.end - cursor.at < 5 || cursor.at[4] != ' ')
		return -EINVAL;
	map->prot = (cursor.at[0] == 'r' ? PROT_READ : 0) | (cursor.at[1] == 'w' ? PROT_WRITE : 0) |
		    (cursor.at[2] == 'x' ? PROT_EXEC : 0);
	map->shared = cursor.at[3] == 's';
	cursor.at += 5;
	map->offset = take_number(&cursor, 16);
	take_char(&cursor, ' ');
	map->dev_major = (uint32_t)take_number(&cursor, 16);
	take_char(&cursor, ':');
	map->dev_minor = (uint32_t)take_number(&cursor, 16);
	take_char(&cursor, ' ');
	map->ino = take_number(&cursor, 10);
	if (cursor.bad || map->start >= map->end)
		return -EINVAL;
	skip_spaces(&cursor);
	map->name = cursor_take_name(&cursor, &map->deleted);
	return map->name ? 0 : -ENOMEM;
}

/* True for a "Key:   value" line of smaps. The first line of a mapping begins with a lower-case hex digit,
 * a key with a capital. */
static bool is_smaps_key(const char *line, const char *end)
{
	return line < end && isupper((unsigned char)*line);
}

/* Reads the number behind a key. *is_it: the line has that key. */
static uint64_t value_of_key(const char *line, const char *end, const char *key, bool *is_it)
{
	size_t len = strlen(key);
	struct cursor cursor = {.at = line + len, .end = end};
	uint64_t value;

	*is_it = (size_t)(end - line) > len && line[len] == ':' && !memcmp(line, key, len);
	if (!*is_it)
		return 0;
	cursor.at++;
	skip_spaces(&cursor);
	value = take_number(&cursor, 10);
	return cursor.bad ? 0 : value;
}

static uint64_t kib_to_bytes(uint64_t value)
{
	return value > UINT64_MAX / 1024 ? 0 : value * 1024;
}

static void parse_smaps_key(const char *line, const char *end, struct procfs_map *map)
{
	struct {
		const char *key;
		uint64_t *sum;
	} sizes[] = {
		{"Locked", &map->locked_bytes},	      {"Anonymous", &map->anonymous_bytes},
		{"Swap", &map->swap_bytes},	      {"Shared_Clean", &map->shared_bytes},
		{"Shared_Dirty", &map->shared_bytes}, {"KernelPageSize", &map->page_bytes},
	};
	static const char flags[] = "VmFlags:";
	uint64_t value;
	bool is_it;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		value = value_of_key(line, end, sizes[i].key, &is_it);
		if (is_it) {
			*sizes[i].sum += kib_to_bytes(value);
			return;
		}
	}
	value = value_of_key(line, end, "ProtectionKey", &is_it);
	if (is_it) {
		map->pkey = (uint32_t)value;
	} else if ((size_t)(end - line) >= sizeof(flags) - 1 && !memcmp(line, flags, sizeof(flags) - 1)) {
		struct cursor cursor = {.at = line + sizeof(flags) - 1, .end = end};
		size_t n;

		skip_spaces(&cursor);
		n = (size_t)(cursor.end - cursor.at);
		if (n >= sizeof(map->vm_flags))
			n = sizeof(map->vm_flags) - 1;
		memcpy(map->vm_flags, cursor.at, n);
		map->vm_flags[n] = 0;
	}
}

static struct procfs_map *maps_grow(struct procfs_maps *maps, size_t *room)
{
	if (maps->n == *room) {
		size_t bigger = *room ? *room * 2 : 64;
		struct procfs_map *v = reallocarray(maps->v, bigger, sizeof(*v));

		if (!v)
			return NULL;
		maps->v = v;
		*room = bigger;
	}
	return &maps->v[maps->n];
}

int procfs_maps_parse(const char *text, size_t len, struct procfs_maps *out, struct err *err)
{
	const char *end = text + len, *next;
	size_t room = 0;
	int code = 0;

	memset(out, 0, sizeof(*out));
	for (const char *line = text; line < end; line = next) {
		const char *stop = memchr(line, '\n', (size_t)(end - line));
		struct procfs_map *map;

		if (!stop)
			stop = end;
		next = stop + 1;
		if (is_smaps_key(line, stop)) {
			if (out->n)
				parse_smaps_key(line, stop, &out->v[out->n - 1]);
			continue;
		}
		map = maps_grow(out, &room);
		code = map ? parse_map_line(line, stop, map) : -ENOMEM;
		if (code == 0 && out->n && map->start < map[-1].end) {
			free(map->name);
			code = -EINVAL;
		}
		if (code < 0)
			break;
		out->n++;
	}
	if (code == 0)
		return 0;
	err_code(err, code, "parse maps, mapping %zu", out->n);
	procfs_maps_free(out);
	return code;
}

void procfs_maps_free(struct procfs_maps *maps)
{
	for (size_t i = 0; i < maps->n; i++)
		free(maps->v[i].name);
	free(maps->v);
	memset(maps, 0, sizeof(*maps));
}

/* Opens the file of a thread that still has an address space, for a process whose leader is a zombie. */
static int slurp_of_any_thread(pid_t pid, const char *file, char **text, size_t *len)
{
	char path[PATH_MAX];
	auto_closedir DIR *dir = NULL;
	const struct dirent *entry;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	dir = opendir(path);
	while (dir && (entry = readdir(dir))) {
		int code;

		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/%s", pid, entry->d_name, file);
		code = io_slurp(AT_FDCWD, path, SLURP_MAX, text, len);
		if (code == 0 && *len)
			return 0;
		if (code == 0)
			free(*text);
		*text = NULL;
	}
	return -ESRCH;
}

static int read_maps(pid_t pid, bool smaps, struct procfs_maps *out, struct err *err)
{
	const char *file = smaps ? "smaps" : "maps";
	auto_free char *text = NULL;
	char path[64];
	size_t len = 0;
	int code;

	memset(out, 0, sizeof(*out));
	snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
	code = io_slurp(AT_FDCWD, path, SLURP_MAX, &text, &len);
	if (code == 0 && len == 0) {
		free(steal_ptr(&text));
		code = slurp_of_any_thread(pid, file, &text, &len);
	}
	if (code < 0)
		return err_code(err, code, "read %s", path);
	code = procfs_maps_parse(text, len, out, err);
	return code < 0 ? err_wrap(err, code, "%s", path) : 0;
}

/* The kernel returns the text of a running process in pieces, and its memory changes in between: a mapping
 * that grew or was merged with the next appears again and overlaps. */
int procfs_maps_read(pid_t pid, bool smaps, struct procfs_maps *out, struct err *err)
{
	int code = read_maps(pid, smaps, out, err);

	for (int again = 0; code == -EINVAL && again < MAPS_AGAIN; again++) {
		err_clear(err);
		code = read_maps(pid, smaps, out, err);
	}
	return code;
}

/* Field N of stat, as proc(5) numbers them, is value[N]; the text starts behind the comm's parenthesis. */
enum { NSEC_PER_SEC = 1000000000, STAT_CPU = 14, STAT_FIRST = 4, STAT_LAST = 52 };

static bool parse_stat(char *text, size_t len, struct procfs_stat *out)
{
	const char *open = strchr(text, '('), *close = strrchr(text, ')');
	struct cursor cursor;
	int64_t value[STAT_LAST + 1] = {0};
	size_t comm;

	if (!open || !close || close < open || close + 3 > text + len)
		return false;
	comm = (size_t)(close - open - 1);
	if (comm >= sizeof(out->comm))
		comm = sizeof(out->comm) - 1;
	memcpy(out->comm, open + 1, comm);
	out->comm[comm] = 0;
	out->state = close[2];
	cursor = (struct cursor){.at = close + 3, .end = text + len};
	for (int i = STAT_FIRST; i <= STAT_LAST && !cursor.bad; i++) {
		skip_spaces(&cursor);
		value[i] = take_signed(&cursor);
	}
	if (cursor.bad)
		return false;
	for (int i = 0; i < CPU_TIMES; i++)
		out->cpu_ns[i] =
			(uint64_t)value[STAT_CPU + i] * (NSEC_PER_SEC / (uint64_t)sysconf(_SC_CLK_TCK));
	out->ppid = (pid_t)value[4];
	out->pgrp = (pid_t)value[5];
	out->session = (pid_t)value[6];
	out->tty_nr = (uint64_t)value[7];
	out->tpgid = (pid_t)value[8];
	out->nice = (long)value[19];
	out->num_threads = (long)value[20];
	out->start_time = (uint64_t)value[22];
	out->start_code = (uint64_t)value[26];
	out->end_code = (uint64_t)value[27];
	out->start_stack = (uint64_t)value[28];
	out->exit_signal = (int)value[38];
	out->processor = (int)value[39];
	out->start_data = (uint64_t)value[45];
	out->end_data = (uint64_t)value[46];
	out->start_brk = (uint64_t)value[47];
	out->arg_start = (uint64_t)value[48];
	out->arg_end = (uint64_t)value[49];
	out->env_start = (uint64_t)value[50];
	out->env_end = (uint64_t)value[51];
	out->exit_code = (int)value[52];
	return true;
}

int procfs_stat_read(pid_t pid, pid_t tid, struct procfs_stat *out, struct err *err)
{
	auto_free char *text = NULL;
	char path[64];
	size_t len;
	int code;

	memset(out, 0, sizeof(*out));
	if (tid)
		snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", pid, tid);
	else
		snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	code = io_slurp(AT_FDCWD, path, STAT_MAX, &text, &len);
	if (code < 0)
		return err_code(err, code, "read %s", path);
	if (!parse_stat(text, len, out))
		return err_set(err, -EINVAL, "%s is not as expected: %.80s", path, text);
	return 0;
}

const char *procfs_field(const char *text, const char *key)
{
	size_t len = strlen(key);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		if (*line == '\n')
			line++;
		if (strncmp(line, key, len) || line[len] != ':')
			continue;
		line += len + 1;
		while (*line == ' ' || *line == '\t')
			line++;
		return line;
	}
	return NULL;
}

uint64_t procfs_bytes(pid_t pid, const char *file, const char *key)
{
	auto_free char *text = NULL;
	const char *field;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
	if (io_slurp(AT_FDCWD, path, FIELDS_MAX, &text, NULL) < 0)
		return 0;
	field = procfs_field(text, key);
	return field ? strtoull(field, NULL, 10) * 1024 : 0;
}

uint64_t procfs_resident(pid_t pid)
{
	auto_free char *text = NULL;
	unsigned long pages;
	char path[40];

	snprintf(path, sizeof(path), "/proc/%d/statm", pid);
	if (io_slurp(AT_FDCWD, path, FIELDS_MAX, &text, NULL) < 0 || sscanf(text, "%*u %lu", &pages) != 1)
		return 0;
	return (uint64_t)pages * PAGE;
}

int procfs_each_number(const char *dir, int (*each)(int number, void *arg), void *arg)
{
	auto_closedir DIR *d = opendir(dir);
	const struct dirent *entry;

	if (!d)
		return -errno;
	errno = 0;
	while ((entry = readdir(d))) {
		char *end;
		long number;
		int code;

		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		number = strtol(entry->d_name, &end, 10);
		if (*end || number < 0 || number > INT_MAX)
			continue;
		code = each((int)number, arg);
		if (code)
			return code;
		errno = 0;
	}
	return -errno;
}

struct children {
	pid_t pid;
	pid_t *v;
	size_t n, room;
};

static int add_child(struct children *children, pid_t child)
{
	if (children->n == children->room) {
		size_t room = children->room ? children->room * 2 : 32;
		pid_t *v = reallocarray(children->v, room, sizeof(*v));

		if (!v)
			return -ENOMEM;
		children->v = v;
		children->room = room;
	}
	children->v[children->n++] = child;
	return 0;
}

static int children_of_thread(int tid, void *arg)
{
	struct children *children = arg;
	auto_free char *text = NULL;
	char path[64];
	struct cursor cursor;
	size_t len;
	int code;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", children->pid, tid);
	code = io_slurp(AT_FDCWD, path, SLURP_MAX, &text, &len);
	if (code < 0) /* the thread has ended; its children have another parent */
		return code == -ENOENT || code == -ESRCH ? 0 : code;
	cursor = (struct cursor){.at = text, .end = text + len};
	for (skip_spaces(&cursor); cursor.at < cursor.end && isdigit((unsigned char)*cursor.at);
	     skip_spaces(&cursor)) {
		uint64_t child = take_number(&cursor, 10);

		if (cursor.bad || child > INT_MAX)
			return -EINVAL;
		code = add_child(children, (pid_t)child);
		if (code < 0)
			return code;
	}
	return 0;
}

int procfs_children(pid_t pid, pid_t **out, struct err *err)
{
	struct children children = {.pid = pid};
	char path[64];
	int code;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	code = procfs_each_number(path, children_of_thread, &children);
	if (code < 0) {
		free(children.v);
		return err_code(err, code, "read the children of %d", pid);
	}
	*out = children.v;
	return (int)children.n;
}
