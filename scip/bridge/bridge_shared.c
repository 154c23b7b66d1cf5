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
#include "scip/object/socket.h"

int bridge_refuse_shared(const struct holder *holder, const char *what, struct err *err)
{
	char comm[32];

	return err_set(
		err, -ENOTSUP,
		"%s that process %d (%s), which stays, has open too: what comes would have to be read in two "
		"places; migrate the whole tree, let that process close it first, or leave it to that one "
		"with --leave-shared",
		what, holder->pid, bridge_comm_of(holder->pid, comm));
}

/* The process that stays reads the contents. */
static int leave_pipe(const struct outgoing_end *end, struct err *err)
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
	r = holder->pipe ? leave_pipe(end, err) : leave_socket(end, err);
	if (r < 0)
		return r;
	migrate_note(end->source, "fd %d of vpid %d is closed for it: %s that process %d (%s) keeps",
		     end->of->holder_fd, end->of->holder_vpid.n, what, holder->pid,
		     bridge_comm_of(holder->pid, comm));
	return 1;
}

static int make_pair(const Pbeam__Object *object, int fds[2], struct err *err)
{
	int r;

	if (object->kind_case == PBEAM__OBJECT__KIND_PIPE)
		r = pipe2(fds, O_CLOEXEC);
	else if (object->kind_case == PBEAM__OBJECT__KIND_UNIX_SOCKET)
		r = socketpair(AF_UNIX, (int)object->unix_socket->type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
			       fds);
	else
		return err_set(err, -EPROTO,
			       "object %u, left to another process, is neither a pipe nor a socket",
			       object->id);
	return r < 0 ? err_sys(err, "make a pair") : 0;
}

static int make(struct migrate_target *target, void **state, struct object_restore *restore,
		const Pbeam__Object *object, int *fd, struct err *err)
{
	bool writes =
		object->kind_case == PBEAM__OBJECT__KIND_PIPE && (object->flags & O_ACCMODE) == O_WRONLY;
	int fds[2], r = make_pair(object, fds, err);

	if (r < 0)
		return r;
	close(fds[writes ? 0 : 1]);
	*fd = fds[writes ? 1 : 0];
	if (object->kind_case == PBEAM__OBJECT__KIND_UNIX_SOCKET)
		shutdown(*fd, SHUT_RDWR);
	return 0;
}

const struct external_provider left_provider = {.name = "left", .make = make};
