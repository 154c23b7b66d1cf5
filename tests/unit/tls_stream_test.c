/* TLS in the thread that uses a channel, and how the thread gets the connection. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

// clang-format off
// clang-format on

#include "channel/tls.h"
#include "channel/tls_stream.h"
#include "tests/unit/unit.h"

enum { BYTES = 3 << 20 };

static uint8_t data[BYTES], back[BYTES];
static const struct channel_key key = {{1, 2, 3}};

static int make_data(void **state)
{
	for (size_t i = 0; i < BYTES; i++)
		data[i] = (uint8_t)rand();
	return 0;
}

/* ---- two streams ---- */

/* Opens one end in its own thread, since a handshake needs both. */
struct opening {
	struct tls_stream *stream;
	int sock, result;
	uint8_t secret[TLS_SECRET];
	enum tls_role role;
	struct err err;
};

static void *open_end(void *arg)
{
	struct opening *opening = arg;

	opening->result = tls_stream_open(&opening->stream, opening->sock, opening->secret, opening->role,
					  &opening->err);
	if (opening->result < 0)
		shutdown(opening->sock, SHUT_RDWR);
	return NULL;
}

static void open_both(struct opening *client, struct opening *server)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, open_end, server), 0);
	open_end(client);
	pthread_join(thread, NULL);
}

static void make_ends(struct opening *client, struct opening *server)
{
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	*client = (struct opening){.sock = pair[0], .secret = {7}, .role = TLS_CLIENT};
	*server = (struct opening){.sock = pair[1], .secret = {7}, .role = TLS_SERVER};
}

static void connect_ends(struct opening *client, struct opening *server)
{
	make_ends(client, server);
	open_both(client, server);
	if (client->result < 0 || server->result < 0)
		fail_msg("%s; %s", client->err.text, server->err.text);
}

static void close_ends(struct opening *client, struct opening *server)
{
	tls_stream_close(client->stream);
	tls_stream_close(server->stream);
}

/* Bytes written in pieces of one size are read in pieces of another. */
static void pass_bytes(struct tls_stream *from, struct tls_stream *to, size_t size, size_t piece, size_t room)
{
	size_t sent = 0, got = 0;

	while (sent < size) {
		const size_t n = size - sent < piece ? size - sent : piece;

		assert_int_equal(tls_stream_write(from, data + sent, n), 0);
		assert_int_equal(tls_stream_flush(from), 0);
		for (sent += n; got < sent;) {
			const size_t most = sent - got < room ? sent - got : room;
			ssize_t r = tls_stream_read(to, back + got, most);

			assert_in_range(r, 1, most);
			got += (size_t)r;
		}
	}
	assert_memory_equal(data, back, size);
}

static void test_sizes(void **state)
{
	static const size_t pieces[] = {1, 17, 16383, 16384, 16385, 60000};
	struct opening client, server;

	connect_ends(&client, &server);
	for (size_t i = 0; i < 6; i++)
		for (size_t j = 0; j < 6; j++) {
			pass_bytes(client.stream, server.stream, pieces[i] * 3 + 5, pieces[i], pieces[j]);
			pass_bytes(server.stream, client.stream, pieces[i] * 2, pieces[i], pieces[j]);
		}
	close_ends(&client, &server);
}

/* Both sides update their keys in the middle, more than once and at different records. */
static void test_key_update(void **state)
{
	struct opening client, server;

	for (uint64_t max = 1; max < 5; max++) {
		connect_ends(&client, &server);
		assert_int_equal(tls_stream_tls(client.stream)->records_max, 1 << 24);
		tls_stream_tls(client.stream)->records_max = max;
		tls_stream_tls(server.stream)->records_max = max + 1;
		for (int i = 0; i < 3; i++) {
			pass_bytes(client.stream, server.stream, 50000, 9000, 9000);
			assert_in_range(tls_stream_tls(client.stream)->records, 1, max);
			pass_bytes(server.stream, client.stream, 50000, 9000, 100);
			assert_in_range(tls_stream_tls(server.stream)->records, 1, max + 1);
		}
		close_ends(&client, &server);
	}
}

