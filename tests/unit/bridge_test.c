/*
 * Bridges on one host. The peer that stays has one end of the old pair, the anchor the other; the program and
 * the float have the ends of the new pair. Data written at one side arrives at the other.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/frame.h"
#include "proto/message.h"
#include "scip/bridge/bridge.h"
#include "tests/unit/unit.h"

enum { BULK = 3 << 20, WAIT_MS = 10000 };

static struct err err;

struct tie {
	int peer;    /* the end that stays */
	int program; /* the new end of the program that has moved */
};

static int open_world(void **state)
{
	static char dir[] = "/tmp/bridge-test-XXXXXX";

	if (!mkdtemp(dir))
		return -1;
	setenv("XDG_RUNTIME_DIR", dir, 1);
	signal(SIGPIPE, SIG_IGN);
	return 0;
}

static int count_files(void)
{
	char command[256];
	FILE *f;
	int n = -1;

	snprintf(command, sizeof(command), "ls %s/pbeam/bridge 2>/dev/null | wc -l",
		 getenv("XDG_RUNTIME_DIR"));
	f = popen(command, "r");
	if (f && fscanf(f, "%d", &n) != 1)
		n = -1;
	if (f)
		pclose(f);
	return n;
}

/* Every bridge ends with its last stream and leaves no files. */
static void all_gone(void)
{
	for (int i = 0; i < 2000 && count_files() != 0; i++)
		usleep(10000);
	assert_int_equal(count_files(), 0);
}

static int close_world(void **state)
{
	char command[256];

	snprintf(command, sizeof(command), "rm -r %s", getenv("XDG_RUNTIME_DIR"));
	return system(command);
}

static uint64_t ino_of(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_ino;
}

static void start_float(const Pbeam__BridgeStream *stream, int fd, uint64_t ino)
{
	struct bridge *bridge = bridge_new(NULL);

	assert_non_null(bridge);
	assert_int_equal(bridge_add_float(bridge, stream, fd, ino, &err), 0);
	assert_int_equal(bridge_start(bridge, &err), 0);
	bridge_free(bridge);
}

/* Ties `old` (the program's old end) to `new` (the other end of its new one, whose inode is `ino`). */
static void tie(Pbeam__BridgeStream *stream, int old, int new, uint64_t ino, uint64_t skip)
{
	struct bridge *anchor = bridge_new(NULL);
	bool reads = stream->reads;

	assert_non_null(anchor);
	stream->host = (char *)"here";
	stream->text = (char *)"test";
	assert_int_equal(bridge_add_anchor(anchor, stream, old, skip, &stream->id, &err), 0);
	assert_int_equal(bridge_start(anchor, &err), 0);
	stream->cookie = (ProtobufCBinaryData){BRIDGE_COOKIE, (uint8_t *)(uintptr_t)bridge_cookie(anchor)};
	/* The float writes what the anchor reads. */
	stream->reads = stream->writes;
	stream->writes = reads;
	start_float(stream, new, ino);
	bridge_free(anchor);
}

static struct tie tie_sockets(int type)
{
	Pbeam__BridgeStream stream = PBEAM__BRIDGE_STREAM__INIT;
	int old[2], new[2];

	assert_int_equal(socketpair(AF_UNIX, type, 0, old), 0);
	assert_int_equal(socketpair(AF_UNIX, type, 0, new), 0);
	stream.kind = type == SOCK_STREAM ? PBEAM__BRIDGE_STREAM__KIND__STREAM
					  : PBEAM__BRIDGE_STREAM__KIND__MESSAGES;
	stream.family = AF_UNIX;
	stream.reads = stream.writes = true;
	tie(&stream, old[1], new[1], ino_of(new[0]), 0);
	return (struct tie){old[0], new[0]};
}

