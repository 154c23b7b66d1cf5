/*
 * Makes one system call of one actor fail, or kills the actor at it, while a command runs.
 *   fail_call --role COMM[,COMM] [--at N [--turn T | --kill]] [--report FILE] [--linger MS] [--pid PID]... --
 * COMMAND... Seizes the processes given, starts the command, and follows all that they fork. A role is a
 * process's comm; one that was just forked and has not named itself yet is its parent's comm with a "+". All
 * calls of all processes of the role are counted together, in the order in which they are made, from the
 * command's start to its end and MS milliseconds. The N-th does not happen: it returns error number T
 * (modulo) of its row in `rows`. Only calls that can fail so are counted, without those of the dynamic
 * linker. With --kill, the actor gets SIGKILL before its N-th call, and every call counts. Exits with the
 * command's status; the report has the number of calls counted, the call that was hit, and what looks like
 * return addresses on its stack.
 *
 * scips are traced while they trace: ptrace permits that. A husk is let go before a scip can want it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <getopt.h>
#include <seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"

enum { MAX_PROCESSES = 1024, STACK_WORDS = 4096, MAX_ERRORS = 4, EXIT_USAGE = 2, EXIT_FAILED = 126 };

/* What a descriptor must be for a row to apply. */
enum descriptor_kind { ANY, A_FILE, A_UNIX_SOCKET, A_NETLINK_SOCKET, AN_INET_SOCKET };

