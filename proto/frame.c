/*
 * Frames over UNIX stream sockets. The descriptors of a frame are sent with the first byte of its header: a
 * receiver that reads the 16 bytes of the header gets all of them in one call, and the kernel never merges
 * bytes that carry different descriptors into one recvmsg(). The buffer for the body grows as the body
 * arrives, so that a header with a false length wastes no memory.
 */
#include "proto/frame.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "proto/message.h"

#define BODY_STEP ((size_t)1 << 20)

static void frame_put16(uint8_t *p, uint16_t v)
{
	v = htole16(v);
	memcpy(p, &v, sizeof(v));
}

static void frame_put32(uint8_t *p, uint32_t v)
{
	v = htole32(v);
	memcpy(p, &v, sizeof(v));
}

static uint16_t frame_get16(const uint8_t *p)
{
	uint16_t v;

	memcpy(&v, p, sizeof(v));
	return le16toh(v);
}

static uint32_t frame_get32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}

int frame_encode(uint32_t type, const ProtobufCMessage *message, int nfds, uint8_t **out, size_t *len,
		 struct err *err)
{
	size_t body = message ? protobuf_c_message_get_packed_size(message) : 0;
	uint8_t *bytes;

	if (body > FRAME_BODY_MAX)
		return err_set(err, -EMSGSIZE, "message %u of %zu bytes is too large to send", type, body);
	if (nfds < 0 || nfds > FRAME_FDS_MAX)
		return err_set(err, -E2BIG, "message %u with %d descriptors is too large to send", type,
			       nfds);
	bytes = malloc(FRAME_HEAD + body);
	if (!bytes)
		return err_code(err, -ENOMEM, "send message %u", type);
	frame_put32(bytes, FRAME_MAGIC);
	frame_put16(bytes + 4, FRAME_VERSION);
	frame_put16(bytes + 6, (uint16_t)nfds);
	frame_put32(bytes + 8, type);
	frame_put32(bytes + 12, (uint32_t)body);
	if (message)
		protobuf_c_message_pack(message, bytes + FRAME_HEAD);
	*out = bytes;
	*len = FRAME_HEAD + body;
	return 0;
}

ssize_t frame_send_some(int sock, const void *bytes, size_t len, const int *fds, int nfds)
{
	union {
		char room[CMSG_SPACE(sizeof(int) * FRAME_FDS_MAX)];
		struct cmsghdr align;
	} control;
	struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (nfds > FRAME_FDS_MAX)
		return -E2BIG;
	if (nfds > 0) {
		struct cmsghdr *cmsg;

		memset(&control, 0, sizeof(control));
		msg.msg_control = control.room;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)nfds);
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)nfds);
		memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * (size_t)nfds);
	}
	return io_sendmsg(sock, &msg, MSG_NOSIGNAL);
}

int frame_send(int sock, uint32_t type, const ProtobufCMessage *message, const int *fds, int nfds,
	       struct err *err)
{
	auto_free uint8_t *bytes = NULL;
	size_t len, done = 0;
	int r = frame_encode(type, message, nfds, &bytes, &len, err);

	if (r < 0)
		return r;
	while (done < len) {
		ssize_t n = frame_send_some(sock, bytes + done, len - done, fds, done ? 0 : nfds);

		if (n < 0)
			return err_code(err, n == -EAGAIN ? -ETIMEDOUT : (int)n, "send message %u", type);
		done += (size_t)n;
	}
	return 0;
}

void frame_free(struct frame *frame)
{
	for (int i = 0; i < frame->nfds; i++)
		if (frame->fds[i] >= 0)
			close(frame->fds[i]);
	free(frame->body);
	memset(frame, 0, sizeof(*frame));
}

void frame_reader_reset(struct frame_reader *reader)
{
	frame_free(&reader->frame);
	memset(reader, 0, sizeof(*reader));
}

/* Puts received descriptors into the frame; closes those beyond FRAME_FDS_MAX. */
static int take_descriptors(struct msghdr *msg, struct frame *frame)
{
	int r = msg->msg_flags & MSG_CTRUNC ? -EPROTO : 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t n;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (frame->nfds < FRAME_FDS_MAX) {
				frame->fds[frame->nfds++] = fd;
			} else {
				close(fd);
				r = -EPROTO;
			}
		}
	}
	return r;
}

static ssize_t frame_receive_some(struct frame_reader *reader, int sock, void *buf, size_t len)
{
	union {
		char room[CMSG_SPACE(sizeof(int) * FRAME_FDS_MAX)];
		struct cmsghdr align;
	} control;
	struct iovec iov = {.iov_base = buf, .iov_len = len};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.room,
			     .msg_controllen = sizeof(control.room)};
	ssize_t n;
	int r;

	if (reader->read)
		return reader->read(reader->read_arg, buf, len);
	do
		n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == EWOULDBLOCK ? -EAGAIN : -errno;
	r = take_descriptors(&msg, &reader->frame);
	return r < 0 ? r : n;
}