static void say(int fd, const char *text)
{
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static void hear(int fd, const char *text)
{
	char buf[256] = "";
	size_t have = 0;
	struct pollfd ready = {.fd = fd, .events = POLLIN};

	while (have < strlen(text)) {
		ssize_t n;

		assert_int_equal(poll(&ready, 1, WAIT_MS), 1);
		n = read(fd, buf + have, strlen(text) - have);
		assert_true(n > 0);
		have += (size_t)n;
	}
	assert_string_equal(buf, text);
}

static void hear_end(int fd)
{
	struct pollfd ready = {.fd = fd, .events = POLLIN};
	char byte;

	assert_int_equal(poll(&ready, 1, WAIT_MS), 1);
	assert_int_equal(read(fd, &byte, 1), 0);
}

/* Waits until writing fails. */
static void cannot_say(int fd)
{
	for (int i = 0; i < 1000; i++) {
		if (send(fd, "x", 1, MSG_NOSIGNAL) < 0 && errno != EAGAIN)
			return;
		if (errno == ENOTSOCK && write(fd, "x", 1) < 0 && errno != EAGAIN)
			return;
		usleep(5000);
	}
	fail_msg("the writer was not told");
}

static void close_tie(struct tie tied)
{
	close(tied.program);
	close(tied.peer);
	all_gone();
}

/* The peer has the master of the old terminal, the program the new one. */
static struct tie tie_terminals(void)
{
	Pbeam__BridgeStream stream = PBEAM__BRIDGE_STREAM__INIT;
	int old[2], new[2];

	assert_int_equal(openpty(&old[0], &old[1], NULL, NULL, NULL), 0);
	assert_int_equal(openpty(&new[0], &new[1], NULL, NULL, NULL), 0);
	stream.kind = PBEAM__BRIDGE_STREAM__KIND__TERMINAL;
	stream.reads = stream.writes = true;
	tie(&stream, old[1], new[0], bridge_terminal_ino(1), 0);
	return (struct tie){old[0], new[1]};
}

/* Waits until the settings of this side have these flags. */
static void settings_become(int fd, tcflag_t mask, tcflag_t flags)
{
	struct termios settings = {0};

	for (int i = 0; i < WAIT_MS / 5; i++) {
		assert_int_equal(tcgetattr(fd, &settings), 0);
		if ((settings.c_lflag & mask) == flags)
			return;
		usleep(5000);
	}
	assert_int_equal(settings.c_lflag & mask, flags);
}

static void test_terminal(void **state)
{
	struct tie tied = tie_terminals();
	struct winsize size = {.ws_row = 33, .ws_col = 44}, seen = {0};
	struct pollfd gone = {.fd = tied.program};
	struct termios settings;

	say(tied.program, "hello\n");
	hear(tied.peer, "hello\r\n");
	say(tied.peer, "typed\r");
	hear(tied.peer, "typed\r\n");
	hear(tied.program, "typed\n");
	assert_int_equal(tcgetattr(tied.program, &settings), 0);
	settings.c_lflag &= ~(tcflag_t)ECHO;
	assert_int_equal(tcsetattr(tied.program, TCSANOW, &settings), 0);
	say(tied.program, "Password:");
	hear(tied.peer, "Password:");
	settings_become(tied.peer, ECHO, 0);
	say(tied.peer, "secret\n");
	hear(tied.program, "secret\n");
	assert_int_equal(tcgetattr(tied.peer, &settings), 0);
	settings.c_lflag |= ECHO;
	assert_int_equal(tcsetattr(tied.peer, TCSANOW, &settings), 0);
	settings_become(tied.program, ECHO | ICANON, ECHO | ICANON);
	assert_int_equal(ioctl(tied.peer, TIOCSWINSZ, &size), 0);
	for (int i = 0; i < WAIT_MS / 5 && seen.ws_row != 33; i++) {
		usleep(5000);
		assert_int_equal(ioctl(tied.program, TIOCGWINSZ, &seen), 0);
	}
	assert_int_equal(seen.ws_col, 44);
	close(tied.peer);
	assert_int_equal(poll(&gone, 1, WAIT_MS), 1);
	assert_true(gone.revents & POLLHUP);
	close(tied.program);
	all_gone();
}

/* The last output arrives, then the end of the terminal. */
static void test_terminal_closed(void **state)
{
	struct tie tied = tie_terminals();
	struct pollfd ready = {.fd = tied.peer, .events = POLLIN};
	char byte;

	say(tied.program, "bye\n");
	close(tied.program);
	hear(tied.peer, "bye\r\n");
	assert_int_equal(poll(&ready, 1, WAIT_MS), 1);
	assert_int_equal(read(tied.peer, &byte, 1), -1);
	assert_int_equal(errno, EIO);
	close(tied.peer);
	all_gone();
}

/* Typed bytes that are dumped with the program stay with it, and the bridge ends as usual. */
static void test_terminal_typed_ahead(void **state)
{
	Pbeam__BridgeStream stream = PBEAM__BRIDGE_STREAM__INIT;
	struct bridge *anchor = bridge_new(NULL);
	struct pty_bytes typed = {strdup("ahead"), 5};
	struct pollfd gone = {0};
	int old[2], new[2];

	assert_int_equal(openpty(&old[0], &old[1], NULL, NULL, NULL), 0);
	assert_int_equal(openpty(&new[0], &new[1], NULL, NULL, NULL), 0);
	say(old[0], "ahead");
	hear(old[0], "ahead");
	stream.kind = PBEAM__BRIDGE_STREAM__KIND__TERMINAL;
	stream.reads = stream.writes = true;
	stream.host = (char *)"here";
	stream.text = (char *)"test";
	assert_int_equal(bridge_add_anchor(anchor, &stream, old[1], 0, &stream.id, &err), 0);
	bridge_anchor_typed(anchor, stream.id, &typed);
	assert_null(typed.data);
	assert_int_equal(bridge_start(anchor, &err), 0);
	stream.cookie = (ProtobufCBinaryData){BRIDGE_COOKIE, (uint8_t *)(uintptr_t)bridge_cookie(anchor)};
	start_float(&stream, new[0], bridge_terminal_ino(1));
	bridge_free(anchor);
	say(old[0], "!\r");
	hear(new[1], "!\n");
	/* The anchor's side of the stream is reset before it is freed. */
	gone.fd = new[1];
	close(old[0]);
	assert_int_equal(poll(&gone, 1, WAIT_MS), 1);
	assert_true(gone.revents & POLLHUP);
	close(new[1]);
	all_gone();
}

static void test_stream(void **state)
{
	struct tie tied = tie_sockets(SOCK_STREAM);

	say(tied.program, "hello");
	hear(tied.peer, "hello");
	say(tied.peer, "and back");
	hear(tied.program, "and back");
	close_tie(tied);
}

/* Sends much more than any queue holds, in both directions at once. */
static void bulk(int one, int other)
{
	uint8_t *buf = malloc(65536);
	size_t sent[2] = {0}, got[2] = {0};
	int fds[2] = {one, other};

	assert_non_null(buf);
	while (got[0] < BULK || got[1] < BULK) {
		struct pollfd ready[2] = {{.fd = one, .events = POLLIN | POLLOUT},
					  {.fd = other, .events = POLLIN | POLLOUT}};

		assert_true(poll(ready, 2, WAIT_MS) > 0);
		for (int i = 0; i < 2; i++) {
			ssize_t n;

			for (int k = 0; k < 4096; k++)
				buf[k] = (uint8_t)((sent[i] + (size_t)k) % 251);
			if (ready[i].revents & POLLOUT && sent[i] < BULK) {
				n = send(fds[i], buf, 4096, MSG_DONTWAIT);
				sent[i] += n > 0 ? (size_t)n : 0;
			}
			if (ready[i].revents & POLLIN) {
				n = recv(fds[i], buf, 65536, MSG_DONTWAIT);
				for (ssize_t k = 0; k < n; k++)
					assert_int_equal(buf[k], (got[i] + (size_t)k) % 251);
				got[i] += n > 0 ? (size_t)n : 0;
			}
		}
	}
	free(buf);
}

static void test_bulk(void **state)
{
	struct tie tied = tie_sockets(SOCK_STREAM);

	bulk(tied.program, tied.peer);
	close_tie(tied);
}

static void test_half_close(void **state)
{
	struct tie tied = tie_sockets(SOCK_STREAM);

	say(tied.program, "last words");
	shutdown(tied.program, SHUT_WR);
	hear(tied.peer, "last words");
	hear_end(tied.peer);
	say(tied.peer, "still here");
	hear(tied.program, "still here");
	shutdown(tied.peer, SHUT_WR);
	hear_end(tied.program);
	all_gone();
	close(tied.program);
	close(tied.peer);
}

static void test_peer_closes(void **state)
{
	struct tie tied = tie_sockets(SOCK_STREAM);

	say(tied.peer, "bye");
	close(tied.peer);
	hear(tied.program, "bye");
	hear_end(tied.program);
	cannot_say(tied.program);
	close(tied.program);
	all_gone();
}

static void test_messages(void **state)
{
	char buf[200000];
	struct tie tied = tie_sockets(SOCK_SEQPACKET);

	memset(buf, 'x', sizeof(buf));
	say(tied.program, "one");
	say(tied.program, "three");
	assert_int_equal(send(tied.program, buf, 100000, 0), 100000);
	usleep(100000);
	assert_int_equal(recv(tied.peer, buf, sizeof(buf), 0), 3);
	assert_int_equal(recv(tied.peer, buf, sizeof(buf), 0), 5);
	assert_int_equal(recv(tied.peer, buf, sizeof(buf), 0), 100000);
	say(tied.peer, "back");
	hear(tied.program, "back");
	close(tied.peer);
	hear_end(tied.program);
	close(tied.program);
	all_gone();
}

/* The program has the read end (`reader`) or the write end; the peer the other. */
static struct tie tie_pipes(bool reader)
{
	Pbeam__BridgeStream stream = PBEAM__BRIDGE_STREAM__INIT;
	int old[2], new[2];

	assert_int_equal(pipe(old), 0);
	assert_int_equal(pipe(new), 0);
	stream.reads = reader;
	stream.writes = !reader;
	tie(&stream, old[!reader], new[reader], ino_of(new[!reader]), 0);
	return (struct tie){old[reader], new[!reader]};
}

static void test_pipe(void **state)
{
	struct tie tied = tie_pipes(true);

	say(tied.peer, "through the pipe");
	hear(tied.program, "through the pipe");
	close(tied.peer);
	hear_end(tied.program);
	close(tied.program);
	all_gone();
	tied = tie_pipes(false);
	say(tied.program, "and out of it");
	hear(tied.peer, "and out of it");
	close(tied.peer);
	cannot_say(tied.program);
	close(tied.program);
	all_gone();
	tied = tie_pipes(true);
	close(tied.program);
	cannot_say(tied.peer);
	close(tied.peer);
	all_gone();
}

/* A loopback connection. */
static void connect_pair(int fds[2])
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(bind(listener, (struct sockaddr *)&at, len), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &len), 0);
	fds[0] = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(connect(fds[0], (struct sockaddr *)&at, len), 0);
	fds[1] = accept(listener, NULL, NULL);
	assert_true(fds[1] >= 0);
	close(listener);
}

