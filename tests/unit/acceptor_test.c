/* The acceptor passes connections on by their cookies, and silent strangers do not delay it. Connecting to
 * it ends by its deadline. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "scip/ends/acceptor.h"
#include "tests/unit/unit.h"

enum { STRANGERS = 300, QUICK_MS = 500 };

static const uint8_t cookie[ACCEPTOR_COOKIE_SIZE] = "a valid cookie.";

static struct inet_address loopback(uint32_t port)
{
	struct inet_address out = {.v4 = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}};

	out.v4.sin_port = htons((uint16_t)port);
	out.len = sizeof(out.v4);
	return out;
}

static int connect_to(uint32_t port)
{
	struct inet_address to = loopback(port);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, &to.any, to.len), 0);
	return fd;
}

static struct acceptor *open_at_loopback(void)
{
	struct inet_address address = loopback(0);
	struct acceptor *acceptor = NULL;
	struct err err = ERR_INIT;

	assert_int_equal(acceptor_open(&acceptor, &address, &err), 0);
	assert_true(acceptor_port4(acceptor) > 0);
	return acceptor;
}

static bool claim(void *arg, const uint8_t seen[ACCEPTOR_COOKIE_SIZE], int sock)
{
	int *claimed = arg;

	if (memcmp(seen, cookie, sizeof(cookie)) != 0)
		return false;
	*claimed = sock;
	return true;
}

static uint64_t now_ms(void)
{
	return io_now_ns(CLOCK_MONOTONIC) / 1000000;
}

static void test_bound_to_its_address(void **state)
{
	struct acceptor *acceptor = open_at_loopback();
	struct inet_address elsewhere = loopback(acceptor_port4(acceptor));
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	elsewhere.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
	assert_int_equal(connect(fd, &elsewhere.any, elsewhere.len), -1);
	assert_int_equal(errno, ECONNREFUSED);
	close(fd);
	acceptor_close(acceptor);
}

static void test_strangers_do_not_delay(void **state)
{
	struct acceptor *acceptor = open_at_loopback();
	struct err err = ERR_INIT;
	int strangers[STRANGERS], ours, claimed = -1;
	uint64_t began;

	for (int i = 0; i < STRANGERS; i++) {
		strangers[i] = connect_to(acceptor_port4(acceptor));
		if (i % 3 == 0)
			assert_int_equal(send(strangers[i], "half", 4, 0), 4);
		if (i % 3 == 1)
			assert_int_equal(send(strangers[i], "a wrong cookie!!", 16, 0), 16);
	}
	ours = connect_to(acceptor_port4(acceptor));
	assert_int_equal(send(ours, cookie, sizeof(cookie), 0), sizeof(cookie));
	began = now_ms();
	while (claimed < 0 && now_ms() - began < QUICK_MS)
		assert_true(acceptor_wait(acceptor, 100, -1, claim, &claimed, &err) >= 0);
	assert_true(claimed >= 0);
	assert_true(now_ms() - began < QUICK_MS);
	close(claimed);
	close(ours);
	for (int i = 0; i < STRANGERS; i++)
		close(strangers[i]);
	acceptor_close(acceptor);
}

/* The cookie arrives in two pieces; the bytes after it are not read. */
static void test_in_pieces(void **state)
{
	struct acceptor *acceptor = open_at_loopback();
	struct err err = ERR_INIT;
	int ours = connect_to(acceptor_port4(acceptor)), claimed = -1;
	char rest[8] = "";

	assert_int_equal(send(ours, cookie, 7, 0), 7);
	assert_int_equal(acceptor_wait(acceptor, 50, -1, claim, &claimed, &err), 0);
	assert_int_equal(send(ours, cookie + 7, 9, 0), 9);
	assert_int_equal(send(ours, "rest", 4, 0), 4);
	assert_int_equal(acceptor_wait(acceptor, 1000, -1, claim, &claimed, &err), 1);
	assert_int_equal(recv(claimed, rest, sizeof(rest), 0), 4);
	assert_string_equal(rest, "rest");
	close(claimed);
	close(ours);
	acceptor_close(acceptor);
}

