/* The texts of /proc that hold numbers of processes: stat, status, children. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "scip/syscall/path_map.h"
#include "scip/syscall/proc_path.h"

#define TEXT_MAX (64u << 20)

struct out {
	char *at;
	size_t left;
	bool full;
};

__attribute__((format(printf, 2, 3))) static void put(struct out *out, const char *fmt, ...)
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

/* A number as /proc shows it: 0 and below are none. */
static int32_t shown(struct names *names, const char *text)
{
	long n = strtol(text, NULL, 10);

	return n > 0 && n <= INT32_MAX ? names_virtual(names, (struct rpid){(int32_t)n}).n : (int32_t)n;
}

/* The parent of the process whose number `text` begins with. */
static int32_t shown_parent(struct names *names, const char *pid, const char *text)
{
	long own = strtol(pid, NULL, 10), n = strtol(text, NULL, 10);

	if (own <= 0 || own > INT32_MAX || n <= 0 || n > INT32_MAX)
		return shown(names, text);
	return names_parent(names, (struct rpid){(int32_t)own}, (struct rpid){(int32_t)n}).n;
}

static int finish(const struct out *out, const char *start)
{
	return out->full ? -ENOSPC : (int)(out->at - start);
}

/* pid (comm) state ppid pgrp session tty_nr tpgid ...: the name may hold anything, so it ends at the last
 * ')'. */
int proc_text_stat(struct names *names, const char *text, char *buf, size_t size)
{
	struct out out = {buf, size, false};
	const char *name = strchr(text, '('), *end = strrchr(text, ')');
	int field = 3;

	if (!name || !end || end < name)
		return -EBADMSG;
	put(&out, "%d %.*s", shown(names, text), (int)(end - name + 1), name);
	for (const char *p = end + 1; *p == ' '; field++) {
		size_t len = strcspn(++p, " \n");

		if (field == 4)
			put(&out, " %d", shown_parent(names, text, p));
		else if (field == 5 || field == 6 || field == 8)
			put(&out, " %d", shown(names, p));
		else
			put(&out, " %.*s", (int)len, p);
		p += len;
	}
	put(&out, "\n");
	return finish(&out, buf);
}

/* A list of numbers, each followed by the blank that was there. */
static void put_numbers(struct names *names, struct out *out, const char *text, const char *end)
{
	while (text < end) {
		size_t len = strspn(text, "0123456789");

		if (len) {
			put(out, "%d", shown(names, text));
			text += len;
		} else {
			put(out, "%c", *text++);
		}
	}
}

int proc_text_numbers(struct names *names, const char *text, char *buf, size_t size)
{
	struct out out = {buf, size, false};

	put_numbers(names, &out, text, text + strlen(text));
	return finish(&out, buf);
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
			put(&out, "TracerPid:\t0"); /* scip is not to be seen */
		} else if (!strncmp(text, "PPid:", 5) && pid) {
			put(&out, "PPid:\t%d", shown_parent(names, pid + 5, text + 5));
		} else {
			put(&out, "%.*s", (int)key, text);
			if (key)
				put_numbers(names, &out, text + key, end);
			else
				put(&out, "%.*s", (int)(end - text), text);
		}
		if (*end)
			put(&out, "\n");
		text = *end ? end + 1 : end;
	}
	return finish(&out, buf);
}

/* The paths of mapped files, each at the end of its line, as the program knows them. A memfd. */
static int open_maps(const struct call *call, const char *text)
{
	auto_close int fd = memfd_create("proc", MFD_CLOEXEC);
	auto_fclose FILE *out = fd < 0 ? NULL : fdopen(dup(fd), "w");

	if (!out)
		return -errno;
	while (*text) {
		size_t len = strcspn(text, "\n"), head = strcspn(text, "/\n");
		char path[PATH_MAX], name[PATH_MAX];
		int n = head < len ? snprintf(path, sizeof(path), "%.*s", (int)(len - head), text + head) : 0;

		if (n > 0 && n < PATH_MAX && path_map_name(call, path, name, sizeof(name)))
			fprintf(out, "%.*s%s", (int)head, text, name);
		else
			fwrite(text, 1, len, out);
		text += len;
		if (*text)
			fputc(*text++, out);
	}
	return fflush(out) != 0 ? -errno : steal_fd(&fd);
}

int proc_text_open(const struct call *call, const struct proc_path *path)
{
	struct names *names = call->process->names;
	auto_free char *text = NULL, *shown_text = NULL;
	char file[96];
	size_t len, room;
	int n, r;

	n = snprintf(file, sizeof(file), "/proc/%d/", path->pid);
	if (path->tid)
		n += snprintf(file + n, sizeof(file) - (size_t)n, "task/%d/", path->tid);
	snprintf(file + n, sizeof(file) - (size_t)n, "%s",
		 path->leaf == PROC_STAT     ? "stat"
		 : path->leaf == PROC_STATUS ? "status"
		 : path->leaf == PROC_MAPS   ? "maps"
					     : "children");
	r = io_slurp(AT_FDCWD, file, TEXT_MAX, &text, &len);
	if (r < 0)
		return r;
	if (path->leaf == PROC_MAPS)
		return open_maps(call, text);
	room = 12 * len + 256; /* one digit may become ten */
	shown_text = malloc(room);
	if (!shown_text)
		return -ENOMEM;
	if (path->leaf == PROC_STAT)
		r = proc_text_stat(names, text, shown_text, room);
	else if (path->leaf == PROC_STATUS)
		r = proc_text_status(names, text, shown_text, room);
	else
		r = proc_text_numbers(names, text, shown_text, room);
	if (r < 0)
		return r;
	auto_close int fd = memfd_create("proc", MFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	r = io_pwrite_full(fd, shown_text, (size_t)r, 0);
	return r < 0 ? r : steal_fd(&fd);
}
