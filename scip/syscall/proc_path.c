/*
 * Process numbers in paths: /proc/PID/... and /proc/PID/task/TID/..., absolute or relative to a
 * directory in /proc.
 *
 * Most paths have none, and their first characters show it. A relative path is examined only if it
 * begins like something in /proc: a number, "self", or one of the few names that are translated.
 */
#include "scip/syscall/proc_path.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "scip/syscall/other_host.h"
#include "scip/syscall/path_map.h"
#include "scip/tracee/memory.h"

static const struct {
	const char *name;
	enum proc_leaf leaf;
} leaves[] = {{"stat", PROC_STAT},
	      {"status", PROC_STATUS},
	      {"children", PROC_CHILDREN},
	      {"maps", PROC_MAPS},
	      {"task", PROC_TASK}};

/* The number of a component that consists of digits, else 0. */
static int32_t proc_number_of(const char *name, size_t len)
{
	int64_t n = 0;

	for (size_t i = 0; i < len; i++) {
		if (!isdigit((unsigned char)name[i]) || (n = n * 10 + (name[i] - '0')) > INT32_MAX)
			return 0;
	}
	return (int32_t)n;
}

static bool word_is(const char *name, size_t len, const char *word)
{
	return strlen(word) == len && memcmp(name, word, len) == 0;
}

static enum proc_leaf leaf_of(const char *name, size_t len)
{
	for (size_t i = 0; i < sizeof(leaves) / sizeof(leaves[0]); i++)
		if (word_is(name, len, leaves[i].name))
			return leaves[i].leaf;
	return PROC_OTHER;
}

/* Walks one component. Returns the real number to put in its place, or 0. */
static int32_t proc_walk_step(struct proc_walk *walk, const char *name, size_t len, bool given)
{
	struct proc_path *out = walk->out;
	int32_t number = proc_number_of(name, len), real;

	if (walk->depth == 0 && number && given && walk->is_other_host &&
	    walk->is_other_host(walk->call, number)) {
		walk->depth = 1;
		out->leaf = PROC_OTHER;
		out->on_other_host = number;
		return number;
	}
	real = number && given ? names_real(walk->names, (struct vpid){number}).n : number;
	walk->depth++;
	if (walk->depth == 1) {
		out->leaf = PROC_OTHER;
		if (number) {
			out->pid = real;
		} else if (word_is(name, len, "self")) {
			out->pid = walk->self_pid;
			out->leaf = PROC_SELF;
		} else if (word_is(name, len, "thread-self")) {
			out->pid = walk->self_pid;
			out->tid = walk->self_tid;
			out->leaf = PROC_THREAD_SELF;
			walk->depth = 3;
		} else {
			walk->depth = -1; /* /proc/meminfo and others */
			out->leaf = PROC_NOTHING;
		}
		return number ? real : 0;
	}
	out->leaf = PROC_OTHER;
	if (walk->depth == 2) {
		out->leaf = leaf_of(name, len);
		walk->task = out->leaf == PROC_TASK;
		return 0;
	}
	if (walk->depth == 3 && walk->task && number) {
		out->tid = real;
		return real;
	}
	if (walk->depth == 4 && out->tid) {
		out->leaf = leaf_of(name, len);
		if (out->leaf == PROC_TASK)
			out->leaf = PROC_OTHER;
	}
	return 0;
}

/* Appends a component below a process of another host. A name that is too long cannot exist. */
static void step_other_host(struct proc_path *out, const char *name, size_t len)
{
	size_t used = strlen(out->file);

	if (used + len + 2 > sizeof(out->file)) {
		strcpy(out->file, "?");
		return;
	}
	snprintf(out->file + used, sizeof(out->file) - used, "%s%.*s", used ? "/" : "", (int)len, name);
}

int proc_walk(struct proc_walk *walk, const char *path, bool given)
{
	struct proc_path *out = walk->out;
	size_t used = 0;

	out->changed = false;
	for (const char *p = path; *p;) {
		size_t len = strcspn(p, "/");
		int32_t real = 0;
		int n;

		if (len == 2 && p[0] == '.' && p[1] == '.') {
			walk->depth = -1; /* a path out of /proc stays as it is */
			out->leaf = PROC_NOTHING;
			out->on_other_host = 0;
		} else if (len && out->on_other_host && !(len == 1 && p[0] == '.')) {
			step_other_host(out, p, len);
		} else if (len && !(len == 1 && p[0] == '.') && walk->depth >= 0) {
			real = proc_walk_step(walk, p, len, given);
		}
		if (real && given && real != proc_number_of(p, len)) {
			n = snprintf(out->text + used, sizeof(out->text) - used, "%d", real);
			out->changed = true;
		} else {
			n = snprintf(out->text + used, sizeof(out->text) - used, "%.*s", (int)len, p);
		}
		used += (size_t)n;
		p += len;
		while (*p == '/' && used + 2 < sizeof(out->text)) {
			out->text[used++] = '/';
			p++;
		}
		if (used + 2 >= sizeof(out->text))
			return -ENAMETOOLONG;
	}
	out->text[used] = 0;
	return 0;
}

