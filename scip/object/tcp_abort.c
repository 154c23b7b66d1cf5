/*
 * Before processes are killed to be restored: connections among them must leave nothing behind. A close would
 * leave one end of each in TIME_WAIT for a minute, in which no socket can bind to its port unless both had
 * SO_REUSEADDR. With SO_LINGER at 0 the close at their death is a reset, which neither process sees any more.
 * Connections to others end as usual.
 */
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "scip/object/common.h"
#include "scip/object/inet.h"
#include "scip/object/object.h"
#include "scip/object/socket.h"

struct connection {
	int fd;
	struct inet_address own, peer;
};
struct connections {
	struct connection *v;
	size_t n;
};

static void connections_take(struct connections *all, int fd)
{
	struct connection found = {.fd = fd};
	bool tcp = socket_option(fd, SOL_SOCKET, SO_PROTOCOL, 0) == IPPROTO_TCP;

	found.own.len = found.peer.len = sizeof(found.own.v6);
	if (!tcp || getsockname(fd, &found.own.any, &found.own.len) < 0 ||
	    getpeername(fd, &found.peer.any, &found.peer.len) < 0 || object_append(all->v, all->n, found) < 0)
		close(fd);
}

static void connections_collect(struct connections *all, struct rpid rpid)
{
	auto_close int pidfd = pidfd_open(rpid.n, 0);
	auto_closedir DIR *dir = NULL;
	struct dirent *item;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fd", rpid.n);
	dir = pidfd >= 0 ? opendir(path) : NULL;
	while (dir && (item = readdir(dir)) != NULL) {
		char link[32];
		ssize_t n = readlinkat(dirfd(dir), item->d_name, link, sizeof(link));
		int fd;

		if (n < 8 || memcmp(link, "socket:[", 8) != 0)
			continue;
		fd = pidfd_getfd(pidfd, atoi(item->d_name), 0);
		if (fd >= 0)
			connections_take(all, fd);
	}
}

static int compare_inodes(const void *a, const void *b)
{
	const struct connection *one = a, *other = b;
	unsigned own = inet_port(&one->own), theirs = inet_port(&other->own);

	return own < theirs ? -1 : own > theirs;
}

/* In order of the own port: the other end is among those whose port is our peer's. */
static bool has_other_end(const struct connections *all, const struct connection *one)
{
	size_t low = 0, high = all->n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (inet_port(&all->v[middle].own) < inet_port(&one->peer))
			low = middle + 1;
		else
			high = middle;
	}
	for (; low < all->n && inet_port(&all->v[low].own) == inet_port(&one->peer); low++)
		if (inet_same(&all->v[low].own, &one->peer) && inet_same(&all->v[low].peer, &one->own))
			return true;
	return false;
}

void object_abort_connections(const struct rpid *rpids, size_t n)
{
	const struct linger reset = {.l_onoff = 1, .l_linger = 0};
	struct connections all = {NULL, 0};

	for (size_t i = 0; i < n; i++)
		if (rpids[i].n > 0)
			connections_collect(&all, rpids[i]);
	if (all.n)
		bytes_sort(all.v, all.n, sizeof(*all.v), compare_inodes);
	for (size_t i = 0; i < all.n; i++)
		if (has_other_end(&all, &all.v[i]))
			(void)!setsockopt(all.v[i].fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	for (size_t i = 0; i < all.n; i++)
		close(all.v[i].fd);
	free(all.v);
}
