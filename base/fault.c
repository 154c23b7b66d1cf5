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
/* LOOKS are ten seconds. */
enum { LOOKS = 1000, LOOK_AGAIN_NS = 10000000, WISH_SIZE = 128 };

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

/* Writes "POINT:reached", and the detail, to the file and to `reached`. */
static int tell_reached(const char *wanted, const char *detail, char *reached, size_t size)
{
	const char *path = getenv("PBEAM_FAULT");
	auto_close int fd = path && path[0] == '/' ? open(path, O_WRONLY | O_TRUNC | O_CLOEXEC) : -1;

	snprintf(reached, size, "%.*s:reached%s", (int)strcspn(wanted, ":"), wanted, detail);
	return fd >= 0 && io_write_full(fd, reached, strlen(reached)) < 0 ? -1 : fd >= 0;
}

/* Returns when the file is changed. */
static void pause_here(const char *wanted)
{
	const struct timespec moment = {0, LOOK_AGAIN_NS};
	char reached[WISH_SIZE] = "", buf[WISH_SIZE];
	int told = tell_reached(wanted, "", reached, sizeof(reached));

	if (told < 0)
		return;
	for (int tries = 0; tries < LOOKS; tries++) {
		const char *now = !told ? NULL : fault_wish(buf, sizeof(buf));

		if (now && strcmp(now, reached) != 0)
			return;
		nanosleep(&moment, NULL);
	}
}

/* The action if this is the passing of `point` that is wanted, else NULL. */
static const char *action_now(const char *point, const char *wanted)
{
	static unsigned passed;
	static char last[WISH_SIZE];
	size_t len = strlen(point);
	const char *count;

	if (!wanted || strncmp(wanted, point, len) || wanted[len] != ':' ||
	    !strncmp(wanted + len + 1, "reached", 7))
		return NULL;
	if (strcmp(wanted, last) != 0) {
		passed = 0;
		snprintf(last, sizeof(last), "%s", wanted);
	}
	count = strchr(wanted + len + 1, ':');
	return ++passed == (count ? (unsigned)atoi(count + 1) : 1u) ? wanted + len + 1 : NULL;
}

bool fault_reached(const char *point, const char *detail)
{
	char buf[WISH_SIZE], reached[WISH_SIZE];
	const char *wanted = fault_wish(buf, sizeof(buf));
	bool now = action_now(point, wanted) != NULL;

	if (now)
		(void)tell_reached(wanted, detail, reached, sizeof(reached));
	return now;
}

int fault_point(const char *point, struct err *err)
{
	char buf[WISH_SIZE];
	const char *wanted = fault_wish(buf, sizeof(buf));
	const char *action = action_now(point, wanted);

	if (!action)
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
