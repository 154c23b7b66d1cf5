#include "base/logout.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"

enum { CONFIG_MAX = 1 << 16 };

static bool logout_says_yes(const char *value)
{
	return !strncasecmp(value, "yes", 3) || !strncasecmp(value, "true", 4) ||
	       !strncasecmp(value, "on", 2) || value[0] == '1';
}

/* Reads KillUserProcesses from one file; without it *kills stays. */
static void logout_read(const char *path, bool *kills)
{
	static const char name[] = "KillUserProcesses=";
	auto_free char *text = NULL;
	char *rest, *line;

	if (io_slurp(AT_FDCWD, path, CONFIG_MAX, &text, NULL) < 0)
		return;
	rest = text;
	while ((line = strsep(&rest, "\n"))) {
		line += strspn(line, " \t");
		if (!strncmp(line, name, sizeof(name) - 1))
			*kills = logout_says_yes(line + sizeof(name) - 1);
	}
}

/* The files of a directory apply in the order of their names, after the main file. */
static bool kills_processes(const char *root)
{
	char path[PATH_MAX], file[PATH_MAX + NAME_MAX + 2];
	struct dirent **entries = NULL;
	bool kills = false;
	int n;

	snprintf(path, sizeof(path), "%s/etc/systemd/logind.conf", root);
	logout_read(path, &kills);
	snprintf(path, sizeof(path), "%s/etc/systemd/logind.conf.d", root);
	n = scandir(path, &entries, NULL, alphasort);
	for (int i = 0; i < n; i++) {
		snprintf(file, sizeof(file), "%s/%s", path, entries[i]->d_name);
		if (entries[i]->d_name[0] != '.')
			logout_read(file, &kills);
		free(entries[i]);
	}
	free(entries);
	return kills;
}

enum logout logout_look(const char *root, const char *runtime, uid_t uid, const char *user)
{
	char path[PATH_MAX], session[64];
	size_t len = (size_t)snprintf(session, sizeof(session), "/run/user/%u", (unsigned)uid);

	if (!runtime || strncmp(runtime, session, len) != 0 || (runtime[len] && runtime[len] != '/'))
		return LOGOUT_HARMLESS;
	snprintf(path, sizeof(path), "%s/run/systemd/system", root);
	if (access(path, F_OK) < 0) /* sd_booted(3) */
		return LOGOUT_HARMLESS;
	snprintf(path, sizeof(path), "%s/var/lib/systemd/linger/%s", root, user);
	if (access(path, F_OK) == 0)
		return LOGOUT_HARMLESS;
	return kills_processes(root) ? LOGOUT_KILLS : LOGOUT_REMOVES;
}

enum logout logout_of_user(void)
{
	const struct passwd *pw = getpwuid(getuid());

	return pw ? logout_look("", getenv("XDG_RUNTIME_DIR"), getuid(), pw->pw_name) : LOGOUT_HARMLESS;
}

const char *logout_sentence(enum logout logout)
{
	switch (logout) {
	case LOGOUT_KILLS:
		return "systemd kills your jobs at your last logout (KillUserProcesses=yes, and lingering is "
		       "off); "
		       "`loginctl enable-linger` keeps them";
	case LOGOUT_REMOVES:
		return "lingering is off: at your last logout systemd removes the runtime directory, and "
		       "jobs go on in "
		       "the state directory; `loginctl enable-linger` keeps it";
	case LOGOUT_HARMLESS:
	default:
		return "";
	}
}
