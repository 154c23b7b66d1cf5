/*
 * The cluster options of a host: from the command line, from a file (`name = value` lines), or, for a daemon
 * that is started on demand, those of the last daemon.
 */
#include "pbeamd/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "pbeamd/transport/cluster.h"

enum { FILE_MAX = 1 << 16 };

static int set_text(char *field, size_t size, const char *name, const char *value, struct err *err)
{
	if (snprintf(field, size, "%s", value) >= (int)size)
		return err_set(err, -EINVAL, "%s: `%s` is too long", name, value);
	return 0;
}

/* The next daemon may be started in another directory. */
static int set_path(char *field, const char *name, const char *value, struct err *err)
{
	char path[PATH_MAX], cwd[PATH_MAX];

	if (value[0] == '/')
		return set_text(field, PATH_MAX, name, value, err);
	if (!getcwd(cwd, sizeof(cwd)))
		return err_sys(err, "%s: current directory", name);
	if (snprintf(path, sizeof(path), "%s/%s", cwd, value) >= (int)sizeof(path))
		return err_set(err, -EINVAL, "%s: `%s` is too long", name, value);
	return set_text(field, PATH_MAX, name, path, err);
}

static int set_map(struct cluster_options *options, const char *value, struct err *err)
{
	const char *to = strchr(value, '=');

	if (!to || value[0] != '/' || to[1] != '/' || strchr(to + 1, '='))
		return err_set(err, -EINVAL, "map: `%s` is not FROM=TO with two absolute paths", value);
	if (options->nmaps == CLUSTER_MAPS_MAX)
		return err_set(err, -E2BIG, "map: at most %d", CLUSTER_MAPS_MAX);
	options->maps[options->nmaps] = strdup(value);
	if (!options->maps[options->nmaps])
		return err_code(err, -ENOMEM, "map");
	options->nmaps++;
	return 0;
}

int config_set(struct cluster_options *options, const char *name, const char *value, struct err *err)
{
	if (!value[0])
		return err_set(err, -EINVAL, "%s has no value", name);
	if (!strcmp(name, "listen"))
		return set_text(options->listen, sizeof(options->listen), name, value, err);
	if (!strcmp(name, "join"))
		return set_text(options->join, sizeof(options->join), name, value, err);
	if (!strcmp(name, "cluster-key"))
		return set_path(options->key, name, value, err);
	if (!strcmp(name, "host-name"))
		return set_text(options->name, sizeof(options->name), name, value, err);
	if (!strcmp(name, "map"))
		return set_map(options, value, err);
	if (!strcmp(name, "max-startups"))
		return admission_parse(&options->startups, value, err);
	return err_set(
		err, -EINVAL,
		"there is no option `%s`; listen, join, cluster-key, host-name, max-startups and map are",
		name);
}

static char *config_trim(char *text)
{
	size_t n;

	text += strspn(text, " \t");
	n = strlen(text);
	while (n > 0 && strchr(" \t\r", text[n - 1]))
		text[--n] = 0;
	return text;
}

static int read_line(struct cluster_options *options, char *line, struct err *err)
{
	char *equals;

	line = config_trim(line);
	if (!line[0] || line[0] == '#')
		return 0;
	equals = strchr(line, '=');
	if (!equals)
		return err_set(err, -EINVAL, "`%s` is not `name = value`", line);
	*equals = 0;
	return config_set(options, config_trim(line), config_trim(equals + 1), err);
}

/* The command line takes precedence. */
static void config_overlay(struct cluster_options *options, const struct cluster_options *file)
{
	if (!options->listen[0])
		strcpy(options->listen, file->listen);
	if (!options->join[0])
		strcpy(options->join, file->join);
	if (!options->key[0])
		strcpy(options->key, file->key);
	if (!options->name[0])
		strcpy(options->name, file->name);
	if (!options->startups.full)
		options->startups = file->startups;
	memcpy(options->maps, file->maps, sizeof(options->maps));
	options->nmaps = file->nmaps;
}

