/*
 * Names of single sockets: the results of getsockname() and getpeername() before the connection was made
 * again on another host, by the socket's inode. The kernel gives socket inodes in ascending order and so
 * hardly ever uses one again, and does not report when a socket is closed. When all places for an inode are
 * taken, the oldest name is replaced.
 */
#include <errno.h>
#include <string.h>

#include "namespace/table.h"

enum { WINDOW = 16 }; /* places for an inode */

static struct table_socket *socket_place(struct table *table, uint64_t ino, unsigned nth)
{
	return &table->sockets[(ino + nth) % TABLE_SOCKETS];
}

static struct table_socket *socket_find(struct table *table, uint64_t ino)
{
	for (unsigned i = 0; i < WINDOW; i++)
		if (socket_place(table, ino, i)->ino == ino)
			return socket_place(table, ino, i);
	return NULL;
}

/* Returns a free place, or that of the lowest inode. */
static struct table_socket *socket_oldest(struct table *table, uint64_t ino)
{
	struct table_socket *found = socket_place(table, ino, 0);

	for (unsigned i = 1; i < WINDOW; i++)
		if (socket_place(table, ino, i)->ino < found->ino)
			found = socket_place(table, ino, i);
	return found;
}

static void copy_in(union name_sockaddr *out, const struct sockaddr *address, socklen_t len)
{
	memset(out, 0, sizeof(*out));
	memcpy(out, address, len < sizeof(*out) ? len : sizeof(*out));
}

int names_socket_set(struct names *names, uint64_t ino, const struct name_socket *name)
{
	struct table *table = names->table;
	struct table_socket *place;
	int r = ino ? table_lock(names) : -EINVAL;

	if (r < 0)
		return r;
	place = socket_find(table, ino);
	if (!place)
		place = socket_oldest(table, ino);
	place->ino = 0; /* a writer that dies here leaves a free place */
	copy_in(&place->name.own, &name->own.sa, sizeof(name->own));
	copy_in(&place->name.peer, &name->peer.sa, sizeof(name->peer));
	memcpy(place->name.born, name->born, sizeof(name->born));
	place->name.born[sizeof(name->born) - 1] = 0;
	place->ino = ino;
	atomic_store_explicit(&table->has_sockets, 1, memory_order_release);
	table_unlock(names);
	return 0;
}

bool names_socket_any(struct names *names)
{
	return atomic_load_explicit(&names->table->has_sockets, memory_order_acquire);
}

int names_socket_get(struct names *names, uint64_t ino, struct name_socket *out)
{
	const struct table_socket *place;
	int r = ino && names_socket_any(names) ? table_lock(names) : -ENOENT;

	if (r < 0)
		return r;
	place = socket_find(names->table, ino);
	if (place)
		*out = place->name;
	table_unlock(names);
	return place ? 0 : -ENOENT;
}

void names_socket_forget(struct names *names, uint64_t ino)
{
	struct table_socket *place;

	if (!ino || !names_socket_any(names) || table_lock(names) < 0)
		return;
	place = socket_find(names->table, ino);
	if (place)
		place->ino = 0;
	table_unlock(names);
}