static void test_cancelled(void **state)
{
	struct acceptor *acceptor = open_at_loopback();
	struct err err = ERR_INIT;
	int ends[2], claimed = -1;
	uint64_t began = now_ms();

	assert_int_equal(pipe(ends), 0);
	close(ends[1]);
	assert_int_equal(acceptor_wait(acceptor, 5000, ends[0], claim, &claimed, &err), 0);
	assert_true(now_ms() - began < 1000);
	close(ends[0]);
	acceptor_close(acceptor);
}

static void test_silence_ends(void **state)
{
	struct acceptor *acceptor = open_at_loopback();
	struct err err = ERR_INIT;
	int silent = connect_to(acceptor_port4(acceptor)), claimed = -1;
	char byte;

	assert_int_equal(acceptor_wait(acceptor, ACCEPTOR_SILENCE_MS + 200, -1, claim, &claimed, &err), 0);
	assert_int_equal(recv(silent, &byte, 1, MSG_DONTWAIT), 0);
	close(silent);
	acceptor_close(acceptor);
}

/* ---- acceptor_connect() ---- */

static int new_socket(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	return fd;
}

/* The flags of the socket, which becomes the program's, stay as they are. */
static void test_connects(void **state)
{
	struct acceptor *acceptor = open_at_loopback();
	struct inet_address to = loopback(acceptor_port4(acceptor));
	struct err err = ERR_INIT;
	int sock = new_socket(), flags = fcntl(sock, F_GETFL), claimed = -1;

	assert_int_equal(acceptor_connect(sock, &to, cookie, 1000, &err), 0);
	assert_int_equal(fcntl(sock, F_GETFL), flags);
	assert_int_equal(acceptor_wait(acceptor, 1000, -1, claim, &claimed, &err), 1);
	close(claimed);
	close(sock);
	acceptor_close(acceptor);
}

static void test_refused(void **state)
{
	struct acceptor *acceptor = open_at_loopback();
	struct inet_address to = loopback(acceptor_port4(acceptor));
	struct err err = ERR_INIT;
	int sock = new_socket();
	uint64_t began = now_ms();

	acceptor_close(acceptor);
	assert_int_equal(acceptor_connect(sock, &to, cookie, 5000, &err), -ECONNREFUSED);
	assert_true(now_ms() - began < QUICK_MS);
	close(sock);
}

/* Listens with the shortest backlog, and returns the port in `to`. */
static int listen_short(struct inet_address *to)
{
	int fd = new_socket();

	*to = loopback(0);
	assert_int_equal(bind(fd, &to->any, to->len), 0);
	assert_int_equal(listen(fd, 0), 0);
	assert_int_equal(getsockname(fd, &to->any, &to->len), 0);
	return fd;
}

/* The backlog is full, so the kernel drops the connection request. */
static void test_nobody_accepts(void **state)
{
	struct inet_address to;
	struct err err = ERR_INIT;
	int listener = listen_short(&to), first = new_socket(), sock = new_socket();
	uint64_t began;

	assert_int_equal(connect(first, &to.any, to.len), 0);
	began = now_ms();
	assert_int_equal(acceptor_connect(sock, &to, cookie, 300, &err), -ETIMEDOUT);
	assert_true(now_ms() - began >= 300);
	assert_true(now_ms() - began < 300 + QUICK_MS);
	close(sock);
	close(first);
	close(listener);
}

/* The other end is accepted and never read. */
static void test_peer_never_reads(void **state)
{
	struct inet_address to;
	struct err err = ERR_INIT;
	int listener = listen_short(&to), sock = new_socket(), least = 1, peer;
	uint64_t began = now_ms();

	assert_int_equal(setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)), 0);
	assert_int_equal(acceptor_connect(sock, &to, cookie, 5000, &err), 0);
	peer = accept(listener, NULL, NULL);
	assert_true(peer >= 0);
	assert_true(now_ms() - began < QUICK_MS);
	close(peer);
	close(sock);
	close(listener);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bound_to_its_address),
		cmocka_unit_test(test_strangers_do_not_delay),
		cmocka_unit_test(test_in_pieces),
		cmocka_unit_test(test_cancelled),
		cmocka_unit_test(test_silence_ends),
		cmocka_unit_test(test_connects),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_nobody_accepts),
		cmocka_unit_test(test_peer_never_reads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
