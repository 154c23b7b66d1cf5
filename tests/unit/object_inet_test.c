/* TCP and UDP sockets: dumped and restored without a tracer. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "tests/unit/object_world.h"

static struct sockaddr_in address_of(int fd)
{
	struct sockaddr_in name;
	socklen_t len = sizeof(name);

	MUST(getsockname(fd, (struct sockaddr *)&name, &len) == 0);
	return name;
}

static int listener(void)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	MUST(bind(fd, (struct sockaddr *)&name, sizeof(name)) == 0 && listen(fd, 5) == 0);
	return fd;
}

static int caller(int to)
{
	struct sockaddr_in name = address_of(to);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	MUST(connect(fd, (struct sockaddr *)&name, sizeof(name)) == 0);
	return fd;
}

#define BULK 300000

static void fill(char *buf, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		buf[i] = (char)(seed + i * 7 + (i >> 8));
}

static void make_tcp(void)
{
	static char bulk[BULK];
	int on = 1, idle = 77;
	ssize_t n;

	MUST(listener() == 3 && caller(3) == 4 && accept(3, NULL, NULL) == 5);
	fill(bulk, BULK, 1);
	MUST(fcntl(4, F_SETFL, O_NONBLOCK) == 0 && setsockopt(4, IPPROTO_TCP, TCP_NODELAY, &on, 4) == 0);
	MUST((n = write(4, bulk, BULK)) > 100000);
	MUST(write(5, "answer", 6) == 6);
	MUST(setsockopt(5, SOL_SOCKET, SO_KEEPALIVE, &on, 4) == 0 &&
	     setsockopt(5, IPPROTO_TCP, TCP_KEEPIDLE, &idle, 4) == 0);
	/* Half closed, with unread data. */
	MUST(caller(3) == 6 && accept(3, NULL, NULL) == 7 && write(6, "rest", 4) == 4 &&
	     shutdown(6, SHUT_WR) == 0);
	/* The peer has closed. */
	MUST(caller(3) == 8 && accept(3, NULL, NULL) == 9 && write(9, "bye", 3) == 3 && close(9) == 0);
	/* Waits to be accepted. */
	MUST(caller(3) == 9 && write(9, "early", 5) == 5);
	/* No data yet. */
	MUST(socket(AF_INET6, SOCK_STREAM, 0) == 10);
	usleep(20000);
}

static void check_tcp(void)
{
	static char bulk[BULK], got[BULK];
	struct pollfd poll_fd = {.fd = 3, .events = POLLIN};
	struct sockaddr_in peer, local;
	socklen_t len = sizeof(peer);
	int value;

	fill(bulk, BULK, 1);
	local = address_of(4);
	MUST(getpeername(5, (struct sockaddr *)&peer, &len) == 0 && peer.sin_port == local.sin_port);
	MUST(fcntl(4, F_GETFL) & O_NONBLOCK && !(fcntl(5, F_GETFL) & O_NONBLOCK));
	len = sizeof(value);
	MUST(getsockopt(4, IPPROTO_TCP, TCP_NODELAY, &value, &len) == 0 && value == 1);
	MUST(getsockopt(5, IPPROTO_TCP, TCP_NODELAY, &value, &len) == 0 && value == 0);
	MUST(getsockopt(5, IPPROTO_TCP, TCP_KEEPIDLE, &value, &len) == 0 && value == 77);
	MUST(getsockopt(3, SOL_SOCKET, SO_REUSEADDR, &value, &len) == 0 && value == 0);
	MUST(getsockopt(5, SOL_SOCKET, SO_REUSEADDR, &value, &len) == 0 && value == 0);
	MUST(recv(5, got, BULK, MSG_WAITALL) == BULK && memcmp(got, bulk, BULK) == 0);
	MUST(read(4, got, 100) == 6 && memcmp(got, "answer", 6) == 0);
	MUST(write(5, "again", 5) == 5 && fcntl(4, F_SETFL, 0) == 0 && read(4, got, 100) == 5);
	MUST(read(7, got, 100) == 4 && read(7, got, 100) == 0 && write(7, "ok", 2) == 2 &&
	     read(6, got, 100) == 2);
	MUST(write(6, "x", 1) < 0 && errno == EPIPE);
	MUST(read(8, got, 100) == 3 && read(8, got, 100) == 0);
	MUST(poll(&poll_fd, 1, 1000) == 1 && accept(3, NULL, NULL) == 11);
	MUST(read(11, got, 100) == 5 && write(9, "hi", 2) == 2 && read(11, got, 100) == 2);
	MUST(caller(3) == 12 && accept(3, NULL, NULL) == 13);
	MUST(connect(10, NULL, 0) < 0);
}