/* A client updates its sending key before the first byte; the server must follow within one read. */
static void test_key_update_first(void **state)
{
	struct opening client, server;

	connect_ends(&client, &server);
	tls_stream_tls(client.stream)->records = tls_stream_tls(client.stream)->records_max;
	pass_bytes(client.stream, server.stream, BYTES / 4, 200000, 70000);
	close_ends(&client, &server);
}

static void test_other_secret(void **state)
{
	struct opening client, server;

	make_ends(&client, &server);
	client.secret[31] ^= 1;
	open_both(&client, &server);
	assert_int_equal(server.result, -EKEYREJECTED);
	assert_true(client.result < 0);
	close(client.sock);
	close(server.sock);
}

/* A peer that ends before or during the handshake, and one that sends other bytes. */
static void test_no_handshake(void **state)
{
	static const uint8_t client_hello[] = {22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3};
	struct opening client, server;

	for (int i = 0; i < 3; i++) {
		make_ends(&client, &server);
		if (i == 1)
			assert_int_equal(send(client.sock, client_hello, sizeof(client_hello), MSG_NOSIGNAL),
					 sizeof(client_hello));
		if (i == 2)
			assert_int_equal(send(client.sock, data, 1000, MSG_NOSIGNAL), 1000);
		if (i < 2)
			shutdown(client.sock, SHUT_WR);
		open_end(&server);
		assert_int_equal(server.result, -EPROTO);
		close(client.sock);
		close(server.sock);
	}
}

static void test_close(void **state)
{
	struct opening client, server;

	connect_ends(&client, &server);
	assert_int_equal(tls_stream_write(client.stream, "last", 4), 0);
	assert_int_equal(tls_stream_flush(client.stream), 0);
	tls_stream_close(client.stream);
	assert_int_equal(tls_stream_read(server.stream, back, 100), 4);
	assert_int_equal(tls_stream_read(server.stream, back, 100), 0);
	assert_int_equal(tls_stream_read(server.stream, back, 100), 0);
	tls_stream_close(server.stream);
}

/* A connection that ends without close_notify has been cut off. */
static void test_truncation(void **state)
{
	struct opening client, server;

	connect_ends(&client, &server);
	assert_int_equal(tls_stream_write(client.stream, "last", 4), 0);
	assert_int_equal(tls_stream_flush(client.stream), 0);
	shutdown(client.sock, SHUT_WR);
	assert_int_equal(tls_stream_read(server.stream, back, 100), 4);
	assert_int_equal(tls_stream_read(server.stream, back, 100), -EPIPE);
	close_ends(&client, &server);
}

static void test_timeout(void **state)
{
	const struct timeval limit = {.tv_usec = 20000};
	struct opening client, server;

	connect_ends(&client, &server);
	assert_int_equal(setsockopt(server.sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
	assert_int_equal(tls_stream_read(server.stream, back, 100), -ETIMEDOUT);
	pass_bytes(client.stream, server.stream, 1000, 1000, 1000);
	close_ends(&client, &server);
}

/* ---- two streams with the test between them ---- */

/* Relays between two sockets until `ended`. */
struct passing {
	int ends[2];
	bool ended;
};

static void *pass_between(void *arg)
{
	struct passing *passing = arg;
	uint8_t bytes[4096];

	while (!__atomic_load_n(&passing->ended, __ATOMIC_SEQ_CST))
		for (int i = 0; i < 2; i++) {
			struct pollfd ready = {.fd = passing->ends[i], .events = POLLIN};
			ssize_t n = poll(&ready, 1, 1) > 0 ? recv(ready.fd, bytes, sizeof(bytes), 0) : 0;

			if (n > 0)
				assert_int_equal(send(passing->ends[!i], bytes, (size_t)n, 0), n);
		}
	return NULL;
}

static void intercept_ends(struct opening *client, struct opening *server, int wire[2])
{
	struct passing passing = {.ended = false};
	pthread_t thread;
	int there[2], here[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, there), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, here), 0);
	*client = (struct opening){.sock = there[0], .secret = {7}, .role = TLS_CLIENT};
	*server = (struct opening){.sock = here[0], .secret = {7}, .role = TLS_SERVER};
	passing.ends[0] = wire[0] = there[1];
	passing.ends[1] = wire[1] = here[1];
	assert_int_equal(pthread_create(&thread, NULL, pass_between, &passing), 0);
	open_both(client, server);
	__atomic_store_n(&passing.ended, true, __ATOMIC_SEQ_CST);
	pthread_join(thread, NULL);
	assert_true(client->result == 0 && server->result == 0);
}

