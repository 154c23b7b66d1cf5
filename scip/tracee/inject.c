/*
 * The area of the injected code, and batches of calls that it makes.
 *
 * The area is a memory file of scip that both sides map. In the tracee its first pages are the code
 * (read, execute). The rest (read, write) begins with the batch's header and the stack of the code;
 * calls follow and grow upwards, data grows downwards from the end.
 *
 * The tracee opens the file through /proc/SCIP/fd/N, so no descriptor has to be passed, and closes it
 * once it is mapped. The path is written into the area itself, which is mapped anonymously first: the
 * stack of a thread may be too small (Go, alternate stacks).
 */
#include <errno.h>
#include <fcntl.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/page.h"
#include "inject/blob.h"
#include "scip/tracee/inject_area.h"
#include "scip/tracee/memory.h"
#include "scip/tracee/remote.h"
#include "scip/tracee/remote_fault.h"
#include "scip/tracee/remote_frame.h"
#include "scip/tracee/stops.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

enum { HEAD_SIZE = 2 * PAGE, ALIGN = 16 };

static size_t inject_round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

static size_t blob_size(void)
{
	return (size_t)(inject_blob_end - inject_blob);
}

/* Creates the file with the code in it. */
static int make_file(size_t total, struct err *err)
{
	auto_close int fd = memfd_create("pbeam", MFD_CLOEXEC | MFD_EXEC);
	int code;

	if (fd < 0 && errno == EINVAL) /* before 6.3 */
		fd = memfd_create("pbeam", MFD_CLOEXEC);
	if (fd < 0)
		return err_sys(err, "make a memory file");
	if (ftruncate(fd, (off_t)total) < 0)
		return err_sys(err, "make a memory file of %zu bytes", total);
	code = io_pwrite_full(fd, inject_blob, blob_size(), 0);
	if (code < 0)
		return err_code(err, code, "write the injected code");
	return steal_fd(&fd);
}

/* Makes a call that must succeed and does not wait; `what` names it in the error. */
static int inject_call_must(struct remote_frame *frame, int64_t *ret, struct err *err, const char *what,
			    int64_t nr, const uint64_t args[6])
{
	int code = remote_frame_quick_call(frame, ret, err, nr, args);

	if (code < 0)
		return code;
	if (*ret < 0 && *ret >= -4095)
		return err_code(err, (int)*ret, "%s in process %d", what, frame->tracee->process->pid);
	return 0;
}

/* Opens scip's file in the tracee. If all its descriptors are in use, the soft limit is raised for the
 * moment. */
static int open_there(struct remote_frame *frame, uint64_t path, int64_t *fd, struct err *err)
{
	const uint64_t args[6] = {(uint64_t)AT_FDCWD, path, O_RDWR | O_CLOEXEC};
	pid_t pid = frame->tracee->process->pid;
	struct rlimit old, lifted;
	int code = remote_frame_quick_call(frame, fd, err, SYS_openat, args);

	if (code < 0)
		return code;
	if (*fd == -EMFILE) {
		if (prlimit(pid, RLIMIT_NOFILE, NULL, &old) < 0)
			return err_sys(err, "read the descriptor limit of process %d", pid);
		lifted = old;
		lifted.rlim_cur = old.rlim_max;
		if (old.rlim_cur >= old.rlim_max || prlimit(pid, RLIMIT_NOFILE, &lifted, NULL) < 0)
			return err_set(err, -EMFILE,
				       "process %d uses all of its %llu descriptors; one has to be free", pid,
				       (unsigned long long)old.rlim_cur);
		code = remote_frame_call(frame, fd, err, SYS_openat, args);
		if (prlimit(pid, RLIMIT_NOFILE, &old, NULL) < 0 && code == 0)
			code = err_sys(err, "restore the descriptor limit of process %d", pid);
		if (code < 0)
			return code;
	}
	if (*fd < 0)
		return err_code(err, (int)*fd, "open the injected code's memory in process %d", pid);
	return 0;
}

/* Maps the file over the reserved range. */
static int map_there(struct remote_frame *frame, const struct inject_area *area, int file, struct err *err)
{
	uint64_t data = area->start + area->code_size;
	char path[64];
	int64_t fd, ret;
	int code, closed;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", getpid(), file);
	code = memory_write(area->process, (struct taddr){area->start}, path, strlen(path) + 1);
	if (code < 0)
		return err_code(err, code, "write to process %d", area->process->pid);
	code = open_there(frame, area->start, &fd, err);
	if (code < 0)
		return code;
	code = inject_call_must(frame, &ret, err, "map the injected code", SYS_mmap,
				remote_args(area->start, area->code_size, PROT_READ | PROT_EXEC,
					    MAP_SHARED | MAP_FIXED, (uint64_t)fd, 0));
	if (code == 0)
		code = inject_call_must(frame, &ret, err, "map the injected code's data", SYS_mmap,
					remote_args(data, area->data_size, PROT_READ | PROT_WRITE,
						    MAP_SHARED | MAP_FIXED, (uint64_t)fd, area->code_size));
	closed = inject_call_must(frame, &ret, code < 0 ? NULL : err, "close", SYS_close,
				  remote_args((uint64_t)fd));
	return code < 0 ? code : closed;
}

