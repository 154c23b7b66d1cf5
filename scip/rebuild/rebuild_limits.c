/*
 * Names that are taken and limits that are too low for an image: tried on a small scale, or computed, and
 * nothing is kept. A restore meets them itself; this is for the list of obstacles (rebuild_obstacles.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/host_memory.h"
#include "base/io.h"
#include "scip/object/inet.h"
#include "scip/object/object_end.h"
#include "scip/rebuild/rebuild_parts.h"

/* Descriptors of a coordinator beside those of objects and scips. */
enum { COORDINATOR_FDS = 13, UNIX_HEAD = sizeof(sa_family_t) };

/* ---- addresses ---- */

static int try_inet(int type, int family, const ProtobufCBinaryData *local, struct err *err)
{
	auto_close int fd = socket(family, type | SOCK_CLOEXEC, 0);
	char text[INET_TEXT_MAX];
	struct inet_address address;
	int one = 1, r;

	if (fd < 0 || !inet_address_parse(local, &address))
		return 0; /* the object's own check reports it */
	(void)!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	r = inet_bind(fd, &address, 0);
	if (r == -EADDRINUSE && type == SOCK_STREAM)
		return err_set(err, r, "%s is in use by another program (TCP); stop that one first",
			       inet_text(&address, text));
	if (r == -EADDRINUSE)
		return err_set(err, r, "%s is in use by another program (UDP); stop that one first",
			       inet_text(&address, text));
	if (r == -EACCES)
		return err_set(err, r,
			       "%s is a privileged port that you may not use; lower "
			       "net.ipv4.ip_unprivileged_port_start",
			       inet_text(&address, text));
	return 0;
}

static int try_unix(const Pbeam__UnixSocket *saved, struct err *err)
{
	auto_close int fd = socket(AF_UNIX, (int)saved->type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	bool abstract;

	if (fd < 0 || saved->name.len <= UNIX_HEAD || saved->name.len > sizeof(name))
		return 0;
	bytes_copy(&name, saved->name.data, saved->name.len);
	abstract = !name.sun_path[0];
	if (abstract && bind(fd, (struct sockaddr *)&name, (socklen_t)saved->name.len) < 0 &&
	    errno == EADDRINUSE)
		return err_set(err, -EADDRINUSE,
			       "the abstract name @%.*s is in use by another program; stop that one first",
			       (int)(saved->name.len - UNIX_HEAD - 1), name.sun_path + 1);
	if (!abstract && saved->listening &&
	    connect(fd, (struct sockaddr *)&name, (socklen_t)saved->name.len) == 0)
		return err_set(err, -EADDRINUSE, "%.*s is in use by another program; stop that one first",
			       (int)(saved->name.len - UNIX_HEAD), name.sun_path);
	return 0;
}

static int try_name(const Pbeam__Object *object, struct err *err)
{
	if (object->external)
		return 0;
	if (object->kind_case == PBEAM__OBJECT__KIND_TCP && object->tcp->bound && object->tcp->listening)
		return try_inet(SOCK_STREAM, object->tcp->family, &object->tcp->local, err);
	if (object->kind_case == PBEAM__OBJECT__KIND_UDP && object->udp->bound)
		return try_inet(SOCK_DGRAM, object->udp->family, &object->udp->local, err);
	if (object->kind_case == PBEAM__OBJECT__KIND_UNIX_SOCKET && !object->unix_socket->accept_of)
		return try_unix(object->unix_socket, err);
	return 0;
}

/* ---- limits ---- */

static int check_descriptors(const Pbeam__Manifest *manifest, struct err *err)
{
	uint64_t need = manifest->n_objects + manifest->n_shared + manifest->n_processes + COORDINATOR_FDS;
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || need <= limit.rlim_max)
		return 0;
	return err_set(err, -EMFILE, "%lu descriptors are needed and the limit is %lu; raise it (ulimit -Hn)",
		       (unsigned long)need, (unsigned long)limit.rlim_max);
}

static uint64_t sysctl_number(const char *path)
{
	auto_free char *text = NULL;

	return io_slurp(AT_FDCWD, path, 64, &text, NULL) < 0 ? 0 : strtoull(text, NULL, 10);
}

static size_t count_inotify(const Pbeam__Manifest *manifest)
{
	size_t n = 0;

	for (size_t i = 0; i < manifest->n_objects; i++)
		n += manifest->objects[i]->kind_case == PBEAM__OBJECT__KIND_INOTIFY;
	return n;
}

static int check_inotify_ceiling(const Pbeam__Manifest *manifest, struct err *err)
{
	uint64_t limit = sysctl_number("/proc/sys/fs/inotify/max_user_instances");
	size_t need = count_inotify(manifest);

	if (limit == 0 || need <= limit)
		return 0;
	return err_set(err, -EMFILE,
		       "%zu inotify instances are needed and a user may have %lu; raise "
		       "fs.inotify.max_user_instances",
		       need, (unsigned long)limit);
}

