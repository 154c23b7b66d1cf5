#include "namespace/proc_text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"

#define TEXT_MAX (64u << 20)

struct out {
	char *at;
	size_t left;
	bool full;
};

__attribute__((format(printf, 2, 3))) static void proc_put(struct out *out, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(out->at, out->left, fmt, ap);
	va_end(ap);
	if (n < 0 || (size_t)n >= out->left) {
		out->full = true;
		return;
	}
	out->at += n;
	out->left -= (size_t)n;
}

/* Translates a number in a /proc text: 0 and negative numbers stay. */
static int32_t proc_shown_number(struct names *names, const char *text)
{
	long n = strtol(text, NULL, 10);

	return n > 0 && n <= INT32_MAX ? names_virtual(names, (struct rpid){(int32_t)n}).n : (int32_t)n;
}

/* Returns the parent of the process whose number `text` begins with. */
static int32_t shown_parent(struct names *names, const char *pid, const char *text)
{
	long own = strtol(pid, NULL, 10), n = strtol(text, NULL, 10);

	if (own <= 0 || own > INT32_MAX || n <= 0 || n > INT32_MAX)
		return proc_shown_number(names, text);
	return names_parent(names, (struct rpid){(int32_t)own}, (struct rpid){(int32_t)n}).n;
}

static int proc_finish_text(const struct out *out, const char *start)
{
	return out->full ? -ENOSPC : (int)(out->at - start);
}

/* pid (comm) state ppid pgrp session tty_nr tpgid ...: the name may contain any character, so it ends at
 * the last ')'. */
int proc_text_stat(struct names *names, const char *text, char *buf, size_t size)
{
	struct out out = {buf, size, false};
	const char *name = strchr(text, '('), *end = strrchr(text, ')');
	int field = 3;

	if (!name || !end || end < name)
		return -EBADMSG;
	proc_put(&out, "%d %.*s", proc_shown_number(names, text), (int)(end - name + 1), name);
	for (const char *p = end + 1; *p == ' '; field++) {
		size_t len = strcspn(++p, " \n");

		if (field == 4)
			proc_put(&out, " %d", shown_parent(names, text, p));
		else if (field == 5 || field == 6 || field == 8)
			proc_put(&out, " %d", proc_shown_number(names, p));
		else
			proc_put(&out, " %.*s", (int)len, p);
		p += len;
	}
	proc_put(&out, "\n");
	return proc_finish_text(&out, buf);
}

/* Translates a list of numbers, and keeps the blank after each. */
static void put_numbers(struct names *names, struct out *out, const char *text, const char *end)
{
	while (text < end) {
		size_t len = strspn(text, "0123456789");

		if (len) {
			proc_put(out, "%d", proc_shown_number(names, text));
			text += len;
		} else {
			proc_put(out, "%c", *text++);
		}
	}
}

int proc_text_numbers(struct names *names, const char *text, char *buf, size_t size)
{
	struct out out = {buf, size, false};

	put_numbers(names, &out, text, text + strlen(text));
	return proc_finish_text(&out, buf);
}

int proc_text_status(struct names *names, const char *text, char *buf, size_t size)
{
	static const char *const keys[] = {
		"Tgid:", "Ngid:", "Pid:", "PPid:", "NStgid:", "NSpid:", "NSpgid:", "NSsid:"};
	struct out out = {buf, size, false};
	const char *pid = strstr(text, "\nPid:");

	while (*text) {
		const char *end = text + strcspn(text, "\n");
		size_t key = 0;

		for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && !key; i++)
			if (!strncmp(text, keys[i], strlen(keys[i])))
				key = strlen(keys[i]);
		if (!strncmp(text, "TracerPid:", 10)) {
			proc_put(&out, "TracerPid:\t0"); /* programs do not see scip */
		} else if (!strncmp(text, "PPid:", 5) && pid) {
			proc_put(&out, "PPid:\t%d", shown_parent(names, pid + 5, text + 5));
		} else {
			proc_put(&out, "%.*s", (int)key, text);
			if (key)
				put_numbers(names, &out, text + key, end);
			else
				proc_put(&out, "%.*s", (int)(end - text), text);
		}
		if (*end)
			proc_put(&out, "\n");
		text = *end ? end + 1 : end;
	}
	return proc_finish_text(&out, buf);
}

/* Replaces the paths of mapped files, each at the end of its line, by the program's names. */
static int put_maps(const struct paths *paths, const char *text, FILE *out)
{
	while (*text) {
		size_t len = strcspn(text, "\n"), head = strcspn(text, "/\n");
		char path[PATH_MAX], name[PATH_MAX];
		int n = head < len ? snprintf(path, sizeof(path), "%.*s", (int)(len - head), text + head) : 0;

		if (n > 0 && n < PATH_MAX && paths_name(paths, path, name, sizeof(name)))
			fprintf(out, "%.*s%s", (int)head, text, name);
		else
			fwrite(text, 1, len, out);
		text += len;
		if (*text)
			fputc(*text++, out);
	}
	return fflush(out) != 0 || ferror(out) ? -ENOMEM : 0;
}

static int translate_maps(const struct paths *paths, char **text, size_t *len)
{
	char *made = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&made, &size);
	int r = out ? put_maps(paths, *text, out) : -ENOMEM;

	if (out && fclose(out) != 0)
		r = -ENOMEM;
	if (r < 0) {
		free(made);
		return r;
	}
	free(*text);
	*text = made;
	*len = size;
	return 0;
}

