/*
 * Descriptions shared with a process that stays. Their data would have to be read on two hosts, so they are
 * refused, or with --leave-shared left to the process that stays. Mostly they are descriptors that a launcher
 * has not closed in its children. The migrated process gets a pipe or socket whose other end is closed.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "proto/message.h"
#include "scip/bridge/bridge_provider.h"
#include "scip/bridge/bridge_source.h"
#include "scip/object/object_end.h"
#include "scip/object/socket.h"

int bridge_refuse_shared(const struct holder *holder, const char *what, struct err *err)
{
	char comm[32];

	return err_set(
		err, -ENOTSUP,
		"%s that process %d (%s), which stays, has open too: its input would have to be read in two "
		"places; migrate the whole tree, let that process close it first, or leave it to that "
		"process with --leave-shared",
		what, holder->pid, bridge_comm_of(holder->pid, comm));
}

/* The process that stays reads the contents. */
static int shared_leave_pipe(const struct outgoing_end *end, struct err *err)
{
	int r = object_dump_as_usual(end->dump, end->of, end->out, err);

	if (r < 0)
		return r;
	bridge_forget_contents(end->out->pipe);
	return external_mark(end->out, &left_provider, NULL, 0) < 0 ? err_code(err, -ENOMEM, "bridges") : 0;
}

/* A UNIX socket replaces one of any family, as a program cannot tell them apart without a peer. */
static int leave_socket(const struct outgoing_end *end, struct err *err)
{
	uint32_t type = (uint32_t)socket_option(end->of->local, SOL_SOCKET, SO_TYPE, SOCK_STREAM);
	Pbeam__Object *out = end->out;

	if (out->kind_case == PBEAM__OBJECT__KIND_UNIX_SOCKET)
		pbeam__unix_socket__free_unpacked(out->unix_socket, NULL);
	out->kind_case = PBEAM__OBJECT__KIND_UNIX_SOCKET;
	out->unix_socket = message_new(&pbeam__unix_socket__descriptor);
	if (!out->unix_socket || external_mark(out, &left_provider, NULL, 0) < 0)
		return err_code(err, -ENOMEM, "bridges");
	out->unix_socket->ino = end->of->st.st_ino;
	out->unix_socket->type = type == SOCK_DGRAM || type == SOCK_SEQPACKET ? type : SOCK_STREAM;
	return 0;
}

int bridge_shared(const struct outgoing_end *end, const struct holder *holder, const char *what,
		  struct err *err)
{
	char comm[32];
	int r;

	/* A FIFO would be opened again by its path. */
	if (!end->source->leave_shared || bridge_has_stream(end) || (holder->pipe && end->of->link[0] == '/'))
		return bridge_refuse_shared(holder, what, err);
	r = holder->pipe ? shared_leave_pipe(end, err) : leave_socket(end, err);
	if (r < 0)
		return r;
	migrate_note(end->source, "fd %d of vpid %d is closed for it: %s that process %d (%s) keeps",
		     end->of->holder_fd, end->of->holder_vpid.n, what, holder->pid,
		     bridge_comm_of(holder->pid, comm));
	return 1;
}

static int shared_make(struct migrate_target *target, void **state, struct object_restore *restore,
		       const Pbeam__Object *object, int *fd, struct err *err)
{
	const struct object_end_ops *end = object_end_ops_of(object);

	if (!end || !end->make_closed)
		return err_set(err, -EPROTO,
			       "object %u, left to another process, is neither a pipe nor a UNIX socket",
			       object->id);
	return end->make_closed(object, fd, err);
}

const struct external_provider left_provider = {.name = "left", .make = shared_make};
