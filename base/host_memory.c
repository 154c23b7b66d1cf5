#include "base/host_memory.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "base/cleanup.h"
#include "base/io.h"

enum { TEXT_MAX = 1 << 20 };

static const struct hierarchy {
	const char *type, *controller;
	const char *limit, *usage;
	const char *files[2]; /* in memory.stat: reclaimable memory */
} HIERARCHIES[] = {
	{"cgroup2", "", "memory.max", "memory.current", {"\ninactive_file ", "\nactive_file "}},
	{"cgroup",
	 "memory",
	 "memory.limit_in_bytes",
	 "memory.usage_in_bytes",
	 {"\ntotal_inactive_file ", "\ntotal_active_file "}},
};

/* The caller frees it; NULL if there is none. */
static char *memory_read_file(const char *dir, const char *name)
{
	char path[PATH_MAX], *text;

	if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path) ||
	    io_slurp(AT_FDCWD, path, TEXT_MAX, &text, NULL) < 0)
		return NULL;
	return text;
}

/* The text after `name`. */
static bool memory_find_number(const char *text, const char *name, uint64_t *out)
{
	const char *at = text ? strstr(text, name) : NULL;
	unsigned long long n;

	if (!at || sscanf(at + strlen(name), "%llu", &n) != 1)
		return false;
	*out = n;
	return true;
}

static bool read_number(const char *dir, const char *file, uint64_t *out)
{
	auto_free char *text = memory_read_file(dir, file);

	return memory_find_number(text, "", out); /* "max": no limit */
}

static void limit_by(const char *group, const struct hierarchy *hierarchy, struct host_memory *size)
{
	auto_free char *stat = memory_read_file(group, "memory.stat");
	uint64_t limit, usage, files;

	if (!read_number(group, hierarchy->limit, &limit) || !read_number(group, hierarchy->usage, &usage))
		return;
	for (size_t i = 0; i < 2; i++)
		if (memory_find_number(stat, hierarchy->files[i], &files))
			usage -= files < usage ? files : usage;
	if (limit < size->total)
		size->total = limit;
	if (usage >= limit)
		size->available = 0;
	else if (limit - usage < size->available)
		size->available = limit - usage;
}

/* True if the list "a,b,c" contains the word "b". */
static bool has_word(const char *list, size_t len, const char *word)
{
	size_t n = strlen(word);

	for (const char *at = list; at <= list + len;) {
		size_t here = strcspn(at, ",");

		if (here > (size_t)(list + len - at))
			here = (size_t)(list + len - at);
		if (here == n && strncmp(at, word, n) == 0)
			return true;
		at += here + 1;
	}
	return false;
}

/* The control group of this process, relative to the root of its hierarchy: lines "ID:CONTROLLERS:PATH". */
static bool find_group(const char *text, const struct hierarchy *hierarchy, char *path, size_t size)
{
	for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line ? 1 : 0) {
		const char *controllers = strchr(line, ':');
		const char *at = controllers ? strchr(controllers + 1, ':') : NULL;

		if (!at || !has_word(controllers + 1, (size_t)(at - controllers - 1), hierarchy->controller))
			continue;
		at++;
		return snprintf(path, size, "%.*s", (int)strcspn(at, "\n"), at) < (int)size;
	}
	return false;
}

/* The mount point of the hierarchy, and the group that is at its top. */
static bool find_mount(const char *text, const struct hierarchy *hierarchy, char root[static PATH_MAX],
		       char mount[static PATH_MAX])
{
	for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line ? 1 : 0) {
		const char *rest = strstr(line, " - "), *end = strchr(line, '\n');
		char type[32], options[1024];

		if (!rest || (end && rest > end) ||
		    sscanf(line, "%*d %*d %*u:%*u %4095s %4095s", root, mount) != 2 ||
		    sscanf(rest, " - %31s %*s %1023s", type, options) != 2)
			continue;
		if (!strcmp(type, hierarchy->type) &&
		    (!hierarchy->controller[0] || has_word(options, strlen(options), hierarchy->controller)))
			return true;
	}
	return false;
}

/* Applies the limits of the process's own group and of all groups above it. */
static void limit_by_groups(const char *groups, const char *mounts, const struct hierarchy *hierarchy,
			    struct host_memory *size)
{
	char path[PATH_MAX], root[PATH_MAX], mount[PATH_MAX], group[2 * PATH_MAX];
	const char *below = path;
	size_t nroot;

	if (!find_group(groups, hierarchy, path, sizeof(path)) || !find_mount(mounts, hierarchy, root, mount))
		return;
	nroot = strcmp(root, "/") != 0 ? strlen(root) : 0;
	if (nroot && strncmp(path, root, nroot) == 0)
		below += nroot;
	if (strstr(below, "/..")) /* the group is outside the part that is mounted here */
		below = "";
	snprintf(group, sizeof(group), "%s%s", mount, below);
	while (strlen(group) >= strlen(mount)) {
		limit_by(group, hierarchy, size);
		*strrchr(group, '/') = '\0';
	}
}

uint64_t host_memory_swapped_out(void)
{
	auto_free char *text = NULL;
	uint64_t written = 0, compressed = 0;
	struct sysinfo info;

	if (sysinfo(&info) == 0 && !info.totalswap)
		return 0;
	text = memory_read_file("/proc", "vmstat");
	if (!memory_find_number(text, "\npswpout ", &written) ||
	    !memory_find_number(text, "\nzswpout ", &compressed))
		return written; /* a kernel without zswap */
	return written + compressed;
}

void host_memory_size(const char *proc, struct host_memory *out)
{
	auto_free char *meminfo = memory_read_file(proc, "meminfo");
	auto_free char *groups = memory_read_file(proc, "self/cgroup");
	auto_free char *mounts = memory_read_file(proc, "self/mountinfo");

	*out = (struct host_memory){UINT64_MAX, UINT64_MAX};
	if (memory_find_number(meminfo, "MemTotal:", &out->total))
		out->total *= 1024;
	if (memory_find_number(meminfo, "MemAvailable:", &out->available))
		out->available *= 1024;
	for (size_t i = 0; i < sizeof(HIERARCHIES) / sizeof(HIERARCHIES[0]); i++)
		limit_by_groups(groups, mounts, &HIERARCHIES[i], out);
}
