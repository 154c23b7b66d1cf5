/*
 * Dumps UNIX sockets. unix_restore.c restores them.
 *
 * sock_diag gives what no call on the socket does: the peer's inode, which directions are shut down, the
 * backlog of a listener and the inodes of the clients that wait in its queue. The queue is peeked at
 * (socket.c); descriptors in it become objects of their own.
 *
 *   peer in the group           the pair is made again
 *   peer closed                 made with a stand-in that fills the queue and closes
 *   waiting to be accepted      connects again; refused if it has sent data, which cannot be read
 *   peer outside the group      refused
 *
 * A reset that the program has not seen yet (POLLERR) is kept as the bit UNIX_SHUTDOWN_RESET.
 * The process in the peer's credentials (SO_PEERCRED) is recorded when a connection is made again
 * (namespace/record.h). Not kept: the sender's number in queued credentials.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/io.h"
#include "namespace/record.h"
#include "scip/object/common.h"
#include "scip/object/object_dump.h"
#include "scip/object/object_end.h"
#include "scip/object/object_table.h"
#include "scip/object/socket.h"
#include "scip/object/unix_socket.h"

static bool unix_match(struct object_dump *dump, const struct object_source *source)
{
	return socket_is(source, AF_UNIX, 0);
}

/* Returns the listener in whose queue this client waits, 0 for none. */
static uint32_t waits_in(const struct unix_diag_table *table, uint32_t ino)
{
	for (size_t i = 0; i < table->n; i++)
		for (size_t j = 0; j < table->v[i].nicons; j++)
			if (table->v[i].icons[j] == ino)
				return table->v[i].ino;
	return 0;
}

/* The file that it is bound to: a relative name is one of the holder's directory, which is checked by the
 * inode that sock_diag knows. */
static int dump_bound_file(const struct object_source *source, const struct unix_diag *diag,
			   Pbeam__UnixSocket *out, struct err *err)
{
	const struct sockaddr_un *name = (const void *)out->name.data;
	size_t len = out->name.len - offsetof(struct sockaddr_un, sun_path);
	char path[sizeof(name->sun_path) + 4096], cwd[4096] = "", link[64];
	struct stat st = {.st_mode = S_IFSOCK | 0700};
	bool found;

	snprintf(link, sizeof(link), "/proc/%d/cwd", source->holder.n);
	if (name->sun_path[0] != '/' && io_readlink(AT_FDCWD, link, cwd, sizeof(cwd) - 1) == 0)
		strcat(cwd, "/");
	snprintf(path, sizeof(path), "%s%.*s", cwd, (int)strnlen(name->sun_path, len), name->sun_path);
	found = stat(path, &st) == 0 && S_ISSOCK(st.st_mode) && (uint32_t)st.st_ino == diag->vfs_ino;
	/* Of a connected one only the name counts, not the file. */
	if (!found && name->sun_path[0] != '/' && (out->listening || out->type == SOCK_DGRAM))
		return err_set(err, -ENOTSUP,
			       "a UNIX socket bound to the relative name %s, which is not in its working "
			       "directory any more; bind it to an absolute path",
			       path + strlen(cwd));
	return object_identity(&st, path, !found, &out->bound_file, err);
}

static int dump_names(const struct object_source *source, const struct unix_diag *diag,
		      Pbeam__UnixSocket *out, struct err *err)
{
	int r = socket_name(source->local, false, &out->name, err);

	if (r == 0)
		r = socket_name(source->local, true, &out->peer_name, err);
	if (r < 0)
		return r;
	out->connected = out->peer_name.len > 0;
	if (out->name.len <= offsetof(struct sockaddr_un, sun_path))
		return 0;
	if (((const struct sockaddr_un *)(const void *)out->name.data)->sun_path[0])
		return dump_bound_file(source, diag, out, err);
	return 0;
}

