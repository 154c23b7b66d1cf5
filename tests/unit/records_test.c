/* Records that are made and read without the process that speaks TLS, and the way to them. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include "channel/channel.h"
#include "channel/records.h"

enum { BYTES = 3 << 20 };

static uint8_t data[BYTES], back[BYTES];
static const struct channel_key key = {{1, 2, 3}};

static int make_data(void **state)
{
	for (size_t i = 0; i < BYTES; i++)
		data[i] = (uint8_t)rand();
	return 0;
}

/* ---- between two of them ---- */

struct ends {
	struct records *one, *other;
	int wire[2]; /* what the writer's end sends, and what the reader's gets, where a test is between them
		      */
};

static struct records *end(int socket, uint64_t count, bool first)
{
	struct records_traffic traffic;

	for (int i = 0; i < RECORDS_WAYS; i++) {
		memset(traffic.secret[i], (i == RECORDS_READ) == first ? 7 : 9, RECORDS_SECRET);
		traffic.count[i] = count;
	}
	return records_new(socket, &traffic);
}

static struct ends connected(uint64_t count)
{
	struct ends ends = {.wire = {-1, -1}};
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	ends.one = end(pair[0], count, true);
	ends.other = end(pair[1], count, false);
	assert_true(ends.one && ends.other);
	return ends;
}

/* With the test in between. */
static struct ends intercepted(void)
{
	struct ends ends;
	int there[2], here[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, there), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, here), 0);
	ends.one = end(there[0], 0, true);
	ends.other = end(here[0], 0, false);
	ends.wire[0] = there[1];
	ends.wire[1] = here[1];
	return ends;
}

static void close_ends(struct ends *ends)
{
	records_close(ends->one);
	records_close(ends->other);
	for (int i = 0; i < 2; i++)
		if (ends->wire[i] >= 0)
			close(ends->wire[i]);
}

/* What is written in pieces of one size is read in pieces of another. */
static void pass(struct records *from, struct records *to, size_t size, size_t piece, size_t room)
{
	size_t sent = 0, got = 0;

	while (sent < size) {
		const size_t n = size - sent < piece ? size - sent : piece;

		assert_int_equal(records_put(from, data + sent, n), 0);
		assert_int_equal(records_flush(from), 0);
		for (sent += n; got < sent;) {
			const size_t most = sent - got < room ? sent - got : room;
			ssize_t r = records_read(to, back + got, most);

			assert_in_range(r, 1, most);
			got += (size_t)r;
		}
	}
	assert_memory_equal(data, back, size);
}

static void test_sizes(void **state)
{
	static const size_t pieces[] = {1, 17, 16383, 16384, 16385, 60000};
	struct ends ends = connected(0);

	for (size_t i = 0; i < 6; i++)
		for (size_t j = 0; j < 6; j++) {
			pass(ends.one, ends.other, pieces[i] * 3 + 5, pieces[i], pieces[j]);
			pass(ends.other, ends.one, pieces[i] * 2, pieces[i], pieces[j]);
		}
	close_ends(&ends);
}

/* Both change their keys in the middle, more than once. */
static void test_new_keys(void **state)
{
	for (uint64_t count = (1 << 24) - 3; count < 1 << 24; count++) {
		struct ends ends = connected(count);

		pass(ends.one, ends.other, 50000, 9000, 9000);
		pass(ends.other, ends.one, 50000, 9000, 100);
		pass(ends.one, ends.other, 50000, 9000, 9000);
		close_ends(&ends);
	}
}

static void test_end(void **state)
{
	struct ends ends = connected(0);

	assert_int_equal(records_put(ends.one, "last", 4), 0);
	assert_int_equal(records_flush(ends.one), 0);
	records_close(ends.one);
	assert_int_equal(records_read(ends.other, back, 100), 4);
	assert_int_equal(records_read(ends.other, back, 100), 0);
	assert_int_equal(records_read(ends.other, back, 100), 0);
	ends.one = NULL;
	close_ends(&ends);
}