static void check_tcp_nosig(void)
{
	signal(SIGPIPE, SIG_IGN);
	check_tcp();
}

/* Fills the queue. */
static void make_full(void)
{
	static char bulk[BULK];
	int size = 40000;

	MUST(listener() == 3 && setsockopt(3, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)) == 0);
	MUST(caller(3) == 4 && accept(3, NULL, NULL) == 5 && fcntl(4, F_SETFL, O_NONBLOCK) == 0);
	fill(bulk, BULK, 9);
	MUST(BULK == write(4, bulk, BULK));
}

static void check_full(void)
{
	static char bulk[BULK], got[BULK];
	int size;
	socklen_t len = sizeof(size);

	fill(bulk, BULK, 9);
	MUST(getsockopt(5, SOL_SOCKET, SO_RCVBUF, &size, &len) == 0 && size == 80000);
	MUST(recv(5, got, BULK, MSG_WAITALL) == BULK && memcmp(got, bulk, BULK) == 0);
}

static void make_udp(void)
{
	struct sockaddr_in any = {.sin_family = AF_INET}, to;

	MUST(socket(AF_INET, SOCK_DGRAM, 0) == 3 && bind(3, (struct sockaddr *)&any, sizeof(any)) == 0);
	to = address_of(3);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	MUST(socket(AF_INET, SOCK_DGRAM, 0) == 4 && connect(4, (struct sockaddr *)&to, sizeof(to)) == 0);
	MUST(send(4, "one", 3, 0) == 3 && send(4, "twotwo", 6, 0) == 6);
	/* From a sender that has closed. */
	MUST(socket(AF_INET, SOCK_DGRAM, 0) == 5 &&
	     sendto(5, "3", 1, 0, (struct sockaddr *)&to, sizeof(to)) == 1);
	MUST(close(5) == 0 && socket(AF_INET6, SOCK_DGRAM, 0) == 5);
}

static void check_udp(void)
{
	struct sockaddr_in from, sender = address_of(4);
	socklen_t len = sizeof(from);
	char text[32];

	MUST(recvfrom(3, text, 32, 0, (struct sockaddr *)&from, &len) == 3 &&
	     from.sin_port == sender.sin_port);
	MUST(recv(3, text, 32, 0) == 6 && memcmp(text, "twotwo", 6) == 0);
	MUST(recvfrom(3, text, 32, 0, (struct sockaddr *)&from, &len) == 1 &&
	     from.sin_port != sender.sin_port);
	MUST(send(4, "more", 4, 0) == 4 && recv(3, text, 32, MSG_DONTWAIT) == 4);
	MUST(sendto(3, "back", 4, 0, (struct sockaddr *)&sender, sizeof(sender)) == 4 &&
	     recv(4, text, 32, 0) == 4);
}

static void make_outside(void)
{
	MUST(listener() == 3 && caller(3) == 4 && accept(3, NULL, NULL) == 5);
	if (fork() == 0) {
		close(4);
		alarm(3);
		pause();
	}
	close(5);
}

static void test_tcp(void **state)
{
	world_cycle(make_tcp, check_tcp_nosig);
}

static void test_full(void **state)
{
	world_cycle(make_full, check_full);
}

static void test_udp(void **state)
{
	world_cycle(make_udp, check_udp);
}

static void test_outside(void **state)
{
	world_refused(make_outside, "which is outside the tree");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_udp),
		cmocka_unit_test(test_tcp),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_outside),
	};

	alarm(60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
