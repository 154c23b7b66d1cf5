#include "scip/job/tracking.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "proto/message.h"

static int check_own(const char *dir, const char *own, const char *what, struct err *err)
{
	auto_free char *real = realpath(own, NULL);

	if (!real || (!dirs_contain(dir, real) && !dirs_contain(real, dir)))
		return 0;
	return err_set(
		err, -EINVAL,
		"--track %s: %s (%s) and a tracked directory must not be in each other; track a smaller "
		"directory",
		dir, real, what);
}

int tracking_add(struct keeper_options *options, const char *dir, struct err *err)
{
	auto_free char *real = realpath(dir, NULL);
	char state[PATH_MAX], runtime[PATH_MAX];
	struct stat st;
	int r;

	if (!real || stat(real, &st) < 0)
		return err_sys(err, "--track %s", dir);
	if (!S_ISDIR(st.st_mode))
		return err_set(err, -ENOTDIR, "--track %s: it is no directory", dir);
	if (!strcmp(real, "/"))
		return err_set(err, -EINVAL,
			       "--track /: the whole system cannot be put back; track a "
			       "directory of the program's");
	if (access(real, R_OK | W_OK | X_OK) < 0)
		return err_sys(err, "--track %s: it must be readable and writable", dir);
	r = dirs_state(state, "", err);
	if (r >= 0)
		r = dirs_runtime(runtime, "", err);
	if (r >= 0)
		r = check_own(real, state, "where the images are", err);
	if (r >= 0)
		r = check_own(real, runtime, "the runtime directory", err);
	for (size_t i = 0; i < options->ntrack && r >= 0; i++)
		r = check_own(real, options->track[i], "tracked as well", err);
	if (r >= 0 && message_append_string(&options->track, &options->ntrack, real) < 0)
		r = err_code(err, -ENOMEM, "--track %s", dir);
	return r < 0 ? r : 0;
}

int tracking_check_store(const struct keeper_options *options, struct err *err)
{
	int r = 0;

	for (size_t i = 0; options->dir && i < options->ntrack && r == 0; i++)
		r = check_own(options->track[i], options->dir, "--dir, where the images are", err);
	return r;
}
