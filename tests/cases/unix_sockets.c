/* UNIX stream, datagram and seqpacket pairs keep queued data and options; listening sockets with a pending
 * connection; passed descriptors. */
/* case: root */
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/cases/case.h"

static int pass_descriptor(int sock, int fd)
{
	char control[CMSG_SPACE(sizeof(int))] = {0};
	char text[] = "fd";
	struct iovec data = {.iov_base = text, .iov_len = 2};
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(int));
	return (int)sendmsg(sock, &message, 0);
}

static int take_descriptor(int sock)
{
	char control[CMSG_SPACE(sizeof(int))] = {0}, text[8];
	struct iovec data = {.iov_base = text, .iov_len = sizeof(text)};
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	int fd = -1;

	if (recvmsg(sock, &message, 0) == 2 && CMSG_FIRSTHDR(&message))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
	return fd;
}

int main(void)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "listener"};
	struct ucred peer;
	socklen_t len = sizeof(peer);
	int stream[2], datagram[2], packet[2], rights[2], set = 1;
	char back[100];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, stream) == 0 &&
	      socketpair(AF_UNIX, SOCK_DGRAM, 0, datagram) == 0 &&
	      socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packet) == 0 &&
	      socketpair(AF_UNIX, SOCK_STREAM, 0, rights) == 0);
	CHECK(send(stream[0], "to one", 6, 0) == 6 && send(stream[1], "to nought", 9, 0) == 9);
	CHECK(send(datagram[0], "first", 5, 0) == 5 && send(datagram[0], "", 0, 0) == 0 &&
	      send(datagram[0], "third", 5, 0) == 5);
	CHECK(send(packet[1], "a packet", 8, 0) == 8 && send(packet[1], "b", 1, 0) == 1);
	CHECK(shutdown(packet[1], SHUT_WR) == 0);
	CHECK(setsockopt(stream[0], SOL_SOCKET, SO_PASSCRED, &set, sizeof(set)) == 0);
	int file = open("passed", O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(file >= 0 && write(file, "through a socket", 16) == 16 && lseek(file, 8, SEEK_SET) == 8);
	CHECK(pass_descriptor(rights[0], file) == 2 && close(file) == 0);
	int listener = socket(AF_UNIX, SOCK_STREAM, 0);
	CHECK(bind(listener, (struct sockaddr *)&name, sizeof(name)) == 0 && listen(listener, 5) == 0);
	int waiting = socket(AF_UNIX, SOCK_STREAM, 0);
	/* If it had sent data the checkpoint would fail: the kernel shows the data to no process before
	 * accept(). */
	CHECK(connect(waiting, (struct sockaddr *)&name, sizeof(name)) == 0);

	case_wait();
	CHECK(recv(stream[1], back, sizeof(back), 0) == 6 && memcmp(back, "to one", 6) == 0);
	CHECK(recv(stream[0], back, sizeof(back), 0) == 9 && memcmp(back, "to nought", 9) == 0);
	CHECK(recv(datagram[1], back, sizeof(back), 0) == 5 &&
	      recv(datagram[1], back, sizeof(back), 0) == 0 &&
	      recv(datagram[1], back, sizeof(back), 0) == 5 && memcmp(back, "third", 5) == 0);
	CHECK(recv(packet[0], back, sizeof(back), 0) == 8 && recv(packet[0], back, sizeof(back), 0) == 1);
	CHECK(recv(packet[0], back, sizeof(back), 0) == 0);
	set = 0;
	len = sizeof(set);
	CHECK(getsockopt(stream[0], SOL_SOCKET, SO_PASSCRED, &set, &len) == 0 && set == 1);
	file = take_descriptor(rights[1]);
	CHECK(file >= 0 && read(file, back, sizeof(back)) == 8 && memcmp(back, "a socket", 8) == 0);
	int accepted = accept(listener, NULL, NULL);
	CHECK(accepted >= 0 && send(waiting, "hello", 5, 0) == 5 &&
	      recv(accepted, back, sizeof(back), 0) == 5 && memcmp(back, "hello", 5) == 0);
	len = sizeof(peer);
	CHECK(getsockopt(accepted, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.pid == getpid());
	int again = socket(AF_UNIX, SOCK_STREAM, 0);
	CHECK(connect(again, (struct sockaddr *)&name, sizeof(name)) == 0 &&
	      accept(listener, NULL, NULL) >= 0);
	CHECK(send(stream[0], "still", 5, 0) == 5 && recv(stream[1], back, sizeof(back), 0) == 5);
	CHECK(unlink("listener") == 0 && unlink("passed") == 0);
	case_pass();
}
