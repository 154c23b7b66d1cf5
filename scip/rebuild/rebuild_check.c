/*
 * Refuses everything that can be refused before anything is made or killed: the image's user, processor and
 * kernel, every file that is executed or mapped, every number that must be free.
 *
 * A file is the same if device and inode are; on another file system, if size and time of the last change
 * are. `--force` accepts a file that has changed. A missing file is accepted only where the image contains
 * all of it.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "scip/rebuild/rebuild_parts.h"
#include "scip/tracee/regs.h"

enum { CPUINFO_MAX = 4 << 20, SEEN_MAX = 512 };

/* Files that have been checked: many processes map the same ones. */
struct seen {
	const Pbeam__FileIdentity *v[SEEN_MAX];
	int n;
};

static bool has_feature(const char *text, const char *word)
{
	size_t len = strlen(word);

	for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
		if ((at == text || at[-1] == ' ') && (at[len] == ' ' || at[len] == '\n' || at[len] == 0))
			return true;
	return false;
}

static int check_processor(const Pbeam__Host *host, struct err *err)
{
	auto_free char *text = NULL;
	char *flags, *end;
	int r = io_slurp(AT_FDCWD, "/proc/cpuinfo", CPUINFO_MAX, &text, NULL);

	if (r < 0)
		return err_code(err, r, "read /proc/cpuinfo");
	if (host->xcr0 && host->xcr0 & ~regs_xcr0())
		return err_set(
			err, -ENOTSUP,
			"the image was saved on a processor with more registers (xcr0 %#lx, here %#lx); "
			"restore it on one like %s",
			(unsigned long)host->xcr0, (unsigned long)regs_xcr0(), host->name);
	flags = strstr(text, "\nflags");
	if (!flags)
		return 0;
	end = strchr(flags + 1, '\n');
	if (end)
		*end = 0;
	for (size_t i = 0; i < host->n_cpu_flags; i++)
		if (!has_feature(flags, host->cpu_flags[i]))
			return err_set(err, -ENOTSUP,
				       "the image was saved on a processor with %s, which this one has not; "
				       "restore it "
				       "on one like %s",
				       host->cpu_flags[i], host->name);
	return 0;
}

int rebuild_check_host(const Pbeam__Host *host, uint32_t uid, struct err *err)
{
	struct utsname name;
	int r;

	if (uid != geteuid())
		return err_set(err, -EPERM,
			       "the image was saved by user %u; only that user can restore it (you are %u)",
			       uid, geteuid());
	if (!host)
		return err_set(err, -EINVAL, "the image does not say what host it is of");
	if (uname(&name) < 0)
		return err_sys(err, "uname");
	if (strcmp(host->machine, name.machine))
		return err_set(err, -ENOTSUP, "the image is of a %s machine, this is a %s", host->machine,
			       name.machine);
	if (host->page_size != (uint32_t)sysconf(_SC_PAGESIZE))
		return err_set(err, -ENOTSUP, "the image has pages of %u bytes, this machine of %ld",
			       host->page_size, sysconf(_SC_PAGESIZE));
	r = rebuild_vdso_check(host, err);
	return r < 0 ? r : check_processor(host, err);
}

static void path_of(const Pbeam__FileIdentity *file, char path[PATH_MAX])
{
	size_t len = file->path.len < PATH_MAX - 1 ? file->path.len : PATH_MAX - 1;

	bytes_copy(path, file->path.data, len);
	path[len] = 0;
}

