/*
 * UNIX sockets, the way back. A connected pair without names is a socketpair. One with names (the accepted
 * end has its listener's) is connected through that name, by the listener itself if it exists under the name,
 * else by a temporary one. What needs the other side complete (queues, then shutdowns) is done in finish.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "scip/object/common.h"
#include "scip/object/object_end.h"
#include "scip/object/socket.h"
#include "scip/object/unix_socket.h"

#define HEAD offsetof(struct sockaddr_un, sun_path)

static bool unix_has_name(const ProtobufCBinaryData *name)
{
	return name->len > HEAD;
}

static bool same_name(const ProtobufCBinaryData *a, const ProtobufCBinaryData *b)
{
	return a->len == b->len && bytes_equal(a->data, b->data, a->len);
}

int unix_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err)
{
	const Pbeam__UnixSocket *saved = object->unix_socket;
	auto_free char *path = NULL;
	struct stat st;

	if ((saved->type != SOCK_STREAM && saved->type != SOCK_DGRAM && saved->type != SOCK_SEQPACKET) ||
	    saved->name.len > sizeof(struct sockaddr_un) ||
	    saved->peer_name.len > sizeof(struct sockaddr_un) ||
	    (unix_has_name(&saved->name) && saved->name.data[HEAD] && !saved->bound_file))
		return err_set(err, -EBADMSG, "the image's record of a UNIX socket is malformed");
	if (!saved->bound_file)
		return 0;
	path = object_text(&saved->bound_file->path);
	if (!path)
		return object_no_memory(err);
	if (lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode) && !saved->bound_file->deleted)
		return err_set(
			err, -EEXIST,
			"%s, the name of a UNIX socket, is something else now; move it away, then try again",
			path);
	return 0;
}

static int unix_new_socket(const Pbeam__UnixSocket *saved, struct err *err)
{
	int fd = socket(AF_UNIX, (int)saved->type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	return fd < 0 ? err_sys(err, "make a UNIX socket") : fd;
}

/* A socket that accepts connections at this path is in use and is not removed. */
static int remove_stale(const char *path, int type, struct err *err)
{
	auto_close int probe = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	struct stat st;

	if (lstat(path, &st) < 0)
		return 0;
	if (strlen(path) < sizeof(name.sun_path)) {
		strcpy(name.sun_path, path);
		if (probe >= 0 &&
		    (connect(probe, (struct sockaddr *)&name, sizeof(name)) == 0 || errno == EAGAIN))
			return err_set(err, -EADDRINUSE,
				       "%s is in use by another process; stop that, then try again", path);
	}
	return unlink(path) < 0 ? err_sys(err, "remove the stale socket %s", path) : 0;
}

/* Binds to the saved name. A relative one is bound from its directory, so that it reads the same. */
static int bind_at(const Pbeam__UnixSocket *saved, const char *path, int fd, struct err *err)
{
	auto_close int back = -1;
	int r;

	if (saved->name.data[HEAD] != '/') {
		size_t tail = strnlen((const char *)saved->name.data + HEAD, saved->name.len - HEAD);
		auto_free char *dir = tail < strlen(path) ? strndup(path, strlen(path) - tail) : NULL;

		back = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (!dir || back < 0 || chdir(dir) < 0)
			return err_sys(err, "go to the directory of %s", path);
	}
	r = bind(fd, (const struct sockaddr *)(const void *)saved->name.data, (socklen_t)saved->name.len);
	if (r < 0)
		r = err_sys(err, "bind a UNIX socket to %s", path);
	if (back >= 0 && fchdir(back) < 0 && r == 0)
		r = err_sys(err, "go back to the working directory");
	if (r == 0 && chmod(path, saved->bound_file->mode & 07777) < 0)
		r = err_sys(err, "set the mode of %s", path);
	return r;
}

static int bind_path(struct object_restore *restore, const Pbeam__UnixSocket *saved, int fd, struct err *err)
{
	auto_free char *path = object_text(&saved->bound_file->path);
	bool aside;
	int r;

	if (!path)
		return object_no_memory(err);
	aside = unix_aside_is_wanted(restore, saved, path);
	r = aside ? unix_aside_begin(restore, saved, path, err) : remove_stale(path, (int)saved->type, err);
	if (r == 0)
		r = bind_at(saved, path, fd, err);
	return aside ? unix_aside_bound(restore, r, err) : r;
}

