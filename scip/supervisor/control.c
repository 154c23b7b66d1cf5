#include "scip/supervisor/control.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "base/log.h"
#include "proto/control.pb-c.h"
#include "scip/checkpoint/checkpoint.h"
#include "scip/checkpoint/freeze.h"
#include "scip/restore/restore.h"
#include "scip/syscall/syscall.h"
#include "scip/tracee/remote.h"
#include "scip/tracee/stack.h"

enum { CONNECTIONS_MAX = 8, PEER_TIMEOUT_S = 20, STACK_TIMEOUT_S = 10 };

struct connection {
	int sock;	      /* -1: free */
	bool froze;	      /* thaw when it ends */
	bool drives;	      /* has made a request of a restore: the husk dies with it */
	uint32_t waiting;     /* a request that the loop will answer, or SCIP_NONE */
	uint64_t deadline_ns; /* of a freeze */
};

struct control {
	const struct seat *seat;
	int listener;
	char path[PATH_MAX];
	struct connection connections[CONNECTIONS_MAX];
	Pbeam__ScipFill *fill; /* of a restore, until it runs */
};

/* ---- replies ---- */

static void reply(struct connection *c, uint32_t type, const ProtobufCMessage *message)
{
	struct err err = ERR_INIT;

	if (frame_send(c->sock, type, message, NULL, 0, &err) < 0)
		log_debug("control: %s", err.text); /* its end is seen at the next look */
}

static void reply_done(struct connection *c)
{
	Pbeam__ScipDone done = PBEAM__SCIP_DONE__INIT;

	reply(c, PBEAM__SCIP_REQUEST__SCIP_REPLY, &done.base);
}

static void reply_failed(struct connection *c, int code, const char *text)
{
	Pbeam__ScipFailed failed = PBEAM__SCIP_FAILED__INIT;

	failed.code = code;
	failed.text = (char *)(text[0] ? text : strerror(-code));
	reply(c, PBEAM__SCIP_REQUEST__SCIP_FAILED, &failed.base);
}

static void reply_result(struct connection *c, int r, const struct err *err)
{
	if (r < 0)
		reply_failed(c, r, err->text);
	else
		reply_done(c);
}

/* ---- freezing ---- */

static void set_state(struct control *control, struct process *process, enum name_state state)
{
	struct name_process entry;

	if (names_process_get(control->seat->names, process->vpid, &entry) < 0 ||
	    entry.rpid.n != process->pid)
		return;
	entry.state = state;
	entry.diverged = process->diverged;
	if (names_process_update(control->seat->names, &entry) < 0)
		log_debug("vpid %d has left the name table", process->vpid.n);
}

