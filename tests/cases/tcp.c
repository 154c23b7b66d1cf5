/* TCP connections within the tree with data in flight in both directions, half-closed ones, a listener
 * with a pending connection, options. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "tests/cases/case.h"

enum { FLIGHT = 300 * 1000 };

static struct sockaddr_in address = {.sin_family = AF_INET};
static int listener;

static int dial(void)
{
	int sock = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(connect(sock, (struct sockaddr *)&address, sizeof(address)) == 0);
	return sock;
}

static void send_all(int sock, char seed)
{
	char *data = malloc(FLIGHT);

	for (int i = 0; i < FLIGHT; i++)
		data[i] = (char)(i * 7 + seed);
	for (ssize_t sent = 0, n; sent < FLIGHT; sent += n)
		CHECK((n = send(sock, data + sent, (size_t)(FLIGHT - sent), 0)) > 0);
	free(data);
}

static void receive_all(int sock, char seed)
{
	char *data = malloc(FLIGHT);

	CHECK(recv(sock, data, FLIGHT, MSG_WAITALL) == FLIGHT);
	for (int i = 0; i < FLIGHT; i++)
		CHECK(data[i] == (char)(i * 7 + seed));
	free(data);
}

int main(void)
{
	struct sockaddr_in local = {0}, peer = {0};
	socklen_t len = sizeof(address);
	int one = 1, value = 0;
	char back[16];

	listener = socket(AF_INET, SOCK_STREAM, 0);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(listener, 7) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
	int a = dial(), b = accept(listener, NULL, NULL);
	int half = dial(), other_half = accept(listener, NULL, NULL);
	CHECK(b >= 0 && other_half >= 0);
	CHECK(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
	CHECK(setsockopt(b, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one)) == 0);
	CHECK(getsockname(a, (struct sockaddr *)&local, &len) == 0);
	send_all(a, 1);
	send_all(b, 2);
	CHECK(send(half, "end", 3, 0) == 3 && shutdown(half, SHUT_WR) == 0);
	int waiting = dial();
	CHECK(send(waiting, "early", 5, 0) == 5);

	case_wait();
	receive_all(b, 1);
	receive_all(a, 2);
	len = sizeof(value);
	CHECK(getsockopt(a, IPPROTO_TCP, TCP_NODELAY, &value, &len) == 0 && value == 1);
	CHECK(getsockopt(b, SOL_SOCKET, SO_KEEPALIVE, &value, &len) == 0 && value == 1);
	len = sizeof(peer);
	CHECK(getpeername(b, (struct sockaddr *)&peer, &len) == 0 && peer.sin_port == local.sin_port);
	CHECK(getsockname(a, (struct sockaddr *)&peer, &len) == 0 && peer.sin_port == local.sin_port);
	CHECK(recv(other_half, back, sizeof(back), MSG_WAITALL) == 3 && recv(other_half, back, 1, 0) == 0);
	CHECK(send(other_half, "back", 4, 0) == 4 && recv(half, back, 4, MSG_WAITALL) == 4);
	int accepted = accept(listener, NULL, NULL);
	CHECK(accepted >= 0 && recv(accepted, back, 5, MSG_WAITALL) == 5 && memcmp(back, "early", 5) == 0);
	int later = dial(), also = accept(listener, NULL, NULL);
	CHECK(later >= 0 && also >= 0);
	send_all(a, 3);
	receive_all(b, 3);
	CHECK(close(a) == 0 && recv(b, back, 1, 0) == 0);
	case_pass();
}