static int bind_name(struct object_restore *restore, const Pbeam__UnixSocket *saved, int fd, struct err *err)
{
	if (!unix_has_name(&saved->name))
		return 0;
	if (saved->name.data[HEAD])
		return bind_path(restore, saved, fd, err);
	if (bind(fd, (const struct sockaddr *)(const void *)saved->name.data, (socklen_t)saved->name.len) < 0)
		return err_sys(err, "bind a UNIX socket to the abstract name @%.*s",
			       (int)(saved->name.len - HEAD - 1), (const char *)saved->name.data + HEAD + 1);
	return 0;
}

/* Removes the file if the name had none at the checkpoint. */
static void forget_path(struct object_restore *restore, const Pbeam__UnixSocket *saved, bool always)
{
	auto_free char *path = saved->bound_file ? object_text(&saved->bound_file->path) : NULL;

	if (path && (always || saved->bound_file->deleted))
		unix_aside_unlink(restore, path);
}

/* Returns the image's listener of this name, made now if necessary; -1 if there is none. */
static int find_listener(struct object_restore *restore, const Pbeam__UnixSocket *accepted, struct err *err)
{
	const Pbeam__Manifest *manifest = object_restore_manifest(restore);

	for (size_t i = 0; i < manifest->n_objects; i++) {
		const Pbeam__Object *object = manifest->objects[i];

		if (object->kind_case == PBEAM__OBJECT__KIND_UNIX_SOCKET && object->unix_socket->listening &&
		    object->unix_socket->type == accepted->type &&
		    same_name(&object->unix_socket->name, &accepted->name) &&
		    !(object->unix_socket->bound_file && object->unix_socket->bound_file->deleted))
			return object_restore_get(restore, object->id, err);
	}
	return -ENOENT;
}

/* Connects a client to a server end by the server's name. */
static int unix_connect_pair(struct object_restore *restore, const Pbeam__UnixSocket *server,
			     const ProtobufCBinaryData *client_name, const Pbeam__UnixSocket *client,
			     int fds[2], struct err *err)
{
	int listener = find_listener(restore, server, err), r = 0;
	auto_close int temporary = -1, caller = unix_new_socket(server, err);
	struct sockaddr_un name;
	socklen_t len = sizeof(name);

	if (caller < 0 || (listener < 0 && listener != -ENOENT))
		return caller < 0 ? caller : listener;
	if (listener == -ENOENT) {
		temporary = listener = unix_new_socket(server, err);
		if (listener < 0)
			return listener;
		r = bind_name(restore, server, listener, err);
		if (r == 0 && listen(listener, 1) < 0)
			r = err_sys(err, "listen on a UNIX socket");
	}
	if (r == 0 && client && unix_has_name(client_name))
		r = bind_name(restore, client, caller, err);
	if (r == 0 && server->bound_file) {
		auto_free char *path = object_text(&server->bound_file->path);

		memset(&name, 0, sizeof(name));
		name.sun_family = AF_UNIX;
		if (!path || strlen(unix_aside_path(restore, path)) >= sizeof(name.sun_path))
			return err_set(err, -ENAMETOOLONG, "the path of a UNIX socket is too long");
		strcpy(name.sun_path, unix_aside_path(restore, path));
	} else if (r == 0) {
		bytes_copy(&name, server->name.data, server->name.len);
		len = (socklen_t)server->name.len;
	}
	if (r == 0 && connect(caller, (struct sockaddr *)&name, len) < 0)
		r = err_sys(err, "connect a UNIX socket");
	if (temporary >= 0)
		forget_path(restore, server, true);
	if (r < 0)
		return r;
	fds[0] = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fds[0] < 0)
		return err_sys(err, "accept a UNIX connection");
	fds[1] = steal_fd(&caller);
	if (client)
		forget_path(restore, client, false);
	return 0;
}

/* Which of two named ends was accepted cannot be read; the one with a listener's name is more likely. */
static bool unix_is_server(struct object_restore *restore, const Pbeam__UnixSocket *one,
			   const Pbeam__UnixSocket *other)
{
	const Pbeam__Manifest *manifest = object_restore_manifest(restore);

	if (!unix_has_name(&one->name))
		return false;
	if (!other || !unix_has_name(&other->name))
		return true;
	for (size_t i = 0; i < manifest->n_objects; i++)
		if (manifest->objects[i]->kind_case == PBEAM__OBJECT__KIND_UNIX_SOCKET &&
		    manifest->objects[i]->unix_socket->listening &&
		    same_name(&manifest->objects[i]->unix_socket->name, &other->name))
			return false;
	return true;
}