static uint64_t resident_bytes(pid_t pid)
{
	char path[64];
	char *text = NULL;
	unsigned long size, resident = 0;

	snprintf(path, sizeof(path), "/proc/%d/statm", pid);
	if (io_slurp(AT_FDCWD, path, 4096, &text, NULL) < 0)
		return 0;
	if (sscanf(text, "%lu %lu", &size, &resident) != 2)
		resident = 0;
	free(text);
	return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void reply_frozen(struct control *control, struct connection *c, struct process *process)
{
	Pbeam__ScipFrozen frozen = PBEAM__SCIP_FROZEN__INIT;

	c->waiting = PBEAM__SCIP_REQUEST__SCIP_NONE;
	set_state(control, process, NAME_STATE_FROZEN);
	frozen.rpid = process->pid;
	frozen.vpid = process->vpid.n;
	frozen.threads = process->ntracees;
	frozen.resident = resident_bytes(process->pid);
	frozen.vfork_pending = process->vfork_pending;
	reply(c, PBEAM__SCIP_REQUEST__SCIP_REPLY, &frozen.base);
}

static bool somebody_froze(const struct control *control)
{
	for (unsigned i = 0; i < CONNECTIONS_MAX; i++)
		if (control->connections[i].sock >= 0 && control->connections[i].froze)
			return true;
	return false;
}

static void do_freeze(struct control *control, struct connection *c, struct process *process,
		      const struct frame *frame)
{
	struct err err = ERR_INIT;
	Pbeam__ScipFreeze *freeze =
		(Pbeam__ScipFreeze *)(void *)frame_unpack(frame, &pbeam__scip_freeze__descriptor, &err);

	if (!freeze) {
		reply_failed(c, -EPROTO, err.text);
		return;
	}
	if (somebody_froze(control)) {
		reply_failed(c, -EBUSY, "another checkpoint is at work on it");
	} else {
		c->froze = true;
		c->waiting = PBEAM__SCIP_REQUEST__SCIP_FREEZE;
		c->deadline_ns = freeze->timeout_ms ? io_now_ns(CLOCK_MONOTONIC) +
							      (uint64_t)freeze->timeout_ms * 1000000u
						    : 0;
		if (!process->held)
			freeze_begin(process);
		control_progress(control, process);
	}
	protobuf_c_message_free_unpacked(&freeze->base, NULL);
}

/* A stop that is asked for: of a freeze, or just long enough to look at the stacks. */
static bool waits_for_stop(const struct connection *c)
{
	return c->sock >= 0 && (c->waiting == PBEAM__SCIP_REQUEST__SCIP_FREEZE ||
				c->waiting == PBEAM__SCIP_REQUEST__SCIP_STACK);
}

static void thaw(struct control *control, struct connection *c, struct process *process)
{
	c->froze = false;
	c->waiting = PBEAM__SCIP_REQUEST__SCIP_NONE;
	if (!process || process->held)
		return;
	thaw_process(process);
	set_state(control, process, NAME_STATE_RUNNING);
}

/* ---- stacks ---- */

static void reply_stack(struct connection *c, struct process *process)
{
	Pbeam__ScipStack stack = PBEAM__SCIP_STACK__INIT;
	struct err err = ERR_INIT;
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);
	int r = out ? stack_write(process, out, &err) : -ENOMEM;

	if (out && fclose(out) != 0)
		r = -ENOMEM;
	stack.text = text;
	if (r < 0)
		reply_failed(c, r, err.text);
	else
		reply(c, PBEAM__SCIP_REQUEST__SCIP_REPLY, &stack.base);
	free(text);
}

/* Stops the process for as long as it takes to look; one that is stopped for a checkpoint is looked at as it
 * is. */
static void do_stack(struct control *control, struct connection *c, struct process *process)
{
	if (process->held || (somebody_froze(control) && freeze_settled(process))) {
		reply_stack(c, process);
		return;
	}
	if (somebody_froze(control)) {
		reply_failed(c, -EBUSY, "a checkpoint is just stopping it; try again");
		return;
	}
	c->froze = true;
	c->waiting = PBEAM__SCIP_REQUEST__SCIP_STACK;
	c->deadline_ns = io_now_ns(CLOCK_MONOTONIC) + STACK_TIMEOUT_S * 1000000000ull;
	freeze_begin(process);
	control_progress(control, process);
}

/* ---- dumping ---- */

/* The two descriptors of a dump: the image and the arena. */
static int take_image(struct frame *frame, struct image_arena **arena, struct err *err)
{
	if (frame->nfds != 2)
		return err_set(err, -EPROTO, "a dump needs two descriptors, %d came", frame->nfds);
	return image_arena_map(frame->fds[1], arena, err);
}

static void do_dump(struct connection *c, struct process *process, struct frame *frame)
{
	Pbeam__ScipDumped *dumped = malloc(sizeof(*dumped));
	struct image_arena *arena;
	struct err err = ERR_INIT;
	int r = dumped ? take_image(frame, &arena, &err) : -ENOMEM;

	if (r < 0) {
		reply_failed(c, r, err.text);
		free(dumped);
		return;
	}
	pbeam__scip_dumped__init(dumped);
	r = checkpoint_dump_process(process, frame->fds[0], arena, dumped, &err);
	if (r < 0)
		reply_failed(c, r, err.text);
	else
		reply(c, PBEAM__SCIP_REQUEST__SCIP_REPLY, &dumped->base);
	pbeam__scip_dumped__free_unpacked(dumped, NULL);
	image_arena_unmap(arena);
}

