/*
 * What the handlers of trapped calls work with. Private to scip/syscall/.
 *
 * A row of the table is either regular, and its numbers and paths are translated by the kinds of its
 * arguments (dispatch.c), or it has handlers, in one file for each family. A changed argument register is
 * restored at the exit stop: a program may rely on its registers, and a call that a signal interrupts is made
 * again from them and trapped again. The kernel holds real numbers; they are translated where they pass
 * between kernel and program.
 */
#ifndef SCIP_SYSCALL_CALL_H
#define SCIP_SYSCALL_CALL_H

#include "namespace/paths.h"
#include "scip/syscall/syscall.h"
#include "syscalls/syscall_table.h"

/* What the handlers keep for a process; process->calls. */
enum { SIGNALFDS_MAX = 256 };
struct remote_members {	   /* processes of its job on other hosts, as pbeamd has reported them */
	uint64_t asked_ns; /* CLOCK_MONOTONIC, 0: never */
	int32_t *v;
	size_t n;
};
struct syscall_state {
	bool traps_receive, traps_send;		/* the process has these filters; filter_inject.c */
	uint64_t signalfds[SIGNALFDS_MAX / 64]; /* descriptors whose reads and duplication are trapped */
	uint64_t unknown_calls;			/* numbers not in the table, answered with ENOSYS */
	struct remote_members remote;		/* other_host_proc.c */
	struct paths paths;			/* of its job; path_map.c */
	uint64_t paths_seen;			/* paths_generation() when they were read */
};

struct call;
typedef int call_handler(struct call *call);

/* The handlers of a row; NULL where its names are translated by the kinds of its arguments. handler_table.c
 */
struct syscall_handlers {
	call_handler *enter, *exit;
};
extern const struct syscall_handlers syscall_handlers[SYSCALL_ROWS];

/* SECCOMP_RET_DATA of the filters. */
enum { TRAP_ROW = 0, TRAP_UNKNOWN = 1 };

/* One trapped call, from its seccomp stop to its exit stop. */
struct call {
	struct tracee *tracee;
	struct process *process;
	const struct syscall_row *row;
	int64_t nr;
	uint64_t ip;
	uint64_t args[6]; /* as the program made it */
	uint64_t now[6];  /* as they are in the registers */
	int64_t rval;	  /* at exit */
	int slot;	  /* of the scratch area, -1 none */
	size_t replaced;  /* bytes of it that call_replace() has used */
	bool mapping;	  /* the call has become an mmap of the scratch area and is made again after it */
	int fd;		  /* a descriptor of scip, open until the exit stop; -1 none */
	uint64_t keep[4]; /* private to the handler */
	uint64_t version; /* bind(): of the registry's entry */
};

#define CALL_SLOT_BYTES 4096u /* room in the scratch area for one call */

/* ---- at the seccomp stop: each returns a verdict or -errno, for `return call_...()` ---- */
/* Answers the call; the kernel does not make it. */
must_check int call_answer(struct call *call, int64_t rval);
/* Changes an argument. The verdict is SYSCALL_WANT_EXIT, which restores it. */
must_check int call_set_arg(struct call *call, unsigned arg, uint64_t value);
/* Copies `data` to this call's slot of the scratch area, at `offset`. At most CALL_SLOT_BYTES altogether.
 * 0, -errno, or a verdict that the handler returns unchanged while the area is mapped. */
must_check int call_scratch(struct call *call, size_t offset, const void *data, size_t len,
			    struct taddr *where);
/* call_scratch() after the data of earlier calls, and call_set_arg(), in one. */
must_check int call_replace(struct call *call, unsigned arg, const void *data, size_t len);

/* ---- at the exit stop ---- */
/* Returned by an exit handler to make the call again from its own registers. */
#define CALL_AGAIN 1
must_check int call_set_rval(struct call *call, int64_t value);

/* ---- both ---- */
must_check int call_read(const struct call *call, uint64_t address, void *out, size_t len);
must_check int call_write(const struct call *call, uint64_t address, const void *data, size_t len);
int32_t call_real(const struct call *call, int32_t number);
int32_t call_virtual(const struct call *call, int32_t number);
/* Rewrites a positive number in the tracee's memory from real to virtual. Access errors are ignored: they
 * are the program's own. */
void call_virtual_at(const struct call *call, uint64_t address);
/* The directory that a relative path of the call starts at: the descriptor `dir_arg` (-1: none), or the
 * working directory. False: its path is not known, or does not fit. */
bool call_directory(const struct call *call, int dir_arg, char *out, size_t size);

/* Translates path `path_arg` relative to `dir_arg` (-1: the working directory): dispatch.c calls it for
 * regular rows. proc_path.c. */
must_check int proc_path_enter(struct call *call, int dir_arg, unsigned path_arg);
must_check int call_enter_regular(struct call *call);
must_check int call_exit_regular(struct call *call);

/* Adds a filter to all threads of a stopped process from inside. filter_inject.c */
must_check int filter_load(struct tracee *tracee, const struct sock_fprog *program, struct err *err);

/* siginfo.c */
#define SIGINFO_BYTES 128
/* True if the kernel's siginfo carries the id of a process; it is at byte SIGINFO_PID. */
#define SIGINFO_PID   16
bool siginfo_has_pid(const void *siginfo);

/* When a filter traps a call of the table. filter.c */
struct syscall_condition syscall_filter_condition(enum syscall_filter which, const struct syscall_row *row);

/* Handlers, by family. */
call_handler enter_getpid, enter_gettid, enter_clone, enter_clone3, exit_clone, exit_clone3;
call_handler enter_getppid, enter_getpgid, enter_getpgrp, enter_getsid, enter_exit, enter_exit_group,
	exit_exit;
call_handler enter_about, enter_kill, enter_tkill, enter_tgkill, enter_sigqueue, enter_tgsigqueue,
	enter_sigtimedwait, exit_sigtimedwait;
call_handler enter_wait4, exit_wait4, enter_waitid, exit_waitid;
call_handler enter_cputime, enter_clock_gettime, exit_times, exit_getrusage, exit_clock_gettime;
call_handler enter_priority, enter_ioprio, enter_capability;
call_handler enter_fcntl, exit_fcntl, enter_ioctl, exit_ioctl;
call_handler enter_exit_only, enter_shmget, exit_shmget, enter_semget, exit_semget, enter_msgget, exit_msgget,
	enter_shm_use, enter_sem_use, enter_msg_use, enter_shmctl, exit_shmctl, enter_semctl, exit_semctl,
	enter_msgctl, exit_msgctl, enter_timer_create;
call_handler enter_getsockopt, exit_getsockopt, enter_sendmsg, enter_sendmmsg, exit_sendmmsg, enter_recvmsg,
	exit_recvmsg, enter_recvmmsg, exit_recvmmsg;
call_handler enter_socket_name, exit_getsockname, exit_getpeername, enter_connect, exit_connect, enter_accept,
	exit_accept, enter_bind, exit_bind, enter_sendto, enter_recvfrom, exit_recvfrom;
call_handler enter_getcwd, exit_getcwd;
call_handler enter_open, enter_openat, enter_openat2, exit_open, enter_readlink, enter_readlinkat,
	exit_readlink;
call_handler exit_signalfd, enter_read, exit_read, enter_dup, exit_dup;
call_handler enter_getdents, exit_getdents, exit_getdents64, enter_inotify_add_watch;
call_handler enter_seccomp, exit_seccomp, enter_prctl, exit_prctl, enter_ptrace;
call_handler enter_pidfd_open, enter_inside, enter_pidfd_signal, enter_perf_event_open, enter_futex,
	exit_futex;

#endif
