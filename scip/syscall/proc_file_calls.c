/*
 * Opening, reading links and listing in /proc and /dev/pts.
 *
 * A file whose text holds process numbers is replaced by a memfd of scip's with the translated text.
 * The path becomes /proc/SCIP/fd/N, which opens the memfd again, read only, in the program. A program
 * that keeps the file open and reads it again sees the old text.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "scip/syscall/other_host.h"
#include "scip/syscall/path_map.h"
#include "scip/syscall/proc_path.h"

static bool has_text(const struct call *call, const struct proc_path *path)
{
	if (path->leaf == PROC_MAPS)
		return path_map_of(call->process) != NULL;
	return path->leaf == PROC_STAT || path->leaf == PROC_STATUS || path->leaf == PROC_CHILDREN;
}

static int make_text(struct call *call, const struct proc_path *path, char **text, size_t *len)
{
	static const char *const names[] = {[PROC_STAT] = "stat",
					    [PROC_STATUS] = "status",
					    [PROC_CHILDREN] = "children",
					    [PROC_MAPS] = "maps"};

	if (path->on_other_host)
		return other_host_text(call, path->on_other_host, path->file, false, text, len);
	return proc_text_make(call->process->names, path_map_of(call->process), path->pid, path->tid,
			      names[path->leaf], text, len);
}

/* Changes path and flags of an open to those of a memfd with the text. */
static int open_text(struct call *call, const struct proc_path *path, unsigned path_arg, unsigned flags_arg)
{
	auto_free char *bytes = NULL;
	char text[64];
	size_t len = 0;
	int r = make_text(call, path, &bytes, &len), fd;

	if (r < 0)
		return call_answer(call, r);
	fd = memfd_create("proc", MFD_CLOEXEC);
	if (fd < 0)
		return call_answer(call, -errno);
	call->fd = fd;
	r = io_pwrite_full(fd, bytes, len, 0);
	if (r < 0)
		return call_answer(call, r);
	snprintf(text, sizeof(text), "/proc/%d/fd/%d", (int)getpid(), fd);
	r = call_replace(call, path_arg, text, strlen(text) + 1);
	if (r == SYSCALL_WANT_EXIT && !call->mapping && (call->args[flags_arg] & O_NOFOLLOW))
		r = call_set_arg(call, flags_arg, call->args[flags_arg] & ~(uint64_t)O_NOFOLLOW);
	return r;
}

static int open_path(struct call *call, int dir_arg, unsigned path_arg, unsigned flags_arg, uint64_t flags)
{
	struct proc_path path;
	int r = proc_path_find(call, dir_arg, path_arg, &path);

	if (r == -ENAMETOOLONG)
		return SYSCALL_CONTINUE;
	if (r < 0)
		return r;
	if (path.on_other_host &&
	    ((flags & (O_ACCMODE | O_PATH | O_DIRECTORY)) != O_RDONLY || !proc_text_known(path.file)))
		return call_answer(call, -EACCES);
	if (path.read_only && ((flags & O_ACCMODE) != O_RDONLY || flags & O_TRUNC) && !(flags & O_PATH))
		return call_answer(call, -EROFS);
	if (path.on_other_host ||
	    (has_text(call, &path) && (flags & (O_ACCMODE | O_PATH | O_DIRECTORY)) == O_RDONLY))
		return open_text(call, &path, path_arg, flags_arg);
	return path.changed ? call_replace(call, path_arg, path.text, strlen(path.text) + 1)
			    : SYSCALL_CONTINUE;
}

int enter_open(struct call *call)
{
	return open_path(call, -1, 0, 1, call->args[1]);
}

int enter_openat(struct call *call)
{
	return open_path(call, 0, 1, 2, call->args[2]);
}

/* RESOLVE_* may forbid the path of the memfd: then only the number in the path is translated. */
int enter_openat2(struct call *call)
{
	struct open_how how;

	if (call->args[3] < sizeof(how) || call_read(call, call->args[2], &how, sizeof(how)) < 0)
		return SYSCALL_CONTINUE;
	if (how.resolve || (how.flags & O_NOFOLLOW))
		how.flags |= O_PATH;
	return open_path(call, 0, 1, 5, how.flags);
}

int exit_open(struct call *call)
{
	return 0;
}

/* ---- links ---- */

static int answer_link(struct call *call, unsigned buf_arg, const char *text)
{
	size_t len = strlen(text), size = (size_t)(int)call->args[buf_arg + 1];

	if ((int)call->args[buf_arg + 1] <= 0)
		return call_answer(call, -EINVAL);
	if (len > size)
		len = size;
	if (call_write(call, call->args[buf_arg], text, len) < 0)
		return call_answer(call, -EFAULT);
	return call_answer(call, (int64_t)len);
}

