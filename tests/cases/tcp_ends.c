/* TCP connections closed on both sides, with or without unread data, with the other socket still open or
 * closed; and a connect() without an answer yet. */
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "tests/cases/case.h"

static struct sockaddr_in address = {.sin_family = AF_INET};

static int state_of(int sock)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	CHECK(getsockopt(sock, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
	return info.tcpi_state;
}

static int listen_at(struct sockaddr_in *at, int backlog)
{
	int sock = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(*at);

	at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(sock, (struct sockaddr *)at, sizeof(*at)) == 0 && listen(sock, backlog) == 0);
	CHECK(getsockname(sock, (struct sockaddr *)at, &len) == 0);
	return sock;
}

static int dial(const struct sockaddr_in *at, int flags)
{
	int sock = socket(AF_INET, SOCK_STREAM | flags, 0);

	CHECK(connect(sock, (const struct sockaddr *)at, sizeof(*at)) == 0 || errno == EINPROGRESS);
	return sock;
}

/* Every read returns end of file, and nothing can be sent. */
static void check_over(int sock)
{
	struct pollfd poll_fd = {.fd = sock, .events = POLLIN | POLLRDHUP};
	struct sockaddr_in peer;
	socklen_t len = sizeof(peer);
	char byte;

	CHECK(poll(&poll_fd, 1, 1000) == 1 && poll_fd.revents & POLLRDHUP && !(poll_fd.revents & POLLERR));
	CHECK(recv(sock, &byte, 1, 0) == 0 && recv(sock, &byte, 1, 0) == 0);
	CHECK(send(sock, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE);
	CHECK(getpeername(sock, (struct sockaddr *)&peer, &len) < 0 && errno == ENOTCONN);
}

int main(void)
{
	struct sockaddr_in busy = {.sin_family = AF_INET};
	int listener = listen_at(&address, 5), full = listen_at(&busy, 0);
	int one = dial(&address, 0), other = accept(listener, NULL, NULL);
	int left = dial(&address, 0), gone = accept(listener, NULL, NULL);
	int idle = socket(AF_INET, SOCK_STREAM, 0);
	int waiting, calling, error = -1;
	socklen_t len = sizeof(error);
	char back[8];

	CHECK(send(one, "last", 4, 0) == 4 && shutdown(one, SHUT_WR) == 0 && shutdown(other, SHUT_WR) == 0);
	CHECK(send(gone, "word", 4, 0) == 4 && shutdown(left, SHUT_WR) == 0 && close(gone) == 0);
	waiting = dial(&busy, 0);
	calling = dial(&busy, SOCK_NONBLOCK);
	case_sleep_ms(50);
	CHECK(state_of(one) == TCP_CLOSE && state_of(left) == TCP_CLOSE && state_of(calling) == TCP_SYN_SENT);

	case_wait();
	CHECK(recv(other, back, 4, MSG_WAITALL) == 4 && memcmp(back, "last", 4) == 0);
	CHECK(recv(left, back, 4, MSG_WAITALL) == 4 && memcmp(back, "word", 4) == 0);
	check_over(one);
	check_over(other);
	check_over(left);
	CHECK(recv(idle, back, 1, 0) < 0 && errno == ENOTCONN);
	CHECK(accept(full, NULL, NULL) >= 0);
	struct pollfd answered = {.fd = calling, .events = POLLOUT};
	CHECK(poll(&answered, 1, 10000) == 1);
	CHECK(getsockopt(calling, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0);
	CHECK(send(calling, "hi", 2, MSG_NOSIGNAL) == 2);
	int late = accept(full, NULL, NULL);
	CHECK(late >= 0 && recv(late, back, 2, MSG_WAITALL) == 2 && memcmp(back, "hi", 2) == 0);
	CHECK(close(waiting) == 0);
	case_pass();
}
