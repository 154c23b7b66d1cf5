/*
 * Getting what is under way between two frozen ends into the receiver's queue.
 *
 * SIOCOUTQ counts bytes that are not acknowledged yet (a FIN counts as one): at 0 everything is in the
 * receiver's queue. What may hold bytes back, and what moves them:
 *
 *   delayed acknowledgement   TCP_QUICKACK on the receiver
 *   Nagle, TCP_CORK           TCP_NODELAY, or the cork taken out, for a moment
 *   a full receive buffer     a larger one: SO_RCVLOWAT up and back, which leaves the size unlocked, or
 *                             SO_RCVBUF up and back where the program has locked it; a peek then makes the
 *                             kernel announce the larger window
 */
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "scip/object/socket.h"
#include "scip/object/socket_option.h"
#include "scip/object/tcp_socket.h"

#define QUICK_ROUNDS 20
#define SLOW_ROUNDS  400
#define SLOW_US	     2500u
#define BUF_LOCK     72 /* SO_BUF_LOCK, Linux 5.14 */
#define LOCKED_RCV   2

static int socket_readable_bytes(int fd)
{
	int n = 0;

	return ioctl(fd, SIOCOUTQ, &n) < 0 ? 0 : n;
}

void tcp_grow_receive(int fd, uint64_t bytes)
{
	int low = socket_option(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
	char byte;

	socket_set_option(fd, SOL_SOCKET, SO_RCVLOWAT, bytes && bytes < 1 << 30 ? (int)bytes : 1 << 30);
	socket_set_option(fd, SOL_SOCKET, SO_RCVLOWAT, low);
	(void)!recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
	socket_set_option(fd, IPPROTO_TCP, TCP_QUICKACK, 1);
}

void tcp_push(int fd)
{
	int nodelay = socket_option(fd, IPPROTO_TCP, TCP_NODELAY, 0);
	int cork = socket_option(fd, IPPROTO_TCP, TCP_CORK, 0);

	if (cork)
		socket_set_option(fd, IPPROTO_TCP, TCP_CORK, 0);
	if (!nodelay)
		socket_set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	if (!nodelay)
		socket_set_option(fd, IPPROTO_TCP, TCP_NODELAY, 0);
	if (cork)
		socket_set_option(fd, IPPROTO_TCP, TCP_CORK, 1);
}

static bool wait_empty(int fd, int peer, int rounds, unsigned pause_us)
{
	for (int i = 0; i < rounds; i++) {
		if (socket_readable_bytes(fd) == 0)
			return true;
		if (peer >= 0)
			socket_set_option(peer, IPPROTO_TCP, TCP_QUICKACK, 1);
		if (pause_us)
			usleep(pause_us);
	}
	return socket_readable_bytes(fd) == 0;
}

int tcp_drain(int fd, int peer)
{
	int size, lock;
	bool done;

	if (wait_empty(fd, peer, QUICK_ROUNDS, 0))
		return 0;
	tcp_push(fd);
	if (wait_empty(fd, peer, QUICK_ROUNDS, 50))
		return 0;
	if (peer < 0)
		return wait_empty(fd, peer, SLOW_ROUNDS, SLOW_US) ? 0 : -EAGAIN;
	lock = socket_option(peer, SOL_SOCKET, BUF_LOCK, 0);
	size = socket_option(peer, SOL_SOCKET, SO_RCVBUF, 0);
	if (lock & LOCKED_RCV)
		socket_set_option(peer, SOL_SOCKET, SO_RCVBUF, 1 << 30);
	tcp_grow_receive(peer, 0);
	tcp_push(fd);
	done = wait_empty(fd, peer, SLOW_ROUNDS, SLOW_US);
	if (lock & LOCKED_RCV)
		socket_set_option(peer, SOL_SOCKET, SO_RCVBUF, size / 2);
	return done ? 0 : -EAGAIN;
}