static struct tie tie_tcp(void)
{
	Pbeam__BridgeStream stream = PBEAM__BRIDGE_STREAM__INIT;
	int old[2], new[2];

	connect_pair(old);
	connect_pair(new);
	stream.reads = stream.writes = true;
	stream.family = AF_INET;
	tie(&stream, old[1], new[1], ino_of(new[0]), 0);
	return (struct tie){old[0], new[0]};
}

static void test_tcp(void **state)
{
	const struct linger now = {.l_onoff = 1};
	struct tie tied = tie_tcp();
	struct pollfd ready;
	char byte;

	bulk(tied.program, tied.peer);
	close(tied.program); /* its state alone does not show whether this is a close or a shutdown */
	hear_end(tied.peer);
	close(tied.peer);
	all_gone();
	tied = tie_tcp();
	setsockopt(tied.peer, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	close(tied.peer);
	ready = (struct pollfd){.fd = tied.program, .events = POLLIN};
	assert_int_equal(poll(&ready, 1, WAIT_MS), 1);
	assert_int_equal(read(tied.program, &byte, 1), -1);
	assert_int_equal(errno, ECONNRESET);
	close(tied.program);
	all_gone();
}

/* Bytes that are already in the program's queue are not delivered twice. */
static void test_skip(void **state)
{
	Pbeam__BridgeStream stream = PBEAM__BRIDGE_STREAM__INIT;
	int old[2], new[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, old), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, new), 0);
	stream.family = AF_UNIX;
	stream.reads = stream.writes = true;
	say(old[0], "already there, and new");
	tie(&stream, old[1], new[1], ino_of(new[0]), 14);
	hear(new[0], " and new");
	close_tie((struct tie){old[0], new[0]});
}