static void do_dump_shared(struct connection *c, struct process *process, struct frame *frame)
{
	Pbeam__ScipDumpedShared *dumped = malloc(sizeof(*dumped));
	Pbeam__ScipDumpShared *request;
	struct image_arena *arena;
	struct err err = ERR_INIT;
	int r = dumped ? take_image(frame, &arena, &err) : -ENOMEM;

	if (r < 0) {
		reply_failed(c, r, err.text);
		free(dumped);
		return;
	}
	pbeam__scip_dumped_shared__init(dumped);
	request = (Pbeam__ScipDumpShared *)(void *)frame_unpack(frame, &pbeam__scip_dump_shared__descriptor,
								&err);
	r = request ? checkpoint_dump_shared(process, frame->fds[0], arena, request, dumped, &err) : -EPROTO;
	if (r < 0)
		reply_failed(c, r, err.text);
	else
		reply(c, PBEAM__SCIP_REQUEST__SCIP_REPLY, &dumped->base);
	pbeam__scip_dumped_shared__free_unpacked(dumped, NULL);
	if (request)
		protobuf_c_message_free_unpacked(&request->base, NULL);
	image_arena_unmap(arena);
}

/* ---- restoring ---- */

static int make_calls(struct process *process, const Pbeam__ScipCall *call, int64_t *results, struct err *err)
{
	struct tracee *leader = process_leader(process);

	for (size_t i = 0; i < call->n_calls; i++) {
		const Pbeam__ScipCall__One *one = call->calls[i];
		uint64_t args[6] = {0};
		int r;

		if (one->n_args > 6 || one->n_data)
			return err_set(err, -EPROTO, "call %zu is malformed", i);
		for (size_t k = 0; k < one->n_args; k++)
			args[k] = one->args[k];
		r = remote_call(leader, &results[i], err, one->number, args);
		if (r < 0)
			return r;
	}
	return 0;
}

static void do_restore_call(struct connection *c, struct process *process, const struct frame *frame)
{
	Pbeam__ScipCalled called = PBEAM__SCIP_CALLED__INIT;
	struct err err = ERR_INIT;
	Pbeam__ScipCall *call =
		(Pbeam__ScipCall *)(void *)frame_unpack(frame, &pbeam__scip_call__descriptor, &err);
	auto_free int64_t *results = NULL;
	int r;

	if (!call) {
		reply_failed(c, -EPROTO, err.text);
		return;
	}
	results = calloc(call->n_calls + 1, sizeof(*results));
	r = results ? make_calls(process, call, results, &err) : -ENOMEM;
	called.n_results = call->n_calls;
	called.results = results;
	if (r < 0)
		reply_failed(c, r, err.text);
	else
		reply(c, PBEAM__SCIP_REQUEST__SCIP_REPLY, &called.base);
	protobuf_c_message_free_unpacked(&call->base, NULL);
}

static void do_restore_exec(struct connection *c, struct process *process, const struct frame *frame)
{
	struct err err = ERR_INIT;
	Pbeam__ScipExec *exec =
		(Pbeam__ScipExec *)(void *)frame_unpack(frame, &pbeam__scip_exec__descriptor, &err);
	auto_free char *path = exec ? strndup((const char *)exec->path.data, exec->path.len) : NULL;
	int r = path ? restore_exec(process, path, &err) : -EPROTO;

	reply_result(c, r, &err);
	if (exec)
		protobuf_c_message_free_unpacked(&exec->base, NULL);
}

static void forget_fill(struct control *control)
{
	if (control->fill)
		protobuf_c_message_free_unpacked(&control->fill->base, NULL);
	control->fill = NULL;
}

static void do_restore_fill(struct control *control, struct connection *c, struct process *process,
			    const struct frame *frame)
{
	struct err err = ERR_INIT;
	int r;

	forget_fill(control);
	control->fill = (Pbeam__ScipFill *)(void *)frame_unpack(frame, &pbeam__scip_fill__descriptor, &err);
	if (control->fill && (frame->nfds != 1 || !control->fill->process))
		r = err_set(&err, -EPROTO, "a fill needs the image and a process");
	else
		r = control->fill ? restore_fill(process, control->fill, frame->fds[0], &err) : -EPROTO;
	reply_result(c, r, &err);
}

