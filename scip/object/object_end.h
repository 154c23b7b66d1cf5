/* Kinds with another end, which may be outside the image: pipes, sockets, terminals. Whoever takes care of
 * the other end (scip/ends and the strategies over it) uses these hooks in place of the kind's own restore.
 */
#ifndef SCIP_OBJECT_END_H
#define SCIP_OBJECT_END_H

#include "scip/object/inet.h"
#include "scip/object/object.h"

/* The fields of an Internet socket's record that its address consists of. All pointers are borrowed. */
struct object_address {
	int protocol, family;
	uint64_t ino;
	const ProtobufCBinaryData *local;
	ProtobufCBinaryData *name, *called; /* called: local name of accepted connections */
	char **host;
	const Pbeam__SocketOptions *options;
	bool listening; /* TCP */
	bool connected; /* UDP with a peer */
	bool named;	/* bound to an address that peers may look up */
};

struct object_end_ops {
	/* The inode of the pipe or socket in the image. May be NULL. */
	uint64_t (*ino)(const Pbeam__Object *object);
	/* Internet sockets only. */
	struct object_address (*address)(const Pbeam__Object *object);
	/* As `restore`, but bound to `local`. Internet sockets only. */
	int (*restore_at)(struct object_restore *restore, const Pbeam__Object *object,
			  const struct inet_address *local, int *fd, struct err *err);
	/* Makes an end whose other end is not in the image: with another end of our own, which the restore
	 * keeps (object_restore_keep()) until `refill` gives it out. NULL: `restore` does so. */
	int (*make)(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err);
	/* Refills an end that `make` has made. *other, borrowed, is the other end, or -1 if it has none. */
	int (*refill)(struct object_restore *restore, const Pbeam__Object *object, int fd, int *other,
		      struct err *err);
	/* Makes an empty end whose other end is closed. May be NULL. */
	int (*make_closed)(const Pbeam__Object *object, int *fd, struct err *err);
};

/* Return the kind's hooks; NULL: it has no other end. */
const struct object_end_ops *object_end_ops_of(const Pbeam__Object *object);
/* False if the object is no Internet socket. */
bool object_address(const Pbeam__Object *object, struct object_address *out);
/* Registers the address of a socket that is bound again: while it was not there it may have been given up. No
 * effect with a provider, which registers it itself. */
void object_renew_address(struct object_restore *restore, const Pbeam__Object *object, int fd);
/* True for a UDP socket that is not connected: every sender may be its other end. */
bool object_is_port(const Pbeam__Object *object);
/* The pages of a pipe that is larger than those that the kernel makes above fs.pipe-user-pages-soft; 0 for a
 * smaller one, a FIFO and its write end, whose pages are counted with the read end. */
uint64_t object_pipe_pages(const Pbeam__Object *object);
/* True for either end of such a pipe. */
bool object_pipe_is_large(const Pbeam__Object *object);
struct object_restore;
/* False if the user may not have the large pipes of the image now, beside all others (pipe(7)). */
bool object_pipes_have_room(const struct object_restore *restore);

/* A terminal's or console stream's terminal, in the object; NULL: it is none. */
Pbeam__Tty *object_tty_of(const Pbeam__Object *object);

/* The hooks `make` and `refill`. *other is owned by the caller. */
must_check int object_end_make(struct object_restore *restore, const Pbeam__Object *object, int *fd,
			       struct err *err);
must_check int object_end_refill(struct object_restore *restore, const Pbeam__Object *object, int fd,
				 int *other, struct err *err);

#endif