/* Moves the program on with its queues full, as the coordinator does. Returns its newest end. */
static int move_on(int program, bool aborted)
{
	struct bridge_hold *hold;
	Pbeam__BridgeStream *stream;
	int fd, new[2], queued = 0;
	ssize_t n = 0, got;
	char *queue;

	assert_int_equal(bridge_find_all(&hold, &err), 0);
	assert_non_null(hold);
	assert_non_null(bridge_find(hold, ino_of(program)));
	assert_int_equal(bridge_stop(hold, ino_of(program), &fd, &err), 0);
	assert_true(fd >= 0);
	close(fd);
	err_clear(&err);
	if (bridge_take(hold, ino_of(program), &stream, &err) < 0)
		fail_msg("%s", err.text);
	if (aborted) {
		message_free(stream);
		bridge_release(hold, false);
		return program;
	}
	/* Its receive queue moves with it. */
	assert_int_equal(ioctl(program, SIOCINQ, &queued), 0);
	queue = malloc((size_t)queued + 1);
	assert_non_null(queue);
	while (n < queued && (got = recv(program, queue + n, (size_t)(queued - n), MSG_DONTWAIT)) > 0)
		n += got;
	assert_int_equal(n, queued);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, new), 0);
	if (n > 0) {
		int most = 4 * queued;

		setsockopt(new[1], SOL_SOCKET, SO_SNDBUF, &most, sizeof(most));
		assert_int_equal(send(new[1], queue, (size_t)n, MSG_DONTWAIT), n);
	}
	close(program);
	start_float(stream, new[1], ino_of(new[0]));
	bridge_release(hold, true);
	message_free(stream);
	free(queue);
	return new[0];
}