/* Whatever is changed, cut off, left out or said twice is noticed. */
static void test_tampered(void **state)
{
	enum { WHOLE = 5 + 11 + 1 + 16 };
	uint8_t wire[2 * WHOLE];

	for (size_t at = 0; at <= WHOLE + 3; at++) {
		struct ends ends = intercepted();
		size_t n = WHOLE;
		ssize_t r;

		assert_int_equal(records_put(ends.one, "hello world", 11), 0);
		assert_int_equal(records_flush(ends.one), 0);
		assert_int_equal(recv(ends.wire[0], wire, sizeof(wire), 0), WHOLE);
		memcpy(wire + WHOLE, wire, WHOLE);
		if (at < WHOLE)
			wire[at] ^= 1;
		else if (at == WHOLE)
			n = WHOLE - 1;
		else if (at == WHOLE + 1)
			n = 2 * WHOLE;
		assert_int_equal(send(ends.wire[1], wire, n, 0), n);
		shutdown(ends.wire[1], SHUT_WR);
		r = records_read(ends.other, back, sizeof(back));
		if (at <= WHOLE) {
			assert_true(r == -EBADMSG || r == -EPIPE);
		} else {
			assert_int_equal(r, 11);
			r = records_read(ends.other, back, sizeof(back));
			assert_int_equal(r, at == WHOLE + 1 ? -EBADMSG : -EPIPE);
		}
		close_ends(&ends);
	}
}

/* ---- beside the process that speaks TLS ---- */

static bool put_all(struct records *records, int sock, const uint8_t *from, size_t len)
{
	if (records)
		return records_put(records, from, len) == 0 && records_flush(records) == 0;
	return send(sock, from, len, MSG_NOSIGNAL) == (ssize_t)len;
}

static bool take_all(struct records *records, int sock, uint8_t *to, size_t len)
{
	for (size_t at = 0; at < len;) {
		ssize_t n =
			records ? records_read(records, to + at, len - at) : recv(sock, to + at, len - at, 0);

		if (n <= 0)
			return false;
		at += (size_t)n;
	}
	return true;
}

/* Sends back what comes, after it has said that it is ready. */
static _Noreturn void serve(int listener, bool takes_over)
{
	struct records *records = NULL;
	Pbeam__ChannelHello *hello;
	struct err err = ERR_INIT;
	struct frame frame;
	int sock = channel_accept(accept(listener, NULL, NULL), &key, &err);
	bool ok = sock >= 0 && frame_recv(sock, &frame, &err) == 1 &&
		  channel_check_hello(&frame, "there", &hello, &err) == 0 &&
		  channel_welcome(sock, "there", &err) == 0 &&
		  (!takes_over || records_take_over(sock, &records, &err) == 0) &&
		  put_all(records, sock, (const uint8_t *)"!", 1) && take_all(records, sock, back, BYTES) &&
		  put_all(records, sock, back, BYTES) && take_all(records, sock, back, 1);

	_exit(ok ? 0 : 1);
}

static void talk(bool here, bool there)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct records *records = NULL;
	struct err err = ERR_INIT;
	socklen_t len = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0), sock, status;
	char address[32], host[CHANNEL_HOST_MAX];
	pid_t child;

	assert_int_equal(bind(listener, (struct sockaddr *)&at, len), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &len), 0);
	child = fork();
	if (child == 0)
		serve(listener, there);
	snprintf(address, sizeof(address), "127.0.0.1:%d", ntohs(at.sin_port));
	sock = channel_connect(address, &key, "here", PBEAM__CHANNEL_KIND__CHANNEL_SESSION, NULL, host, &err);
	if (sock < 0)
		fail_msg("%s", err.text);
	if (here && records_take_over(sock, &records, &err) < 0)
		fail_msg("%s", err.text);
	assert_true(take_all(records, sock, back, 1) && back[0] == '!');
	assert_true(put_all(records, sock, data, BYTES) && take_all(records, sock, back, BYTES));
	assert_memory_equal(data, back, BYTES);
	assert_true(put_all(records, sock, data, 1));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	if (records)
		records_close(records);
	else
		close(sock);
	close(listener);
}

static void test_taken_over(void **state)
{
	for (int i = 0; i < 20; i++)
		talk(i & 1, i & 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),	   cmocka_unit_test(test_new_keys),
		cmocka_unit_test(test_end),	   cmocka_unit_test(test_tampered),
		cmocka_unit_test(test_taken_over),
	};

	return cmocka_run_group_tests(tests, make_data, NULL);
}