/* The errors that a call can return for lack of something, or because a device or a network fails. */
static const struct row {
	int nr;
	enum descriptor_kind kind;
	int errors[MAX_ERRORS];
} rows[] = {
	{SYS_openat, ANY, {EMFILE, ENOMEM, EIO, ENFILE}},
	{SYS_read, A_FILE, {EIO, ENOMEM}},
	{SYS_pread64, A_FILE, {EIO, ENOMEM}},
	{SYS_preadv, A_FILE, {EIO, ENOMEM}},
	{SYS_write, A_FILE, {ENOSPC, EIO, EDQUOT}},
	{SYS_pwrite64, A_FILE, {ENOSPC, EIO, EDQUOT}},
	{SYS_writev, A_FILE, {ENOSPC, EIO}},
	{SYS_pwritev, A_FILE, {ENOSPC, EIO}},
	{SYS_copy_file_range, A_FILE, {ENOSPC, EIO, ENOMEM}},
	{SYS_sendfile, A_FILE, {EIO, ENOMEM}},
	{SYS_fallocate, A_FILE, {ENOSPC, EIO}},
	{SYS_ftruncate, A_FILE, {ENOSPC, EIO}},
	{SYS_fsync, ANY, {EIO, ENOSPC}},
	{SYS_fdatasync, ANY, {EIO, ENOSPC}},
	{SYS_close, A_FILE, {EIO, ENOSPC}},
	{SYS_sendmsg, A_UNIX_SOCKET, {ENOMEM, ENOBUFS}},
	{SYS_sendto, A_UNIX_SOCKET, {ENOMEM, ENOBUFS}},
	{SYS_write, A_UNIX_SOCKET, {ENOMEM, ENOBUFS}},
	{SYS_sendmsg, A_NETLINK_SOCKET, {ENOMEM, ENOBUFS}},
	{SYS_sendto, A_NETLINK_SOCKET, {ENOMEM, ENOBUFS}},
	{SYS_recvmsg, A_NETLINK_SOCKET, {ENOBUFS, ENOMEM}},
	{SYS_recvfrom, A_NETLINK_SOCKET, {ENOBUFS, ENOMEM}},
	{SYS_sendmsg, AN_INET_SOCKET, {ETIMEDOUT, ENOMEM}},
	{SYS_sendto, AN_INET_SOCKET, {ETIMEDOUT, ENOMEM}},
	{SYS_write, AN_INET_SOCKET, {ETIMEDOUT, ENOMEM}},
	{SYS_recvmsg, AN_INET_SOCKET, {ETIMEDOUT}},
	{SYS_recvfrom, AN_INET_SOCKET, {ETIMEDOUT}},
	{SYS_read, AN_INET_SOCKET, {ETIMEDOUT}},
	{SYS_connect, A_UNIX_SOCKET, {EAGAIN, ENOMEM}},
	{SYS_connect, AN_INET_SOCKET, {ETIMEDOUT, ENOMEM}},
	{SYS_bind, ANY, {ENOMEM, ENOSPC}},
	{SYS_listen, ANY, {ENOBUFS}},
	{SYS_setsockopt, ANY, {ENOMEM, ENOBUFS}},
	{SYS_socket, ANY, {EMFILE, ENOMEM, ENOBUFS}},
	{SYS_socketpair, ANY, {EMFILE, ENOMEM}},
	{SYS_accept4, ANY, {EMFILE, ENOMEM, ENOBUFS}},
	{SYS_pipe2, ANY, {EMFILE, ENFILE}},
	{SYS_epoll_create1, ANY, {EMFILE, ENOMEM}},
	{SYS_epoll_ctl, ANY, {ENOMEM}},
	{SYS_eventfd2, ANY, {EMFILE, ENOMEM}},
	{SYS_signalfd4, ANY, {EMFILE, ENOMEM}},
	{SYS_timerfd_create, ANY, {EMFILE, ENOMEM}},
	{SYS_memfd_create, ANY, {EMFILE, ENOMEM}},
	{SYS_inotify_init1, ANY, {EMFILE, ENOMEM}},
	{SYS_inotify_add_watch, ANY, {ENOSPC, ENOMEM}},
	{SYS_userfaultfd, ANY, {EMFILE, ENOMEM}},
	{SYS_pidfd_open, ANY, {EMFILE, ENOMEM}},
	{SYS_pidfd_getfd, ANY, {EMFILE}},
	{SYS_dup, ANY, {EMFILE}},
	{SYS_dup2, ANY, {EMFILE}},
	{SYS_dup3, ANY, {EMFILE}},
	{SYS_mmap, ANY, {ENOMEM, EAGAIN}},
	{SYS_mremap, ANY, {ENOMEM, EAGAIN}},
	{SYS_mprotect, ANY, {ENOMEM}},
	{SYS_munmap, ANY, {ENOMEM}},
	{SYS_madvise, ANY, {ENOMEM, EAGAIN}},
	{SYS_clone, ANY, {EAGAIN, ENOMEM}},
	{SYS_clone3, ANY, {EAGAIN, ENOMEM}},
	{SYS_execve, ANY, {ENOMEM, EIO}},
	{SYS_process_vm_readv, ANY, {ENOMEM}},
	{SYS_process_vm_writev, ANY, {ENOMEM}},
	{SYS_getdents64, ANY, {EIO, ENOMEM}},
	{SYS_newfstatat, ANY, {EIO, ENOMEM}},
	{SYS_statx, ANY, {EIO, ENOMEM}},
	{SYS_fstat, A_FILE, {EIO}},
	{SYS_fstatfs, ANY, {EIO}},
	{SYS_readlink, ANY, {EIO, ENOMEM}},
	{SYS_readlinkat, ANY, {EIO, ENOMEM}},
	{SYS_access, ANY, {EIO, ENOMEM}},
	{SYS_mkdir, ANY, {ENOSPC, EIO, ENOMEM}},
	{SYS_mkdirat, ANY, {ENOSPC, EIO, ENOMEM}},
	{SYS_rename, ANY, {ENOSPC, EIO, ENOMEM}},
	{SYS_renameat, ANY, {ENOSPC, EIO, ENOMEM}},
	{SYS_renameat2, ANY, {ENOSPC, EIO, ENOMEM}},
	{SYS_link, ANY, {ENOSPC, EIO, ENOMEM}},
	{SYS_linkat, ANY, {ENOSPC, EIO, ENOMEM}},
	{SYS_symlink, ANY, {ENOSPC, EIO, ENOMEM}},
	{SYS_unlink, ANY, {EIO, ENOMEM}},
	{SYS_unlinkat, ANY, {EIO, ENOMEM}},
	{SYS_ioctl, ANY, {ENOMEM, EIO}},
	{SYS_fcntl, ANY, {EMFILE}},
	{SYS_seccomp, ANY, {ENOMEM}},
	{SYS_timer_create, ANY, {EAGAIN, ENOMEM}},
};