static int parse_head(struct frame_reader *reader, struct err *err)
{
	const uint8_t *head = reader->head;
	uint32_t len = frame_get32(head + 12);

	if (frame_get32(head) != FRAME_MAGIC)
		return err_set(err, -EPROTO, "the other side does not speak this protocol (magic %#x)",
			       frame_get32(head));
	if (frame_get16(head + 4) != FRAME_VERSION)
		return err_set(err, -EPROTO, "the other side speaks version %u of the protocol, not %u",
			       frame_get16(head + 4), FRAME_VERSION);
	if (frame_get16(head + 6) != reader->frame.nfds)
		return err_set(err, -EPROTO, "message with %d descriptors instead of %u", reader->frame.nfds,
			       frame_get16(head + 6));
	if (len > FRAME_BODY_MAX)
		return err_set(err, -EPROTO, "message of %u bytes is over the limit of %u", len,
			       FRAME_BODY_MAX);
	reader->frame.type = frame_get32(head + 8);
	reader->frame.len = len;
	return 0;
}

/* Makes room for the next piece of the body: doubles it, by one step at most. */
static int frame_make_room(struct frame_reader *reader)
{
	size_t room = reader->body_room ? reader->body_room * 2 : 4096;
	uint8_t *body;

	if (reader->body_have < reader->body_room)
		return 0;
	if (room > reader->body_room + BODY_STEP)
		room = reader->body_room + BODY_STEP;
	if (room > reader->frame.len)
		room = reader->frame.len;
	body = realloc(reader->frame.body, room);
	if (!body)
		return -ENOMEM;
	reader->frame.body = body;
	reader->body_room = room;
	return 0;
}

/* Makes one recvmsg() for the header or the body. Returns its count, or -errno with `err` set (not for
 * -EAGAIN). */
static ssize_t receive_piece(struct frame_reader *reader, int sock, struct err *err)
{
	bool head = reader->head_have < FRAME_HEAD;
	ssize_t n;

	if (head) {
		n = frame_receive_some(reader, sock, reader->head + reader->head_have,
				       FRAME_HEAD - reader->head_have);
	} else {
		n = frame_make_room(reader);
		if (n < 0)
			return err_code(err, (int)n, "receive a message of %zu bytes", reader->frame.len);
		n = frame_receive_some(reader, sock, reader->frame.body + reader->body_have,
				       reader->body_room - reader->body_have);
	}
	if (n == -EPROTO)
		return err_set(err, -EPROTO, "message with more than %d descriptors", FRAME_FDS_MAX);
	if (n < 0)
		return n == -EAGAIN ? n : err_code(err, (int)n, "receive a message");
	if (n == 0 && reader->head_have)
		return err_set(err, -EPIPE, "the connection ended in the middle of a message");
	*(head ? &reader->head_have : &reader->body_have) += (size_t)n;
	return n;
}

int frame_reader_step(struct frame_reader *reader, int sock, struct frame *out, struct err *err)
{
	int nfds = reader->frame.nfds;

	for (;;) {
		ssize_t n = receive_piece(reader, sock, err);
		int r;

		if (n <= 0)
			return (int)n;
		if (reader->head_have < FRAME_HEAD)
			continue;
		if (!reader->body_room && !reader->body_have) {
			r = parse_head(reader, err);
			if (r < 0)
				return r;
			nfds = reader->frame.nfds;
		}
		if (reader->frame.nfds != nfds)
			return err_set(err, -EPROTO, "descriptors in the middle of a message");
		if (reader->body_have == reader->frame.len)
			break;
	}
	*out = reader->frame;
	memset(reader, 0, sizeof(*reader));
	return 1;
}

static int frame_receive_whole(struct frame_reader *reader, int sock, struct frame *out, struct err *err)
{
	int r;

	memset(out, 0, sizeof(*out));
	r = frame_reader_step(reader, sock, out, err);
	if (r == -EAGAIN)
		r = err_set(err, -ETIMEDOUT, "no answer in time");
	if (r <= 0)
		frame_reader_reset(reader);
	return r;
}

int frame_recv(int sock, struct frame *out, struct err *err)
{
	struct frame_reader reader = {0};

	return frame_receive_whole(&reader, sock, out, err);
}

int frame_recv_from(frame_read_fn read, void *arg, struct frame *out, struct err *err)
{
	struct frame_reader reader = {.read = read, .read_arg = arg};

	return frame_receive_whole(&reader, -1, out, err);
}

ProtobufCMessage *frame_unpack(const struct frame *frame, const ProtobufCMessageDescriptor *descriptor,
			       struct err *err)
{
	ProtobufCMessage *message = message_unpack(descriptor, frame->len, frame->body);

	if (!message)
		err_set(err, -EPROTO, "message %u is not a %s", frame->type, descriptor->short_name);
	return message;
}