static void do_restore_run(struct control *control, struct connection *c, struct process *process)
{
	struct err err = ERR_INIT;
	int r;

	if (!control->fill) {
		reply_failed(c, -EPROTO, "nothing was filled in");
		return;
	}
	process->held = false;
	r = restore_release(process, control->fill->process, &err);
	if (r < 0) {
		process->held = true;
	} else {
		c->drives = false;
		set_state(control, process, NAME_STATE_RUNNING);
		forget_fill(control);
	}
	reply_result(c, r, &err);
}

static void do_restore_fork(struct control *control, struct connection *c, struct process *process,
			    const struct frame *frame)
{
	struct err err = ERR_INIT;
	Pbeam__ScipForked forked = PBEAM__SCIP_FORKED__INIT;
	Pbeam__ScipFork *fork =
		(Pbeam__ScipFork *)(void *)frame_unpack(frame, &pbeam__scip_fork__descriptor, &err);
	struct rpid rpid;
	int r;

	if (!fork) {
		reply_failed(c, -EPROTO, err.text);
		return;
	}
	r = restore_fork(control->seat, process, (struct vpid){fork->vpid}, fork->exit_signal,
			 fork->same_files, &rpid, &err);
	if (r < 0) {
		reply_failed(c, r, err.text);
	} else {
		forked.rpid = rpid.n;
		reply(c, PBEAM__SCIP_REQUEST__SCIP_REPLY, &forked.base);
	}
	protobuf_c_message_free_unpacked(&fork->base, NULL);
}

static void do_restore_exit(struct connection *c, struct process *process, const struct frame *frame)
{
	struct err err = ERR_INIT;
	Pbeam__ScipExit *message =
		(Pbeam__ScipExit *)(void *)frame_unpack(frame, &pbeam__scip_exit__descriptor, &err);
	int r = message ? restore_exit(process, message->status, &err) : -EPROTO;

	if (r < 0) {
		reply_failed(c, r, err.text);
	} else {
		process->held = false;
		c->waiting = PBEAM__SCIP_REQUEST__SCIP_RESTORE_EXIT;
	}
	if (message)
		protobuf_c_message_free_unpacked(&message->base, NULL);
}

/* ---- requests ---- */

static void do_diverge(struct connection *c, struct process *process)
{
	struct err err = ERR_INIT;
	struct tracee *leader = process_leader(process);
	int r;

	if (!leader || leader->stop == TRACEE_RUNNING)
		r = err_set(&err, -EBUSY, "vpid %d is not frozen", process->vpid.n);
	else
		r = syscall_filter_inject(leader, &err);
	reply_result(c, r, &err);
}

static void do_terminate(struct connection *c, struct process *process)
{
	c->waiting = PBEAM__SCIP_REQUEST__SCIP_TERMINATE;
	process->exiting = true;
	if (kill(process->pid, SIGKILL) < 0)
		log_debug("vpid %d is gone already", process->vpid.n);
}

/* What a request needs the process to be. */
enum need { NEED_NOTHING, NEED_FROZEN, NEED_HELD, NEED_STILL };

static enum need need_of(uint32_t type)
{
	switch (type) {
	case PBEAM__SCIP_REQUEST__SCIP_DUMP:
	case PBEAM__SCIP_REQUEST__SCIP_DUMP_SHARED:
		return NEED_FROZEN;
	case PBEAM__SCIP_REQUEST__SCIP_RESTORE_CALL:
	case PBEAM__SCIP_REQUEST__SCIP_RESTORE_EXEC:
	case PBEAM__SCIP_REQUEST__SCIP_RESTORE_FILL:
	case PBEAM__SCIP_REQUEST__SCIP_RESTORE_RUN:
	case PBEAM__SCIP_REQUEST__SCIP_RESTORE_EXIT:
		return NEED_HELD;
	case PBEAM__SCIP_REQUEST__SCIP_DIVERGE:
	case PBEAM__SCIP_REQUEST__SCIP_RESTORE_FORK:
		return NEED_STILL;
	default:
		return NEED_NOTHING;
	}
}

static bool is_met(enum need need, const struct connection *c, const struct process *process)
{
	bool frozen = c->froze && c->waiting == PBEAM__SCIP_REQUEST__SCIP_NONE;

	switch (need) {
	case NEED_FROZEN:
		return frozen;
	case NEED_HELD:
		return process->held;
	case NEED_STILL:
		return frozen || process->held;
	case NEED_NOTHING:
		break;
	}
	return true;
}

