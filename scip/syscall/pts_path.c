/* Paths of pseudo-terminals: /dev/pts/N, absolute or relative to a directory on the way to it. N is the
 * number with which the terminal was born. */
#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "namespace/record.h"
#include "scip/syscall/proc_path.h"

/* Longer paths are ignored: "/dev/pts/N" with more slashes and dots than programs write. */
#define PTS_TEXT_MAX 128u
#define PTS_DIGITS   9u

/* The number of a name as the kernel writes it, else -1. */
static int32_t pts_number_of(const char *name, size_t len)
{
	int32_t n = 0;

	if (len == 0 || len > PTS_DIGITS || (name[0] == '0' && len > 1))
		return -1;
	for (size_t i = 0; i < len; i++) {
		if (!isdigit((unsigned char)name[i]))
			return -1;
		n = n * 10 + (name[i] - '0');
	}
	return n;
}

int32_t pts_number(const char *path)
{
	static const char *const way[] = {"dev", "pts"};
	unsigned depth = 0;
	int32_t number = -1;

	if (path[0] != '/')
		return -1;
	for (const char *p = path; *p; p += strspn(p, "/")) {
		size_t len = strcspn(p, "/");

		if (len && !(len == 1 && p[0] == '.')) {
			if (depth < 2 && (strlen(way[depth]) != len || memcmp(p, way[depth], len) != 0))
				return -1;
			if (depth >= 2 && (depth > 2 || (number = pts_number_of(p, len)) < 0))
				return -1;
			depth++;
		}
		p += len;
	}
	return number;
}

bool pts_path_find(const struct call *call, int dir_arg, const char *path, char *out, size_t size)
{
	char whole[2 * PTS_TEXT_MAX] = "";
	size_t len = strnlen(path, PTS_TEXT_MAX);
	int32_t virtual, real;

	if (len == 0 || len == PTS_TEXT_MAX || !isdigit((unsigned char)path[len - 1]))
		return false;
	if (path[0] == '/' ? !strstr(path, "pts") : !call_directory(call, dir_arg, whole, PTS_TEXT_MAX))
		return false;
	if (path[0] != '/')
		strcat(whole, "/");
	strcat(whole, path);
	virtual = pts_number(whole);
	if (virtual < 0)
		return false;
	real = record_pts_real(call->process->keeper, virtual);
	if (real == virtual)
		return false;
	snprintf(out, size, "/dev/pts/%d", real);
	return true;
}

int32_t pts_virtual(const struct call *call, int32_t real)
{
	return record_pts_virtual(call->process->names, call->process->keeper, real);
}
