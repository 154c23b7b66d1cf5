/*
 * Messages: credentials over UNIX sockets (SO_PEERCRED and SCM_CREDENTIALS), and destinations and
 * senders of datagrams where addresses have moved (datagram.c).
 *
 * Nearly all messages have no control data and continue at their first stop. A message with credentials
 * gets a copy of its header and control data in the scratch area, with the real number, which the
 * kernel compares with the sender's. Of a sendmmsg(), only the messages before the first of this kind
 * are sent, or that one alone. The program sees a short count, which the call permits.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "namespace/address_entry.h"
#include "namespace/record.h"
#include "scip/syscall/address.h"

#define NAME_AT	    64u	 /* offset of an address in the slot; a struct mmsghdr precedes it */
#define COPY_AT	    128u /* offset of the control data */
#define CONTROL_MAX (CALL_SLOT_BYTES - COPY_AT)
#define MANY_MAX    64u

int enter_getsockopt(struct call *call)
{
	return (int)call->args[1] == SOL_SOCKET && names_generation(call->process->names) ? SYSCALL_WANT_EXIT
											  : SYSCALL_CONTINUE;
}

/* The peer of a connection that was made again is recorded: the kernel would report the process that made
 * it. */
int exit_getsockopt(struct call *call)
{
	uint64_t where = call->args[3] + offsetof(struct ucred, pid);
	struct vpid peer = {0};
	char link[48];
	struct stat st;

	if (call->rval != 0)
		return 0;
	snprintf(link, sizeof(link), "/proc/%d/fd/%d", call->tracee->tid, (int)call->args[0]);
	if (stat(link, &st) == 0 && S_ISSOCK(st.st_mode))
		peer = record_peer_find(call->process->keeper, st.st_ino);
	if (!peer.n)
		call_virtual_at(call, where);
	else if (call_write(call, where, &peer.n, sizeof(peer.n)) < 0)
		return 0; /* the buffer is shorter, or another thread has unmapped it */
	return 0;
}

/* The next header of control data at offset *at, which is advanced. NULL at the end or if the data is
 * malformed. */
static struct cmsghdr *next_header(char *control, size_t len, size_t *at)
{
	struct cmsghdr *head = (struct cmsghdr *)(control + *at);

	if (*at > len || len - *at < sizeof(*head) || head->cmsg_len < sizeof(*head) ||
	    head->cmsg_len > len - *at)
		return NULL;
	*at += CMSG_ALIGN(head->cmsg_len);
	return head;
}

static struct ucred *cmsg_credentials(struct cmsghdr *head)
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
		struct ucred *cred = cmsg_credentials(head);
		int32_t real = cred ? call_real(call, cred->pid) : 0;

		if (cred && real != cred->pid) {
			cred->pid = real;
			changed = true;
		}
	}
	return changed;
}

/* What a message gets in place of its own header and control data. */
struct change {
	bool control, name;
	union name_sockaddr to;
};

/* Finds what must be changed. True if anything must. */
static bool cred_look(const struct call *call, const struct msghdr *message, char *control,
		      struct change *change)
{
	change->control = names_generation(call->process->names) && make_real(call, message, control);
	change->name = !address_nothing_moved(call) &&
		       address_read(call, (uint64_t)message->msg_name, message->msg_namelen, &change->to) &&
		       address_lead_datagram(call, (int)call->args[0], &change->to);
	return change->control || change->name;
}

/* Writes the copies to the scratch area. 0, or what the handler must return. */
static int make_copies(struct call *call, struct msghdr *message, const char *control,
		       const struct change *change)
{
	struct taddr where;
	int r = 0;

	if (change->control)
		r = call_scratch(call, COPY_AT, control, message->msg_controllen, &where);
	if (r == 0 && change->control)
		message->msg_control = (void *)where.a;
	if (r == 0 && change->name)
		r = call_scratch(call, NAME_AT, &change->to, sizeof(change->to), &where);
	if (r == 0 && change->name) {
		message->msg_name = (void *)where.a;
		message->msg_namelen = address_size(&change->to);
	}
	return r;
}

static bool nothing_to_do(const struct call *call)
{
	return names_generation(call->process->names) == 0 && address_nothing_moved(call);
}