static void serve(struct control *control, struct connection *c, struct process *process, struct frame *frame)
{
	enum need need = need_of(frame->type);

	if (c->waiting != PBEAM__SCIP_REQUEST__SCIP_NONE || !is_met(need, c, process)) {
		reply_failed(c, -EPROTO, "the process is not in the state that this request needs");
		return;
	}
	if (process->held && need != NEED_NOTHING)
		c->drives = true;
	switch (frame->type) {
	case PBEAM__SCIP_REQUEST__SCIP_FREEZE:
		do_freeze(control, c, process, frame);
		break;
	case PBEAM__SCIP_REQUEST__SCIP_STACK:
		do_stack(control, c, process);
		break;
	case PBEAM__SCIP_REQUEST__SCIP_DUMP:
		do_dump(c, process, frame);
		break;
	case PBEAM__SCIP_REQUEST__SCIP_DUMP_SHARED:
		do_dump_shared(c, process, frame);
		break;
	case PBEAM__SCIP_REQUEST__SCIP_THAW:
		thaw(control, c, process);
		reply_done(c);
		break;
	case PBEAM__SCIP_REQUEST__SCIP_TERMINATE:
		do_terminate(c, process);
		break;
	case PBEAM__SCIP_REQUEST__SCIP_DIVERGE:
		do_diverge(c, process);
		break;
	case PBEAM__SCIP_REQUEST__SCIP_RESTORE_CALL:
		do_restore_call(c, process, frame);
		break;
	case PBEAM__SCIP_REQUEST__SCIP_RESTORE_EXEC:
		do_restore_exec(c, process, frame);
		break;
	case PBEAM__SCIP_REQUEST__SCIP_RESTORE_FILL:
		do_restore_fill(control, c, process, frame);
		break;
	case PBEAM__SCIP_REQUEST__SCIP_RESTORE_RUN:
		do_restore_run(control, c, process);
		break;
	case PBEAM__SCIP_REQUEST__SCIP_RESTORE_FORK:
		do_restore_fork(control, c, process, frame);
		break;
	case PBEAM__SCIP_REQUEST__SCIP_RESTORE_EXIT:
		do_restore_exit(c, process, frame);
		break;
	default:
		reply_failed(c, -EPROTO, "unknown request");
		break;
	}
}

/* ---- connections ---- */

static int make_async(int fd)
{
	if (fcntl(fd, F_SETOWN, getpid()) < 0)
		return -errno;
	return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC) < 0 ? -errno : 0;
}

static void end_connection(struct control *control, struct connection *c, struct process *process)
{
	close(c->sock);
	c->sock = -1;
	if (process && c->drives && process->held)
		kill(process->pid, SIGKILL);
	if (c->froze)
		thaw(control, c, process);
	c->waiting = PBEAM__SCIP_REQUEST__SCIP_NONE;
	c->drives = false;
}

static void take_connection(struct control *control)
{
	struct timeval timeout = {.tv_sec = PEER_TIMEOUT_S};
	struct err err = ERR_INIT;
	int sock = frame_accept(control->listener, &err);

	if (sock < 0) {
		log_warn("control: %s", err.text);
		return;
	}
	for (unsigned i = 0; i < CONNECTIONS_MAX; i++) {
		struct connection *c = &control->connections[i];

		if (c->sock >= 0)
			continue;
		*c = (struct connection){.sock = sock};
		(void)setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
		(void)setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
		if (make_async(sock) < 0)
			end_connection(control, c, NULL);
		return;
	}
	log_warn("control: too many connections");
	close(sock);
}

static bool readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return fd >= 0 && poll(&p, 1, 0) == 1;
}

/* One request of this connection; false when there is none now. */
static bool serve_one(struct control *control, struct connection *c, struct process *process)
{
	struct frame frame;
	struct err err = ERR_INIT;
	int r;

	if (!readable(c->sock))
		return false;
	r = frame_recv(c->sock, &frame, &err);
	if (r <= 0) {
		if (r < 0)
			log_warn("control: %s", err.text);
		end_connection(control, c, process);
		return false;
	}
	serve(control, c, process, &frame);
	frame_free(&frame);
	return true;
}

