/*
 * A connection has a number, which is the same in the images of both parts. For each end the leader decides
 * whether it connects or accepts, and gives both ends the same cookie. Ends are connected when objects are
 * made, so that the processes receive connected descriptors, and filled when objects are finished.
 *
 * All parts connect and fill in the order of the numbers. The lowest unfinished connection is therefore the
 * next one in both of its parts, so parts never wait for each other in a circle. If two parts were joined
 * (cut_join.h), both ends are in this process: one connects to the other all the same.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "proto/message.h"
#include "proto/reconnect.pb-c.h"
#include "scip/ends/acceptor.h"
#include "scip/ends/end_tcp.h"
#include "scip/ends/migration_record.h"
#include "scip/object/common.h"
#include "scip/rejoin/cut_provider.h"

enum { CALL_MS = 60000, LOOK_MS = 100, AGAIN_US = 20000 };

int cut_mark(Pbeam__Object *out, uint64_t id, const struct end_tcp *end, struct err *err)
{
	Pbeam__ReconnectTicket ticket = PBEAM__RECONNECT_TICKET__INIT;
	int r;

	ticket.id = id;
	ticket.receive_buffer = (uint32_t)end->receive_buffer;
	ticket.receive_lock = (uint32_t)end->receive_lock;
	r = external_mark_message(out, &cut_provider, &ticket.base);
	return r < 0 ? err_code(err, r, "record a connection") : 1;
}

/* ---- target ---- */

struct link {
	const Pbeam__CutLink *link;
	const Pbeam__Object *object;
	Pbeam__ReconnectTicket *ticket;
	int fd; /* -1: not connected yet */
	bool given;
};
struct links {
	struct link *v;
	size_t n;
	bool connected, filled;
};

int cut_listen(struct migrate_target *target, Pbeam__MigrateReady *ready, struct err *err)
{
	struct inet_address address;
	bool known = record_own_address(&address);
	int r = acceptor_open(&target->acceptor, known ? &address : NULL, err);

	if (r < 0)
		return r;
	ready->port4 = acceptor_port4(target->acceptor);
	ready->port6 = acceptor_port6(target->acceptor);
	return 0;
}

/* Sorts by number. If both ends are here, the connecting end is first. */
static int link_compare(const void *a, const void *b)
{
	const struct link *x = a, *y = b;

	if (x->ticket->id != y->ticket->id)
		return x->ticket->id < y->ticket->id ? -1 : 1;
	return y->link->calls - x->link->calls;
}

static bool is_taken(const struct links *links, const Pbeam__CutLink *link)
{
	for (size_t i = 0; i < links->n; i++)
		if (links->v[i].link == link)
			return true;
	return false;
}

static int find_link(const struct migrate_target *target, const struct links *links, struct link *link,
		     struct err *err)
{
	for (size_t i = 0; target->links && i < target->links->n_links && !link->link; i++)
		if (target->links->links[i]->id == link->ticket->id &&
		    !is_taken(links, target->links->links[i]))
			link->link = target->links->links[i];
	if (!link->ticket->id || !link->link || link->link->cookie.len != ACCEPTOR_COOKIE_SIZE)
		return err_set(err, -EBADMSG,
			       "the leader sent no address for the other end of connection %llu",
			       (unsigned long long)link->ticket->id);
	return 0;
}

static int cut_expect(struct migrate_target *target, void **state, struct err *err)
{
	struct links *links = *state = calloc(1, sizeof(*links));
	int r = links ? 0 : err_code(err, -ENOMEM, "look for connections");

	for (size_t i = 0; i < target->manifest->n_objects && r == 0; i++) {
		const Pbeam__Object *object = target->manifest->objects[i];
		struct link new = {.object = object, .fd = -1};

		if (!object->external || strcmp(object->external->provider, cut_provider.name) != 0)
			continue;
		new.ticket = end_tcp_ticket(object, err);
		r = new.ticket ? find_link(target, links, &new, err) : -EBADMSG;
		if (r == 0 && object_append(links->v, links->n, new) < 0)
			r = err_code(err, -ENOMEM, "look for connections");
		if (r < 0)
			message_free(new.ticket);
	}
	if (r == 0 && links->n)
		bytes_sort(links->v, links->n, sizeof(*links->v), link_compare);
	return r;
}

/* ---- connecting ---- */

static int link_connect(struct link *link, struct err *err)
{
	int family = link->object->tcp->family;
	struct inet_address to;

	if (!inet_address_parse(&link->link->address, &to))
		return err_set(err, -EPROTO, "the address of the other end of a connection is malformed");
	to = inet_in_family(&to, family);
	inet_set_port(&to, family == AF_INET6 && link->link->port6 ? link->link->port6 : link->link->port4);
	link->fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
	if (link->fd < 0)
		return err_sys(err, "make a TCP socket");
	return acceptor_connect(link->fd, &to, link->link->cookie.data, ACCEPTOR_CONNECT_MS, err);
}