struct process {
	pid_t tid, tgid;
	char role[32];
	bool newborn;	       /* forked, and has not named itself yet */
	bool let_go;	       /* when it is resumed */
	bool renamed;	       /* its name is to be read again at the end of this call */
	const struct row *hit; /* the call that it is in is to return `error` */
	uint64_t linker, linker_end;
};

static struct {
	char *roles;
	long at;
	unsigned turn;
	bool kill;
	FILE *report;
	int linger_ms;
} wanted;

static struct process processes[MAX_PROCESSES];
static unsigned nprocesses;
#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif

static long counted;
static bool done;
static const struct row killed = {.nr = -1};

static _Noreturn void tool_fail(const char *what)
{
	fprintf(stderr, "fail_call: %s: %s\n", what, strerror(errno));
	exit(EXIT_FAILED);
}

static struct process *process_find(pid_t tid)
{
	for (unsigned i = 0; i < nprocesses; i++)
		if (processes[i].tid == tid)
			return &processes[i];
	return NULL;
}

static struct process *process_add(pid_t tid, pid_t tgid)
{
	struct process *process = process_find(tid);

	if (process)
		return process;
	if (nprocesses == MAX_PROCESSES) {
		errno = ENOSPC;
		tool_fail("too many processes");
	}
	process = &processes[nprocesses++];
	*process = (struct process){.tid = tid, .tgid = tgid};
	return process;
}

static void process_drop(struct process *process)
{
	*process = processes[--nprocesses];
}

static void read_role(struct process *process)
{
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/comm", process->tgid, process->tid);
	file = fopen(path, "re");
	if (!file || !fgets(process->role, sizeof(process->role), file))
		process->role[0] = '\0';
	if (file)
		fclose(file);
	process->role[strcspn(process->role, "\n")] = '\0';
	process->newborn = false;
}

static bool is_wanted(const struct process *process)
{
	char list[256], *next, *state = NULL;

	snprintf(list, sizeof(list), "%s", wanted.roles);
	for (next = strtok_r(list, ",", &state); next; next = strtok_r(NULL, ",", &state))
		if (fnmatch(next, process->role, 0) == 0)
			return true;
	return false;
}

/* The range of the text of the mapped file whose name contains `name`. */
static void find_range(pid_t pid, const char *name, uint64_t *start, uint64_t *end, uint64_t *offset)
{
	char path[64], line[512];
	FILE *file;

	*start = *end = 0;
	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		unsigned long from, to, at;

		if (strstr(line, name) && strstr(line, "r-xp") &&
		    sscanf(line, "%lx-%lx r-xp %lx", &from, &to, &at) == 3) {
			*start = from;
			*end = to;
			if (offset)
				*offset = at;
		}
	}
	if (file)
		fclose(file);
}

static enum descriptor_kind kind_of_socket(pid_t pid, int fd)
{
	const int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	const int sock = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0);
	int domain = AF_UNSPEC;

	if (sock >= 0)
		(void)getsockopt(sock, SOL_SOCKET, SO_DOMAIN, &domain, &(socklen_t){sizeof(domain)});
	close(sock);
	close(pidfd);
	return domain == AF_UNIX ? A_UNIX_SOCKET : domain == AF_NETLINK ? A_NETLINK_SOCKET : AN_INET_SOCKET;
}

static enum descriptor_kind descriptor_kind_of(pid_t pid, uint64_t fd)
{
	char path[64], target[256];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, (int)fd);
	n = readlink(path, target, sizeof(target) - 1);
	if (n < 0)
		return ANY;
	target[n] = '\0';
	if (!strncmp(target, "socket:", 7))
		return kind_of_socket(pid, (int)fd);
	return target[0] == '/' && strncmp(target, "/dev/", 5) != 0 ? A_FILE : ANY;
}

