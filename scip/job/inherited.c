#include "scip/job/inherited.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "scip/tracee/procfs.h"

enum { MEMORY_MAJOR = 1, NAMED_MAX = 4 }; /* /dev/null, zero, full, random */

struct inherited {
	unsigned n;
	char text[200]; /* the first ones */
	size_t len;
};

static bool inherited_is(int fd)
{
	int flags = fcntl(fd, F_GETFD);

	return fd > STDERR_FILENO && flags >= 0 && !(flags & FD_CLOEXEC);
}

/* What a checkpoint would refuse it as, or NULL. */
static const char *inherited_kind(int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return NULL;
	if (S_ISFIFO(st.st_mode))
		return "pipe";
	if (S_ISSOCK(st.st_mode))
		return "socket";
	if (isatty(fd))
		return "terminal";
	if (S_ISBLK(st.st_mode) || (S_ISCHR(st.st_mode) && major(st.st_rdev) != MEMORY_MAJOR))
		return "device";
	return NULL;
}

static int inherited_note(int fd, void *arg)
{
	struct inherited *found = arg;
	const char *kind = inherited_is(fd) ? inherited_kind(fd) : NULL;

	if (!kind)
		return 0;
	if (found->n++ < NAMED_MAX)
		found->len += (size_t)snprintf(found->text + found->len, sizeof(found->text) - found->len,
					       "%s%d (%s)", found->n > 1 ? ", " : "", fd, kind);
	return 0;
}

void inherited_report(void)
{
	struct inherited found = {.n = 0};
	char more[32] = "";

	if (procfs_each_number("/proc/self/fd", inherited_note, &found) < 0 || found.n == 0)
		return;
	if (found.n > NAMED_MAX)
		snprintf(more, sizeof(more), " and %u more", found.n - NAMED_MAX);
	fprintf(stderr,
		"scip: the program inherits descriptor%s %s%s; while it has %s open no checkpoint is "
		"possible: use "
		"--close-inherited, or close %s in the shell (%.*s>&-)\n",
		found.n > 1 ? "s" : "", found.text, more, found.n > 1 ? "them" : "it",
		found.n > 1 ? "them" : "it", (int)strcspn(found.text, " "), found.text);
}

static int inherited_close_one(int fd, void *arg)
{
	if (inherited_is(fd))
		close(fd);
	return 0;
}

int inherited_close(struct err *err)
{
	int r = procfs_each_number("/proc/self/fd", inherited_close_one, NULL);

	return r < 0 ? err_code(err, r, "close the inherited descriptors") : 0;
}
