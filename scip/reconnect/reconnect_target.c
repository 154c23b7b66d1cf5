/* The target side: makes a new socket and connects it to the peer's new one. */
#include <errno.h>
#include <sys/socket.h>

#include "proto/message.h"
#include "proto/reconnect.pb-c.h"
#include "scip/ends/end_tcp.h"
#include "scip/object/common.h"
#include "scip/reconnect/reconnect_provider.h"

static Pbeam__ReconnectTicket *ticket_of(const Pbeam__Object *object, struct err *err)
{
	Pbeam__ReconnectTicket *ticket = end_tcp_ticket(object, err);

	if (!ticket || ticket->cookie.len == ACCEPTOR_COOKIE_SIZE)
		return ticket;
	message_free(ticket);
	err_set(err, -EBADMSG, "the record of a TCP connection has no cookie");
	return NULL;
}

int reconnect_make(struct migrate_target *target, void **state, struct object_restore *restore,
		   const Pbeam__Object *object, int *fd, struct err *err)
{
	Pbeam__ReconnectTicket *ticket = ticket_of(object, err);

	if (!ticket)
		return -EBADMSG;
	message_free(ticket);
	*fd = socket(object->tcp->family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
	return *fd < 0 ? err_sys(err, "make a TCP socket") : 0;
}

int reconnect_finish(struct migrate_target *target, void **state, struct object_restore *restore,
		     const Pbeam__Object *object, int fd, struct err *err)
{
	Pbeam__ReconnectTicket *ticket = ticket_of(object, err);
	int r;

	if (!ticket)
		return -EBADMSG;
	r = end_tcp_connect(fd, &ticket->address, ticket->cookie.data, err);
	if (r == 0)
		r = end_tcp_restore(target->names, restore, object, ticket, fd, true, err);
	message_free(ticket);
	return r;
}
