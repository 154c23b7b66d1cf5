#include "base/dirs.h"

#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"

static int check_private(const char *path, struct err *err)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		return err_sys(err, "look at %s", path);
	if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid())
		return err_set(err, -EPERM,
			       "%s is not a directory of yours; remove it or set XDG_RUNTIME_DIR", path);
	if (st.st_mode & 077)
		return err_set(err, -EPERM, "%s can be entered by others; chmod 700 it", path);
	return 0;
}

static int dirs_finish(char *buf, int len, const char *sub, struct err *err)
{
	int r;

	if (len >= PATH_MAX)
		return err_code(err, -ENAMETOOLONG, "directory %s", buf);
	r = io_mkdirs(buf, err);
	if (r == 0)
		r = check_private(buf, err);
	if (r < 0 || !sub)
		return r;
	if (snprintf(buf + len, PATH_MAX - (size_t)len, "/%s", sub) >= PATH_MAX - len)
		return err_code(err, -ENAMETOOLONG, "directory %s", buf);
	return io_mkdirs(buf, err);
}

int dirs_runtime(char *buf, const char *sub, struct err *err)
{
	const char *base = getenv("XDG_RUNTIME_DIR");
	int n;

	if (base && base[0] == '/')
		n = snprintf(buf, PATH_MAX, "%s/pbeam", base);
	else
		n = snprintf(buf, PATH_MAX, "/tmp/pbeam-%u", (unsigned)geteuid());
	return dirs_finish(buf, n, sub, err);
}

int dirs_state(char *buf, const char *sub, struct err *err)
{
	const char *base = getenv("XDG_STATE_HOME");
	const char *home = getenv("HOME");
	int n;

	if (base && base[0] == '/') {
		n = snprintf(buf, PATH_MAX, "%s/pbeam", base);
	} else {
		struct passwd *pw = home ? NULL : getpwuid(geteuid());

		if (!home && pw)
			home = pw->pw_dir;
		if (!home)
			return err_set(err, -ENOENT, "no home directory; set XDG_STATE_HOME");
		n = snprintf(buf, PATH_MAX, "%s/.local/state/pbeam", home);
	}
	return dirs_finish(buf, n, sub, err);
}