static void test_moves_on(void **state)
{
	struct tie tied = tie_sockets(SOCK_STREAM);
	uint8_t buf[8192];
	size_t sent[2] = {0}, got[2] = {0};
	int fds[2] = {tied.program, tied.peer}, moves = 0;

	for (int round = 0; got[0] < BULK || got[1] < BULK; round++) {
		for (int i = 0; i < 2; i++) {
			ssize_t n;

			for (size_t k = 0; k < sizeof(buf); k++)
				buf[k] = (uint8_t)((sent[i] + k) % 251);
			n = sent[i] < BULK ? send(fds[i], buf, sizeof(buf), MSG_DONTWAIT) : 0;
			sent[i] += n > 0 ? (size_t)n : 0;
			/* One side reads more slowly than the other writes: queues fill up. */
			n = round % 3 == i ? 0 : recv(fds[i], buf, sizeof(buf), MSG_DONTWAIT);
			for (ssize_t k = 0; k < n; k++)
				assert_int_equal(buf[k], (got[i] + (size_t)k) % 251);
			got[i] += n > 0 ? (size_t)n : 0;
		}
		if (round % 50 == 10 && moves < 12)
			fds[0] = move_on(fds[0], moves++ % 4 == 1);
		if (sent[0] >= BULK && sent[1] >= BULK)
			usleep(200);
		assert_true(round < 2000000);
	}
	assert_int_equal(moves, 12);
	close(fds[0]);
	close(fds[1]);
	all_gone();
}