/* Makes the address of `path`. If the path is too long, *dir is a descriptor of its directory, which the
 * caller closes. */
static int fill_address(struct sockaddr_un *address, const char *path, int *dir, struct err *err)
{
	char parent[PATH_MAX];
	const char *name = strrchr(path, '/');

	*dir = -1;
	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	if (strlen(path) < sizeof(address->sun_path)) {
		memcpy(address->sun_path, path, strlen(path));
		return 0;
	}
	if (!name || (size_t)(name - path) >= sizeof(parent))
		return err_code(err, -ENAMETOOLONG, "socket %s", path);
	memcpy(parent, path, (size_t)(name - path));
	parent[name - path] = 0;
	*dir = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (*dir < 0)
		return err_sys(err, "open directory %s", parent);
	if (snprintf(address->sun_path, sizeof(address->sun_path), "/proc/self/fd/%d%s", *dir, name) >=
	    (int)sizeof(address->sun_path))
		return err_code(err, -ENAMETOOLONG, "socket %s", path);
	return 0;
}

static int check_peer(int sock, struct err *err)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
		return err_sys(err, "look up the other end");
	if (peer.uid != geteuid())
		return err_set(err, -EPERM, "process %d at the other end belongs to user %u, not %u",
			       (int)peer.pid, (unsigned)peer.uid, (unsigned)geteuid());
	return 0;
}

int frame_connect(const char *path, struct err *err)
{
	auto_close int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	auto_close int dir = -1;
	struct sockaddr_un address;
	int r;

	if (sock < 0)
		return err_sys(err, "make a socket");
	r = fill_address(&address, path, &dir, err);
	if (r < 0)
		return r;
	do
		r = connect(sock, (struct sockaddr *)&address, sizeof(address));
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return err_sys(err, "connect to %s", path);
	r = check_peer(sock, err);
	return r < 0 ? r : steal_fd(&sock);
}

enum { KNOCK_MS = 1000, KNOCK_STEP_MS = 5 };

static int connect_once(const char *role, pid_t pid, struct err *err)
{
	char dir[PATH_MAX], path[PATH_MAX + 16];
	int r = dirs_runtime(dir, role, err);

	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "%s/%d", dir, pid);
	return frame_connect(path, err);
}

/* Asks a scip or a keeper to look after its socket. False if there is no such process. */
static bool knock_at(const char *role, pid_t pid)
{
	const char *name = strcmp(role, "job") == 0 ? "scip-keeper\n" : "scip\n";
	auto_free char *comm = NULL;
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	return io_slurp(AT_FDCWD, path, 64, &comm, NULL) == 0 && strcmp(comm, name) == 0 &&
	       kill(pid, SIGIO) == 0;
}

int frame_connect_to(const char *role, pid_t pid, struct err *err)
{
	const struct timespec step = {0, KNOCK_STEP_MS * 1000000};
	int r = connect_once(role, pid, err);

	if (r != -ENOENT || !knock_at(role, pid))
		return r;
	for (int waited = 0; r == -ENOENT && waited < KNOCK_MS; waited += KNOCK_STEP_MS) {
		nanosleep(&step, NULL);
		err_clear(err);
		r = connect_once(role, pid, err);
	}
	return r;
}

/*
 * The socket is bound under another name and renamed once it listens, so that no process finds a socket that
 * is not served yet. The rename also replaces the socket that a killed process left.
 */
int frame_listen(const char *path, struct err *err)
{
	auto_close int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	auto_close int dir = -1;
	char beside[PATH_MAX];
	struct sockaddr_un address;
	int r;

	if (sock < 0)
		return err_sys(err, "make a socket");
	r = frame_connect(path, NULL);
	if (r >= 0) {
		close(r);
		return err_code(err, -EADDRINUSE, "listen on %s", path);
	}
	if (snprintf(beside, sizeof(beside), "%s.%d", path, (int)getpid()) >= (int)sizeof(beside))
		return err_code(err, -ENAMETOOLONG, "socket %s", path);
	r = fill_address(&address, beside, &dir, err);
	if (r < 0)
		return r;
	unlink(beside);
	if (bind(sock, (struct sockaddr *)&address, sizeof(address)) < 0)
		return err_sys(err, "make the socket %s", path);
	if (listen(sock, 128) < 0 || rename(beside, path) < 0) {
		r = err_sys(err, "listen on %s", path);
		unlink(beside);
		return r;
	}
	return steal_fd(&sock);
}

int frame_accept(int listener, struct err *err)
{
	auto_close int sock = -1;
	int r;

	do
		sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	while (sock < 0 && (errno == EINTR || errno == ECONNABORTED));
	if (sock < 0)
		return errno == EAGAIN ? -EAGAIN : err_sys(err, "accept a connection");
	r = check_peer(sock, err);
	return r < 0 ? r : steal_fd(&sock);
}