int config_read(struct cluster_options *options, const char *path, struct err *err)
{
	auto_free char *text = NULL;
	struct cluster_options file = {.nmaps = 0};
	char *rest, *line;
	int number = 0, r = io_slurp(AT_FDCWD, path, FILE_MAX, &text, NULL);

	if (r < 0)
		return err_code(err, r, "read %s", path);
	rest = text;
	while ((line = strsep(&rest, "\n"))) {
		number++;
		r = read_line(&file, line, err);
		if (r < 0)
			return err_wrap(err, r, "%s:%d", path, number);
	}
	config_overlay(options, &file);
	return 0;
}

int config_check(struct cluster_options *options, bool *cluster, struct err *err)
{
	*cluster = options->listen[0] || options->join[0];
	if (!*cluster && (options->key[0] || options->name[0]))
		return err_set(
			err, -EINVAL,
			"a host of a cluster listens, or joins one that does: give --listen or --join");
	if (!*cluster)
		return 0;
	if (!options->key[0])
		return err_set(err, -EINVAL,
			       "a cluster needs a key: `pbeamd --make-key FILE` makes one, --cluster-key "
			       "FILE gives it");
	if (!options->startups.full)
		options->startups =
			(struct admission_limits){ADMISSION_START, ADMISSION_RATE, ADMISSION_FULL};
	if (!options->name[0]) {
		if (gethostname(options->name, sizeof(options->name) - 1) < 0)
			return err_sys(err, "name of this host");
		options->name[strcspn(options->name, ".")] = 0;
	}
	if (!channel_host_ok(options->name))
		return err_set(err, -EINVAL,
			       "`%s` cannot be a host's name: letters, digits, `-`, `.` and `_` can; give "
			       "--host-name",
			       options->name);
	return 0;
}

/* ---- the options of the next daemon that is started on demand ---- */

static int config_remembered_path(char path[PATH_MAX], struct err *err)
{
	int r = dirs_runtime(path, NULL, err);

	if (r == 0 && strlen(path) + sizeof("/cluster") > PATH_MAX)
		r = err_code(err, -ENAMETOOLONG, "%s", path);
	if (r == 0)
		strcat(path, "/cluster");
	return r;
}

int config_remember(const struct cluster_options *options, struct err *err)
{
	char path[PATH_MAX], beside[PATH_MAX + 8];
	FILE *f;
	int r = config_remembered_path(path, err);

	if (r < 0)
		return r;
	snprintf(beside, sizeof(beside), "%s.new", path);
	f = fopen(beside, "we");
	if (!f)
		return err_sys(err, "write %s", beside);
	if (options->listen[0])
		fprintf(f, "listen = %s\n", options->listen);
	if (options->join[0])
		fprintf(f, "join = %s\n", options->join);
	fprintf(f, "cluster-key = %s\nhost-name = %s\n", options->key, options->name);
	fprintf(f, "max-startups = %u:%u:%u\n", options->startups.start, options->startups.rate,
		options->startups.full);
	for (int i = 0; i < options->nmaps; i++)
		fprintf(f, "map = %s\n", options->maps[i]);
	r = fflush(f) != 0 ? -errno : ferror(f) ? -EIO : 0;
	if (fclose(f) != 0 && r == 0)
		r = -errno;
	if (r == 0 && rename(beside, path) < 0)
		r = -errno;
	if (r < 0)
		unlink(beside);
	return r < 0 ? err_code(err, r, "write %s", path) : 0;
}

void config_forget(void)
{
	char path[PATH_MAX];

	if (config_remembered_path(path, NULL) == 0)
		unlink(path);
}

int config_recall(struct cluster_options *options, struct err *err)
{
	char path[PATH_MAX];
	int r = config_remembered_path(path, err);

	if (r < 0 || access(path, F_OK) < 0)
		return r;
	return config_read(options, path, err);
}