static bool links_claim(void *arg, const uint8_t cookie[ACCEPTOR_COOKIE_SIZE], int sock)
{
	struct links *links = arg;

	for (size_t i = 0; i < links->n; i++) {
		struct link *link = &links->v[i];

		if (link->link->calls || link->fd >= 0 ||
		    memcmp(link->link->cookie.data, cookie, ACCEPTOR_COOKIE_SIZE) != 0)
			continue;
		link->fd = sock;
		return true;
	}
	return false;
}

static bool was_given_up(const struct migrate_target *target)
{
	struct pollfd poll_fd = {.fd = target->channel, .events = POLLIN};

	return poll(&poll_fd, 1, 0) != 0;
}

static int link_await(const struct migrate_target *target, struct links *links, const struct link *link,
		      struct err *err)
{
	const uint64_t end_ns = io_now_ns(CLOCK_MONOTONIC) + CALL_MS * 1000000ull;

	while (link->fd < 0) {
		int r = acceptor_wait(target->acceptor, LOOK_MS, target->channel, links_claim, links, err);

		if (r < 0)
			return r;
		if (link->fd < 0 && was_given_up(target))
			return err_set(err, -ECANCELED, "another part has given up");
		if (link->fd < 0 && io_now_ns(CLOCK_MONOTONIC) > end_ns)
			return err_set(err, -ETIMEDOUT,
				       "the other end of a connection has not connected within %d s",
				       CALL_MS / 1000);
	}
	return 0;
}

static int links_connect(const struct migrate_target *target, struct links *links, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < links->n && r == 0; i++)
		r = links->v[i].link->calls ? link_connect(&links->v[i], err)
					    : link_await(target, links, &links->v[i], err);
	links->connected = r == 0;
	return r;
}

static int cut_make(struct migrate_target *target, void **state, struct object_restore *restore,
		    const Pbeam__Object *object, int *fd, struct err *err)
{
	struct links *links = *state;
	int r = links->connected ? 0 : links_connect(target, links, err);

	for (size_t i = 0; i < links->n && r == 0; i++)
		if (links->v[i].object == object) {
			links->v[i].given = true;
			*fd = links->v[i].fd;
			return 0;
		}
	return r < 0 ? r : err_set(err, -EBADMSG, "object %u is not a connection between parts", object->id);
}

/* ---- filling ---- */

static int link_fill(struct migrate_target *target, struct object_restore *restore, const struct link *link,
		     struct err *err)
{
	return end_tcp_restore(target->names, restore, link->object, link->ticket, link->fd,
			       link->link->calls, err);
}

struct filling {
	struct migrate_target *target;
	struct object_restore *restore;
	struct link *link;
	struct err err;
	int r;
};

static void *link_fill_thread(void *arg)
{
	struct filling *filling = arg;

	filling->r = link_fill(filling->target, filling->restore, filling->link, &filling->err);
	if (filling->r < 0) /* wakes the other end, which waits for this one */
		shutdown(filling->link->fd, SHUT_RDWR);
	return NULL;
}

/* Fills two ends of this process, each in a thread of its own, as each waits for the other. */
static int link_fill_both(struct migrate_target *target, struct object_restore *restore, struct link *pair,
			  struct err *err)
{
	struct filling other = {target, restore, &pair[1], ERR_INIT, 0};
	pthread_t thread;
	int r = pthread_create(&thread, NULL, link_fill_thread, &other);

	if (r != 0)
		return err_code(err, -r, "start a thread for the other end of a connection");
	r = link_fill(target, restore, &pair[0], err);
	if (r < 0)
		shutdown(pair[0].fd, SHUT_RDWR);
	pthread_join(thread, NULL);
	if (r == 0 && other.r < 0)
		r = err_set(err, other.r, "%s", other.err.text);
	return r;
}

static int links_fill(struct migrate_target *target, struct object_restore *restore, struct links *links,
		      struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < links->n && r == 0; i++) {
		struct link *next = i + 1 < links->n ? &links->v[i + 1] : NULL;

		if (next && next->ticket->id == links->v[i].ticket->id)
			r = link_fill_both(target, restore, &links->v[i++], err);
		else
			r = link_fill(target, restore, &links->v[i], err);
	}
	return r;
}

static int cut_finish(struct migrate_target *target, void **state, struct object_restore *restore,
		      const Pbeam__Object *object, int fd, struct err *err)
{
	struct links *links = *state;
	int r = links->filled ? 0 : links_fill(target, restore, links, err);

	links->filled = r == 0;
	return r;
}

static void cut_close(struct migrate_target *target, void **state)
{
	struct links *links = *state;

	for (size_t i = 0; links && i < links->n; i++) {
		if (links->v[i].fd >= 0 && !links->v[i].given)
			close(links->v[i].fd);
		message_free(links->v[i].ticket);
	}
	if (links)
		free(links->v);
	free(links);
}

const struct external_provider cut_provider = {
	.name = "cut",
	.expect = cut_expect,
	.make = cut_make,
	.finish = cut_finish,
	.target_close = cut_close,
};