/* Makes both ends: fds[0] is `one`'s. `other` NULL: of a peer that is gone. */
static int make_pair(struct object_restore *restore, const Pbeam__UnixSocket *one,
		     const Pbeam__UnixSocket *other, int fds[2], struct err *err)
{
	int swapped[2], r;

	if (!unix_has_name(&one->name) && (!other || !unix_has_name(&other->name))) {
		r = socketpair(AF_UNIX, (int)one->type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds);
		return r < 0 ? err_sys(err, "make a socketpair") : 0;
	}
	if (unix_is_server(restore, one, other))
		return unix_connect_pair(restore, one, other ? &other->name : NULL, other, fds, err);
	r = unix_connect_pair(restore, other, &one->name, one, swapped, err);
	if (r == 0) {
		fds[0] = swapped[1];
		fds[1] = swapped[0];
	}
	return r;
}

static const Pbeam__Object *unix_peer_of(struct object_restore *restore, const Pbeam__Object *object)
{
	const Pbeam__Object *peer = object_restore_find_inode(restore, object->unix_socket->peer_ino, object);

	return peer && peer->kind_case == PBEAM__OBJECT__KIND_UNIX_SOCKET &&
			       peer->unix_socket->peer_ino == object->unix_socket->ino &&
			       peer->unix_socket->type == object->unix_socket->type
		       ? peer
		       : NULL;
}

/* Two datagram sockets without names that have each other, or lost the other. */
static bool is_pair(const Pbeam__Object *object, const Pbeam__Object *peer)
{
	const Pbeam__UnixSocket *saved = object->unix_socket;

	if (saved->type != SOCK_DGRAM)
		return saved->connected && !saved->accept_of;
	return saved->connected && !unix_has_name(&saved->peer_name) &&
	       (!peer || !unix_has_name(&saved->name));
}

static int make_single(struct object_restore *restore, const Pbeam__UnixSocket *saved, struct err *err)
{
	auto_close int fd = unix_new_socket(saved, err);
	int r;

	if (fd < 0)
		return fd;
	r = bind_name(restore, saved, fd, err);
	if (r == 0 && saved->listening && listen(fd, (int)saved->backlog) < 0)
		r = err_sys(err, "listen on a UNIX socket");
	if (r == 0)
		forget_path(restore, saved, false);
	return r < 0 ? r : steal_fd(&fd);
}

int unix_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err)
{
	const Pbeam__UnixSocket *saved = object->unix_socket;
	const Pbeam__Object *peer = unix_peer_of(restore, object);
	int fds[2], r;

	if (!is_pair(object, peer)) {
		*fd = make_single(restore, saved, err);
		return *fd < 0 ? *fd : 0;
	}
	r = make_pair(restore, saved, peer ? peer->unix_socket : NULL, fds, err);
	if (r < 0)
		return r;
	*fd = fds[0];
	if (peer) {
		object_restore_put(restore, peer->id, fds[1]);
		return 0;
	}
	return object_restore_keep(restore, PBEAM__OBJECT__KIND_UNIX_SOCKET, saved->ino, fds[1], err);
}

/* ---- finish ---- */

static int connect_to_peer(struct object_restore *restore, const Pbeam__UnixSocket *saved, int fd,
			   struct err *err)
{
	struct sockaddr_un name;
	socklen_t len;

	unix_reach(restore, &saved->peer_name, &name, &len);
	if (connect(fd, (const struct sockaddr *)&name, len) < 0)
		return err_sys(err, "connect a UNIX socket to its peer");
	return 0;
}

/* A client that waits to be accepted connects itself, so that the credentials are its own; the listening
 * process calls listen() again, because its clients get its credentials. */
int unix_install(struct names *names, const Pbeam__Object *object, const Pbeam__Process *process, int fd,
		 struct batch *batch, struct err *err)
{
	const Pbeam__UnixSocket *saved = object->unix_socket;
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	size_t len = sizeof(name);
	struct taddr where;
	int r;

