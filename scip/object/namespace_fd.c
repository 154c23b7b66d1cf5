/*
 * Descriptors of the program's own namespaces (/proc/self/ns, namespaces(7)). Their link is TYPE:[INODE], and
 * two of one namespace have the same inode. After a restore on another host they are of that host's
 * namespaces.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "proto/message.h"
#include "scip/object/common.h"
#include "scip/object/object_table.h"

static const char *const types[] = {"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"};

enum { TYPES = sizeof(types) / sizeof(types[0]), PATH_SIZE = 32 };

/* The type that begins `text` and is followed by `end`; NULL for none. */
static const char *find_type(const char *text, char end)
{
	for (size_t i = 0; i < TYPES; i++)
		if (strncmp(text, types[i], strlen(types[i])) == 0 && text[strlen(types[i])] == end)
			return types[i];
	return NULL;
}

static void own_path(const char *type, char path[PATH_SIZE])
{
	snprintf(path, PATH_SIZE, "/proc/self/ns/%s", type);
}

static bool namespace_match(struct object_dump *dump, const struct object_source *source)
{
	struct statfs fs;

	return find_type(source->link, ':') && fstatfs(source->local, &fs) == 0 && fs.f_type == NSFS_MAGIC;
}

static int namespace_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
			  struct err *err)
{
	const char *type = find_type(source->link, ':');
	char path[PATH_SIZE];
	struct stat own;

	own_path(type, path);
	/* The coordinator and the program are in the same namespaces. */
	if (stat(path, &own) < 0 || own.st_dev != source->st.st_dev || own.st_ino != source->st.st_ino)
		return err_set(
			err, -ENOTSUP,
			"%s, a namespace that is not the program's own; close it before the checkpoint",
			source->link);
	out->namespace_fd = object_message(Pbeam__NamespaceFd, pbeam__namespace_fd__init);
	if (!out->namespace_fd)
		return object_no_memory(err);
	return message_string(&out->namespace_fd->type, type) < 0 ? object_no_memory(err) : 0;
}

static int namespace_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err)
{
	char path[PATH_SIZE];
	const char *type = find_type(object->namespace_fd->type, 0);

	if (!type)
		return err_set(err, -EBADMSG, "a namespace of an unknown type");
	own_path(type, path);
	return access(path, F_OK) < 0 ? err_sys(err, "a namespace that this kernel does not have: %s", path)
				      : 0;
}

static int namespace_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd,
			     struct err *err)
{
	char path[PATH_SIZE];

	own_path(find_type(object->namespace_fd->type, 0), path);
	*fd = open(path, O_RDONLY | O_CLOEXEC);
	return *fd < 0 ? err_sys(err, "open %s", path) : 0;
}

const struct object_ops object_namespace_fd = {
	.name = "namespace",
	.kind = PBEAM__OBJECT__KIND_NAMESPACE_FD,
	.phase = 1,
	.match = namespace_match,
	.dump = namespace_dump,
	.check = namespace_check,
	.restore = namespace_restore,
	.shift = object_shift_none,
};