static int unmap_there(struct remote_frame *frame, const struct inject_area *area, struct err *err)
{
	int64_t ret;

	return inject_call_must(frame, &ret, err, "unmap the injected code", SYS_munmap,
				remote_args(area->start, area->code_size + area->data_size));
}

static int inject_map_area(struct tracee *tracee, struct inject_area *area, int file, struct taddr hint,
			   struct err *err)
{
	size_t total = area->code_size + area->data_size;
	struct remote_frame frame;
	int64_t start;
	int code = remote_enter(&frame, tracee, err);

	if (code < 0)
		return code;
	code = inject_call_must(&frame, &start, err, "reserve room for the injected code", SYS_mmap,
				remote_args(hint.a, total, PROT_READ | PROT_WRITE,
					    MAP_PRIVATE | MAP_ANONYMOUS | (hint.a ? MAP_FIXED_NOREPLACE : 0),
					    UINT64_MAX, 0));
	if (code == 0) {
		area->start = (uint64_t)start;
		code = map_there(&frame, area, file, err);
		if (code < 0 && code != -ESRCH && unmap_there(&frame, area, NULL) == -ESRCH)
			code = -ESRCH;
	}
	return remote_leave_after(&frame, code, err);
}

int inject_open(struct tracee *tracee, size_t data_size, struct taddr hint, struct err *err)
{
	struct process *process = tracee->process;
	struct inject_area *area = process->area;
	auto_close int file = -1;
	int code;

	if (area && area->data_size - HEAD_SIZE >= data_size)
		return 0;
	if (area) {
		code = inject_withdraw(tracee, err);
		if (code < 0)
			return code;
	}
	area = calloc(1, sizeof(*area));
	if (!area)
		return err_set(err, -ENOMEM, "no memory");
	area->process = process;
	area->code_size = inject_round_up(blob_size(), PAGE);
	area->data_size = HEAD_SIZE + inject_round_up(data_size ? data_size : 1, PAGE);
	file = make_file(area->code_size + area->data_size, err);
	if (file < 0) {
		free(area);
		return file;
	}
	area->local =
		mmap(NULL, area->data_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)area->code_size);
	if (area->local == MAP_FAILED) {
		code = err_sys(err, "map %zu bytes", area->data_size);
		free(area);
		return code;
	}
	code = inject_map_area(tracee, area, file, hint, err);
	process->area = area;
	if (code < 0) {
		inject_forget(process);
		return err_wrap(err, code, "inject into process %d", process->pid);
	}
	return 0;
}

int inject_withdraw(struct tracee *tracee, struct err *err)
{
	struct process *process = tracee->process;
	struct remote_frame frame;
	int code;

	if (!process->area)
		return 0;
	code = remote_enter(&frame, tracee, err);
	if (code < 0)
		return code;
	code = unmap_there(&frame, process->area, err);
	code = remote_leave_after(&frame, code, err);
	if (code == 0)
		inject_forget(process);
	return code;
}

size_t inject_room(const struct process *process)
{
	return process->area ? process->area->data_size - HEAD_SIZE : 0;
}

bool inject_range(const struct process *process, struct taddr *start, struct taddr *end)
{
	const struct inject_area *area = process->area;

	if (!area)
		return false;
	start->a = area->start;
	end->a = area->start + area->code_size + area->data_size;
	return true;
}

/* ---- batches ---- */

static struct inject_call *calls_of(const struct inject_area *area)
{
	return (struct inject_call *)(void *)(area->local + HEAD_SIZE);
}

static uint64_t data_there(const struct inject_area *area)
{
	return area->start + area->code_size;
}

int batch_begin(struct process *process, struct batch **out, struct err *err)
{
	struct inject_area *area = process->area;

	if (!area)
		return err_set(err, -EINVAL, "nothing is injected into process %d", process->pid);
	area->batch = (struct batch){.area = area, .ncalls = 0, .data = area->data_size};
	*out = &area->batch;
	return 0;
}

int batch_add(struct batch *batch, uint32_t flags, int64_t nr, const uint64_t args[6])
{
	struct inject_call *c = &calls_of(batch->area)[batch->ncalls];

	if (HEAD_SIZE + (batch->ncalls + 1) * sizeof(*c) > batch->data)
		return -ENOSPC;
	*c = (struct inject_call){.nr = nr, .flags = flags};
	memcpy(c->args, args, sizeof(c->args));
	return (int)batch->ncalls++;
}

struct inject_call *batch_call(struct batch *batch, int number)
{
	return &calls_of(batch->area)[number];
}