	if (saved->listening && saved->peer_cred && saved->peer_cred->vid == process->vpid)
		return batch_add(batch, INJECT_CALL_ANY, SYS_listen,
				 remote_args((uint64_t)fd, saved->backlog));
	if (!saved->accept_of || saved->peer_vpid != process->vpid || !unix_has_name(&saved->peer_name) ||
	    saved->peer_name.len > sizeof(name))
		return 0;
	if (saved->accept_path.len && saved->accept_path.len < sizeof(name.sun_path)) {
		bytes_copy(name.sun_path, saved->accept_path.data, saved->accept_path.len);
	} else {
		bytes_copy(&name, saved->peer_name.data, saved->peer_name.len);
		len = saved->peer_name.len;
	}
	r = batch_data(batch, &name, sizeof(name), &where);
	if (r < 0)
		return r;
	return batch_add(batch, INJECT_CALL_ANY, SYS_connect, remote_args((uint64_t)fd, where.a, len));
}

/* If it could not, the coordinator connects. */
static int connect_waiting(struct object_restore *restore, const Pbeam__UnixSocket *saved, int fd,
			   struct err *err)
{
	const Pbeam__Object *listener = object_restore_find_inode(restore, saved->accept_of, NULL);
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	socklen_t len = sizeof(name);
	auto_free char *path = NULL;

	if (getpeername(fd, (struct sockaddr *)&name, &len) == 0)
		return 0;
	if (!listener || listener->kind_case != PBEAM__OBJECT__KIND_UNIX_SOCKET ||
	    !listener->unix_socket->bound_file)
		return connect_to_peer(restore, saved, fd, err);
	path = object_text(&listener->unix_socket->bound_file->path);
	if (!path || strlen(unix_aside_path(restore, path)) >= sizeof(name.sun_path))
		return err_set(err, -ENAMETOOLONG, "the path of a UNIX socket is too long");
	memset(&name, 0, sizeof(name));
	name.sun_family = AF_UNIX;
	strcpy(name.sun_path, unix_aside_path(restore, path));
	return connect(fd, (struct sockaddr *)&name, sizeof(name)) < 0
		       ? err_sys(err, "connect a UNIX socket to %s", path)
		       : 0;
}

/* The socket that a datagram came from, if it is one of ours; else -1. */
static int unix_find_sender(struct object_restore *restore, const ProtobufCBinaryData *source)
{
	const Pbeam__Manifest *manifest = object_restore_manifest(restore);

	if (!unix_has_name(source))
		return -1;
	for (size_t i = 0; i < manifest->n_objects; i++)
		if (manifest->objects[i]->kind_case == PBEAM__OBJECT__KIND_UNIX_SOCKET &&
		    manifest->objects[i]->unix_socket->type == SOCK_DGRAM &&
		    same_name(&manifest->objects[i]->unix_socket->name, source))
			return object_restore_peek(restore, manifest->objects[i]->id);
	return -1;
}

/* Datagrams to a named socket: from the sender's own socket where it is in the image, else from one made for
 * the moment, under the sender's name if that is free. */
static int send_datagram(struct object_restore *restore, const Pbeam__UnixSocket *saved,
			 const Pbeam__Datagram *piece, struct err *err)
{
	struct sockaddr_un to;
	socklen_t to_len;
	int sender = unix_find_sender(restore, &piece->source);
	auto_close int temporary = -1;
	struct socket_room room;
	int r;

	if (sender < 0) {
		temporary = sender = unix_new_socket(saved, err);
		if (sender < 0)
			return sender;
		if (unix_has_name(&piece->source) && !piece->source.data[HEAD])
			(void)!bind(sender, (const struct sockaddr *)(const void *)piece->source.data,
				    (socklen_t)piece->source.len);
	}
	unix_reach(restore, &saved->name, &to, &to_len);
	room = socket_room_make(sender);
	r = socket_queue_send(restore, piece, sender, false, (const struct sockaddr *)&to, to_len, err);
	socket_room_restore(&room);
	return r;
}

static int unix_refill_queue(struct object_restore *restore, const Pbeam__Object *object, int sender,
			     struct err *err)
{
	const Pbeam__UnixSocket *saved = object->unix_socket;
	struct socket_room room;
	int r = 0;

	if (saved->n_queue == 0)
		return 0;
	if (sender < 0 && unix_has_name(&saved->name)) {
		for (size_t i = 0; i < saved->n_queue && r == 0; i++)
			r = send_datagram(restore, saved, saved->queue[i], err);
		return r;
	}
	if (sender < 0)
		return err_set(err, -EBADMSG,
			       "the image has a queue for a UNIX socket that no socket can send to");
	room = socket_room_make(sender);
	for (size_t i = 0; i < saved->n_queue && r == 0; i++)
		r = socket_queue_send(restore, saved->queue[i], sender, saved->type == SOCK_STREAM, NULL, 0,
				      err);
	socket_room_restore(&room);
	return r;
}

