/* Frames arrive with their descriptors; malformed ones are refused and leak nothing. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/daemon.pb-c.h"
#include "proto/frame.h"
#include "tests/unit/unit.h"

struct ends {
	int a, b;
};

static struct ends make_pair(void)
{
	int s[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s), 0);
	return (struct ends){s[0], s[1]};
}

static void send_raw(int sock, const void *bytes, size_t len)
{
	assert_int_equal(write(sock, bytes, len), len);
}

static void head(uint8_t *out, uint32_t magic, uint16_t version, uint16_t nfds, uint32_t type, uint32_t len)
{
	memcpy(out, &magic, 4);
	memcpy(out + 4, &version, 2);
	memcpy(out + 6, &nfds, 2);
	memcpy(out + 8, &type, 4);
	memcpy(out + 12, &len, 4);
}

static void test_round_trip(void **state)
{
	struct ends e = make_pair();
	struct frame f;
	struct err err = ERR_INIT;
	int p[2];
	struct stat st1, st2;
	Pbeam__KillRequest kill = PBEAM__KILL_REQUEST__INIT, *got;
	Pbeam__Target target = PBEAM__TARGET__INIT;

	target.vpid = 4711;
	target.name = (char *)(uintptr_t) "postgres";
	kill.target = &target;
	kill.signal = 15;
	assert_int_equal(pipe(p), 0);
	assert_int_equal(frame_send(e.a, 6, &kill.base, p, 2, &err), 0);
	assert_int_equal(frame_send(e.a, 7, NULL, NULL, 0, &err), 0);
	assert_int_equal(frame_recv(e.b, &f, &err), 1);
	assert_int_equal(f.type, 6);
	assert_int_equal(f.nfds, 2);
	got = (Pbeam__KillRequest *)frame_unpack(&f, &pbeam__kill_request__descriptor, &err);
	assert_non_null(got);
	assert_int_equal(got->target->vpid, 4711);
	assert_string_equal(got->target->name, "postgres");
	protobuf_c_message_free_unpacked(&got->base, NULL);
	fstat(p[0], &st1);
	fstat(f.fds[0], &st2);
	assert_int_equal(st1.st_ino, st2.st_ino);
	assert_true(fcntl(f.fds[0], F_GETFD) & FD_CLOEXEC);
	int fd = f.fds[0];
	frame_free(&f);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	assert_int_equal(frame_recv(e.b, &f, &err), 1);
	assert_int_equal(f.type, 7);
	assert_int_equal(f.len, 0);
	frame_free(&f);
	close(e.a);
	assert_int_equal(frame_recv(e.b, &f, &err), 0);
	close(e.b);
	close(p[0]);
	close(p[1]);
}

static void test_large(void **state)
{
	struct ends e = make_pair();
	Pbeam__StackReply stack = PBEAM__STACK_REPLY__INIT;
	size_t len = 5u << 20;
	struct frame f;
	struct err err = ERR_INIT;
	pid_t child;

	stack.text = malloc(len + 1);
	memset(stack.text, 'x', len);
	stack.text[len] = 0;
	child = fork();
	if (child == 0)
		_exit(frame_send(e.a, 1, &stack.base, NULL, 0, NULL) != 0);
	assert_int_equal(frame_recv(e.b, &f, &err), 1);
	assert_true(f.len > len);
	Pbeam__StackReply *got = (Pbeam__StackReply *)frame_unpack(&f, &pbeam__stack_reply__descriptor, &err);
	assert_non_null(got);
	assert_string_equal(got->text, stack.text);
	protobuf_c_message_free_unpacked(&got->base, NULL);
	frame_free(&f);
	free(stack.text);
	waitpid(child, NULL, 0);
	close(e.a);
	close(e.b);
}

static void expect_refused(const void *bytes, size_t len, int code, const char *text)
{
	struct ends e = make_pair();
	struct frame f;
	struct err err = ERR_INIT;

	send_raw(e.a, bytes, len);
	close(e.a);
	assert_int_equal(frame_recv(e.b, &f, &err), code);
	assert_non_null(strstr(err.text, text));
	close(e.b);
}

static void test_malformed(void **state)
{
	uint8_t b[64] = {0};

	head(b, 0x12345678, 1, 0, 1, 0);
	expect_refused(b, 16, -EPROTO, "magic");
	head(b, FRAME_MAGIC, 9, 0, 1, 0);
	expect_refused(b, 16, -EPROTO, "version 9");
	head(b, FRAME_MAGIC, 1, 0, 1, FRAME_BODY_MAX + 1);
	expect_refused(b, 16, -EPROTO, "limit");
	head(b, FRAME_MAGIC, 1, 0, 1, 100);
	expect_refused(b, 40, -EPIPE, "middle");
	expect_refused(b, 7, -EPIPE, "middle");
	head(b, FRAME_MAGIC, 1, 2, 1, 0);
	expect_refused(b, 16, -EPROTO, "descriptors");
}

static void test_not_a_message(void **state)
{
	struct ends e = make_pair();
	uint8_t b[64];
	struct frame f;
	struct err err = ERR_INIT;

	memset(b, 0xff, sizeof(b));
	head(b, FRAME_MAGIC, 1, 0, 1, 48);
	send_raw(e.a, b, 64);
	assert_int_equal(frame_recv(e.b, &f, &err), 1);
	assert_null(frame_unpack(&f, &pbeam__target__descriptor, &err));
	assert_non_null(strstr(err.text, "Target"));
	frame_free(&f);
	close(e.a);
	close(e.b);
}

static void test_unasked_descriptors(void **state)
{
	struct ends e = make_pair();
	uint8_t b[16];
	struct frame f;
	struct err err = ERR_INIT;
	int fds[20], before, after;

	for (int i = 0; i < 20; i++)
		fds[i] = e.a;
	before = dup(e.a);
	close(before);
	head(b, FRAME_MAGIC, 1, 0, 1, 0);
	assert_int_equal(frame_send_some(e.a, b, 16, fds, 1), 16);
	assert_int_equal(frame_recv(e.b, &f, &err), -EPROTO);
	assert_int_equal(frame_send_some(e.a, b, 16, fds, 20), -E2BIG);
	after = dup(e.a);
	close(after);
	assert_int_equal(before, after);
	close(e.a);
	close(e.b);
}

static void test_piecewise(void **state)
{
	struct ends e = make_pair();
	struct frame_reader reader = {0};
	struct frame f;
	struct err err = ERR_INIT;
	Pbeam__Target target = PBEAM__TARGET__INIT;
	uint8_t *bytes;
	size_t len;

	target.vpid = 7;
	target.name = (char *)(uintptr_t) "job";
	assert_int_equal(frame_encode(4, &target.base, 0, &bytes, &len, &err), 0);
	fcntl(e.b, F_SETFL, O_NONBLOCK);
	for (size_t i = 0; i < len; i++) {
		assert_int_equal(frame_reader_step(&reader, e.b, &f, &err), -EAGAIN);
		send_raw(e.a, bytes + i, 1);
	}
	assert_int_equal(frame_reader_step(&reader, e.b, &f, &err), 1);
	assert_int_equal(f.type, 4);
	frame_free(&f);
	send_raw(e.a, bytes, 20);
	assert_int_equal(frame_reader_step(&reader, e.b, &f, &err), -EAGAIN);
	frame_reader_reset(&reader);
	free(bytes);
	close(e.a);
	close(e.b);
}

static void test_timeout(void **state)
{
	struct ends e = make_pair();
	struct timeval tv = {.tv_usec = 1000};
	struct frame f;
	struct err err = ERR_INIT;

	setsockopt(e.b, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	assert_int_equal(frame_recv(e.b, &f, &err), -ETIMEDOUT);
	close(e.a);
	assert_int_equal(frame_send(e.b, 1, NULL, NULL, 0, &err), -EPIPE);
	close(e.b);
}

static void listen_and_connect(const char *path)
{
	struct err err = ERR_INIT;
	int listener = frame_listen(path, &err), c, s;

	assert_true(listener >= 0);
	assert_int_equal(frame_listen(path, &err), -EADDRINUSE);
	c = frame_connect(path, &err);
	assert_true(c >= 0);
	/* the first is from frame_listen(), which tests whether a process listens there */
	s = frame_accept(listener, &err);
	assert_true(s >= 0);
	close(s);
	s = frame_accept(listener, &err);
	assert_true(s >= 0);
	close(s);
	close(c);
	close(listener);
	assert_int_equal(frame_connect(path, &err), -ECONNREFUSED);
	listener = frame_listen(path, &err);
	assert_true(listener >= 0);
	close(listener);
	unlink(path);
}

static void test_sockets(void **state)
{
	char dir[] = "/tmp/test-frame-XXXXXX", path[400], deep[300];

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/s", dir);
	listen_and_connect(path);
	snprintf(deep, sizeof(deep), "%s/", dir);
	for (size_t n = strlen(deep); n < 200; n++)
		deep[n] = 'd', deep[n + 1] = 0;
	assert_int_equal(mkdir(deep, 0700), 0);
	snprintf(path, sizeof(path), "%s/s", deep);
	listen_and_connect(path);
	rmdir(deep);
	rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_large),
		cmocka_unit_test(test_malformed),
		cmocka_unit_test(test_not_a_message),
		cmocka_unit_test(test_unasked_descriptors),
		cmocka_unit_test(test_piecewise),
		cmocka_unit_test(test_timeout),
		cmocka_unit_test(test_sockets),
	};

	alarm(30);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