typedef int (*translate_fn)(struct names *names, const char *text, char *out, size_t size);

static int proc_translate(struct names *names, translate_fn fn, char **text, size_t *len)
{
	size_t room = 12 * *len + 256; /* a number of one digit may become one of ten */
	auto_free char *made = malloc(room);
	int n = made ? fn(names, *text, made, room) : -ENOMEM;

	if (n < 0)
		return n;
	free(*text);
	*text = steal_ptr(&made);
	*len = (size_t)n;
	return 0;
}

int proc_text_make(struct names *names, const struct paths *paths, pid_t pid, pid_t tid, const char *leaf,
		   char **out, size_t *len)
{
	auto_free char *text = NULL;
	char file[96];
	int n = snprintf(file, sizeof(file), "/proc/%d/", pid), r;

	if (tid)
		n += snprintf(file + n, sizeof(file) - (size_t)n, "task/%d/", tid);
	snprintf(file + n, sizeof(file) - (size_t)n, "%s", leaf);
	r = io_slurp(AT_FDCWD, file, TEXT_MAX, &text, len);
	if (r == 0 && !strcmp(leaf, "stat"))
		r = proc_translate(names, proc_text_stat, &text, len);
	else if (r == 0 && !strcmp(leaf, "status"))
		r = proc_translate(names, proc_text_status, &text, len);
	else if (r == 0 && !strcmp(leaf, "children"))
		r = proc_translate(names, proc_text_numbers, &text, len);
	else if (r == 0 && paths && paths->n && !strcmp(leaf, "maps"))
		r = translate_maps(paths, &text, len);
	if (r == 0)
		*out = steal_ptr(&text);
	return r;
}

/* ---- for processes of other hosts ---- */

static const char *const of_process[] = {
	"stat", "status", "cmdline",   "comm",	       "environ",  "statm",	"limits",
	"maps", "io",	  "oom_score", "wchan",	       "loginuid", "sessionid", "oom_score_adj",
	"auxv", "cgroup", "schedstat", "smaps_rollup", NULL};
static const char *const of_thread[] = {"stat", "status", "comm", "children", "schedstat", "wchan", NULL};

static bool is_in(const char *const *list, const char *name)
{
	while (*list && strcmp(*list, name) != 0)
		list++;
	return *list != NULL;
}

/* "task/N/leaf": N in *thread, 0 for a file of the process; the leaf, NULL: neither. */
static const char *proc_text_leaf(const char *file, int32_t *thread)
{
	char *end;
	long n;

	*thread = 0;
	if (strncmp(file, "task/", 5) != 0)
		return is_in(of_process, file) ? file : NULL;
	n = strtol(file + 5, &end, 10);
	if (n <= 0 || n > INT32_MAX || *end != '/' || !is_in(of_thread, end + 1))
		return NULL;
	*thread = (int32_t)n;
	return end + 1;
}

bool proc_text_known(const char *file)
{
	int32_t thread;

	return proc_text_leaf(file, &thread) != NULL;
}

int proc_text_read(struct names *names, struct rpid keeper, pid_t pid, const char *file, char **text,
		   size_t *len)
{
	struct paths paths = {0};
	int32_t thread;
	const char *leaf = proc_text_leaf(file, &thread);
	int r = leaf ? paths_load(&paths, keeper) : -ENOENT;

	if (r == 0)
		r = proc_text_make(names, &paths, pid,
				   thread ? names_real(names, (struct vpid){thread}).n : 0, leaf, text, len);
	paths_free(&paths);
	return r;
}

int proc_text_link(struct names *names, struct rpid keeper, pid_t pid, const char *file, char **text,
		   size_t *len)
{
	static const char *const links[] = {"exe", "cwd", "root", NULL};
	char link[64], target[PATH_MAX], name[PATH_MAX];
	struct paths paths = {0};
	const char *shown_target = target;
	int r;

	if (!is_in(links, file))
		return -EACCES;
	snprintf(link, sizeof(link), "/proc/%d/%s", pid, file);
	r = io_readlink(AT_FDCWD, link, target, sizeof(target));
	if (r == 0)
		r = paths_load(&paths, keeper);
	if (r == 0 && paths_name(&paths, target, name, sizeof(name)))
		shown_target = name;
	*text = r == 0 ? strdup(shown_target) : NULL;
	*len = *text ? strlen(*text) : 0;
	paths_free(&paths);
	return r == 0 && !*text ? -ENOMEM : r;
}

enum { START_FIELD = 22 };

int proc_text_shift(char **text, size_t *len, int64_t ticks)
{
	const char *p = strrchr(*text, ')'), *end;
	int64_t start;
	char *made;
	int n;

	for (int field = 2; p && field < START_FIELD; field++)
		p = strchr(p + 1, ' ');
	if (!p || ticks == 0)
		return p ? 0 : -EBADMSG;
	start = strtoll(p + 1, (char **)(uintptr_t)&end, 10) + ticks;
	n = asprintf(&made, "%.*s %lld%s", (int)(p - *text), *text, (long long)(start > 0 ? start : 0), end);
	if (n < 0)
		return -ENOMEM;
	free(*text);
	*text = made;
	*len = (size_t)n;
	return 0;
}