static int unix_shut_down(const Pbeam__UnixSocket *saved, int fd, struct err *err)
{
	unsigned how = saved->shutdown & 3;

	if (!saved->connected || !how)
		return 0;
	if (shutdown(fd, how == 3 ? SHUT_RDWR : how == 2 ? SHUT_WR : SHUT_RD) < 0 && errno != ENOTCONN)
		return err_sys(err, "shut down a UNIX socket");
	return 0;
}

static int finish_connected(struct object_restore *restore, const Pbeam__Object *object, int fd,
			    struct err *err)
{
	const Pbeam__Object *peer = unix_peer_of(restore, object);
	int gone = object_restore_kept(restore, PBEAM__OBJECT__KIND_UNIX_SOCKET, object->unix_socket->ino);
	int other = peer ? object_restore_peek(restore, peer->id) : gone;
	int r = unix_refill_queue(restore, object, other, err);

	if (r < 0)
		return r;
	/* A stand-in that closes with something unread gives the reset that was pending; closing is what
	 * shuts this end down. */
	if (!peer) {
		if (object->unix_socket->shutdown & UNIX_SHUTDOWN_RESET)
			(void)!send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
		return 0;
	}
	/* The second of the two shuts both, when both queues are full. */
	if (peer->id > object->id)
		return 0;
	r = unix_shut_down(object->unix_socket, fd, err);
	return r < 0 ? r : unix_shut_down(peer->unix_socket, other, err);
}

int unix_finish(struct object_restore *restore, const Pbeam__Object *object, int fd, struct err *err)
{
	const Pbeam__UnixSocket *saved = object->unix_socket;
	/* First: whether credentials are attached is decided when a message is sent. */
	int r = socket_options_restore(saved->options, fd, err);

	if (r < 0)
		return r;
	if (is_pair(object, unix_peer_of(restore, object))) {
		r = finish_connected(restore, object, fd, err);
	} else {
		r = unix_refill_queue(restore, object, -1, err);
		if (r == 0 && saved->connected)
			r = saved->accept_of ? connect_waiting(restore, saved, fd, err)
					     : connect_to_peer(restore, saved, fd, err);
		if (r == 0 && saved->connected)
			r = unix_shut_down(saved, fd, err);
	}
	return r;
}

/* ---- the other end is not in the image ---- */

static uint64_t unix_ino(const Pbeam__Object *object)
{
	return object->unix_socket->ino;
}

/* Removes a socket file left at the listener's path; a socket bound to it belongs to another host. */
static void clear_name(const Pbeam__UnixSocket *saved)
{
	auto_free char *path = saved->bound_file ? object_text(&saved->bound_file->path) : NULL;
	struct stat st;

	if (path && lstat(path, &st) == 0 && S_ISSOCK(st.st_mode) && unlink(path) < 0)
		log_warn("restore: the socket %s stays where it is: %s", path, strerror(errno));
}

static int unix_end_make(struct object_restore *restore, const Pbeam__Object *object, int *fd,
			 struct err *err)
{
	if (object->unix_socket->listening)
		clear_name(object->unix_socket);
	return unix_restore(restore, object, fd, err);
}

static int unix_end_refill(struct object_restore *restore, const Pbeam__Object *object, int fd, int *other,
			   struct err *err)
{
	const Pbeam__UnixSocket *saved = object->unix_socket;
	int r = unix_finish(restore, object, fd, err);

	if (r == 0 && saved->shutdown & 2 && saved->connected)
		shutdown(fd, SHUT_WR);
	*other = object_restore_kept(restore, PBEAM__OBJECT__KIND_UNIX_SOCKET, saved->ino);
	return r;
}

static int unix_make_closed(const Pbeam__Object *object, int *fd, struct err *err)
{
	int ends[2];

	if (socketpair(AF_UNIX, (int)object->unix_socket->type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
		return err_sys(err, "make a pair of UNIX sockets");
	close(ends[1]);
	shutdown(ends[0], SHUT_RDWR);
	*fd = ends[0];
	return 0;
}

const struct object_end_ops unix_end = {
	.ino = unix_ino, .make = unix_end_make, .refill = unix_end_refill, .make_closed = unix_make_closed};
