#include "base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"

#ifdef PBEAM_FAULTS
/* Ten seconds. */
enum { LOOKS = 1000, LOOK_AGAIN_NS = 10000000 };

/* The tests' request: the variable's value, or the contents of the file that it names. NULL if there is
 * none. */
static const char *fault_wish(char *buf, size_t size)
{
	const char *wanted = getenv("PBEAM_FAULT");
	auto_close int fd = -1;
	ssize_t n;

	if (!wanted || wanted[0] != '/')
		return wanted;
	fd = open(wanted, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : io_read_full(fd, buf, size - 1);
	if (n < 0)
		return NULL;
	buf[n] = '\0';
	buf[strcspn(buf, "\n")] = '\0';
	return buf;
}

/* Writes "POINT:reached" to the file and returns when the file is changed. */
static void pause_here(const char *wanted)
{
	const struct timespec moment = {0, LOOK_AGAIN_NS};
	const char *path = getenv("PBEAM_FAULT");
	char reached[128] = "", buf[128];
	auto_close int fd = path && path[0] == '/' ? open(path, O_WRONLY | O_TRUNC | O_CLOEXEC) : -1;

	snprintf(reached, sizeof(reached), "%.*s:reached", (int)strcspn(wanted, ":"), wanted);
	if (fd >= 0 && io_write_full(fd, reached, strlen(reached)) < 0)
		return;
	for (int tries = 0; tries < LOOKS; tries++) {
		const char *now = fd < 0 ? NULL : fault_wish(buf, sizeof(buf));

		if (now && strcmp(now, reached) != 0)
			return;
		nanosleep(&moment, NULL);
	}
}

int fault_point(const char *point, struct err *err)
{
	static unsigned passed;
	char buf[128];
	const char *wanted = fault_wish(buf, sizeof(buf));
	size_t len = strlen(point);
	const char *action;
	const char *count;

	if (!wanted || strncmp(wanted, point, len) || wanted[len] != ':')
		return 0;
	action = wanted + len + 1;
	count = strchr(action, ':');
	if (++passed != (count ? (unsigned)atoi(count + 1) : 1u))
		return 0;
	if (!strncmp(action, "kill", 4))
		raise(SIGKILL);
	if (!strncmp(action, "sleep", 5)) {
		pause_here(wanted);
		return 0;
	}
	return err_set(err, -EIO, "fault point %s", point);
}
#else
typedef int fault_points_are_off;
#endif
