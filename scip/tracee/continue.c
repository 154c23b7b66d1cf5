/*
 * Transfers that a stop has cut short. A blocking write() to a pipe or socket that was interrupted after some
 * bytes returns their number: without a stop it would have gone on. It is made again for the rest; when that
 * returns (an exit stop that nobody else sees) the program's own arguments are put back and the counts added.
 * A vector goes on piece by piece as write() or sendto(), so that nothing has to be written to the program's
 * memory.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "scip/tracee/memory.h"
#include "scip/tracee/pending_table.h"
#include "scip/tracee/procfs.h"

enum { CODE_RESTARTNOHAND = -514, VECTOR_MAX = 1024, MEM_MAJOR = 1, FDINFO_MAX = 1 << 20 };

/* Vector and flags of a call on a vector. */
static bool vector_of(const struct process *process, int64_t number, const uint64_t args[6], uint64_t *iov,
		      uint64_t *count, uint64_t *flags)
{
	struct msghdr message;

	*flags = 0;
	if (number == SYS_writev) {
		*iov = args[1];
		*count = args[2];
	} else {
		if (memory_read(process, (struct taddr){args[1]}, &message, sizeof(message)) < 0)
			return false;
		*iov = (uint64_t)(uintptr_t)message.msg_iov;
		*count = message.msg_iovlen;
		*flags = args[2];
	}
	return *count <= VECTOR_MAX;
}

/* The part of the vector that holds byte `done`; `total` of all. */
static bool find_part(const struct process *process, uint64_t iov, uint64_t count, uint64_t done,
		      struct iovec *part, uint64_t *total)
{
	struct iovec v[VECTOR_MAX];
	bool found = false;

	if (memory_read(process, (struct taddr){iov}, v, count * sizeof(v[0])) < 0)
		return false;
	*total = 0;
	for (uint64_t i = 0; i < count; i++) {
		if (!found && done < *total + v[i].iov_len) {
			uint64_t skip = done - *total;

			part->iov_base = (char *)v[i].iov_base + skip;
			part->iov_len = v[i].iov_len - skip;
			found = true;
		}
		*total += v[i].iov_len;
	}
	return found;
}

static bool vector_piece(struct tracee *tracee, uint64_t piece[6], int64_t *number)
{
	struct tracee_pending *p = &tracee->pending;
	uint64_t iov, count, flags, total;
	struct iovec part;

	if (!vector_of(tracee->process, p->number, p->args, &iov, &count, &flags) ||
	    !find_part(tracee->process, iov, count, p->done, &part, &total))
		return false;
	piece[1] = (uint64_t)(uintptr_t)part.iov_base;
	piece[2] = part.iov_len;
	piece[3] = flags;
	piece[4] = piece[5] = 0;
	*number = p->number == SYS_writev ? SYS_write : p->number == SYS_sendmsg ? SYS_sendto : SYS_recvfrom;
	return true;
}

bool continue_piece(struct tracee *tracee, struct user_regs_struct *regs)
{
	struct tracee_pending *p = &tracee->pending;
	uint64_t piece[6];
	int64_t number = p->number;

	memcpy(piece, p->args, sizeof(piece));
	switch (p->number) {
	case SYS_read:
	case SYS_write:
	case SYS_sendto:
	case SYS_recvfrom:
		if (p->done >= p->args[2])
			return false;
		piece[1] += p->done;
		piece[2] -= p->done;
		p->piece = piece[2];
		break;
	case SYS_sendfile:
		if (p->done >= p->args[3])
			return false;
		piece[3] -= p->done;
		p->piece = piece[3];
		break;
	case SYS_splice:
		if (p->done >= p->args[4])
			return false;
		piece[4] -= p->done;
		p->piece = piece[4];
		break;
	case SYS_writev:
	case SYS_sendmsg:
	case SYS_recvmsg:
		if (!vector_piece(tracee, piece, &number))
			return false;
		p->piece = piece[2];
		break;
	default:
		return false;
	}
	if (number == SYS_sendto) /* no SIGPIPE after part of it has been sent */
		piece[3] |= MSG_NOSIGNAL;
	regs->orig_rax = (uint64_t)number;
	pending_set_args(regs, piece);
	return true;
}

