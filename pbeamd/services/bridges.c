/*
 * Programs on other hosts that depend on this one: they have moved on and left a bridge here
 * (scip/bridge/bridge.h). Each bridge lists its streams in RUNTIME/bridge/COOKIE.lines: its process, then a
 * line for each connection, "anchor" or "float", vpid, the program's name and a description, separated by
 * tabs.
 */
#include "pbeamd/services/bridges.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "proto/message.h"

enum { PROGRAMS_MAX = 64, FILE_MAX = 4 << 20, WORDS = 128 };

struct dependent {
	int vpid;
	unsigned count;
	char program[32], what[WORDS];
};

static struct dependent *bridges_find_dependent(struct dependent *all, size_t *n, int vpid)
{
	for (size_t i = 0; i < *n; i++)
		if (all[i].vpid == vpid)
			return &all[i];
	if (*n == PROGRAMS_MAX)
		return NULL;
	all[*n] = (struct dependent){.vpid = vpid};
	return &all[(*n)++];
}

static void take_line(struct dependent *all, size_t *n, const char *line)
{
	struct dependent *dependent;
	char program[32] = "", what[WORDS] = "";
	int vpid;

	if (sscanf(line, "anchor\t%d\t%31[^\t]\t%127[^\n]", &vpid, program, what) != 3)
		return;
	dependent = bridges_find_dependent(all, n, vpid);
	if (!dependent)
		return;
	dependent->count++;
	memcpy(dependent->program, program, sizeof(program));
	memcpy(dependent->what, what, sizeof(what));
}

static void read_bridge(struct dependent *all, size_t *n, int dir, const char *name)
{
	auto_free char *text = NULL;
	char *rest, *line;
	int pid;

	if (io_slurp(dir, name, FILE_MAX, &text, NULL) < 0)
		return;
	line = strtok_r(text, "\n", &rest);
	/* A killed bridge leaves its file. */
	if (!line || sscanf(line, "process\t%d", &pid) != 1 || (kill(pid, 0) < 0 && errno == ESRCH))
		return;
	while ((line = strtok_r(NULL, "\n", &rest)) != NULL)
		take_line(all, n, line);
}

static void bridges_forget(Pbeam__HostInfo *info)
{
	for (size_t i = 0; i < info->n_depends; i++)
		free(info->depends[i]);
	free(info->depends);
	info->depends = NULL;
	info->n_depends = 0;
}

void bridges_describe(Pbeam__HostInfo *info)
{
	struct dependent all[PROGRAMS_MAX];
	auto_closedir DIR *dir = NULL;
	const struct dirent *entry;
	char path[PATH_MAX], words[256];
	size_t n = 0;

	bridges_forget(info);
	if (dirs_runtime(path, "bridge", NULL) < 0)
		return;
	dir = opendir(path);
	while (dir && (entry = readdir(dir)) != NULL) {
		const char *end = strrchr(entry->d_name, '.');

		if (end && !strcmp(end, ".lines"))
			read_bridge(all, &n, dirfd(dir), entry->d_name);
	}
	for (size_t i = 0; i < n; i++) {
		if (all[i].count == 1)
			snprintf(words, sizeof(words), "vpid %d (%s): %s, through this host", all[i].vpid,
				 all[i].program, all[i].what);
		else
			snprintf(words, sizeof(words), "vpid %d (%s): %u connections through this host",
				 all[i].vpid, all[i].program, all[i].count);
		if (message_append_string(&info->depends, &info->n_depends, words) < 0)
			return;
	}
}