static const struct row *row_of(const struct process *process, const struct __ptrace_syscall_info *info)
{
	const int nr = (int)info->entry.nr;

	if (info->instruction_pointer >= process->linker && info->instruction_pointer < process->linker_end)
		return NULL;
	if (nr == SYS_setsockopt && info->entry.args[1] == SOL_SOCKET)
		return NULL; /* takes no memory */
	if (nr == SYS_fcntl && info->entry.args[1] != F_DUPFD && info->entry.args[1] != F_DUPFD_CLOEXEC)
		return NULL;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (rows[i].nr == nr &&
		    (rows[i].kind == ANY ||
		     descriptor_kind_of(process->tgid, info->entry.args[0]) == rows[i].kind))
			return &rows[i];
	return NULL;
}

static int error_of_row(const struct row *row)
{
	unsigned n = 0;

	while (n < MAX_ERRORS && row->errors[n])
		n++;
	return row->errors[wanted.turn % n];
}

static void print_path(pid_t pid, uint64_t address)
{
	char text[200] = "";
	struct iovec here = {text, sizeof(text) - 1}, there = {(void *)(uintptr_t)address, sizeof(text) - 1};

	if (process_vm_readv(pid, &here, 1, &there, 1, 0) < 0) {
		there.iov_len = here.iov_len =
			4096 - address % 4096 < sizeof(text) ? 4096 - address % 4096 : sizeof(text) - 1;
		if (process_vm_readv(pid, &here, 1, &there, 1, 0) < 0)
			return;
	}
	fprintf(wanted.report, "path %s\n", text);
}

/* The words of the stack that lie within the program's own text, as offsets in its file. */
static void print_stack(const struct process *process)
{
	static uint64_t words[STACK_WORDS];
	struct user_regs_struct regs;
	struct iovec here, there;
	char path[64], exe[256];
	uint64_t start, end, offset = 0;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/exe", process->tgid);
	n = readlink(path, exe, sizeof(exe) - 1);
	if (n < 0 || ptrace(PTRACE_GETREGS, process->tid, NULL, &regs) < 0)
		return;
	exe[n] = '\0';
	find_range(process->tgid, exe, &start, &end, &offset);
	for (size_t size = sizeof(words); size >= 512; size /= 2) {
		here = (struct iovec){words, size};
		there = (struct iovec){(void *)(uintptr_t)regs.rsp, size};
		n = process_vm_readv(process->tgid, &here, 1, &there, 1, 0);
		if (n > 0)
			break;
	}
	fprintf(wanted.report, "stack %s", exe);
	for (ssize_t i = 0, found = 0; i < n / 8 && found < 40; i++)
		if (words[i] > start && words[i] < end) {
			fprintf(wanted.report, " %#lx", (unsigned long)(words[i] - 1 - start + offset));
			found++;
		}
	fprintf(wanted.report, "\n");
}

static void report_hit(const struct process *process, const struct __ptrace_syscall_info *info,
		       const char *what)
{
	char *name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_X86_64, (int)info->entry.nr);
	const uint64_t *args = (const uint64_t *)info->entry.args;

	if (!wanted.report)
		return;
	fprintf(wanted.report, "hit %s %d call %ld: %s(%#lx, %#lx, %#lx, %#lx) -> %s\n", process->role,
		process->tgid, counted, name ? name : "?", (unsigned long)args[0], (unsigned long)args[1],
		(unsigned long)args[2], (unsigned long)args[3], what);
	if (info->entry.nr == SYS_openat || info->entry.nr == SYS_newfstatat ||
	    info->entry.nr == SYS_unlinkat || info->entry.nr == SYS_renameat ||
	    info->entry.nr == SYS_readlinkat)
		print_path(process->tgid, args[1]);
	if (info->entry.nr == SYS_readlink || info->entry.nr == SYS_mkdir || info->entry.nr == SYS_rename ||
	    info->entry.nr == SYS_unlink || info->entry.nr == SYS_execve)
		print_path(process->tgid, args[0]);
	print_stack(process);
	fflush(wanted.report);
	free(name);
}