/* A record that is changed, truncated or repeated, and a connection cut after a record, are detected. */
static void test_tampering(void **state)
{
	enum { WHOLE = 5 + 11 + 1 + 16 };
	uint8_t record[2 * WHOLE];

	for (size_t at = 0; at <= WHOLE + 2; at++) {
		struct opening client, server;
		size_t n = WHOLE;
		ssize_t r;
		int wire[2];

		intercept_ends(&client, &server, wire);
		assert_int_equal(tls_stream_write(client.stream, "hello world", 11), 0);
		assert_int_equal(tls_stream_flush(client.stream), 0);
		assert_int_equal(recv(wire[0], record, sizeof(record), 0), WHOLE);
		memcpy(record + WHOLE, record, WHOLE);
		if (at < WHOLE)
			record[at] ^= 1;
		else if (at == WHOLE)
			n = WHOLE - 1;
		else if (at == WHOLE + 1)
			n = 2 * WHOLE;
		assert_int_equal(send(wire[1], record, n, 0), n);
		shutdown(wire[1], SHUT_WR);
		r = tls_stream_read(server.stream, back, sizeof(back));
		if (at <= WHOLE) {
			assert_true(r == -EBADMSG || r == -EPIPE);
		} else {
			assert_int_equal(r, 11);
			r = tls_stream_read(server.stream, back, sizeof(back));
			assert_int_equal(r, at == WHOLE + 1 ? -EBADMSG : -EPIPE);
		}
		close_ends(&client, &server);
		close(wire[0]);
		close(wire[1]);
	}
}

/* ---- through the processes that speak TLS ---- */

static bool write_all(struct tls_stream *stream, const uint8_t *from, size_t len)
{
	return tls_stream_write(stream, from, len) == 0 && tls_stream_flush(stream) == 0;
}

static bool read_all(struct tls_stream *stream, uint8_t *to, size_t len)
{
	for (size_t at = 0; at < len;) {
		ssize_t n = tls_stream_read(stream, to + at, len - at);

		if (n <= 0)
			return false;
		at += (size_t)n;
	}
	return true;
}

static int take_over(int sock, enum tls_role role, struct tls_stream **out, struct err *err)
{
	uint8_t secret[TLS_SECRET];
	int r, tcp = tls_stream_take_over(sock, secret, err);

	if (tcp < 0)
		return tcp;
	close(sock);
	r = tls_stream_open(out, tcp, secret, role, err);
	if (r < 0)
		close(tcp);
	return r;
}

enum server_does { ECHO, GO_AWAY, GO_AWAY_LATER };

static _Noreturn void serve(int listener, enum server_does does, useconds_t delay)
{
	struct tls_stream *stream = NULL;
	Pbeam__ChannelHello *hello;
	struct err err = ERR_INIT;
	struct frame frame;
	int sock = channel_accept(accept(listener, NULL, NULL), &key, &err);
	bool ok = sock >= 0 && frame_recv(sock, &frame, &err) == 1 &&
		  channel_check_hello(&frame, "there", &hello, &err) == 0 &&
		  channel_welcome(sock, "there", &err) == 0;

	usleep(delay);
	if (does == GO_AWAY)
		_exit(0);
	ok = ok && take_over(sock, TLS_SERVER, &stream, &err) == 0 && read_all(stream, back, BYTES);
	if (does == GO_AWAY_LATER)
		_exit(ok ? 0 : 1);
	ok = ok && write_all(stream, back, BYTES) && read_all(stream, back, 1);
	_exit(ok ? 0 : 1);
}

