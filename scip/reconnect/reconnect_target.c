/* The side where a connection arrives: a new socket, connected with the new one of its peer. */
#include <errno.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "proto/message.h"
#include "proto/reconnect.pb-c.h"
#include "scip/object/common.h"
#include "scip/object/tcp_socket.h"
#include "scip/reconnect/reconnect_end.h"
#include "scip/reconnect/reconnect_provider.h"

static Pbeam__ReconnectTicket *ticket_of(const Pbeam__Object *object, struct err *err)
{
	Pbeam__ReconnectTicket *ticket = pbeam__reconnect_ticket__unpack(NULL, object->external->data.len,
									 object->external->data.data);

	if (ticket && object->kind_case == PBEAM__OBJECT__KIND_TCP &&
	    ticket->cookie.len == ACCEPTOR_COOKIE_SIZE)
		return ticket;
	message_free(ticket);
	err_set(err, -EBADMSG, "the record of a TCP connection that is made again is malformed");
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
	const Pbeam__TcpSocket *saved = object->tcp;
	Pbeam__ReconnectTicket *ticket = ticket_of(object, err);
	struct reconnect_end end;
	int r;

	if (!ticket)
		return -EBADMSG;
	reconnect_end_init(&end);
	end.fresh = fd;
	end.family = saved->family;
	end.flags = (int)object->flags;
	end.state = (uint8_t)saved->state;
	end.shutdown = (uint8_t)saved->shutdown;
	end.options = saved->options;
	end.receive_buffer = (int)ticket->receive_buffer;
	end.receive_lock = (int)ticket->receive_lock;
	memcpy(end.cookie, ticket->cookie.data, ACCEPTOR_COOKIE_SIZE);
	r = object_get_extent(restore, saved->receive_queue, &end.unread, &end.unread_len, err);
	if (r == 0)
		r = reconnect_end_connect(&end, &ticket->address, err);
	if (r == 0)
		r = tcp_keep_name(target->names, saved, fd, err);
	/* The manifest's and the process's own. */
	end.options = NULL;
	end.fresh = -1;
	reconnect_end_free(&end);
	message_free(ticket);
	return r;
}