/* The call does not happen. A descriptor is closed even if close() reports an error. */
static void fail_call(struct process *process, const struct row *row,
		      const struct __ptrace_syscall_info *info)
{
	struct user_regs_struct regs;

	report_hit(process, info, strerrorname_np(error_of_row(row)));
	process->hit = row;
	if (row->nr == SYS_close)
		return;
	if (ptrace(PTRACE_GETREGS, process->tid, NULL, &regs) < 0)
		return;
	regs.orig_rax = ~0ull;
	(void)ptrace(PTRACE_SETREGS, process->tid, NULL, &regs);
}

static void on_call_entry(struct process *process, const struct __ptrace_syscall_info *info)
{
	const uint64_t nr = info->entry.nr;
	const struct row *row;

	if (process->newborn && nr == SYS_close_range && !strcmp(process->role, "scip-keeper+")) {
		process->let_go = true; /* a husk */
		return;
	}
	if (nr == SYS_prctl && info->entry.args[0] == PR_SET_NAME && process->tid == process->tgid)
		process->renamed = true;
	if (done || !is_wanted(process))
		return;
	row = wanted.kill ? &killed : row_of(process, info);
	if (!row || ++counted != wanted.at)
		return;
	done = true;
	if (!wanted.kill) {
		fail_call(process, row, info);
		return;
	}
	report_hit(process, info, "SIGKILL");
	kill(process->tgid, SIGKILL);
}

static void on_call_exit(struct process *process)
{
	struct user_regs_struct regs;

	if (process->renamed)
		read_role(process);
	process->renamed = false;
	if (!process->hit)
		return;
	if (ptrace(PTRACE_GETREGS, process->tid, NULL, &regs) == 0) {
		regs.rax = (uint64_t)-error_of_row(process->hit);
		(void)ptrace(PTRACE_SETREGS, process->tid, NULL, &regs);
	}
	process->hit = NULL;
}

/* Also of processes that are not of the role: they may take it on, or fork one that does. */
static void take_syscall_stop(struct process *process)
{
	struct __ptrace_syscall_info info = {0};

	if (ptrace(PTRACE_GET_SYSCALL_INFO, process->tid, sizeof(info), &info) <= 0)
		return;
	if (info.op == PTRACE_SYSCALL_INFO_ENTRY)
		on_call_entry(process, &info);
	else if (info.op == PTRACE_SYSCALL_INFO_EXIT)
		on_call_exit(process);
}

static pid_t status_field(pid_t tid, const char *name)
{
	char path[64], line[256];
	pid_t found = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", tid);
	file = fopen(path, "re");
	while (file && !found && fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)))
			found = atoi(line + strlen(name));
	if (file)
		fclose(file);
	return found;
}

/* The first stop of a thread or a process that a process of ours has made. */
static struct process *learn(pid_t tid)
{
	const pid_t tgid = status_field(tid, "Tgid:\t");
	const struct process *from = process_find(tgid != tid ? tgid : status_field(tid, "PPid:\t"));
	struct process origin = from ? *from : (struct process){.role = "?"};
	struct process *process = process_add(tid, tgid);

	process->linker = origin.linker;
	process->linker_end = origin.linker_end;
	process->newborn = tgid == tid;
	snprintf(process->role, sizeof(process->role), "%.*s%s", (int)sizeof(origin.role) - 2, origin.role,
		 process->newborn && !strchr(origin.role, '+') ? "+" : "");
	return process;
}

/* Resumes it to its next system call, unless it is let go. */
static void resume_to_call(struct process *process, int signal)
{
	if (process->let_go) {
		(void)ptrace(PTRACE_DETACH, process->tid, NULL, (long)signal);
		process_drop(process);
		return;
	}
	(void)ptrace(PTRACE_SYSCALL, process->tid, NULL, (long)signal);
}

static void on_actor_stop(struct process *process, int status)
{
	const int signal = WSTOPSIG(status), event = status >> 16;

	if (signal == (SIGTRAP | 0x80)) {
		take_syscall_stop(process);
		resume_to_call(process, 0);
	} else if (event == PTRACE_EVENT_STOP && signal != SIGTRAP) {
		(void)ptrace(PTRACE_LISTEN, process->tid, NULL, NULL); /* a group-stop */
	} else if (event == PTRACE_EVENT_EXEC) {
		read_role(process);
		find_range(process->tgid, "/ld-linux", &process->linker, &process->linker_end, NULL);
		resume_to_call(process, 0);
	} else {
		resume_to_call(process, event ? 0 : signal);
	}
}

