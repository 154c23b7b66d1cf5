/*
 * Credentials over UNIX sockets: SO_PEERCRED and SCM_CREDENTIALS.
 *
 * Messages without control data, nearly all, are let go at their first stop. One that is sent with
 * credentials gets a copy of its header and control data in the scratch area, with the real number, which the
 * kernel compares with the sender's. Of a sendmmsg() only the messages before the first such, or that one
 * alone, are sent: the program sees a short count, as it may at any time.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#include "scip/syscall/table.h"

#define COPY_AT	    128u /* of the control data in the room; a struct mmsghdr lies before it */
#define CONTROL_MAX (CALL_SLOT_BYTES - COPY_AT)
#define MANY_MAX    64u

int enter_getsockopt(struct call *call)
{
	return (int)call->args[1] == SOL_SOCKET && names_generation(call->process->names) ? SYSCALL_WANT_EXIT
											  : SYSCALL_CONTINUE;
}

int exit_getsockopt(struct call *call)
{
	if (call->rval == 0)
		call_virtual_at(call, call->args[3] + offsetof(struct ucred, pid));
	return 0;
}

/* The next header of control data, by offset; sets *at behind it. NULL at the end or where it is malformed.
 */
static struct cmsghdr *next_header(char *control, size_t len, size_t *at)
{
	struct cmsghdr *head = (struct cmsghdr *)(control + *at);

	if (*at > len || len - *at < sizeof(*head) || head->cmsg_len < sizeof(*head) ||
	    head->cmsg_len > len - *at)
		return NULL;
	*at += CMSG_ALIGN(head->cmsg_len);
	return head;
}

static struct ucred *credentials(struct cmsghdr *head)
{
	if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_CREDENTIALS ||
	    head->cmsg_len < CMSG_LEN(sizeof(struct ucred)))
		return NULL;
	return (struct ucred *)CMSG_DATA(head);
}

/* Reads the control data of a message and makes its credentials real. True if any changed. */
static bool make_real(const struct call *call, const struct msghdr *message, char *control)
{
	struct cmsghdr *head;
	bool changed = false;
	size_t at = 0;

	if (!message->msg_control || message->msg_controllen < sizeof(*head) ||
	    message->msg_controllen > CONTROL_MAX ||
	    call_read(call, (uint64_t)message->msg_control, control, message->msg_controllen) < 0)
		return false;
	while ((head = next_header(control, message->msg_controllen, &at)) != NULL) {
		struct ucred *cred = credentials(head);
		int32_t real = cred ? call_real(call, cred->pid) : 0;

		if (cred && real != cred->pid) {
			cred->pid = real;
			changed = true;
		}
	}
	return changed;
}

int enter_sendmsg(struct call *call)
{
	_Alignas(8) char control[CONTROL_MAX];
	struct msghdr message;
	struct taddr where;
	int r;

	if (names_generation(call->process->names) == 0 ||
	    call_read(call, call->args[1], &message, sizeof(message)) < 0 ||
	    !make_real(call, &message, control))
		return SYSCALL_CONTINUE;
	r = call_scratch(call, COPY_AT, control, message.msg_controllen, &where);
	if (r)
		return r;
	message.msg_control = (void *)where.a;
	return call_replace(call, 1, &message, sizeof(message));
}

int enter_sendmmsg(struct call *call)
{
	_Alignas(8) char control[CONTROL_MAX];
	struct mmsghdr message;
	struct taddr where;
	unsigned n = (unsigned)call->args[2], i;
	int r;

	if (names_generation(call->process->names) == 0)
		return SYSCALL_CONTINUE;
	if (n > MANY_MAX)
		n = MANY_MAX;
	for (i = 0; i < n; i++) {
		if (call_read(call, call->args[1] + i * sizeof(message), &message, sizeof(message)) < 0)
			return SYSCALL_CONTINUE;
		if (make_real(call, &message.msg_hdr, control))
			break;
	}
	if (i == n)
		return n < (unsigned)call->args[2] ? call_set_arg(call, 2, n) : SYSCALL_CONTINUE;
	if (i > 0)
		return call_set_arg(call, 2, i);
	r = call_scratch(call, COPY_AT, control, message.msg_hdr.msg_controllen, &where);
	if (r)
		return r;
	message.msg_hdr.msg_control = (void *)where.a;
	r = call_replace(call, 1, &message, sizeof(message));
	if (r != SYSCALL_WANT_EXIT)
		return r;
	call->keep[0] = 1;
	return call_set_arg(call, 2, 1);
}

/* msg_len of the one message that was sent from the copy. */
int exit_sendmmsg(struct call *call)
{
	uint32_t len;

	if (!call->keep[0] || call->rval != 1 ||
	    call_read(call, call->now[1] + offsetof(struct mmsghdr, msg_len), &len, sizeof(len)) < 0)
		return 0;
	return call_write(call, call->args[1] + offsetof(struct mmsghdr, msg_len), &len, sizeof(len)) ==
			       -ESRCH
		       ? -ESRCH
		       : 0;
}

int enter_recvmsg(struct call *call)
{
	struct msghdr message;

	if (names_generation(call->process->names) == 0 ||
	    call_read(call, call->args[1], &message, sizeof(message)) < 0 || !message.msg_control ||
	    message.msg_controllen < CMSG_LEN(sizeof(struct ucred)))
		return SYSCALL_CONTINUE;
	return SYSCALL_WANT_EXIT;
}

/* Makes the credentials virtual in what a message at `address` has received. */
static void make_virtual(const struct call *call, uint64_t address)
{
	_Alignas(8) char control[CONTROL_MAX];
	struct msghdr message;
	struct cmsghdr *head;
	size_t at = 0;

	if (call_read(call, address, &message, sizeof(message)) < 0 || !message.msg_control ||
	    message.msg_controllen > CONTROL_MAX ||
	    call_read(call, (uint64_t)message.msg_control, control, message.msg_controllen) < 0)
		return;
	while ((head = next_header(control, message.msg_controllen, &at)) != NULL) {
		struct ucred *cred = credentials(head);

		if (cred)
			call_virtual_at(call, (uint64_t)message.msg_control +
						      (size_t)((char *)cred - control) +
						      offsetof(struct ucred, pid));
	}
}

int exit_recvmsg(struct call *call)
{
	if (call->rval >= 0)
		make_virtual(call, call->args[1]);
	return 0;
}

int enter_recvmmsg(struct call *call)
{
	return names_generation(call->process->names) ? SYSCALL_WANT_EXIT : SYSCALL_CONTINUE;
}

int exit_recvmmsg(struct call *call)
{
	for (int64_t i = 0; i < call->rval; i++)
		make_virtual(call, call->args[1] + (uint64_t)i * sizeof(struct mmsghdr));
	return 0;
}