static int dump_state(struct object_dump *dump, const struct object_source *source,
		      const struct unix_diag_table *table, Pbeam__UnixSocket *out, struct err *err)
{
	const struct unix_diag *diag = unix_diag_find(table, source->st.st_ino);
	struct pollfd poll_fd = {.fd = source->local, .events = POLLIN};
	int queued = 0, r;

	if (!diag)
		return err_set(err, -ENOTSUP,
			       "a UNIX socket of another network namespace, which cannot be looked at");
	out->listening = diag->state == TCP_LISTEN;
	r = dump_names(source, diag, out, err);
	if (r < 0)
		return r;
	out->peer_ino = diag->peer;
	out->shutdown = diag->shutdown;
	if (poll(&poll_fd, 1, 0) > 0 && poll_fd.revents & POLLERR)
		out->shutdown |= UNIX_SHUTDOWN_RESET;
	out->backlog = diag->backlog;
	if (out->connected && !diag->peer)
		out->accept_of = waits_in(table, diag->ino);
	if (out->accept_of)
		out->peer_vpid = source->holder_vpid.n;
	for (size_t i = 0; out->listening && i < diag->nicons; i++)
		if (object_append(out->accept_queue, out->n_accept_queue, (uint64_t)diag->icons[i]) < 0)
			return object_no_memory(err);
	if (out->accept_of && ioctl(source->local, SIOCOUTQ, &queued) == 0 && queued > 0)
		return err_set(
			err, -EBUSY,
			"a UNIX connection that waits to be accepted with data already sent, which cannot "
			"be read; try again once it is accepted");
	return 0;
}

/* The other end of a datagram pair that can still send. */
static int peer_of_pair(struct object_dump *dump, const struct object_source *source,
			const Pbeam__UnixSocket *out)
{
	const struct object_source *peer =
		out->peer_ino ? object_dump_find_inode(dump, out->peer_ino, source) : NULL;
	const struct unix_diag *diag = peer ? unix_diag_find(&dump->diag, peer->st.st_ino) : NULL;

	return diag && diag->peer == source->st.st_ino && !(diag->shutdown & 2) ? peer->local : -1;
}

/* The process that SO_PEERCRED names: the peer, or for a listener the process that called listen(). */
static int dump_peer_cred(struct object_dump *dump, const struct object_source *source,
			  Pbeam__UnixSocket *out, struct err *err)
{
	struct ucred cred = {.pid = 0};
	socklen_t len = sizeof(cred);
	struct vpid peer = record_peer_find(object_dump_keeper(dump), source->st.st_ino);

	if (getsockopt(source->local, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0 || cred.pid <= 0)
		return 0;
	if (!peer.n)
		peer = names_virtual(object_dump_names(dump), (struct rpid){cred.pid});
	out->peer_cred = object_message(Pbeam__Number, pbeam__number__init);
	if (!out->peer_cred)
		return object_no_memory(err);
	out->peer_cred->vid = peer.n;
	return 0;
}

static int unix_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *object,
		     struct err *err)
{
	Pbeam__UnixSocket *out = object_message(Pbeam__UnixSocket, pbeam__unix_socket__init);
	int r;

	object->unix_socket = out;
	if (!out)
		return object_no_memory(err);
	out->type = (uint32_t)socket_option(source->local, SOL_SOCKET, SO_TYPE, 0);
	if (!dump->diag.n) {
		r = unix_diag_read(&dump->diag, err);
		if (r < 0)
			return err_wrap(err, r, "a UNIX socket");
	}
	r = dump_state(dump, source, &dump->diag, out, err);
	if (r == 0)
		r = dump_peer_cred(dump, source, out, err);
	if (r == 0)
		r = socket_options_dump(source->local, &out->options, err);
	if (r == 0 && !out->listening)
		r = socket_queue_dump(dump, source->local, out->type == SOCK_STREAM, &out->n_queue,
				      &out->queue, err);
	if (r == 0 && out->type == SOCK_DGRAM)
		r = socket_queue_renew(dump, source->local, peer_of_pair(dump, source, out), out->n_queue,
				       out->queue, err);
	out->ino = source->st.st_ino;
	return r;
}

