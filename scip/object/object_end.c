#include "scip/object/object_end.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/log.h"
#include "namespace/address_entry.h"

const struct object_end_ops *object_end_ops_of(const Pbeam__Object *object)
{
	const struct object_ops *ops = object_ops_of(object);

	return ops ? ops->end : NULL;
}

bool object_address(const Pbeam__Object *object, struct object_address *out)
{
	const struct object_end_ops *end = object_end_ops_of(object);

	if (!end || !end->address)
		return false;
	*out = end->address(object);
	return true;
}

void object_renew_address(struct object_restore *restore, const Pbeam__Object *object, int fd)
{
	union name_sockaddr name = {0};
	struct object_address address;
	struct inet_address own;
	struct err err = ERR_INIT;

	if (object->external || !object_address(object, &address) || !(*address.host)[0] ||
	    !inet_address_parse(address.name, &own))
		return;
	memcpy(&name, &own.any, own.len);
	if (address_renew(object_restore_names(restore), address.protocol, &name, *address.host, fd, &err) <
	    0)
		log_warn("restore: other hosts do not find a bound socket: %s", err.text);
}

bool object_is_port(const Pbeam__Object *object)
{
	struct object_address address;

	return object_address(object, &address) && address.protocol == IPPROTO_UDP && !address.connected;
}

Pbeam__Tty *object_tty_of(const Pbeam__Object *object)
{
	if (object->kind_case == PBEAM__OBJECT__KIND_TTY)
		return object->tty;
	return object->kind_case == PBEAM__OBJECT__KIND_CONSOLE ? object->console->tty : NULL;
}

int object_end_make(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err)
{
	const struct object_ops *ops = object_ops_of(object);

	return ops->end && ops->end->make ? ops->end->make(restore, object, fd, err)
					  : ops->restore(restore, object, fd, err);
}

int object_end_refill(struct object_restore *restore, const Pbeam__Object *object, int fd, int *other,
		      struct err *err)
{
	const struct object_end_ops *end = object_end_ops_of(object);
	int borrowed = -1, r;

	*other = -1;
	if (!end || !end->refill)
		return err_set(err, -EBADMSG, "object %u has no other end", object->id);
	r = end->refill(restore, object, fd, &borrowed, err);
	if (r < 0 || borrowed < 0)
		return r;
	*other = fcntl(borrowed, F_DUPFD_CLOEXEC, 3);
	return *other < 0 ? err_sys(err, "keep the other end") : 0;
}