static bool may_be_relative(const char *path)
{
	size_t len = strcspn(path, "/");

	while (len == 1 && path[0] == '.' && path[1] == '/') {
		path += 1 + strspn(path + 1, "/");
		len = strcspn(path, "/");
	}
	return proc_number_of(path, len) || leaf_of(path, len) != PROC_OTHER || word_is(path, len, "self") ||
	       word_is(path, len, "thread-self");
}

/* The part of a path behind "/proc/", or NULL. */
static const char *below_proc(const char *path)
{
	path += strspn(path, "/");
	while (path[0] == '.' && path[1] == '/')
		path += 1 + strspn(path + 1, "/");
	if (strncmp(path, "proc", 4) != 0 || (path[4] && path[4] != '/'))
		return NULL;
	return path + 4;
}

/* Walks the directory that a relative path starts from. False if it is not in /proc. */
static bool walk_base(const struct call *call, int dir_arg, struct proc_walk *walk)
{
	char link[64], base[PATH_MAX];
	const char *rest;

	if (dir_arg >= 0 && (int)call->args[dir_arg] != AT_FDCWD)
		snprintf(link, sizeof(link), "/proc/%d/fd/%d", call->tracee->tid, (int)call->args[dir_arg]);
	else
		snprintf(link, sizeof(link), "/proc/%d/cwd", call->tracee->tid);
	if (io_readlink(AT_FDCWD, link, base, sizeof(base)) < 0 || base[0] != '/')
		return false;
	rest = below_proc(base);
	return rest && proc_walk(walk, rest, false) == 0 && walk->depth >= 0;
}

int proc_path_find(struct call *call, int dir_arg, unsigned path_arg, struct proc_path *out)
{
	struct proc_walk walk = {.names = call->process->names,
				 .self_pid = call->process->pid,
				 .self_tid = call->tracee->tid,
				 .is_other_host = other_host_proc,
				 .call = call,
				 .out = out};
	const struct path_entry *entry;
	char path[PATH_MAX];
	const char *rest;
	size_t head;
	ssize_t n;
	int r;

	out->leaf = PROC_NOTHING;
	out->changed = out->read_only = false;
	out->pid = out->tid = out->on_other_host = 0;
	out->file[0] = 0;
	if (names_generation(call->process->names) == 0 && !path_map_of(call->process) &&
	    !names_cluster(call->process->names, NULL))
		return 0;
	n = memory_read_string(call->process, (struct taddr){call->args[path_arg]}, path, sizeof(path));
	if (n <= 0)
		return n == -ESRCH ? -ESRCH : 0; /* the kernel refuses it itself */
	entry = path_map_find(call, dir_arg, path, out->text, sizeof(out->text));
	if (entry) {
		out->read_only = entry->kind != PATH_MAP && entry->kind != PATH_WRITTEN;
		out->changed = true;
		return 0;
	}
	if (pts_path_find(call, dir_arg, path, out->text, sizeof(out->text))) {
		out->changed = true;
		return 0;
	}
	if (path[0] != '/') {
		if (!may_be_relative(path) || !walk_base(call, dir_arg, &walk))
			return 0;
		return proc_walk(&walk, path, true) < 0 ? -ENAMETOOLONG : 0;
	}
	rest = below_proc(path);
	if (!rest)
		return 0;
	out->leaf = PROC_ROOT;
	r = proc_walk(&walk, rest, true);
	head = (size_t)(rest - path);
	if (r < 0 || head + strlen(out->text) >= sizeof(out->text))
		return -ENAMETOOLONG;
	memmove(out->text + head, out->text, strlen(out->text) + 1);
	memcpy(out->text, path, head);
	return 0;
}

/* Attributes of another host's /proc files are answered with the caller's own, which belong to the same
 * user. Every other use is refused. */
static int other_host_path_enter(struct call *call, unsigned path_arg, const struct proc_path *path)
{
	char own[96];

	if (call->row->file_use != FILE_USE_LOOK || (path->file[0] && !proc_text_known(path->file)))
		return call_answer(call, -EACCES);
	snprintf(own, sizeof(own), "/proc/%d%s%s", call->process->pid, path->file[0] ? "/" : "",
		 strncmp(path->file, "task/", 5) == 0 ? strrchr(path->file, '/') + 1 : path->file);
	return call_replace(call, path_arg, own, strlen(own) + 1);
}

int proc_path_enter(struct call *call, int dir_arg, unsigned path_arg)
{
	struct proc_path path;
	int r = proc_path_find(call, dir_arg, path_arg, &path);

	if (r == -ENAMETOOLONG)
		return SYSCALL_CONTINUE;
	if (r == 0 && path.on_other_host)
		return other_host_path_enter(call, path_arg, &path);
	if (r < 0 || !path.changed)
		return r;
	if (path.read_only && call->row->file_use == FILE_USE_CHANGE)
		return call_answer(call, -EROFS);
	return call_replace(call, path_arg, path.text, strlen(path.text) + 1);
}
