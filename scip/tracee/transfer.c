/*
 * Transfers that a stop has cut short. A blocking write() to a pipe or socket that was interrupted after
 * some bytes returns their number; without the stop it would have gone on. It is made again for the rest.
 * When that call returns (in an exit stop that is handled here only), the program's own arguments are
 * restored and the counts added. A vector is continued element by element as write() or sendto(), so that
 * nothing has to be written to the program's memory. Which calls are continued, and how, is in the table
 * (TRANSFER).
 */
#include "scip/tracee/transfer.h"

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
#include "scip/tracee/procfs.h"
#include "scip/tracee/regs.h"
#include "syscalls/syscall_table.h"

enum { CODE_RESTARTNOHAND = -514, VECTOR_MAX = 1024, MEM_MAJOR = 1, FDINFO_MAX = 1 << 20 };

/* Vector and flags of a call on a vector. */
static bool vector_of(const struct process *process, uint8_t shape, const uint64_t args[6], uint64_t *iov,
		      uint64_t *count, uint64_t *flags)
{
	struct msghdr message;

	*flags = 0;
	if (shape == TRANSFER_VECTOR) {
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

/* The rest of the vector element that the transfer has reached, as arguments of the table's `piece`. */
static bool vector_piece(const struct process *process, const struct tracee_pending *p, uint8_t shape,
			 uint64_t piece[6])
{
	uint64_t iov, count, flags, total;
	struct iovec part;

	if (!vector_of(process, shape, p->args, &iov, &count, &flags) ||
	    !find_part(process, iov, count, p->done, &part, &total))
		return false;
	piece[1] = (uint64_t)(uintptr_t)part.iov_base;
	piece[2] = part.iov_len;
	piece[3] = flags;
	piece[4] = piece[5] = 0;
	return true;
}

bool transfer_piece(struct tracee *tracee, struct user_regs_struct *regs)
{
	struct tracee_pending *p = &tracee->pending;
	const struct syscall_row *row = syscall_row(p->number);
	const struct syscall_transfer *transfer;
	uint64_t piece[6];
	int64_t number = p->number;

	if (!row || !row->transfer.shape)
		return false;
	transfer = &row->transfer;
	memcpy(piece, p->args, sizeof(piece));
	if (transfer->shape == TRANSFER_BYTES) {
		if (p->done >= p->args[transfer->count])
			return false;
		piece[transfer->count] -= p->done;
		if (transfer->buffer)
			piece[transfer->buffer] += p->done;
		p->piece = piece[transfer->count];
	} else {
		if (!vector_piece(tracee->process, p, transfer->shape, piece))
			return false;
		number = transfer->piece;
		p->piece = piece[2];
	}
	if (row->no_sigpipe) /* part of the data has been sent */
		piece[row->no_sigpipe] |= MSG_NOSIGNAL;
	regs->orig_rax = (uint64_t)number;
	regs_pack_args(regs, piece);
	return true;
}

/* MSG_WAITALL means nothing to sockets that keep messages apart: a short one is whole. */
static bool descriptor_is_stream(const struct tracee *tracee, int fd)
{
	auto_close int pidfd = (int)syscall(SYS_pidfd_open, tracee->process->pid, 0);
	auto_close int socket = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0);
	socklen_t len = sizeof(int);
	int type;

	return socket >= 0 && getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &len) == 0 &&
	       type == SOCK_STREAM;
}

/* True if transfers of the file are cut short by signals alone. */
static bool transfer_waits(const struct tracee *tracee, uint8_t file, int fd)
{
	pid_t pid = tracee->process->pid;
	char path[64], *text;
	const char *flags;
	struct stat st;
	bool blocking;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/fd/%d", pid, tracee->tid, fd);
	if (stat(path, &st) < 0)
		return false;
	if (file == TRANSFER_FILE_MEMORY) /* /dev/zero and /dev/urandom stop at signals; all other files
					     return the available bytes */
		return S_ISCHR(st.st_mode) && major(st.st_rdev) == MEM_MAJOR;
	if (file == TRANSFER_FILE_STREAM && !descriptor_is_stream(tracee, fd))
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

bool transfer_begin(struct tracee *tracee, struct user_regs_struct *regs)
{
	const struct syscall_row *row = syscall_row((int64_t)regs->orig_rax);
	struct tracee_pending *p = &tracee->pending;
	uint64_t args[6];

	if ((int64_t)regs->rax <= 0 || !row || !row->transfer.shape)
		return false;
	regs_unpack_args(regs, args);
	if (!syscall_condition_holds(&row->transfer.waits, args))
		return false;
	p->number = (int64_t)regs->orig_rax;
	memcpy(p->args, args, sizeof(args));
	p->done = regs->rax;
	p->rip = regs->rip;
	if (!transfer_piece(tracee, regs) ||
	    !transfer_waits(tracee, row->transfer.file, (int)args[row->transfer.fd])) {
		p->done = 0;
		regs->orig_rax = (uint64_t)p->number;
		regs_pack_args(regs, args);
		return false;
	}
	p->active = true;
	p->timed = false;
	regs->rax = (uint64_t)(int64_t)CODE_RESTARTNOHAND;
	return true;
}
