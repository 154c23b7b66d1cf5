/* Checks of the machine and the user's environment. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/dirs.h"
#include "base/logout.h"
#include "pbeamctl/doctor.h"
#include "pbeamctl/format.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

enum { KERNEL_MAJOR = 5, KERNEL_MINOR = 14, FILES_WANTED = 256, PROCESSES_WANTED = 256 };

static enum finding look_kernel(char found[128])
{
	unsigned major = 0, minor = 0;
	struct utsname name;

	uname(&name);
	snprintf(found, 128, "%.60s %.40s", name.release, name.machine);
	if (strcmp(name.machine, "x86_64") != 0 || sscanf(name.release, "%u.%u", &major, &minor) != 2)
		return FINDING_BAD;
	if (major < KERNEL_MAJOR || (major == KERNEL_MAJOR && minor < KERNEL_MINOR))
		return FINDING_BAD;
	return FINDING_GOOD;
}

/* XCR0: the components of the extended state that the kernel saves for programs. */
static enum finding look_xsave(char found[128])
{
#ifdef __x86_64__
	static const struct {
		unsigned bit;
		const char *name;
	} parts[] = {{1, "SSE"}, {2, "AVX"}, {5, "AVX-512"}, {9, "PKU"}, {18, "AMX"}};
	unsigned a, b, c, d, low, high;

	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) {
		snprintf(found, 128, "none");
		return FINDING_BAD;
	}
	__asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	found[0] = 0;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		if (low & (1u << parts[i].bit))
			snprintf(found + strlen(found), 128 - strlen(found), "%s%s", found[0] ? " " : "",
				 parts[i].name);
	return FINDING_GOOD;
#else
	snprintf(found, 128, "not an x86-64 processor");
	return FINDING_BAD;
#endif
}

static enum finding look_limit(char found[128], int resource, rlim_t wanted)
{
	struct rlimit limit;

	if (getrlimit(resource, &limit) < 0) {
		snprintf(found, 128, "%s", strerror(errno));
		return FINDING_LACKS;
	}
	if (limit.rlim_cur == RLIM_INFINITY)
		snprintf(found, 128, "unlimited");
	else
		snprintf(found, 128, "%" PRIu64, (uint64_t)limit.rlim_cur);
	return limit.rlim_cur < wanted ? FINDING_LACKS : FINDING_GOOD;
}

static enum finding look_files(char found[128])
{
	return look_limit(found, RLIMIT_NOFILE, FILES_WANTED);
}

static enum finding look_processes(char found[128])
{
	return look_limit(found, RLIMIT_NPROC, PROCESSES_WANTED);
}

static enum finding look_runtime(char found[128])
{
	struct err err = ERR_INIT;
	char dir[PATH_MAX];

	if (dirs_runtime(dir, NULL, &err) < 0) {
		snprintf(found, 128, "%.127s", err.text);
		return FINDING_BAD;
	}
	snprintf(found, 128, "%.127s", dir);
	return FINDING_GOOD;
}

static enum finding look_logout(char found[128])
{
	static const char *const texts[] = {
		[LOGOUT_HARMLESS] = "jobs and their runtime directory stay",
		[LOGOUT_REMOVES] = "lingering is off: the runtime directory is removed, jobs go on",
		[LOGOUT_KILLS] = "lingering is off, KillUserProcesses=yes: jobs are killed",
	};
	const enum logout logout = logout_of_user();

	snprintf(found, 128, "%s", texts[logout]);
	return logout == LOGOUT_HARMLESS ? FINDING_GOOD : FINDING_LACKS;
}

static enum finding look_state(char found[128])
{
	struct err err = ERR_INIT;
	char dir[PATH_MAX], size[16];
	struct statvfs fs;
	uint64_t room;

	if (dirs_state(dir, NULL, &err) < 0) {
		snprintf(found, 128, "%.127s", err.text);
		return FINDING_BAD;
	}
	if (access(dir, W_OK) < 0 || statvfs(dir, &fs) < 0) {
		snprintf(found, 128, "%.90s: %s", dir, strerror(errno));
		return FINDING_BAD;
	}
	room = (uint64_t)fs.f_bavail * fs.f_frsize;
	format_size(room, size);
	snprintf(found, 128, "%s free in %.90s", size, dir);
	return room < ((uint64_t)1 << 30) ? FINDING_LACKS : FINDING_GOOD;
}

const struct check doctor_host[] = {
	{"kernel", "scip needs Linux 5.14 on x86-64, and uses features up to 6.7",
	 "use a later kernel, on x86-64", look_kernel},
	{"processor state",
	 "an image can only be restored on a processor with the components that the program used",
	 "use a processor with XSAVE", look_xsave},
	{"open files", "the limit on open files; a checkpoint needs one for each file of the program",
	 "ulimit -n 1024", look_files},
	{"processes", "the limit on processes; each process of a program has a scip", "ulimit -u 4096",
	 look_processes},
	{"runtime directory",
	 "holds the sockets and the name table; without XDG_RUNTIME_DIR it is in the state directory",
	 "log in through a session manager, or set XDG_RUNTIME_DIR to a directory of your own with mode 0700",
	 look_runtime},
	{"last logout", "what systemd does to jobs when the user's last session ends",
	 "loginctl enable-linger", look_logout},
	{"state directory", "holds the checkpoints made without -o",
	 "free some space, or set XDG_STATE_HOME to a directory with more", look_state},
	{NULL, NULL, NULL, NULL},
};
