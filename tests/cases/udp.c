/* Bound UDP sockets keep port, queued datagrams with their senders, connection and options. */
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/cases/case.h"

static int bound(struct sockaddr_in *at)
{
	socklen_t len = sizeof(*at);
	int sock = socket(AF_INET, SOCK_DGRAM, 0);

	memset(at, 0, sizeof(*at));
	at->sin_family = AF_INET;
	at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(sock, (struct sockaddr *)at, sizeof(*at)) == 0 &&
	      getsockname(sock, (struct sockaddr *)at, &len) == 0);
	return sock;
}

int main(void)
{
	struct sockaddr_in to, from, sender, third_at;
	socklen_t len = sizeof(sender);
	int receiver = bound(&to), source = bound(&from), third = bound(&third_at), one = 1, value = 0;
	char back[100];

	CHECK(sendto(source, "first", 5, 0, (struct sockaddr *)&to, sizeof(to)) == 5);
	CHECK(sendto(source, "", 0, 0, (struct sockaddr *)&to, sizeof(to)) == 0);
	CHECK(sendto(third, "third", 5, 0, (struct sockaddr *)&to, sizeof(to)) == 5);
	CHECK(connect(source, (struct sockaddr *)&to, sizeof(to)) == 0);
	CHECK(setsockopt(source, SOL_SOCKET, SO_BROADCAST, &one, sizeof(one)) == 0);

	case_wait();
	CHECK(recvfrom(receiver, back, sizeof(back), 0, (struct sockaddr *)&sender, &len) == 5 &&
	      memcmp(back, "first", 5) == 0);
	CHECK(sender.sin_port == from.sin_port && sender.sin_addr.s_addr == from.sin_addr.s_addr);
	CHECK(recvfrom(receiver, back, sizeof(back), 0, (struct sockaddr *)&sender, &len) == 0);
	CHECK(recvfrom(receiver, back, sizeof(back), 0, (struct sockaddr *)&sender, &len) == 5 &&
	      sender.sin_port == third_at.sin_port);
	CHECK(send(source, "connected", 9, 0) == 9);
	CHECK(recvfrom(receiver, back, sizeof(back), 0, (struct sockaddr *)&sender, &len) == 9 &&
	      sender.sin_port == from.sin_port);
	len = sizeof(value);
	CHECK(getsockopt(source, SOL_SOCKET, SO_BROADCAST, &value, &len) == 0 && value == 1);
	case_pass();
}