int enter_sendmsg(struct call *call)
{
	_Alignas(8) char control[CONTROL_MAX];
	struct msghdr message;
	struct change change;
	int r;

	if (nothing_to_do(call) || call_read(call, call->args[1], &message, sizeof(message)) < 0 ||
	    !cred_look(call, &message, control, &change))
		return SYSCALL_CONTINUE;
	r = make_copies(call, &message, control, &change);
	return r ? r : call_replace(call, 1, &message, sizeof(message));
}

int enter_sendmmsg(struct call *call)
{
	_Alignas(8) char control[CONTROL_MAX];
	struct mmsghdr message;
	struct change change;
	unsigned n = (unsigned)call->args[2], i;
	int r;

	if (nothing_to_do(call))
		return SYSCALL_CONTINUE;
	if (n > MANY_MAX)
		n = MANY_MAX;
	for (i = 0; i < n; i++) {
		if (call_read(call, call->args[1] + i * sizeof(message), &message, sizeof(message)) < 0)
			return SYSCALL_CONTINUE;
		if (cred_look(call, &message.msg_hdr, control, &change))
			break;
	}
	if (i == n)
		return n < (unsigned)call->args[2] ? call_set_arg(call, 2, n) : SYSCALL_CONTINUE;
	if (i > 0)
		return call_set_arg(call, 2, i);
	r = make_copies(call, &message.msg_hdr, control, &change);
	if (r)
		return r;
	r = call_replace(call, 1, &message, sizeof(message));
	if (r != SYSCALL_WANT_EXIT)
		return r;
	call->keep[0] = 1;
	return call_set_arg(call, 2, 1);
}

/* Copies back msg_len of the message that was sent from the copy. */
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

/* keep[0]: room for the sender's address. */
int enter_recvmsg(struct call *call)
{
	struct msghdr message;
	bool credentials, name;

	if (nothing_to_do(call) || call_read(call, call->args[1], &message, sizeof(message)) < 0)
		return SYSCALL_CONTINUE;
	credentials = names_generation(call->process->names) && message.msg_control &&
		      message.msg_controllen >= CMSG_LEN(sizeof(struct ucred));
	name = message.msg_name && !address_nothing_moved(call);
	call->keep[0] = name ? message.msg_namelen : 0;
	return credentials || name ? SYSCALL_WANT_EXIT : SYSCALL_CONTINUE;
}

/* Translates the sender's address of a message that was received at `address`. */
static int call_sender(const struct call *call, uint64_t address)
{
	struct msghdr message;

	if (!call->keep[0] || call_read(call, address, &message, sizeof(message)) < 0)
		return 0;
	return address_call_sender(call, (uint64_t)message.msg_name, message.msg_namelen, call->keep[0]);
}

/* Makes the credentials of a message that was received at `address` virtual. */
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
		struct ucred *cred = cmsg_credentials(head);

		if (cred)
			call_virtual_at(call, (uint64_t)message.msg_control +
						      (size_t)((char *)cred - control) +
						      offsetof(struct ucred, pid));
	}
}

int exit_recvmsg(struct call *call)
{
	if (call->rval < 0)
		return 0;
	make_virtual(call, call->args[1]);
	return call_sender(call, call->args[1]);
}

/* The smallest room that any of the messages has for its sender's address. */
int enter_recvmmsg(struct call *call)
{
	unsigned n = (unsigned)call->args[2];
	struct mmsghdr message;

	if (nothing_to_do(call))
		return SYSCALL_CONTINUE;
	call->keep[0] = address_nothing_moved(call) ? 0 : sizeof(struct sockaddr_storage);
	for (unsigned i = 0; i < n && i < MANY_MAX && call->keep[0]; i++) {
		if (call_read(call, call->args[1] + i * sizeof(message), &message, sizeof(message)) < 0)
			break;
		if (message.msg_hdr.msg_name && message.msg_hdr.msg_namelen < call->keep[0])
			call->keep[0] = message.msg_hdr.msg_namelen;
	}
	return SYSCALL_WANT_EXIT;
}

int exit_recvmmsg(struct call *call)
{
	int r = 0;

	for (int64_t i = 0; i < call->rval && r == 0; i++) {
		uint64_t at = call->args[1] + (uint64_t)i * sizeof(struct mmsghdr);

		make_virtual(call, at);
		r = i < MANY_MAX ? call_sender(call, at) : 0;
	}
	return r;
}