static bool is_unchanged_file(const Pbeam__FileIdentity *file, const struct stat *st)
{
	uint64_t mtime = (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;

	return (uint64_t)st->st_size == file->size && mtime == file->mtime_ns;
}

static bool was_seen(struct seen *seen, const Pbeam__FileIdentity *file)
{
	for (int i = 0; i < seen->n; i++)
		if (seen->v[i]->ino == file->ino && seen->v[i]->dev == file->dev &&
		    seen->v[i]->path.len == file->path.len &&
		    bytes_equal(seen->v[i]->path.data, file->path.data, file->path.len))
			return true;
	if (seen->n < SEEN_MAX)
		seen->v[seen->n++] = file;
	return false;
}

static int check_mapping(struct rebuild *rebuild, const Pbeam__Process *process, const Pbeam__Mapping *map,
			 struct seen *seen)
{
	bool shared = map->kind == PBEAM__MAPPING__KIND__FILE_SHARED;
	char path[PATH_MAX];
	struct stat st;

	if ((!shared && map->kind != PBEAM__MAPPING__KIND__FILE_PRIVATE) || map->shared_id || !map->file ||
	    map->file->deleted || was_seen(seen, map->file))
		return 0;
	path_of(map->file, path);
	if (stat(path, &st) < 0)
		return err_set(rebuild->err, -errno,
			       "vpid %d maps %s, which can no longer be opened (%s); put it back",
			       process->vpid, path, strerror(errno));
	if (is_unchanged_file(map->file, &st) || (shared && (map->prot | map->max_prot) & PROT_WRITE))
		return 0;
	if (rebuild->options->force) {
		log_warn("%s has changed since the checkpoint; going on all the same", path);
		return 0;
	}
	return err_set(rebuild->err, -ESTALE,
		       "vpid %d maps %s, which has changed since the checkpoint; put the old file back, or "
		       "use --force",
		       process->vpid, path);
}

static bool is_executable(const Pbeam__Process *process, char path[PATH_MAX])
{
	struct stat st;

	if (!process->exe || process->exe->deleted)
		return false;
	path_of(process->exe, path);
	return stat(path, &st) == 0 && S_ISREG(st.st_mode) && is_unchanged_file(process->exe, &st) &&
	       access(path, X_OK) == 0;
}

const char *rebuild_check_executable(const Pbeam__Process *process, char path[4096])
{
	if (is_executable(process, path))
		return path;
	/* Any program will do: the husk is stopped before its first instruction. */
	if (io_readlink(AT_FDCWD, "/proc/self/exe", path, PATH_MAX) < 0)
		return "/proc/self/exe";
	return path;
}

static int check_process(struct rebuild *rebuild, const Pbeam__Process *process, struct seen *seen)
{
	int r = 0;

	if (plan_is_empty(process))
		return 0;
	if (!process->memory || process->n_threads == 0 || !process->exe)
		return err_set(rebuild->err, -EINVAL, "vpid %d has no memory or no threads in the image",
			       process->vpid);
	for (size_t i = 0; i < process->memory->n_mappings && r == 0; i++) {
		const Pbeam__Mapping *map = process->memory->mappings[i];

		r = rebuild_obstacle(rebuild, check_mapping(rebuild, process, map, seen));
	}
	return r;
}

int rebuild_check_image(struct rebuild *rebuild)
{
	struct seen *seen;
	int r = rebuild_obstacle(
		rebuild, rebuild_check_host(rebuild->manifest->host, rebuild->manifest->uid, rebuild->err));

	if (r < 0)
		return r;
	seen = calloc(1, sizeof(*seen));
	if (!seen)
		return err_code(rebuild->err, -ENOMEM, "check of the image");
	for (size_t i = 0; i < rebuild->manifest->n_processes && r == 0; i++)
		r = rebuild_obstacle(rebuild, check_process(rebuild, rebuild->manifest->processes[i], seen));
	free(seen);
	return r;
}

/* The number must be free, or belong to a process that will be replaced. */
static int check_number(struct rebuild *rebuild, int32_t number, const char *what)
{
	struct name_process process;
	bool replaces = rebuild->options->replace.n > 0;

	if (names_process_get(rebuild->names, (struct vpid){number}, &process) == 0) {
		if (replaces && process.keeper.n == rebuild->options->keeper.n)
			return 0;
		if (process.state == NAME_STATE_STUB && process.keeper.n == rebuild->options->keeper.n)
			return 0; /* its process comes back */
		return err_set(rebuild->err, -EEXIST,
			       "%s %d of the image is in use by a running program; end that first: pbeamctl "
			       "kill %d, or "
			       "use pbeamctl rollback %d",
			       what, number, number, number);
	}
	return 0;
}

int rebuild_check_numbers(struct rebuild *rebuild)
{
	int r = 0;

	for (size_t i = 0; i < rebuild->manifest->n_processes && r == 0; i++) {
		const Pbeam__Process *process = rebuild->manifest->processes[i];

		if (rebuild->made && rebuild->made[i].rpid) /* pre-copied */
			continue;
		r = rebuild_obstacle(rebuild, check_number(rebuild, process->vpid, "vpid"));
		for (size_t t = 1; t < process->n_threads && r == 0; t++)
			r = rebuild_obstacle(
				rebuild, check_number(rebuild, process->threads[t]->vtid, "thread number"));
	}
	return r;
}
