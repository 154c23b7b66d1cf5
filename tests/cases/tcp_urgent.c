/* Urgent data on TCP connections: the mark and its byte, out of line, already read, and in line. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "tests/cases/case.h"

static void connect_pair(int fds[2])
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(name);
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	CHECK(bind(listener, (struct sockaddr *)&name, len) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&name, &len) == 0);
	fds[0] = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(fds[0], (struct sockaddr *)&name, len) == 0);
	CHECK((fds[1] = accept(listener, NULL, NULL)) >= 0 && close(listener) == 0);
	CHECK(setsockopt(fds[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
}

static int is_urgent(int fd)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLPRI};

	return poll(&poll_fd, 1, 0) == 1 && (poll_fd.revents & POLLPRI);
}

static void expect(int fd, const char *text)
{
	char buf[64];
	ssize_t n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);

	if (n != (ssize_t)strlen(text) || memcmp(buf, text, strlen(text)) != 0)
		case_fail("%zd bytes '%.*s' instead of '%s'", n, n > 0 ? (int)n : 0, buf, text);
}

static int at_mark(int fd)
{
	int at;

	CHECK(ioctl(fd, SIOCATMARK, &at) == 0);
	return at;
}

int main(void)
{
	int plain[2], taken[2], inlined[2], only[2], on = 1;
	char byte;

	connect_pair(plain);
	connect_pair(taken);
	connect_pair(inlined);
	connect_pair(only);
	CHECK(setsockopt(inlined[1], SOL_SOCKET, SO_OOBINLINE, &on, sizeof(on)) == 0);
	CHECK(send(plain[0], "before", 6, 0) == 6 && send(plain[0], "!", 1, MSG_OOB) == 1 &&
	      send(plain[0], "after", 5, 0) == 5);
	CHECK(send(taken[0], "one", 3, 0) == 3 && send(taken[0], "?", 1, MSG_OOB) == 1 &&
	      send(taken[0], "two", 3, 0) == 3);
	CHECK(send(inlined[0], "in", 2, 0) == 2 && send(inlined[0], "-", 1, MSG_OOB) == 1 &&
	      send(inlined[0], "line", 4, 0) == 4);
	CHECK(send(only[0], "#", 1, MSG_OOB) == 1);
	case_sleep_ms(50);
	CHECK(recv(taken[1], &byte, 1, MSG_OOB) == 1 && byte == '?' && !is_urgent(taken[1]));

	case_wait();
	CHECK(is_urgent(plain[1]) && !at_mark(plain[1]));
	expect(plain[1], "before");
	CHECK(at_mark(plain[1]) && recv(plain[1], &byte, 1, MSG_OOB) == 1 && byte == '!');
	expect(plain[1], "after");
	CHECK(!is_urgent(taken[1]));
	expect(taken[1], "one");
	CHECK(at_mark(taken[1]) && recv(taken[1], &byte, 1, MSG_OOB) < 0);
	expect(taken[1], "two");
	CHECK(is_urgent(inlined[1]));
	expect(inlined[1], "in");
	CHECK(at_mark(inlined[1]));
	expect(inlined[1], "-line");
	CHECK(is_urgent(only[1]) && recv(only[1], &byte, 1, MSG_OOB) == 1 && byte == '#');
	CHECK(send(only[0], "more", 4, 0) == 4);
	case_sleep_ms(20);
	expect(only[1], "more");
	case_pass();
}
