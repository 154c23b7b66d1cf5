#include "base/dirs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
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
	r = check_private(buf, err);
	if (r == -ENOENT) {
		err_clear(err);
		r = io_mkdirs(buf, err);
		if (r == 0)
			r = check_private(buf, err);
	}
	if (r < 0 || !sub)
		return r;
	if (snprintf(buf + len, PATH_MAX - (size_t)len, "/%s", sub) >= PATH_MAX - len)
		return err_code(err, -ENAMETOOLONG, "directory %s", buf);
	return io_mkdirs(buf, err);
}

static int dirs_state_path(char *buf, int *len, struct err *err)
{
	const char *base = getenv("XDG_STATE_HOME");
	const char *home = getenv("HOME");

	if (base && base[0] == '/') {
		*len = snprintf(buf, PATH_MAX, "%s/pbeam", base);
	} else {
		struct passwd *pw = home ? NULL : getpwuid(geteuid());

		if (!home && pw)
			home = pw->pw_dir;
		if (!home)
			return err_set(err, -ENOENT, "no home directory; set XDG_STATE_HOME");
		*len = snprintf(buf, PATH_MAX, "%s/.local/state/pbeam", home);
	}
	return *len >= PATH_MAX ? err_code(err, -ENAMETOOLONG, "directory %s", buf) : 0;
}

int dirs_state(char *buf, const char *sub, struct err *err)
{
	int len, r = dirs_state_path(buf, &len, err);

	return r < 0 ? r : dirs_finish(buf, len, sub, err);
}

/* ---- the runtime directory ---- */

static bool dirs_is_private(const char *path)
{
	return check_private(path, NULL) == 0;
}

/* Looks at each name table, names or names.VERSION, until `look` says true. */
static bool dirs_any_table(const char *dir, bool (*look)(int dirfd, const char *name))
{
	auto_closedir DIR *files = opendir(dir);
	const struct dirent *entry;

	while (files && (entry = readdir(files))) {
		const char *rest = entry->d_name + strlen("names");

		if (!strncmp(entry->d_name, "names", strlen("names")) &&
		    (!rest[0] || (rest[0] == '.' && !rest[1 + strspn(rest + 1, "0123456789")])) &&
		    look(dirfd(files), entry->d_name))
			return true;
	}
	return false;
}

static bool dirs_table_exists(int dirfd, const char *name)
{
	return true;
}

static bool dirs_has_table(const char *dir)
{
	return dirs_any_table(dir, dirs_table_exists);
}

/* Every program that uses a table holds a shared lock on it. */
static bool dirs_table_is_used(int dirfd, const char *name)
{
	auto_close int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

	return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

/* Whether a link to the table of a living process is there (namespace/names_publish.c). */
static bool dirs_has_living_link(const char *dir)
{
	char path[PATH_MAX + 16];
	const struct dirent *entry;

	snprintf(path, sizeof(path), "%s/" DIRS_TABLES, dir);
	auto_closedir DIR *links = opendir(path);
	while (links && (entry = readdir(links)))
		if (entry->d_name[0] != '.' && faccessat(dirfd(links), entry->d_name, F_OK, 0) == 0)
			return true;
	return false;
}

/* Programs run whose table lies there. */
static bool dirs_is_in_use(const char *dir)
{
	return dirs_is_private(dir) && (dirs_any_table(dir, dirs_table_is_used) || dirs_has_living_link(dir));
}

/* What tells this machine from others that share the home directory. */
static void dirs_machine(char name[HOST_NAME_MAX + 1])
{
	auto_close int fd = open("/etc/machine-id", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : io_read_full(fd, name, 32);

	name[n < 0 ? 0 : n] = 0;
	if (n == 32 && strspn(name, "0123456789abcdef") == 32)
		return;
	if (gethostname(name, HOST_NAME_MAX) < 0 || !name[0])
		strcpy(name, "localhost");
	name[HOST_NAME_MAX] = 0;
	for (char *c = name; *c; c++)
		if (*c == '/')
			*c = '_';
}

/* Makes the path of this machine's place in the state directory. */
static int dirs_refuge_path(char *buf, int *len, struct err *err)
{
	char machine[HOST_NAME_MAX + 1];
	int r = dirs_state_path(buf, len, err);

	if (r < 0)
		return r;
	dirs_machine(machine);
	*len += snprintf(buf + *len, PATH_MAX - (size_t)*len, "/.run/%s", machine);
	return *len >= PATH_MAX ? err_code(err, -ENAMETOOLONG, "directory %s", buf) : 0;
}

/* The directory of the session. Returns false if there is none: not set, or /run/user/UID is not the user's.
 */
static bool dirs_session(char *buf, int *len)
{
	const char *base = getenv("XDG_RUNTIME_DIR");

	if (base && base[0] == '/') {
		*len = snprintf(buf, PATH_MAX, "%s", base);
		return *len < PATH_MAX;
	}
	*len = snprintf(buf, PATH_MAX, "/run/user/%u", (unsigned)geteuid());
	return dirs_is_private(buf);
}

/* True if a session's directory has been removed, or was never made, and only root can make it. */
static bool dirs_is_gone(const char *session)
{
	struct stat st;

	return stat(session, &st) < 0 && errno == ENOENT && io_mkdirs(session, NULL) < 0;
}

/* Jobs may run under the place of older versions. */
static bool dirs_old(char *buf, int *len)
{
	*len = snprintf(buf, PATH_MAX, "/tmp/pbeam-%u", (unsigned)geteuid());
	return dirs_is_in_use(buf);
}

int dirs_runtime(char *buf, const char *sub, struct err *err)
{
	char refuge[PATH_MAX];
	int len = 0, refuge_len = 0;
	bool session = dirs_session(buf, &len), gone = false, refuged;

	if (session) {
		const int end = len;

		len += snprintf(buf + len, PATH_MAX - (size_t)len, "/pbeam");
		if (len < PATH_MAX && dirs_has_table(buf))
			return dirs_finish(buf, len, sub, err);
		buf[end] = 0;
		gone = dirs_is_gone(buf);
		buf[end] = '/';
	}
	refuged = dirs_refuge_path(refuge, &refuge_len, NULL) == 0 && dirs_is_in_use(refuge);
	if (!refuged && session && !gone)
		return dirs_finish(buf, len, sub, err);
	if (!refuged && !session && dirs_old(buf, &len))
		return dirs_finish(buf, len, sub, err);
	memcpy(buf, refuge, sizeof(refuge));
	if (refuge_len == 0)
		return dirs_refuge_path(buf, &refuge_len, err);
	return dirs_finish(buf, refuge_len, sub, err);
}

int dirs_refuge(char *buf, const char *sub, struct err *err)
{
	int len, r = dirs_refuge_path(buf, &len, err);

	return r < 0 ? r : dirs_finish(buf, len, sub, err);
}

int dirs_find_refuge(char *buf)
{
	int len, r = dirs_refuge_path(buf, &len, NULL);

	return r < 0 ? r : dirs_is_private(buf) ? 0 : -ENOENT;
}

bool dirs_contain(const char *dir, const char *path)
{
	size_t n = strlen(dir);

	return !strncmp(path, dir, n) && (!path[n] || path[n] == '/');
}
