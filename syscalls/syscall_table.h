/*
 * The table of system calls. Everything that depends on a call's number comes from its row: what each seccomp
 * filter traps, how arguments are translated, what an interruption does to the call, how a call about a
 * process of another host is passed on, and docs/SYSCALLS.md. The table is data and lies below all its users:
 * the tracee's and the supervisor's code, and pbeamd. The handlers of scip/syscall are joined to it there
 * (handler_table.c) from the same rows of table_x86_64.def.
 */
#ifndef SYSCALLS_SYSCALL_TABLE_H
#define SYSCALLS_SYSCALL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum syscall_level {
	LEVEL_PASS = 1, /* never trapped for names: the kernel's answer is right */
	LEVEL_VIRT,	/* names are translated, the kernel does the work */
	LEVEL_EMUL,	/* answered by scip */
	LEVEL_DENY,	/* refused */
};

/* The meaning of an argument or result. Regular rows have their names translated by it. */
enum syscall_kind {
	KIND_NONE = 0,
	KIND_INT,
	KIND_FD,
	KIND_DIRFD, /* a directory for the PATH that follows */
	KIND_PATH,
	KIND_PATH_OUT, /* a buffer that receives a path */
	KIND_TEXT,     /* a string that names no file, such as the content of a symbolic link */
	KIND_PTR,
	KIND_SIZE,
	KIND_SIG,
	KIND_VPID,     /* a process, 0: the caller */
	KIND_VTID,     /* a thread, 0: the caller */
	KIND_VPGID,    /* a process group, 0: the caller's */
	KIND_VPID_ALL, /* as in kill(): a negative number is a group, -1 all processes */
	KIND_CLOCK,    /* may name a process or thread: clock_id.h */
	KIND_SOCKADDR_IN,
	KIND_SOCKADDR_OUT,
	KIND_RET_FD,
	KIND_RET_VPID,
	KIND_COUNT,
};

/* A condition on the low 32 bits of one argument, as a filter can check it. */
enum condition_op {
	COND_NEVER, /* also: this attribute has no condition of its own */
	COND_ALWAYS,
	COND_NOT,  /* the argument is not values[0] */
	COND_IN,   /* the argument and `mask` is one of `values` */
	COND_BITS, /* the argument has a bit of `mask` */
};
struct syscall_condition {
	uint8_t op, arg, n;
	uint32_t mask;
	const uint32_t *values;
};

/* What a call does to the file that its path names. */
enum syscall_file_use { FILE_USE_OTHER, FILE_USE_LOOK, FILE_USE_CHANGE, FILE_USE_EXECUTE };

/* The relative timeout of a call. */
enum timeout_unit {
	TIMEOUT_UNIT_NONE,
	TIMEOUT_UNIT_MS,
	TIMEOUT_UNIT_TIMESPEC, /* passed by its address */
	TIMEOUT_UNIT_RECEIVE,  /* SO_RCVTIMEO of a socket, whose descriptor the argument is */
	TIMEOUT_UNIT_SEND,     /* SO_SNDTIMEO */
	TIMEOUT_UNIT_CONNECT,  /* SO_SNDTIMEO; the call then answers EINPROGRESS, not EAGAIN */
};
struct syscall_timeout {
	struct syscall_condition relative; /* else it is a moment, or none */
	uint8_t unit;			   /* enum timeout_unit */
	uint8_t arg;
	uint8_t left;	   /* the argument with the address that receives the time left, 0: none */
	bool kernel_keeps; /* the call is interrupted with -516: the kernel keeps the end of the wait */
};

/* A call that transfers bytes and returns a short count when a stop interrupts it. It is continued for the
 * rest where its descriptor is of kind `file`. */
enum transfer_shape { TRANSFER_NONE, TRANSFER_BYTES, TRANSFER_VECTOR, TRANSFER_MESSAGE };
enum transfer_file {
	TRANSFER_FILE_BLOCKING, /* a pipe, socket or character device without O_NONBLOCK */
	TRANSFER_FILE_MEMORY,	/* /dev/zero, /dev/urandom and others of their major number */
	TRANSFER_FILE_STREAM,	/* as BLOCKING, but only a stream socket */
};
struct syscall_transfer {
	struct syscall_condition waits; /* by the flags of the call */
	uint8_t shape, file;		/* enum transfer_shape, enum transfer_file */
	uint8_t fd;			/* the argument of the descriptor that may block */
	uint8_t buffer, count;		/* arguments; buffer 0: the call has none */
	uint16_t piece;			/* the call that transfers the rest of one vector element */
};

/* A call about one process that pbeamd of that process's host can make for a caller on another host. */
struct syscall_remote {
	struct syscall_condition when; /* COND_NEVER: the call cannot be made remotely */
	uint8_t in, out;	       /* arguments that point to a structure read or written, 0: none */
	uint8_t size;		       /* the argument with the structure's size, 0: the size is fixed */
	uint8_t in_bytes, out_bytes;
};

struct syscall_row {
	const char *name, *note;
	enum syscall_level level;
	uint8_t args[6], ret; /* enum syscall_kind */
	/* When the filters trap the call; see enum syscall_filter. COND_NEVER in `cluster` means `born`, in
	 * `diverged` it means `restored`, in `moved` `diverged`, in `send` `receive`. */
	struct syscall_condition born, restored, cluster, diverged, moved, receive, send;
	bool on_signalfd; /* trapped when its first argument is a signalfd, by a filter for that descriptor */
	bool eintr;	  /* answers -EINTR to PTRACE_INTERRUPT: made again here, not by the kernel */
	uint8_t file_use; /* enum syscall_file_use */
	uint8_t no_sigpipe; /* continued: the argument that gets MSG_NOSIGNAL, 0: none */
	struct syscall_timeout timeout;
	struct syscall_transfer transfer;
	struct syscall_remote remote;
};

#define SYSCALL_ROWS 470
extern const struct syscall_row syscall_table[SYSCALL_ROWS];

/* NULL for a number that is not in the table. */
const struct syscall_row *syscall_row(int64_t nr);
const char *syscall_name(int64_t nr);
/* The number of the call with this name, or -1. */
int64_t syscall_number(const char *name);

bool syscall_condition_holds(const struct syscall_condition *condition, const uint64_t args[6]);

/* True if the call takes or returns a path. */
bool syscall_has_path(const struct syscall_row *row);

/* The relative timeout of a call with these arguments, or NULL. Whether the program has given one is for the
 * caller to read. */
const struct syscall_timeout *syscall_timeout(int64_t nr, const uint64_t args[6]);
/* True if a socket has the timeout, not the call. */
bool syscall_timeout_is_of_socket(const struct syscall_timeout *timeout);

/* Makes docs/SYSCALLS.md. */
void syscall_write_document(FILE *out);

/* ---- syscall_remote.c ---- */
#define SYSCALL_REMOTE_BYTES 4096u /* the largest structure */

/* True if a call with these arguments names a process and can be made on that process's host. */
bool syscall_remote_possible(const struct syscall_row *row, const uint64_t args[6]);
/* The argument that names the process. */
int syscall_remote_process(const struct syscall_row *row);
/* Bytes that the argument `in` (`out`) points to, at most SYSCALL_REMOTE_BYTES; 0 without that argument. */
size_t syscall_remote_in_bytes(const struct syscall_row *row, const uint64_t args[6]);
size_t syscall_remote_out_bytes(const struct syscall_row *row, const uint64_t args[6]);

#endif