static void on_wait_status(pid_t tid, int status)
{
	struct process *process = process_find(tid);

	if (WIFSTOPPED(status))
		on_actor_stop(process ? process : learn(tid), status);
	else if (process)
		process_drop(process);
}

static void seize_all_threads(pid_t pid)
{
	const long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
			     PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC;
	char path[64];
	struct dirent *entry;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = opendir(path);
	if (!tasks)
		return; /* it has ended */
	while ((entry = readdir(tasks))) {
		const pid_t tid = atoi(entry->d_name);
		int status;

		if (tid <= 0 || ptrace(PTRACE_SEIZE, tid, NULL, options) < 0)
			continue;
		read_role(process_add(tid, pid));
		if (ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) == 0 && waitpid(tid, &status, __WALL) == tid)
			on_wait_status(tid, status);
	}
	closedir(tasks);
}

/* The command's process, seized. It executes the command when `release` is closed. */
static pid_t start_command(char **argv, int *release)
{
	int go[2];
	char byte;
	pid_t pid;

	if (pipe2(go, O_CLOEXEC) < 0)
		tool_fail("pipe");
	pid = fork();
	if (pid < 0)
		tool_fail("fork");
	if (pid == 0) {
		close(go[1]);
		(void)!read(go[0], &byte, 1);
		execvp(argv[0], argv);
		tool_fail(argv[0]);
	}
	seize_all_threads(pid);
	close(go[0]);
	*release = go[1];
	return pid;
}

/* A process that stands at a stop when we exit goes on untraced: nothing has to be undone. */
static int follow(pid_t command)
{
	const uint64_t never = ~0ull;
	uint64_t end_ns = never;
	int status, result = EXIT_FAILED;

	while (io_now_ns(CLOCK_MONOTONIC) < end_ns) {
		const pid_t tid = waitpid(-1, &status, __WALL | (end_ns == never ? 0 : WNOHANG));

		if (tid < 0 && errno == ECHILD)
			break;
		if (tid <= 0) {
			nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
			continue;
		}
		on_wait_status(tid, status);
		if (tid == command && !WIFSTOPPED(status)) {
			result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
			end_ns = io_now_ns(CLOCK_MONOTONIC) + (uint64_t)wanted.linger_ms * 1000000;
		}
	}
	if (wanted.report)
		fprintf(wanted.report, "calls %ld\n", counted);
	return result;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"role", 1, NULL, 'r'},	  {"at", 1, NULL, 'n'},
						{"turn", 1, NULL, 't'},	  {"kill", 0, NULL, 'k'},
						{"report", 1, NULL, 'o'}, {"linger", 1, NULL, 'l'},
						{"pid", 1, NULL, 'p'},	  {0}};
	pid_t pids[256];
	unsigned npids = 0;
	pid_t command;
	int option, release;

	while ((option = getopt_long(argc, argv, "+", options, NULL)) >= 0) {
		switch (option) {
		case 'r':
			wanted.roles = optarg;
			break;
		case 'n':
			wanted.at = atol(optarg);
			break;
		case 't':
			wanted.turn = (unsigned)atoi(optarg);
			break;
		case 'k':
			wanted.kill = true;
			break;
		case 'o':
			wanted.report = fopen(optarg, "we");
			break;
		case 'l':
			wanted.linger_ms = atoi(optarg);
			break;
		case 'p':
			if (npids < sizeof(pids) / sizeof(pids[0]))
				pids[npids++] = atoi(optarg);
			break;
		default:
			return EXIT_USAGE;
		}
	}
	if (!wanted.roles || optind == argc) {
		fprintf(stderr, "usage: see the first comment of fail_call.c\n");
		return EXIT_USAGE;
	}
	command = start_command(argv + optind, &release);
	for (unsigned i = 0; i < npids; i++)
		seize_all_threads(pids[i]);
	close(release);
	return follow(command);
}
