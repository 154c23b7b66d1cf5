/* UNIX sockets: dumped and restored without a tracer. */
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/unit/object_world.h"

static void send_fd(int sock, int fd, const char *text, size_t len)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {(void *)(uintptr_t)text, len};
	struct msghdr message = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	MUST(sendmsg(sock, &message, 0) == (ssize_t)len);
}

static int receive_fd(int sock, char *text, size_t size, ssize_t *len)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {text, size};
	struct msghdr message = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *c;
	int fd = -1;

	*len = recvmsg(sock, &message, MSG_DONTWAIT);
	c = CMSG_FIRSTHDR(&message);
	if (*len > 0 && c && c->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

static void make_pairs(void)
{
	static char big[100000];
	int p[2], pipes[2], size = 20000;

	memset(big, 'b', sizeof(big));
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0 && p[0] == 3);
	MUST(write(3, big, sizeof(big)) == sizeof(big) && write(4, "back", 4) == 4);
	MUST(setsockopt(3, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)) == 0);
	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, p) == 0 && p[0] == 5);
	MUST(write(5, "first", 5) == 5 && write(5, "second!", 7) == 7);
	MUST(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, p) == 0 && p[0] == 7);
	MUST(send(7, "d1", 2, 0) == 2 && send(7, "", 0, 0) == 0 && send(7, "d33", 3, 0) == 3);
	/* The peer has closed, and left data. */
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0 && p[0] == 9);
	MUST(write(10, "will", 4) == 4 && close(10) == 0);
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0 && p[0] == 10);
	MUST(shutdown(10, SHUT_WR) == 0 && write(11, "half", 4) == 4);
	/* Descriptors in a queue: one end of a pipe that is only in the queue, between two texts. */
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0 && p[0] == 12);
	MUST(pipe(pipes) == 0 && pipes[0] == 14 && write(15, "inner", 5) == 5);
	MUST(write(12, "before", 6) == 6);
	send_fd(12, 14, "with", 4);
	MUST(write(12, "after", 5) == 5 && close(14) == 0);
	/* The peer closed with unread data: a reset is pending. */
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0 && p[0] == 14 && p[1] == 16);
	MUST(write(14, "unread", 6) == 6 && close(16) == 0);
}

static void check_pairs(void)
{
	static char big[200000];
	struct pollfd poll_fd = {.fd = 11, .events = POLLIN | POLLRDHUP};
	char text[32];
	ssize_t len;
	int fd, size;
	socklen_t size_len = sizeof(size);

	MUST(recv(4, big, sizeof(big), MSG_WAITALL | MSG_DONTWAIT) == 100000 && big[99999] == 'b');
	MUST(read(3, text, 32) == 4 && memcmp(text, "back", 4) == 0);
	MUST(getsockopt(3, SOL_SOCKET, SO_RCVBUF, &size, &size_len) == 0 && size == 40000);
	MUST(fcntl(3, F_GETFL) == O_RDWR && fcntl(5, F_GETFL) == (O_RDWR | O_NONBLOCK));
	MUST(read(6, text, 32) == 5 && read(6, text, 32) == 7 && memcmp(text, "second!", 7) == 0);
	MUST(read(6, text, 32) < 0 && errno == EAGAIN);
	MUST(recv(8, text, 32, 0) == 2);
	do
		len = recv(8, text, 32, 0);
	while (len == 0);
	MUST(len == 3 && recv(8, text, 32, 0) < 0 && errno == EAGAIN);
	MUST(send(8, "x", 1, 0) == 1 && recv(7, text, 32, 0) == 1);
	MUST(read(9, text, 32) == 4 && read(9, text, 32) == 0);
	signal(SIGPIPE, SIG_IGN);
	MUST(write(9, "x", 1) < 0 && errno == EPIPE);
	MUST(poll(&poll_fd, 1, 0) == 1 && poll_fd.revents & POLLRDHUP);
	MUST(read(11, text, 32) == 0 && write(10, "x", 1) < 0 && errno == EPIPE);
	MUST(read(10, text, 32) == 4 && write(11, "x", 1) == 1);
	fd = receive_fd(13, text, 32, &len);
	if (len == 6) /* the kernel may have put both before the descriptor */
		fd = receive_fd(13, text, 32, &len);
	MUST(fd >= 0 && read(fd, text, 32) == 5 && memcmp(text, "inner", 5) == 0);
	MUST(write(15, "on", 2) == 2 && read(fd, text, 32) == 2);
	receive_fd(13, text, 32, &len);
	MUST(len == 5 && memcmp(text, "after", 5) == 0);
	MUST(read(14, text, 32) < 0 && errno == ECONNRESET);
}