static int other_host_link(struct call *call, const struct proc_path *path, unsigned buf_arg)
{
	auto_free char *text = NULL;
	size_t len;
	int r = other_host_text(call, path->on_other_host, path->file, true, &text, &len);

	return r < 0 ? call_answer(call, r) : answer_link(call, buf_arg, text);
}

static int link_path(struct call *call, int dir_arg, unsigned path_arg)
{
	struct proc_path path;
	char text[48];
	int r = proc_path_find(call, dir_arg, path_arg, &path);

	if (r == -ENAMETOOLONG || (r == 0 && path.leaf == PROC_NOTHING && !path.changed))
		return SYSCALL_CONTINUE;
	if (r < 0)
		return r;
	if (path.on_other_host)
		return other_host_link(call, &path, path_arg + 1);
	if (path.leaf == PROC_SELF) {
		snprintf(text, sizeof(text), "%d", call->process->vpid.n);
		return answer_link(call, path_arg + 1, text);
	}
	if (path.leaf == PROC_THREAD_SELF) {
		snprintf(text, sizeof(text), "%d/task/%d", call->process->vpid.n, call->tracee->vtid.n);
		return answer_link(call, path_arg + 1, text);
	}
	call->keep[0] = path_arg + 1;
	return path.changed ? call_replace(call, path_arg, path.text, strlen(path.text) + 1)
			    : SYSCALL_WANT_EXIT;
}

int enter_readlink(struct call *call)
{
	return link_path(call, -1, 0);
}

int enter_readlinkat(struct call *call)
{
	return link_path(call, 0, 1);
}

/* Writes the program's name of /proc/REAL... or /dev/pts/REAL. Returns its length, 0 if there is none. */
static int virtual_target(const struct call *call, const char *target, char *text, size_t size)
{
	int32_t pts = pts_number(target);
	int len = path_map_name(call, target, text, size);
	long number;
	char *end;

	if (len)
		return len;
	if (pts >= 0)
		return snprintf(text, size, "/dev/pts/%d", pts_virtual(call, pts));
	if (strncmp(target, "/proc/", 6) != 0)
		return 0;
	number = strtol(target + 6, &end, 10);
	if (end == target + 6 || number <= 0 || number > INT32_MAX || (*end && *end != '/'))
		return 0;
	return snprintf(text, size, "/proc/%d%s", call_virtual(call, (int32_t)number), end);
}

/* A link in /proc may lead to /proc itself or to a terminal, as for descriptors and working directories. */
int exit_readlink(struct call *call)
{
	char target[PATH_MAX], text[PATH_MAX + 32];
	size_t size = (size_t)call->args[call->keep[0] + 1];
	int n;

	if (call->rval <= 6 || call->rval >= PATH_MAX)
		return 0;
	if (call_read(call, call->args[call->keep[0]], target, (size_t)call->rval) < 0)
		return 0;
	target[call->rval] = 0;
	n = virtual_target(call, target, text, sizeof(text));
	if (n == 0)
		return 0;
	if ((size_t)n > size)
		n = (int)size;
	if (call_write(call, call->args[call->keep[0]], text, (size_t)n) < 0)
		return 0; /* another thread has unmapped the buffer */
	return call_set_rval(call, n);
}

/* ---- directories ---- */

enum { FIRST_BYTES = 256, FIRST_ROOM = 1024 };

/* The first read of a directory: processes of other hosts are added to its first entries. */
static bool is_at_start(const struct call *call)
{
	auto_free char *text = NULL;
	char path[64];
	long long at;

	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", call->tracee->tid, (int)call->args[0]);
	return io_slurp(AT_FDCWD, path, 1 << 14, &text, NULL) == 0 && sscanf(text, "pos: %lld", &at) == 1 &&
	       at == 0;
}

/* Requests less than the program does: translated names may be longer. */
int enter_getdents(struct call *call)
{
	char link[64], dir[PATH_MAX];
	struct proc_path path = {.leaf = PROC_NOTHING};
	struct proc_walk walk = {.names = call->process->names, .out = &path};
	unsigned count = (unsigned)call->args[2];

	if (names_generation(call->process->names) == 0 && !names_cluster(call->process->names, NULL))
		return SYSCALL_CONTINUE;
	snprintf(link, sizeof(link), "/proc/%d/fd/%d", call->tracee->tid, (int)call->args[0]);
	if (io_readlink(AT_FDCWD, link, dir, sizeof(dir)) < 0)
		return SYSCALL_CONTINUE;
	path.leaf = PROC_ROOT;
	call->keep[0] = !strcmp(dir, "/dev/pts");
	if (!call->keep[0] &&
	    (strncmp(dir, "/proc", 5) != 0 || (dir[5] && dir[5] != '/') ||
	     proc_walk(&walk, dir + 5, false) < 0 || (path.leaf != PROC_ROOT && path.leaf != PROC_TASK)))
		return SYSCALL_CONTINUE;
	call->keep[1] = path.leaf == PROC_ROOT && !call->keep[0] && is_at_start(call);
	if (call->keep[1] && other_host_list(call) && count >= FIRST_ROOM)
		return call_set_arg(call, 2, FIRST_BYTES);
	call->keep[1] = 0;
	return count >= 256 ? call_set_arg(call, 2, count / 2) : SYSCALL_WANT_EXIT;
}