static int connect_to_server(enum server_does does, useconds_t delay, pid_t *child)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct err err = ERR_INIT;
	socklen_t len = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0), sock;
	char address[32], host[CHANNEL_HOST_MAX];

	assert_int_equal(bind(listener, (struct sockaddr *)&at, len), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &len), 0);
	*child = fork();
	if (*child == 0)
		serve(listener, does, delay);
	snprintf(address, sizeof(address), "127.0.0.1:%d", ntohs(at.sin_port));
	sock = channel_connect(address, &key, "here", PBEAM__CHANNEL_KIND__CHANNEL_SESSION, NULL, host, &err);
	if (sock < 0)
		fail_msg("%s", err.text);
	close(listener);
	return sock;
}

static void expect_success(pid_t child)
{
	int status;

	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

/* Either side may request it first. */
static void test_take_over(void **state)
{
	for (int i = 0; i < 10; i++) {
		struct tls_stream *stream;
		struct err err = ERR_INIT;
		pid_t child;
		int sock = connect_to_server(ECHO, i & 1 ? 20000 : 0, &child);

		if (i & 2)
			usleep(20000);
		if (take_over(sock, TLS_CLIENT, &stream, &err) < 0)
			fail_msg("%s", err.text);
		assert_true(write_all(stream, data, BYTES) && read_all(stream, back, BYTES));
		assert_memory_equal(data, back, BYTES);
		assert_true(write_all(stream, data, 1));
		expect_success(child);
		tls_stream_close(stream);
	}
}

/* The end of the other user looks like its close_notify; the handshake then fails. */
static void test_take_over_from_nobody(void **state)
{
	struct tls_stream *stream;
	struct err err = ERR_INIT;
	pid_t child;
	int sock = connect_to_server(GO_AWAY, 20000, &child);

	assert_int_equal(take_over(sock, TLS_CLIENT, &stream, &err), -EPROTO);
	expect_success(child);
}

/* A shutdown() by another thread ends the wait. */
static void *shut_down(void *arg)
{
	usleep(50000);
	shutdown(*(int *)arg, SHUT_RDWR);
	return NULL;
}

static void test_take_over_is_stopped(void **state)
{
	uint8_t secret[TLS_SECRET];
	struct err err = ERR_INIT;
	pthread_t thread;
	pid_t child;
	int sock = connect_to_server(GO_AWAY, 2000000, &child);

	assert_int_equal(pthread_create(&thread, NULL, shut_down, &sock), 0);
	assert_int_equal(tls_stream_take_over(sock, secret, &err), -EPIPE);
	assert_int_equal(kill(child, 0), 0);
	pthread_join(thread, NULL);
	close(sock);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
}

/* A peer that dies leaves no close_notify. */
static void test_peer_dies(void **state)
{
	struct tls_stream *stream;
	struct err err = ERR_INIT;
	pid_t child;
	int sock = connect_to_server(GO_AWAY_LATER, 0, &child);

	if (take_over(sock, TLS_CLIENT, &stream, &err) < 0)
		fail_msg("%s", err.text);
	assert_true(write_all(stream, data, BYTES));
	assert_int_equal(tls_stream_read(stream, back, 1), -EPIPE);
	expect_success(child);
	tls_stream_close(stream);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_key_update),
		cmocka_unit_test(test_key_update_first),
		cmocka_unit_test(test_other_secret),
		cmocka_unit_test(test_no_handshake),
		cmocka_unit_test(test_close),
		cmocka_unit_test(test_truncation),
		cmocka_unit_test(test_timeout),
		cmocka_unit_test(test_tampering),
		cmocka_unit_test(test_take_over),
		cmocka_unit_test(test_take_over_from_nobody),
		cmocka_unit_test(test_take_over_is_stopped),
		cmocka_unit_test(test_peer_dies),
	};

	return cmocka_run_group_tests(tests, make_data, NULL);
}