static void test_pairs(void **state)
{
	world_cycle(make_pairs, check_pairs);
}

static void set_name(struct sockaddr_un *name, socklen_t *len, const char *text)
{
	memset(name, 0, sizeof(*name));
	name->sun_family = AF_UNIX;
	strcpy(name->sun_path + (text[0] == '@'), text + (text[0] == '@'));
	*len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(text) + (text[0] != '@'));
}

static int listener(const char *text)
{
	struct sockaddr_un name;
	socklen_t len;
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	set_name(&name, &len, text);
	MUST(bind(fd, (struct sockaddr *)&name, len) == 0 && listen(fd, 7) == 0);
	return fd;
}

static int caller(const char *text)
{
	struct sockaddr_un name;
	socklen_t len;
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	set_name(&name, &len, text);
	MUST(connect(fd, (struct sockaddr *)&name, len) == 0);
	return fd;
}

static void make_named(void)
{
	struct sockaddr_un name;
	socklen_t len;
	char path[100], dir[60];

	MUST(getcwd(dir, sizeof(dir)) != NULL);
	snprintf(path, sizeof(path), "%s/sock", dir);
	MUST(listener(path) == 3 && chmod(path, 0622) == 0 && caller(path) == 4 &&
	     accept(3, NULL, NULL) == 5);
	MUST(write(4, "to", 2) == 2 && write(5, "fro", 3) == 3);
	MUST(listener("@pbeam-test-abstract") == 6 && caller("@pbeam-test-abstract") == 7 &&
	     accept(6, NULL, NULL) == 8);
	MUST(caller("@pbeam-test-abstract") == 9); /* waits */
	MUST(listener("relative") == 10 && caller("relative") == 11 && accept(10, NULL, NULL) == 12);
	MUST(close(10) == 0 && unlink("relative") == 0 && open("/dev/null", O_RDWR) == 10);
	MUST((13 == socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0)) && 14 == socket(AF_UNIX, SOCK_DGRAM, 0));
	set_name(&name, &len, "dgram");
	MUST(bind(13, (struct sockaddr *)&name, len) == 0 && connect(14, (struct sockaddr *)&name, len) == 0);
	MUST(send(14, "hello", 5, 0) == 5);
}

static void check_named(void)
{
	struct sockaddr_un name;
	socklen_t len = sizeof(name);
	struct stat st;
	char text[32];

	MUST(stat("sock", &st) == 0 && (st.st_mode & 0777) == 0622);
	MUST(read(5, text, 32) == 2 && read(4, text, 32) == 3);
	MUST(getpeername(4, (struct sockaddr *)&name, &len) == 0 && strstr(name.sun_path, "/sock"));
	MUST(caller("sock") == 15 && accept(3, NULL, NULL) == 16);
	len = sizeof(name);
	MUST(getsockname(8, (struct sockaddr *)&name, &len) == 0 &&
	     strncmp(name.sun_path + 1, "pbeam-test-abstract", 19) == 0);
	MUST(write(7, "x", 1) == 1 && read(8, text, 32) == 1);
	MUST(accept(6, NULL, NULL) == 17 && write(9, "y", 1) == 1 && read(17, text, 32) == 1);
	len = sizeof(name);
	MUST(getpeername(11, (struct sockaddr *)&name, &len) == 0 && strcmp(name.sun_path, "relative") == 0);
	MUST(write(12, "z", 1) == 1 && read(11, text, 32) == 1 && access("relative", F_OK) < 0);
	MUST(recv(13, text, 32, 0) == 5 && send(14, "more", 4, 0) == 4 && recv(13, text, 32, 0) == 4);
}

static void test_named(void **state)
{
	world_cycle(make_named, check_named);
}

static void make_outside(void)
{
	int p[2];

	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0);
	if (fork() == 0) {
		close(p[1]);
		alarm(3);
		pause();
	}
	close(p[0]);
}

static void test_outside(void **state)
{
	world_refused(make_outside, "a UNIX socket connected to a process outside the tree");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pairs),
		cmocka_unit_test(test_named),
		cmocka_unit_test(test_outside),
	};

	alarm(60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
