/*
 * Paths of a job whose files have other paths on this host (namespace/paths.h): mapped directories, and
 * files that were carried along.
 *
 * The program passes a name of the host of its birth. The text of the name is looked up first. If that
 * fails but a carried file has the same last component, symbolic links or ".." may lead to that file:
 * the name is resolved here and looked up again. A name that is not found stays as it is. Relative
 * paths start from a directory that is mapped already; most need no translation.
 *
 * Paths that the kernel returns (links in /proc, the working directory) are translated back.
 */
#include "scip/syscall/path_map.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "scip/tracee/memory.h"

const struct paths *path_map_of(struct process *process)
{
	struct syscall_state *state = process->calls;
	uint64_t now = paths_generation(process->names);
	int r;

	if (now != state->paths_seen) {
		paths_free(&state->paths);
		r = paths_load(&state->paths, process->keeper);
		if (r < 0)
			log_warn("vpid %d: the paths of its job: %s", process->vpid.n, strerror(-r));
		state->paths_seen = now;
	}
	return state->paths.n ? &state->paths : NULL;
}

/* Removes "//", "/./" and a final slash. False if the path has a "..", which only the file system can
 * resolve, or is too long. */
static bool path_clean(const char *path, char *out, size_t size)
{
	size_t used = 0;

	for (const char *p = path; *p;) {
		size_t len = strcspn(p, "/");

		if (len == 2 && p[0] == '.' && p[1] == '.')
			return false;
		if (len && !(len == 1 && p[0] == '.')) {
			if (used + len + 2 > size)
				return false;
			out[used++] = '/';
			memcpy(out + used, p, len);
			used += len;
		}
		p += len;
		p += strspn(p, "/");
	}
	out[used] = 0;
	return used > 0;
}

/* Resolves the path here, and finds the carried file that the result names. */
static const struct path_entry *find_resolved(const struct paths *paths, const char *path)
{
	const char *base = strrchr(path, '/') + 1;
	char whole[PATH_MAX], dir[PATH_MAX];
	const struct path_entry *entry;

	if (!paths_has_file(paths, base))
		return NULL;
	if (!realpath(path, whole)) {
		snprintf(dir, sizeof(dir), "%.*s", (int)(base - path), path);
		if (!realpath(dir, whole) || strlen(whole) + strlen(base) + 2 > sizeof(whole))
			return NULL;
		if (strcmp(whole, "/") != 0)
			strcat(whole, "/");
		strcat(whole, base);
	}
	entry = paths_find(paths, whole);
	return entry && entry->kind != PATH_MAP ? entry : NULL;
}

/* True if the process executes a program of this host. Its libraries are then this host's too, if they
 * exist. */
static bool is_native(const struct call *call, const struct paths *paths, const char *path)
{
	char link[64], exe[PATH_MAX], name[PATH_MAX];
	const struct path_entry *entry;

	snprintf(link, sizeof(link), "/proc/%d/exe", call->tracee->tid);
	if (access(path, F_OK) < 0 || io_readlink(AT_FDCWD, link, exe, sizeof(exe)) < 0)
		return false;
	entry = paths_name(paths, exe, name, sizeof(name));
	return !entry || entry->kind == PATH_MAP;
}

static const struct path_entry *path_find_entry(const struct call *call, int dir_arg, const char *path,
						char *out, size_t size)
{
	const struct paths *paths = path_map_of(call->process);
	char base[PATH_MAX] = "", name[PATH_MAX] = "", whole[2 * PATH_MAX], cleaned[PATH_MAX];
	const struct path_entry *entry;
	bool relative = path[0] != '/';

	if (!paths || !path[0] || (relative && !call_directory(call, dir_arg, base, sizeof(base))))
		return NULL;
	if (relative && !paths_name(paths, base, name, sizeof(name)))
		snprintf(name, sizeof(name), "%s", base);
	snprintf(whole, sizeof(whole), "%s/%s", name, path);
	entry = path_clean(whole, cleaned, sizeof(cleaned)) ? paths_real(paths, cleaned, out, size) : NULL;
	if (entry && relative && entry->kind == PATH_MAP)
		return NULL; /* its directory is mapped already */
	if (entry)
		return entry;
	snprintf(whole, sizeof(whole), "%s/%s", base, path);
	entry = strlen(whole) < PATH_MAX ? find_resolved(paths, whole) : NULL;
	if (!entry || strlen(entry->real) >= size)
		return NULL;
	strcpy(out, entry->real);
	return entry;
}

const struct path_entry *path_map_find(const struct call *call, int dir_arg, const char *path, char *out,
				       size_t size)
{
	const struct path_entry *entry = path_find_entry(call, dir_arg, path, out, size), *program;

	if (!entry || entry->kind == PATH_MAP)
		return entry;
	if (entry->kind == PATH_LIBRARY && is_native(call, &call->process->calls->paths, entry->name))
		return NULL;
	program = call->row->file_use == FILE_USE_EXECUTE
			  ? paths_program(&call->process->calls->paths, entry->name)
			  : NULL;
	if (!program || strlen(program->real) >= size)
		return entry;
	strcpy(out, program->real);
	return program;
}

int path_map_name(const struct call *call, const char *real, char *out, size_t size)
{
	const struct paths *paths = path_map_of(call->process);

	return paths && paths_name(paths, real, out, size) ? (int)strlen(out) : 0;
}

/* ---- getcwd ---- */

int enter_getcwd(struct call *call)
{
	return path_map_of(call->process) ? SYSCALL_WANT_EXIT : SYSCALL_CONTINUE;
}

/* The length includes the terminating zero. */
int exit_getcwd(struct call *call)
{
	char real[PATH_MAX], name[PATH_MAX];
	int n;

	if (call->rval <= 1 || call->rval > PATH_MAX ||
	    call_read(call, call->args[0], real, (size_t)call->rval) < 0)
		return 0;
	real[call->rval - 1] = 0;
	n = path_map_name(call, real, name, sizeof(name));
	if (n == 0)
		return 0;
	if ((uint64_t)n + 1 > call->args[1])
		return call_set_rval(call, -ERANGE);
	if (call_write(call, call->args[0], name, (size_t)n + 1) < 0)
		return 0; /* another thread has unmapped the buffer */
	return call_set_rval(call, n + 1);
}