/* Makes as many inotify instances as the image has, and closes them. */
static int check_inotify(const Pbeam__Manifest *manifest, struct err *err)
{
	size_t need = count_inotify(manifest), made = 0;
	auto_free int *fds = NULL;
	bool full = false;

	fds = calloc(need + 1, sizeof(*fds));
	if (!fds)
		return err_code(err, -ENOMEM, "check of the image");
	while (made < need && !full) {
		fds[made] = inotify_init1(IN_CLOEXEC);
		full = fds[made] < 0 && errno == EMFILE;
		if (fds[made] < 0)
			break;
		made++;
	}
	for (size_t i = 0; i < made; i++)
		close(fds[i]);
	return full ? err_set(err, -EMFILE,
			      "%zu inotify instances are needed and only %zu are left to you; raise "
			      "fs.inotify.max_user_instances",
			      need, made)
		    : 0;
}

/* Above the user's soft limit a pipe gets two pages, and cannot be made larger; such pipes of the program are
 * restored last (object_restore_make_all()). The use by other programs cannot be read. */
static int check_pipes(const Pbeam__Manifest *manifest, struct err *err)
{
	uint64_t soft = sysctl_number("/proc/sys/fs/pipe-user-pages-soft"), pages = 0;

	for (size_t i = 0; i < manifest->n_objects; i++)
		pages += object_pipe_pages(manifest->objects[i]);
	if (geteuid() == 0 || soft == 0 || pages <= soft)
		return 0;
	return err_set(
		err, -EPERM,
		"the program's pipes hold %lu pages and a user may have %lu; raise fs.pipe-user-pages-soft",
		(unsigned long)pages, (unsigned long)soft);
}

static uint64_t bytes_of(const Pbeam__Manifest *manifest)
{
	uint64_t pages = 0;

	for (size_t i = 0; i < manifest->n_processes; i++) {
		const Pbeam__Memory *memory = manifest->processes[i]->memory;

		for (size_t m = 0; memory && m < memory->n_mappings; m++)
			for (size_t p = 0; p < memory->mappings[m]->n_pages; p++)
				pages += memory->mappings[m]->pages[p]->count;
	}
	return pages * IMAGE_PAGE;
}

static int limit_memory(const Pbeam__Manifest *manifest, struct err *err)
{
	uint64_t need = bytes_of(manifest);
	struct host_memory size;

	host_memory_size("/proc", &size);
	if (need <= size.available)
		return 0;
	return err_set(err, -ENOMEM,
		       "the program has %lu MiB of memory and this machine has %lu MiB left; end others",
		       (unsigned long)(need >> 20), (unsigned long)(size.available >> 20));
}

int rebuild_check_room(struct rebuild *rebuild)
{
	uint64_t need = bytes_of(rebuild->manifest);
	struct host_memory size;
	struct stat image;

	/* Pages that processes share are in the image once. */
	if (stat(rebuild->options->path, &image) == 0 && (uint64_t)image.st_size < need)
		need = (uint64_t)image.st_size;
	host_memory_size("/proc", &size);
	if (need <= size.available)
		return 0;
	return err_set(
		rebuild->err, -ENOMEM,
		"the image has %lu MiB of memory, and %lu MiB are free while the present processes exist; "
		"end other programs, or use --replace, which ends these first",
		(unsigned long)(need >> 20), (unsigned long)(size.available >> 20));
}

int rebuild_check_ceilings(struct rebuild *rebuild)
{
	static int (*const checks[])(const Pbeam__Manifest *, struct err *) = {check_inotify_ceiling,
									       check_pipes};
	int r = 0;

	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]) && r == 0; i++)
		r = rebuild_obstacle(rebuild, checks[i](rebuild->manifest, rebuild->err));
	return r;
}

int rebuild_check_limits(struct rebuild *rebuild)
{
	static int (*const checks[])(const Pbeam__Manifest *, struct err *) = {
		check_descriptors, check_inotify, check_pipes, limit_memory};
	const Pbeam__Manifest *manifest = rebuild->manifest;
	int r = 0;

	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]) && r == 0; i++)
		r = rebuild_obstacle(rebuild, checks[i](manifest, rebuild->err));
	if (r == 0)
		r = rebuild_obstacle(rebuild, rebuild_check_tasks(rebuild));
	for (size_t i = 0; i < manifest->n_objects && r == 0; i++)
		r = rebuild_obstacle(rebuild, try_name(manifest->objects[i], rebuild->err));
	return r;
}