/* Translates a name that is a number: "" if it stays, "0" if the entry is hidden. Hidden are processes
 * outside the job that have the number of one of the job, and numbers listed as of another host. */
static void translate_name(const struct call *call, const char *name, char *out, size_t size)
{
	char *end;
	long real = strtol(name, &end, 10);
	int32_t virtual;

	out[0] = 0;
	if (end == name || *end || real < 0 || real > INT32_MAX)
		return;
	if (call->keep[0]) {
		snprintf(out, size, "%d", pts_virtual(call, (int32_t)real));
	} else if (real) {
		virtual = call_virtual(call, (int32_t)real);
		snprintf(out, size, "%d", other_host_is_listed(call, virtual) ? 0 : virtual);
	}
}

/* struct linux_dirent: ino, off, length of the record, name at 18, type behind it. struct linux_dirent64:
 * type at 18, name at 19. */
#define DIRENT_LENGTH 16u

struct entries {
	bool is64;
	size_t name_at, used, room;
	char *out;
};

/* Appends a copy of the entry `like`, of `size` bytes, with the name `name`. False if there is no room. */
static bool put_named(struct entries *e, const char *like, size_t size, const char *name)
{
	uint16_t bigger = (uint16_t)((e->name_at + strlen(name) + 2 + 7) & ~7ul);
	char type = e->is64 ? like[18] : like[size - 1];

	if (e->used + bigger > e->room)
		return false;
	memcpy(e->out + e->used, like, e->name_at);
	memset(e->out + e->used + e->name_at, 0, bigger - e->name_at);
	strcpy(e->out + e->used + e->name_at, name);
	e->out[e->used + (e->is64 ? 18 : bigger - 1u)] = type;
	memcpy(e->out + e->used + DIRENT_LENGTH, &bigger, sizeof(bigger));
	e->used += bigger;
	return true;
}

/* Adds the processes of other hosts behind the entry of the directory itself, which serves as the model.
 * Those that do not fit beside the other entries are not listed. */
static void put_members(const struct call *call, struct entries *e, const char *like, size_t size)
{
	const struct remote_members *members = &call->process->calls->remote;
	char number[16];
	bool fits = true;

	e->room -= 2 * FIRST_BYTES;
	for (size_t i = 0; i < members->n && fits; i++) {
		snprintf(number, sizeof(number), "%d", members->v[i]);
		fits = put_named(e, like, size, number);
	}
	e->room += 2 * FIRST_BYTES;
}

static int translate_entries(struct call *call, bool is64)
{
	const size_t len = call->rval > 0 ? (size_t)call->rval : 0;
	struct entries e = {is64, is64 ? 19 : 18, 0, (unsigned)call->args[2], NULL};
	auto_free char *in = malloc(len + 1), *out = calloc(1, e.room + 1);
	bool lists_members = call->keep[1];

	if (len == 0)
		return 0;
	if (!in || !out)
		return -ENOMEM;
	if (call_read(call, call->args[1], in, len) < 0)
		return 0;
	e.out = out;
	for (size_t at = 0; len - at > e.name_at;) {
		const char *entry = in + at;
		char number[16];
		uint16_t size;

		memcpy(&size, entry + DIRENT_LENGTH, sizeof(size));
		if (size <= e.name_at || size > len - at)
			break;
		at += size;
		translate_name(call, entry + e.name_at, number, sizeof(number));
		if (!strcmp(number, "0") && !call->keep[0])
			continue;
		if (number[0] ? !put_named(&e, entry, size, number) : e.used + size > e.room)
			break;
		if (!number[0]) {
			memcpy(out + e.used, entry, size);
			e.used += size;
		}
		if (lists_members && !strcmp(entry + e.name_at, "."))
			put_members(call, &e, entry, size);
	}
	if (!e.used || call_write(call, call->args[1], out, e.used) < 0)
		return 0;
	return call_set_rval(call, (int64_t)e.used);
}

int exit_getdents(struct call *call)
{
	return translate_entries(call, false);
}

int exit_getdents64(struct call *call)
{
	return translate_entries(call, true);
}