static int listen_at(struct sockaddr_un *at, const char *name)
{
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	*at = (struct sockaddr_un){.sun_family = AF_UNIX};
	snprintf(at->sun_path, sizeof(at->sun_path), "%s/%s", getenv("XDG_RUNTIME_DIR"), name);
	unlink(at->sun_path);
	assert_int_equal(bind(fd, (struct sockaddr *)at, sizeof(*at)), 0);
	assert_int_equal(listen(fd, 8), 0);
	return fd;
}

static int call_at(const struct sockaddr_un *at)
{
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	assert_int_equal(connect(fd, (const struct sockaddr *)at, sizeof(*at)), 0);
	return fd;
}

/* The program serves clients of the old address at its new one. */
static void test_listener(void **state)
{
	Pbeam__BridgeStream stream = PBEAM__BRIDGE_STREAM__INIT;
	struct sockaddr_un old_at, new_at;
	int old = listen_at(&old_at, "old"), program = listen_at(&new_at, "new");
	int early = call_at(&old_at), clients[20], served[20];

	say(early, "early");
	stream.kind = PBEAM__BRIDGE_STREAM__KIND__LISTENER;
	stream.family = AF_UNIX;
	stream.reads = true;
	stream.local = (ProtobufCBinaryData){sizeof(new_at), (uint8_t *)&new_at};
	tie(&stream, old, -1, ino_of(program), 0);
	served[0] = accept(program, NULL, NULL);
	hear(served[0], "early");
	say(served[0], "served");
	hear(early, "served");
	close(served[0]);
	hear_end(early);
	close(early);
	for (int i = 0; i < 20; i++) {
		clients[i] = call_at(&old_at);
		say(clients[i], "hi");
	}
	for (int i = 0; i < 20; i++) {
		served[i] = accept(program, NULL, NULL);
		hear(served[i], "hi");
	}
	close(program); /* no process listens any more: the old listener is closed too */
	for (int i = 0; i < 20; i++) {
		say(served[i], "bye");
		close(served[i]);
		hear(clients[i], "bye");
		hear_end(clients[i]);
		close(clients[i]);
	}
	all_gone();
	unlink(old_at.sun_path);
	unlink(new_at.sun_path);
}

/* ---- floats made by hand ---- */

