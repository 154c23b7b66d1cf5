/* The part of an upgrade that a coordinator does: upgrade.h. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "proto/control.pb-c.h"
#include "proto/frame.h"
#include "scip/job/upgrade.h"
#include "scip/rebuild/scip_link.h"

enum { FREEZE_TIMEOUT_MS = 5000, ROUNDS = 100, ROUND_NS = 20000000 };

static bool upgrade_is_ours(pid_t pid)
{
	struct stat a, b;
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/exe", pid);
	return stat(path, &a) < 0 || stat("/proc/self/exe", &b) < 0 ||
	       (a.st_dev == b.st_dev && a.st_ino == b.st_ino);
}

static int succeed_scip(const struct name_process *process, const char *program, struct err *err)
{
	Pbeam__ScipFreeze freeze = PBEAM__SCIP_FREEZE__INIT;
	Pbeam__ScipSucceed wish = PBEAM__SCIP_SUCCEED__INIT;
	auto_close int sock = frame_connect_to("scip", process->scip.n, err);
	int r;

	if (sock < 0)
		return sock;
	freeze.timeout_ms = FREEZE_TIMEOUT_MS;
	wish.program.data = (uint8_t *)(uintptr_t)program;
	wish.program.len = strlen(program);
	r = scip_link_call(sock, PBEAM__SCIP_REQUEST__SCIP_FREEZE, &freeze.base,
			   &pbeam__scip_frozen__descriptor, NULL, err);
	if (r >= 0)
		r = scip_link_call(sock, PBEAM__SCIP_REQUEST__SCIP_SUCCEED, &wish.base,
				   &pbeam__scip_done__descriptor, NULL, err);
	if (r >= 0)
		r = scip_link_call(sock, PBEAM__SCIP_REQUEST__SCIP_THAW, NULL, &pbeam__scip_done__descriptor,
				   NULL, err);
	return r < 0 ? r : 0;
}

/* One pass over the job. Returns how many processes still have an old scip, with the first one's reason. */
static int upgrade_pass(struct job *job, const char *program, uint32_t *processes, struct err *err)
{
	auto_free struct name_process *all = NULL;
	int left = 0, n = names_snapshot(job->names, job->entry.keeper, &all);

	for (int i = 0; i < n; i++) {
		struct err why = ERR_INIT;

		if (all[i].scip.n <= 0 || all[i].state == NAME_STATE_DEAD || upgrade_is_ours(all[i].scip.n))
			continue;
		if (fault_point("upgrade-process", &why) == 0 && all[i].state != NAME_STATE_BORN &&
		    succeed_scip(&all[i], program, &why) == 0) {
			++*processes;
			continue;
		}
		if (!left++)
			err_set(err, -EAGAIN,
				"vpid %d keeps the supervisor of the old version: %s; try again",
				all[i].vpid.n, why.text[0] ? why.text : "it is just being born");
	}
	return n < 0 ? n : left;
}

int upgrade_scips(struct job *job, uint32_t *processes, struct err *err)
{
	char program[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
	int left = 1;

	if (n < 0)
		return err_sys(err, "read /proc/self/exe");
	program[n] = 0;
	for (int i = 0; i < ROUNDS && left > 0; i++) {
		err_clear(err);
		if (i)
			nanosleep(&(struct timespec){.tv_nsec = ROUND_NS}, NULL);
		left = upgrade_pass(job, program, processes, err);
	}
	if (left < 0)
		return err_code(err, left, "list the job's processes");
	return left ? err->code : 0;
}
