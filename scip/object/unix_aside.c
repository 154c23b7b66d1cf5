/*
 * The paths of UNIX sockets in a rollback, until the commit.
 *
 * A new socket must be bound to the path itself: getsockname() returns the text that was given to bind(). So
 * the old socket's file is moved beside for a moment, and the two files are exchanged as soon as the new one
 * is bound. Until the commit the new file has the other name, by which the image's own sockets reach it; then
 * it replaces the old one. A caller from outside that comes in between the two renames, microseconds, is
 * refused.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "scip/object/common.h"
#include "scip/object/object_restore.h"
#include "scip/object/unix_socket.h"

#define HEAD offsetof(struct sockaddr_un, sun_path)

const char *unix_aside_path(const struct object_restore *restore, const char *path)
{
	for (size_t i = 0; i < restore->naside; i++)
		if (!restore->aside[i].gone && strcmp(restore->aside[i].path, path) == 0)
			return restore->aside[i].beside;
	return path;
}

bool unix_aside_is_wanted(const struct object_restore *restore, const Pbeam__UnixSocket *saved,
			  const char *path)
{
	struct stat st;

	return restore->beside && object_restore_has_unix_name(restore, &saved->name) &&
	       lstat(path, &st) == 0 && S_ISSOCK(st.st_mode) && unix_aside_path(restore, path) == path;
}

/* The clients of the image that wait for this listener connect themselves, in the new processes. */
static int redirect_clients(struct object_restore *restore, const Pbeam__UnixSocket *listener,
			    const char *path, struct err *err)
{
	for (size_t i = 0; i < restore->nslots; i++) {
		Pbeam__UnixSocket *client = restore->slots[i].object->unix_socket;
		int r;

		if (restore->slots[i].object->kind_case != PBEAM__OBJECT__KIND_UNIX_SOCKET ||
		    !listener->listening || client->accept_of != listener->ino)
			continue;
		r = object_set_bytes(&client->accept_path, path, strlen(path), err);
		if (r < 0)
			return r;
	}
	return 0;
}

int unix_aside_begin(struct object_restore *restore, const Pbeam__UnixSocket *saved, const char *path,
		     struct err *err)
{
	const char *slash = strrchr(path, '/');
	struct object_aside one = {.path = strdup(path)};
	int r;

	if (!one.path || asprintf(&one.beside, "%.*s/.pbeam-%d-%zu", (int)(slash - path), path, (int)getpid(),
				  restore->naside) < 0) {
		free(one.path);
		return object_no_memory(err);
	}
	if (strlen(one.beside) >= sizeof(((struct sockaddr_un *)NULL)->sun_path))
		r = err_set(
			err, -ENAMETOOLONG,
			"the directory of the UNIX socket %s has too long a name to bind it beside the one "
			"that is there now; use --replace, which ends the present processes first",
			path);
	else
		r = rename(one.path, one.beside) < 0 ? err_sys(err, "move the UNIX socket %s beside", path)
						     : 0;
	if (r == 0 && object_append(restore->aside, restore->naside, one) < 0) {
		(void)!rename(one.beside, one.path);
		r = object_no_memory(err);
	}
	if (r < 0) {
		free(one.path);
		free(one.beside);
		return r;
	}
	return redirect_clients(restore, saved, one.beside, err);
}

/* Without RENAME_EXCHANGE (a file system may lack it) by three renames. */
static int exchange(const char *one, const char *other)
{
	auto_free char *third = NULL;

	if (renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE) == 0)
		return 0;
	if (errno != EINVAL)
		return -errno;
	if (asprintf(&third, "%s.x", other) < 0)
		return -ENOMEM;
	return rename(one, third) < 0 || rename(other, one) < 0 || rename(third, other) < 0 ? -errno : 0;
}

void unix_aside_unlink(struct object_restore *restore, const char *path)
{
	for (size_t i = 0; i < restore->naside; i++) {
		if (restore->aside[i].gone || strcmp(restore->aside[i].path, path) != 0)
			continue;
		restore->aside[i].gone = true;
		unlink(restore->aside[i].beside);
		return;
	}
	unlink(path);
}

int unix_aside_bound(struct object_restore *restore, int r, struct err *err)
{
	struct object_aside *last = &restore->aside[restore->naside - 1];
	int x = r < 0 ? 0 : exchange(last->path, last->beside);

	if (r == 0 && x == 0)
		return 0;
	unlink(last->path);
	if (rename(last->beside, last->path) < 0)
		log_error("restore: the UNIX socket %s is at %s: %s", last->path, last->beside,
			  strerror(errno));
	free(last->path);
	free(last->beside);
	restore->naside--;
	return r < 0 ? r : err_code(err, x, "exchange two files of a UNIX socket");
}

void unix_aside_end(struct object_restore *restore, bool committed)
{
	for (size_t i = 0; i < restore->naside; i++) {
		struct object_aside *one = &restore->aside[i];

		if (one->gone && committed)
			unlink(one->path);
		else if (committed && rename(one->beside, one->path) < 0 && errno != ENOENT)
			log_error("restore: the UNIX socket %s stays at %s: %s", one->path, one->beside,
				  strerror(errno));
		if (!committed && !one->gone)
			unlink(one->beside);
		free(one->path);
		free(one->beside);
	}
	free(restore->aside);
	restore->aside = NULL;
	restore->naside = 0;
}

void unix_reach(struct object_restore *restore, const ProtobufCBinaryData *name, struct sockaddr_un *out,
		socklen_t *len)
{
	const Pbeam__Manifest *manifest = object_restore_manifest(restore);

	memset(out, 0, sizeof(*out));
	*len = (socklen_t)(name->len < sizeof(*out) ? name->len : sizeof(*out));
	bytes_copy(out, name->data, *len);
	for (size_t i = 0; *len > HEAD && out->sun_path[0] && i < manifest->n_objects; i++) {
		const Pbeam__UnixSocket *saved = manifest->objects[i]->unix_socket;
		auto_free char *path = NULL;
		const char *now;

		if (manifest->objects[i]->kind_case != PBEAM__OBJECT__KIND_UNIX_SOCKET ||
		    !saved->bound_file || saved->bound_file->deleted || saved->name.len != name->len ||
		    !bytes_equal(saved->name.data, name->data, name->len))
			continue;
		path = object_text(&saved->bound_file->path);
		now = path ? unix_aside_path(restore, path) : NULL;
		if (!now || strlen(now) >= sizeof(out->sun_path))
			return;
		memset(out->sun_path, 0, sizeof(out->sun_path));
		strcpy(out->sun_path, now);
		*len = sizeof(*out);
		return;
	}
}