/* Opens a channel to the only bridge, like a float on this host. */
static int open_channel(void)
{
	char path[256], name[128] = "";
	int control, pair[2];
	FILE *f;

	snprintf(path, sizeof(path), "ls %s/pbeam/bridge | grep -v '[.]'", getenv("XDG_RUNTIME_DIR"));
	f = popen(path, "r");
	assert_true(f && fscanf(f, "%100s", name) == 1);
	pclose(f);
	snprintf(path, sizeof(path), "%s/pbeam/bridge/%s", getenv("XDG_RUNTIME_DIR"), name);
	control = frame_connect(path, &err);
	assert_true(control >= 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(frame_send(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_CHANNEL, NULL, &pair[1], 1, &err),
			 0);
	close(pair[1]);
	close(control);
	return pair[0];
}

static void tell_float(int channel, uint32_t type, uint64_t stream, uint64_t received, uint32_t generation)
{
	Pbeam__BridgeAttach attach = PBEAM__BRIDGE_ATTACH__INIT;

	attach.stream = stream;
	attach.received = received;
	attach.generation = generation;
	assert_int_equal(frame_send(channel, type, &attach.base, NULL, 0, &err), 0);
}

static void send_close(int channel, uint64_t stream)
{
	Pbeam__BridgeRecord record = PBEAM__BRIDGE_RECORD__INIT;

	record.stream = stream;
	record.kind = PBEAM__BRIDGE_RECORD__KIND__CLOSE;
	assert_int_equal(
		frame_send(channel, PBEAM__CHANNEL_MESSAGE__BRIDGE_RECORD, &record.base, NULL, 0, &err), 0);
}

/* Returns the next record; ignores other frames. */
static Pbeam__BridgeRecord *next_record(int channel, Pbeam__BridgeRecord__Kind kind)
{
	for (;;) {
		struct pollfd ready = {.fd = channel, .events = POLLIN};
		Pbeam__BridgeRecord *record = NULL;
		struct frame frame;

		assert_int_equal(poll(&ready, 1, WAIT_MS), 1);
		assert_int_equal(frame_recv(channel, &frame, &err), 1);
		if (frame.type == PBEAM__CHANNEL_MESSAGE__BRIDGE_RECORD)
			record = (void *)frame_unpack(&frame, &pbeam__bridge_record__descriptor, &err);
		frame_free(&frame);
		if (!record)
			continue;
		assert_int_equal(record->kind, kind);
		return record;
	}
}

/* A connection is accepted while the channel to a host that the program has just left is still open: the
 * connection and its data go to the program's new host. */
static void test_called_in_between(void **state)
{
	Pbeam__BridgeStream stream = PBEAM__BRIDGE_STREAM__INIT;
	struct bridge *anchor = bridge_new(NULL);
	Pbeam__BridgeRecord *open, *data;
	struct sockaddr_un at;
	int old = listen_at(&at, "old"), client, before, now;
	uint64_t id;

	stream.kind = PBEAM__BRIDGE_STREAM__KIND__LISTENER;
	stream.family = AF_UNIX;
	stream.reads = true;
	stream.host = (char *)"here";
	stream.text = (char *)"test";
	assert_int_equal(bridge_add_anchor(anchor, &stream, old, 0, &id, &err), 0);
	assert_int_equal(bridge_start(anchor, &err), 0);
	bridge_free(anchor);
	before = open_channel();
	tell_float(before, PBEAM__CHANNEL_MESSAGE__BRIDGE_ATTACH, id, 0, 0);
	client = call_at(&at);
	say(client, "hi");
	message_free(next_record(before, PBEAM__BRIDGE_RECORD__KIND__OPEN));
	now = open_channel();
	tell_float(now, PBEAM__CHANNEL_MESSAGE__BRIDGE_ATTACH, id, 0, 1);
	open = next_record(now, PBEAM__BRIDGE_RECORD__KIND__OPEN);
	tell_float(now, PBEAM__CHANNEL_MESSAGE__BRIDGE_ACK, id, 1, 0);
	data = next_record(now, PBEAM__BRIDGE_RECORD__KIND__DATA);
	assert_int_equal(data->stream, open->opened->id);
	assert_int_equal(data->data.len, 2);
	tell_float(now, PBEAM__CHANNEL_MESSAGE__BRIDGE_ACK, data->stream, 1, 0);
	send_close(now, data->stream);
	hear_end(client);
	send_close(now, id);
	message_free(open);
	message_free(data);
	all_gone();
	close(before);
	close(now);
	close(client);
	unlink(at.sun_path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stream),
		cmocka_unit_test(test_terminal),
		cmocka_unit_test(test_terminal_closed),
		cmocka_unit_test(test_terminal_typed_ahead),
		cmocka_unit_test(test_bulk),
		cmocka_unit_test(test_half_close),
		cmocka_unit_test(test_peer_closes),
		cmocka_unit_test(test_messages),
		cmocka_unit_test(test_pipe),
		cmocka_unit_test(test_tcp),
		cmocka_unit_test(test_skip),
		cmocka_unit_test(test_moves_on),
		cmocka_unit_test(test_listener),
		cmocka_unit_test(test_called_in_between),
	};

	return cmocka_run_group_tests(tests, open_world, close_world);
}