static void check_deadlines(struct control *control, struct process *process)
{
	for (unsigned i = 0; i < CONNECTIONS_MAX; i++) {
		struct connection *c = &control->connections[i];
		char text[200];

		if (!waits_for_stop(c) || !c->deadline_ns || io_now_ns(CLOCK_MONOTONIC) < c->deadline_ns)
			continue;
		snprintf(text, sizeof(text), "its threads could not be stopped in time%s",
			 process->vfork_pending ? ": one waits in vfork for a child that has not executed yet"
						: "");
		thaw(control, c, process);
		reply_failed(c, -ETIMEDOUT, text);
	}
}

void control_serve(struct control *control, struct process *process)
{
	if (!process) {
		/* In a signal handler: nothing but system calls. */
		int sock;

		while ((sock = accept4(control->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
			close(sock);
		return;
	}
	while (readable(control->listener))
		take_connection(control);
	for (unsigned i = 0; i < CONNECTIONS_MAX; i++)
		while (serve_one(control, &control->connections[i], process))
			continue;
	check_deadlines(control, process);
}

void control_progress(struct control *control, struct process *process)
{
	for (unsigned i = 0; i < CONNECTIONS_MAX; i++) {
		struct connection *c = &control->connections[i];

		if (!waits_for_stop(c) || (!process->held && !freeze_settled(process)))
			continue;
		if (c->waiting == PBEAM__SCIP_REQUEST__SCIP_FREEZE) {
			reply_frozen(control, c, process);
		} else {
			reply_stack(c, process);
			thaw(control, c, process);
		}
	}
}

uint64_t control_deadline(const struct control *control)
{
	uint64_t first = 0;

	for (unsigned i = 0; i < CONNECTIONS_MAX; i++) {
		const struct connection *c = &control->connections[i];

		if (waits_for_stop(c) && c->deadline_ns && (!first || c->deadline_ns < first))
			first = c->deadline_ns;
	}
	return first;
}

void control_process_gone(struct control *control, struct process *process)
{
	forget_fill(control);
	for (unsigned i = 0; i < CONNECTIONS_MAX; i++) {
		struct connection *c = &control->connections[i];

		if (c->sock < 0)
			continue;
		if (c->waiting == PBEAM__SCIP_REQUEST__SCIP_TERMINATE ||
		    c->waiting == PBEAM__SCIP_REQUEST__SCIP_RESTORE_EXIT)
			reply_done(c);
		else if (waits_for_stop(c))
			reply_failed(c, -ESRCH,
				     c->waiting == PBEAM__SCIP_REQUEST__SCIP_FREEZE
					     ? "it ended in the middle of the checkpoint"
					     : "it has ended");
		c->froze = false;
		end_connection(control, c, NULL);
	}
}

static int socket_path(char path[PATH_MAX], pid_t scip, struct err *err)
{
	int r = dirs_runtime(path, "scip", err);
	size_t len = strlen(path);

	if (r == 0 && snprintf(path + len, PATH_MAX - len, "/%d", scip) >= (int)(PATH_MAX - len))
		r = err_code(err, -ENAMETOOLONG, "socket in %s", path);
	return r;
}

void control_clean_up(pid_t scip)
{
	char path[PATH_MAX];

	if (socket_path(path, scip, NULL) == 0)
		unlink(path);
}

int control_open(struct control **out, const struct seat *seat, struct err *err)
{
	struct control *control = calloc(1, sizeof(*control));
	int r;

	if (!control)
		return err_code(err, -ENOMEM, "open the control socket");
	control->seat = seat;
	for (unsigned i = 0; i < CONNECTIONS_MAX; i++)
		control->connections[i].sock = -1;
	r = socket_path(control->path, getpid(), err);
	if (r == 0)
		r = control->listener = frame_listen(control->path, err);
	if (r >= 0)
		r = make_async(control->listener);
	if (r == 0 && fcntl(control->listener, F_SETFL, fcntl(control->listener, F_GETFL) | O_NONBLOCK) < 0)
		r = err_sys(err, "set up %s", control->path);
	if (r < 0) {
		free(control);
		return r;
	}
	*out = control;
	return 0;
}

void control_close(struct control *control)
{
	unlink(control->path);
}