/* The descriptor that may have made the call wait, or -1 if the call's flags say that it does not. */
static int waiting_fd(int64_t number, const uint64_t args[6])
{
	switch (number) {
	case SYS_write:
	case SYS_writev:
	case SYS_read:
	case SYS_sendfile:
		return (int)args[0];
	case SYS_splice: /* a pipe is at one end at least; the output is what fills up */
		return args[5] & SPLICE_F_NONBLOCK ? -1 : (int)args[2];
	case SYS_sendto:
		return args[3] & MSG_DONTWAIT ? -1 : (int)args[0];
	case SYS_sendmsg:
		return args[2] & MSG_DONTWAIT ? -1 : (int)args[0];
	case SYS_recvfrom:
		return (args[3] & (MSG_DONTWAIT | MSG_WAITALL | MSG_PEEK)) == MSG_WAITALL ? (int)args[0] : -1;
	case SYS_recvmsg:
		return (args[2] & (MSG_DONTWAIT | MSG_WAITALL | MSG_PEEK)) == MSG_WAITALL ? (int)args[0] : -1;
	default:
		return -1;
	}
}

/* MSG_WAITALL means nothing to sockets that keep messages apart: a short one is whole. */
static bool is_stream(const struct tracee *tracee, int fd)
{
	auto_close int pidfd = (int)syscall(SYS_pidfd_open, tracee->process->pid, 0);
	auto_close int socket = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0);
	socklen_t len = sizeof(int);
	int type;

	return socket >= 0 && getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &len) == 0 &&
	       type == SOCK_STREAM;
}

/* A file whose transfers are not cut short but by signals. */
static bool waits(const struct tracee *tracee, int64_t number, int fd)
{
	pid_t pid = tracee->process->pid;
	char path[64], *text;
	const char *flags;
	struct stat st;
	bool blocking;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/fd/%d", pid, tracee->tid, fd);
	if (stat(path, &st) < 0)
		return false;
	if (number == SYS_read) /* /dev/zero and /dev/urandom stop at signals; all else gives what is there */
		return S_ISCHR(st.st_mode) && major(st.st_rdev) == MEM_MAJOR;
	if ((number == SYS_recvfrom || number == SYS_recvmsg) && !is_stream(tracee, fd))
		return false;
	if (!S_ISFIFO(st.st_mode) && !S_ISSOCK(st.st_mode) && !S_ISCHR(st.st_mode))
		return false;
	snprintf(path, sizeof(path), "/proc/%d/task/%d/fdinfo/%d", pid, tracee->tid, fd);
	if (io_slurp(AT_FDCWD, path, FDINFO_MAX, &text, NULL) < 0)
		return false;
	flags = procfs_field(text, "flags");
	blocking = flags && !(strtoul(flags, NULL, 8) & O_NONBLOCK);
	free(text);
	return blocking;
}

bool continue_begin(struct tracee *tracee, struct user_regs_struct *regs)
{
	struct tracee_pending *p = &tracee->pending;
	uint64_t args[6];
	int fd;

	if ((int64_t)regs->rax <= 0)
		return false;
	pending_args(regs, args);
	fd = waiting_fd((int64_t)regs->orig_rax, args);
	if (fd < 0)
		return false;
	p->number = (int64_t)regs->orig_rax;
	memcpy(p->args, args, sizeof(args));
	p->done = regs->rax;
	p->rip = regs->rip;
	if (!continue_piece(tracee, regs) || !waits(tracee, p->number, fd)) {
		p->done = 0;
		regs->orig_rax = (uint64_t)p->number;
		pending_set_args(regs, args);
		return false;
	}
	p->active = true;
	p->timed = false;
	regs->rax = (uint64_t)(int64_t)CODE_RESTARTNOHAND;
	return true;
}