static const char *unix_printable_name(const ProtobufCBinaryData *name, char *buf, size_t size)
{
	size_t head = offsetof(struct sockaddr_un, sun_path);

	if (name->len <= head)
		return "no name";
	snprintf(buf, size, "%.*s", (int)(name->len - head), (const char *)name->data + head);
	if (!name->data[head])
		snprintf(buf, size, "@%.*s", (int)(name->len - head - 1),
			 (const char *)name->data + head + 1);
	return buf;
}

/* Where the listener is, whatever its name is relative to. */
static int find_accept_path(struct object_dump *dump, Pbeam__UnixSocket *out, struct err *err)
{
	const Pbeam__Manifest *manifest = object_dump_manifest(dump);

	for (size_t i = 0; i < manifest->n_objects && out->accept_of; i++) {
		const Pbeam__Object *other = manifest->objects[i];

		if (other->kind_case == PBEAM__OBJECT__KIND_UNIX_SOCKET &&
		    other->unix_socket->ino == out->accept_of && other->unix_socket->bound_file)
			return object_set_bytes(&out->accept_path, other->unix_socket->bound_file->path.data,
						other->unix_socket->bound_file->path.len, err);
	}
	return 0;
}

static int unix_verify(struct object_dump *dump, const struct object_source *source, Pbeam__Object *object,
		       struct err *err)
{
	const Pbeam__UnixSocket *out = object->unix_socket;
	char name[128];
	int r;

	r = find_accept_path(dump, object->unix_socket, err);
	if (r < 0 || object_dump_force(dump))
		return r;
	/* A datagram socket that is connected to a name finds it again by that. */
	if (out->peer_ino && !object_dump_find_inode(dump, out->peer_ino, source) &&
	    out->peer_ino != out->ino &&
	    (out->type != SOCK_DGRAM || out->peer_name.len <= offsetof(struct sockaddr_un, sun_path)))
		return err_set(
			err, -ENOTSUP,
			"a UNIX socket connected to a process outside the tree (%s); close the connection "
			"first, or checkpoint that process with it",
			unix_printable_name(&out->peer_name, name, sizeof(name)));
	if (out->accept_of && !object_dump_find_inode(dump, out->accept_of, source))
		return err_set(
			err, -ENOTSUP,
			"a UNIX socket that waits to be accepted by a process outside the tree (%s); close "
			"it first",
			unix_printable_name(&out->peer_name, name, sizeof(name)));
	for (size_t i = 0; i < out->n_accept_queue; i++)
		if (!out->accept_queue[i] || !object_dump_find_inode(dump, out->accept_queue[i], source))
			return err_set(
				err, -EBUSY,
				"a listening UNIX socket (%s) with a connection from outside the tree that "
				"waits to be accepted; try again once it is accepted",
				unix_printable_name(&out->name, name, sizeof(name)));
	return 0;
}

static void unix_shift(Pbeam__Object *object, const struct object_shift *shift)
{
	Pbeam__UnixSocket *socket = object->unix_socket;
	uint64_t *const inos[] = {&socket->ino, &socket->peer_ino, &socket->accept_of};

	for (size_t i = 0; i < sizeof(inos) / sizeof(inos[0]); i++)
		*inos[i] += *inos[i] ? shift->ino : 0;
	for (size_t i = 0; i < socket->n_accept_queue; i++)
		socket->accept_queue[i] += socket->accept_queue[i] ? shift->ino : 0;
}

const struct object_ops object_unix = {
	.name = "UNIX socket",
	.kind = PBEAM__OBJECT__KIND_UNIX_SOCKET,
	.phase = 0,
	.match = unix_match,
	.dump = unix_dump,
	.verify = unix_verify,
	.check = unix_check,
	.restore = unix_restore,
	.finish = unix_finish,
	.install = unix_install,
	.shift = unix_shift,
	.end = &unix_end,
};