int batch_data(struct batch *batch, const void *data, size_t len, struct taddr *where)
{
	size_t room = batch->data - HEAD_SIZE - batch->ncalls * sizeof(struct inject_call);
	size_t at;

	if (len > room)
		return -ENOSPC;
	at = (batch->data - len) / ALIGN * ALIGN;
	if (at < batch->data - room)
		return -ENOSPC;
	batch->data = at;
	if (data)
		memcpy(batch->area->local + at, data, len);
	else
		memset(batch->area->local + at, 0, len);
	where->a = data_there(batch->area) + at;
	return 0;
}

void *batch_local(struct batch *batch, struct taddr where)
{
	return batch->area->local + (where.a - data_there(batch->area));
}

/* Catches each new thread at its first stop, before it runs an instruction, and adds it as a tracee. */
static int catch_threads(struct batch *batch, size_t made, struct err *err)
{
	struct process *process = batch->area->process;

	for (size_t i = 0; i < made; i++) {
		const struct inject_call *c = &calls_of(batch->area)[i];
		struct tracee *thread;
		int code, status;

		if (!(c->flags & INJECT_CALL_THREAD) || c->ret <= 0)
			continue;
		do
			code = stops_wait(process, (pid_t)c->ret, 0, &thread, &status);
		while (code == -EINTR);
		if (code < 0)
			return err_code(err, code, "wait for the new thread %lld", (long long)c->ret);
		if (thread->stop == TRACEE_EXITED)
			return err_set(err, -ESRCH, "the new thread %lld has ended", (long long)c->ret);
	}
	return 0;
}

/* int3 has reset the action of SIGTRAP if the program ignores that signal. */
static int mend_trap_action(struct remote_frame *frame, const struct inject_area *area, struct err *err)
{
	const struct inject_batch *head = (const void *)area->local;
	uint64_t action = data_there(area) + offsetof(struct inject_batch, trap_action);
	int64_t ret;

	if (head->trap_action[0] != (uint64_t)(uintptr_t)SIG_IGN)
		return 0;
	return inject_call_must(frame, &ret, err, "restore the action of SIGTRAP", SYS_rt_sigaction,
				remote_args(SIGTRAP, action, 0, sizeof(uint64_t)));
}

static int report_failure(const struct batch *batch, uint32_t number, struct err *err)
{
	const struct inject_call *c = &calls_of(batch->area)[number];
	auto_free char *name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_X86_64, (int)c->nr);
	pid_t pid = batch->area->process->pid;
	int code = c->ret < 0 && c->ret >= -4095 ? (int)c->ret : -EIO;
	const char *why = strerror(-code);
	char returned[64];

	if (code == -EIO && c->ret != -EIO) {
		snprintf(returned, sizeof(returned), "returned %lld", (long long)c->ret);
		why = returned;
	}
	return err_set(err, code, "%s(%#llx, %#llx, %#llx, %#llx, %#llx, %#llx) in process %d: %s",
		       name ? name : "unknown call", (unsigned long long)c->args[0],
		       (unsigned long long)c->args[1], (unsigned long long)c->args[2],
		       (unsigned long long)c->args[3], (unsigned long long)c->args[4],
		       (unsigned long long)c->args[5], pid, why);
}

static int run_calls(struct remote_frame *frame, struct batch *batch, struct err *err)
{
	struct inject_area *area = batch->area;
	struct taddr code = {area->start}, code_end = {area->start + area->code_size};
	struct taddr data = {data_there(area)}, stack = {data_there(area) + HEAD_SIZE};
	int ret = remote_frame_code(frame, code, code_end, stack, data, err);

	return ret < 0 ? ret : mend_trap_action(frame, area, err);
}

int batch_run(struct batch *batch, struct tracee *tracee, struct err *err)
{
	struct inject_area *area = batch->area;
	struct inject_batch *head = (void *)area->local;
	const size_t fault = remote_fault_pick(calls_of(area), batch->ncalls);
	struct remote_frame frame;
	int code, caught;

	*head = (struct inject_batch){
		.version = INJECT_ABI_VERSION,
		.ncalls = (uint32_t)fault,
		.calls = data_there(area) + HEAD_SIZE,
	};
	code = remote_enter(&frame, tracee, err);
	if (code < 0)
		return code;
	code = remote_leave_after(&frame, run_calls(&frame, batch, err), err);
	if (code < 0)
		return code;
	if (!head->failed && fault < batch->ncalls)
		head->failed = 1;
	if (head->done > batch->ncalls || (head->failed && head->done == batch->ncalls))
		return err_set(err, -EIO, "the injected code's reply from process %d is malformed",
			       area->process->pid);
	caught = catch_threads(batch, head->done, err);
	if (caught < 0)
		return caught;
	return head->failed ? report_failure(batch, head->done, err) : 0;
}

void batch_end(struct batch *batch)
{
	batch->ncalls = 0;
	batch->data = batch->area->data_size;
}
