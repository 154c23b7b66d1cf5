#include "base/fault.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef PBEAM_FAULTS
int fault_point(const char *point, struct err *err)
{
	static unsigned passed;
	const char *wanted = getenv("PBEAM_FAULT");
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
		sleep(10);
		return 0;
	}
	return err_set(err, -EIO, "fault point %s", point);
}
#else
typedef int fault_points_are_off;
#endif
