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
#include "proto/rpc.h"
#include "scip/dump/freeze.h"
#include "scip/supervisor/control_request.h"
#include "scip/supervisor/stub.h"
#include "scip/tracee/stack.h"

enum {
	PEER_TIMEOUT_S = 20,
	BRIEF_TIMEOUT_S = 10,
	LOOK_AGAIN_NS = 1000000000,
	ACCEPT_AGAIN_NS = 50000000,
	FILES_LOOK_NS = 1000000,
	FILES_LOOKS = 60000,
};

/* ---- replies ---- */

static void control_reply(struct control_connection *c, uint32_t type, const ProtobufCMessage *message)
{
	struct err err = ERR_INIT;

	if (frame_send(c->sock, type, message, NULL, 0, &err) == 0)
		return;
	log_debug("control: %s", err.text);
	(void)shutdown(c->sock,
		       SHUT_RDWR); /* the coordinator need not wait, and the next read ends the connection */
}

static void reply_done(struct control_connection *c)
{
	Pbeam__ScipDone done = PBEAM__SCIP_DONE__INIT;

	control_reply(c, PBEAM__RPC__RPC_REPLY, &done.base);
}

static void reply_failed(struct control_connection *c, int code, const char *text)
{
	Pbeam__Failed failed = PBEAM__FAILED__INIT;

	failed.code = code;
	failed.text = (char *)(text[0] ? text : strerror(-code));
	control_reply(c, PBEAM__RPC__RPC_FAILED, &failed.base);
}

void control_answer(struct control_request *request, const ProtobufCMessage *message)
{
	control_reply(request->connection, PBEAM__RPC__RPC_REPLY, message);
	request->answered = true;
}

/* ---- freezing ---- */

void control_set_state(struct control *control, struct process *process, enum name_state state)
{
	struct name_process entry;

	if (names_process_get_real(control->seat->names, process->vpid, (struct rpid){process->pid}, &entry) <
	    0)
		return;
	entry.state = state;
	entry.undecided = entry.undecided && state == NAME_STATE_FROZEN;
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

static void reply_frozen(struct control *control, struct control_connection *c, struct process *process)
{
	Pbeam__ScipFrozen frozen = PBEAM__SCIP_FROZEN__INIT;

	c->waiting = PBEAM__SCIP_REQUEST__SCIP_NONE;
	control->vfork = (struct control_vfork){0};
	control_set_state(control, process, NAME_STATE_FROZEN);
	frozen.rpid = process->pid;
	frozen.vpid = process->vpid.n;
	frozen.threads = process->ntracees;
	frozen.resident = resident_bytes(process->pid);
	frozen.vfork_pending = process->vfork_pending;
	frozen.stub_stopped = stub_stop_signal(process);
	control_reply(c, PBEAM__RPC__RPC_REPLY, &frozen.base);
}

/* A brief stop lasts while the stacks are read or one request is served. */
static bool is_brief(const struct control_connection *c)
{
	return c->waiting == PBEAM__SCIP_REQUEST__SCIP_STACK ||
	       c->waiting == PBEAM__SCIP_REQUEST__SCIP_ORPHAN;
}

static bool somebody_froze(const struct control *control, bool briefly)
{
	for (unsigned i = 0; i < CONTROL_CONNECTIONS_MAX; i++) {
		const struct control_connection *c = &control->connections[i];

		if (c->sock >= 0 && c->froze && (briefly || !is_brief(c)))
			return true;
	}
	return false;
}

/* Frozen for longer than a brief stop. No caller need be connected: a process that was kept stays frozen
 * until its owner is decided. */
static bool is_frozen(const struct control *control, const struct process *process)
{
	return somebody_froze(control, false) || (process->frozen && !somebody_froze(control, true));
}

static int do_freeze(struct control_request *request, struct err *err)
{
	const Pbeam__ScipFreeze *freeze = (const void *)request->message;
	struct control_connection *c = request->connection;

	if (somebody_froze(request->control, false))
		return err_set(err, -EBUSY, "another checkpoint has frozen it");
	/* a restore resumes the process without a further request */
	if (request->process->held)
		return err_set(err, -EBUSY, "it is being restored");
	c->froze = true;
	c->replaces = freeze->replaced;
	c->waiting = PBEAM__SCIP_REQUEST__SCIP_FREEZE;
	c->deadline_ns =
		freeze->timeout_ms ? io_now_ns(CLOCK_MONOTONIC) + (uint64_t)freeze->timeout_ms * 1000000u : 0;
	if (!request->process->frozen) /* kept frozen, or stopped briefly */
		freeze_begin(request->process);
	control_progress(request->control, request->process);
	return CONTROL_LATER;
}

static bool waits_for_stop(const struct control_connection *c)
{
	return c->sock >= 0 && (c->waiting == PBEAM__SCIP_REQUEST__SCIP_FREEZE || is_brief(c));
}

static void control_thaw(struct control *control, struct control_connection *c, struct process *process)
{
	if (c->trial.child && process && c->decides && atomic_load(&control->seat->shared->signs.condemned))
		adopt_finish(&c->trial, process);
	else if (c->trial.child && process)
		adopt_undo(&c->trial, process);
	c->trial.child = 0;
	c->froze = false;
	c->waiting = PBEAM__SCIP_REQUEST__SCIP_NONE;
	if (!process || process->held || somebody_froze(control, true))
		return;
	thaw_process(process);
	control_set_state(control, process, stub_is(process) ? NAME_STATE_STUB : NAME_STATE_RUNNING);
}

/* ---- brief stops ---- */

static void reply_stack(struct control_connection *c, struct process *process)
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
		control_reply(c, PBEAM__RPC__RPC_REPLY, &stack.base);
	free(text);
}

static int stop_briefly(struct control_request *request, uint32_t what)
{
	struct control_connection *c = request->connection;

	c->froze = true;
	c->waiting = what;
	c->deadline_ns = io_now_ns(CLOCK_MONOTONIC) + BRIEF_TIMEOUT_S * 1000000000ull;
	if (!request->process->frozen) /* for another brief stop */
		freeze_begin(request->process);
	control_progress(request->control, request->process);
	return CONTROL_LATER;
}

/* A process that is frozen for a checkpoint is read as it is. */
static int do_stack(struct control_request *request, struct err *err)
{
	struct process *process = request->process;
	bool frozen = is_frozen(request->control, process);

	if (process->held || (frozen && freeze_settled(process))) {
		reply_stack(request->connection, process);
		request->answered = true;
		return 0;
	}
	if (frozen)
		return err_set(err, -EBUSY, "a checkpoint is freezing the process; try again");
	return stop_briefly(request, PBEAM__SCIP_REQUEST__SCIP_STACK);
}

static void reply_orphan(struct control_connection *c, struct process *process)
{
	struct err err = ERR_INIT;
	int r = orphan_adopted(process, c->parent, &err);

	if (r < 0)
		reply_failed(c, r, err.text);
	else
		reply_done(c);
}

static int do_orphan(struct control_request *request, struct err *err)
{
	const Pbeam__ScipOrphan *orphan = (const void *)request->message;

	if (request->process->held || is_frozen(request->control, request->process))
		return err_set(err, -EBUSY, "another request has frozen it");
	request->connection->parent.n = orphan->parent;
	return stop_briefly(request, PBEAM__SCIP_REQUEST__SCIP_ORPHAN);
}

static int do_thaw(struct control_request *request, struct err *err)
{
	control_thaw(request->control, request->connection, request->process);
	return 0;
}

static int do_terminate(struct control_request *request, struct err *err)
{
	request->connection->waiting = PBEAM__SCIP_REQUEST__SCIP_TERMINATE;
	request->process->exiting = true;
	stub_expect_end(request->process); /* for a stub, whose process lives on elsewhere */
	if (kill(request->process->pid, SIGKILL) < 0)
		log_debug("vpid %d is gone already", request->process->vpid.n);
	return CONTROL_LATER;
}

/* ---- requests ---- */

/* The states of the process in which each request is allowed. */
enum need { NEED_NOTHING, NEED_FROZEN, NEED_HELD, NEED_STILL };

static const struct row {
	uint32_t type;
	enum need need;
	const ProtobufCMessageDescriptor *body; /* NULL: none */
	control_handler handle;
} rows[] = {
	{PBEAM__SCIP_REQUEST__SCIP_FREEZE, NEED_NOTHING, &pbeam__scip_freeze__descriptor, do_freeze},
	{PBEAM__SCIP_REQUEST__SCIP_STACK, NEED_NOTHING, NULL, do_stack},
	{PBEAM__SCIP_REQUEST__SCIP_ORPHAN, NEED_NOTHING, &pbeam__scip_orphan__descriptor, do_orphan},
	{PBEAM__SCIP_REQUEST__SCIP_THAW, NEED_NOTHING, NULL, do_thaw},
	{PBEAM__SCIP_REQUEST__SCIP_TERMINATE, NEED_NOTHING, NULL, do_terminate},
	{PBEAM__SCIP_REQUEST__SCIP_DUMP, NEED_FROZEN, &pbeam__scip_dump__descriptor, control_dump},
	{PBEAM__SCIP_REQUEST__SCIP_DUMP_SHARED, NEED_FROZEN, &pbeam__scip_dump_shared__descriptor,
	 control_dump_shared},
	{PBEAM__SCIP_REQUEST__SCIP_DIVERGE, NEED_STILL, NULL, control_diverge},
	{PBEAM__SCIP_REQUEST__SCIP_TRAP_DATAGRAMS, NEED_FROZEN, &pbeam__scip_trap_datagrams__descriptor,
	 control_trap_datagrams},
	{PBEAM__SCIP_REQUEST__SCIP_REPLACE, NEED_FROZEN, &pbeam__scip_replace__descriptor, control_replace},
	{PBEAM__SCIP_REQUEST__SCIP_RESTORE_CALL, NEED_STILL, &pbeam__scip_call__descriptor,
	 control_restore_call},
	{PBEAM__SCIP_REQUEST__SCIP_RESTORE_EXEC, NEED_HELD, &pbeam__scip_exec__descriptor,
	 control_restore_exec},
	{PBEAM__SCIP_REQUEST__SCIP_RESTORE_FILL, NEED_HELD, &pbeam__scip_fill__descriptor,
	 control_restore_fill},
	{PBEAM__SCIP_REQUEST__SCIP_RESTORE_TAKE, NEED_HELD, &pbeam__scip_take__descriptor,
	 control_restore_take},
	{PBEAM__SCIP_REQUEST__SCIP_RESTORE_RUN, NEED_HELD, NULL, control_restore_run},
	{PBEAM__SCIP_REQUEST__SCIP_RESTORE_FORK, NEED_STILL, &pbeam__scip_fork__descriptor,
	 control_restore_fork},
	{PBEAM__SCIP_REQUEST__SCIP_RESTORE_EXIT, NEED_STILL, &pbeam__scip_exit__descriptor,
	 control_restore_exit},
	{PBEAM__SCIP_REQUEST__SCIP_DECIDE, NEED_STILL, NULL, control_decide},
	{PBEAM__SCIP_REQUEST__SCIP_KEEP, NEED_STILL, NULL, control_keep},
	{PBEAM__SCIP_REQUEST__SCIP_STUB, NEED_STILL, NULL, control_stub},
	{PBEAM__SCIP_REQUEST__SCIP_GIVE_UP, NEED_NOTHING, NULL, control_give_up},
	{PBEAM__SCIP_REQUEST__SCIP_HOLD, NEED_FROZEN, NULL, control_hold},
	{PBEAM__SCIP_REQUEST__SCIP_STUB_STOP, NEED_NOTHING, &pbeam__scip_stub_stop__descriptor,
	 control_stub_stop},
	{PBEAM__SCIP_REQUEST__SCIP_SUCCEED, NEED_FROZEN, &pbeam__scip_succeed__descriptor, control_succeed},
	{PBEAM__SCIP_REQUEST__SCIP_ADOPT, NEED_FROZEN, &pbeam__scip_adopt__descriptor, control_adopt},
};

static bool is_met(enum need need, const struct control_connection *c, const struct process *process)
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

/* Receives the request, calls its handler, sends the reply. */
static void control_serve_request(struct control_request *request)
{
	struct control_connection *c = request->connection;
	struct process *process = request->process;
	const struct row *row = NULL;
	struct err err = ERR_INIT;
	int r;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (rows[i].type == request->frame->type)
			row = &rows[i];
	if (!row) {
		reply_failed(c, -EPROTO, "unknown request");
		return;
	}
	if (c->waiting != PBEAM__SCIP_REQUEST__SCIP_NONE || !is_met(row->need, c, process)) {
		reply_failed(c, -EPROTO, "the process is not in the state that this request needs");
		return;
	}
	c->silent = false;
	if (process->held && row->need != NEED_NOTHING)
		c->drives = true;
	if (row->body) {
		request->message = frame_unpack(request->frame, row->body, &err);
		if (!request->message) {
			reply_failed(c, -EPROTO, err.text);
			return;
		}
	}
	r = row->handle(request, &err);
	if (r < 0)
		reply_failed(c, r, err.text);
	else if (r != CONTROL_LATER && !request->answered)
		reply_done(c);
	if (request->message)
		protobuf_c_message_free_unpacked(request->message, NULL);
}

/* ---- connections ---- */

static int make_async(int fd)
{
	if (fcntl(fd, F_SETOWN, getpid()) < 0)
		return -errno;
	return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC) < 0 ? -errno : 0;
}

void control_give_up_husk(struct control *control, struct process *process)
{
	struct err err = ERR_INIT;

	if (process->returning && stub_make(control->seat, process, &err) == 0) {
		control_set_state(control, process, NAME_STATE_STUB);
		return;
	}
	if (process->returning)
		log_error("%s", err.text);
	kill(process->pid, SIGKILL);
}

/* A restore that was killed may have left files half changed and numbers set aside: the process must not see
 * that. False: the keeper, which settles this, has ended too, and the process with it. */
static bool await_settlement(const struct control *control)
{
	const struct timespec moment = {.tv_nsec = FILES_LOOK_NS};

	for (int i = 0; i < FILES_LOOKS && atomic_load(&control->seat->shared->signs.unsettled); i++) {
		if (getppid() != control->seat->keeper)
			return false;
		nanosleep(&moment, NULL);
	}
	return true;
}

/* The coordinator of a rollback is gone: one flag says whether that was before its commit. After the vote of
 * a part the process stays as it is. */
static void settle_replacement(struct control *control, struct control_connection *c, struct process *process)
{
	bool old = c->froze && c->replaces, new = c->decides && process->held;
	struct err err = ERR_INIT;
	bool committed;

	if (!old && !new && !(c->froze && c->trial.child))
		return;
	if (atomic_load(&control->seat->shared->signs.voted)) {
		c->keeps = true;
		return;
	}
	if (!await_settlement(control)) {
		kill(process->pid, SIGKILL);
		return;
	}
	committed = atomic_load(&control->seat->shared->signs.condemned);
	if (old && committed)
		kill(process->pid, SIGKILL);
	else if (new &&committed && control_run_filled(control, process, &err) < 0)
		log_error("vpid %d: %s", process->vpid.n, err.text);
}

/* A coordinator that was killed before its first request has left a connection without one. So has a process
 * that is no coordinator: it has no effect on a husk that a coordinator drives. */
static bool leaves_husk(const struct control *control, const struct control_connection *c)
{
	bool driven = false;

	for (unsigned i = 0; i < CONTROL_CONNECTIONS_MAX; i++)
		driven = driven || (control->connections[i].sock >= 0 && control->connections[i].drives);
	return c->drives || (c->silent && !driven);
}

static void end_connection(struct control *control, struct control_connection *c, struct process *process)
{
	close(c->sock);
	c->sock = -1;
	if (process)
		settle_replacement(control, c, process);
	if (process && leaves_husk(control, c) && process->held && !c->keeps)
		control_give_up_husk(control, process);
	if (c->froze && !c->keeps)
		control_thaw(control, c, process);
	c->waiting = PBEAM__SCIP_REQUEST__SCIP_NONE;
	c->froze = c->replaces = c->keeps = c->drives = c->decides = c->silent = false;
}

/* False if the connection cannot be accepted now, for lack of a descriptor for instance: it waits for the
 * next attempt. */
static bool take_connection(struct control *control)
{
	struct timeval timeout = {.tv_sec = PEER_TIMEOUT_S};
	struct err err = ERR_INIT;
	int sock = frame_accept(control->listener, &err);

	if (sock < 0 && sock != -EAGAIN) {
		log_warn("control: %s", err.text);
		control->accept_ns = io_now_ns(CLOCK_MONOTONIC) + ACCEPT_AGAIN_NS;
	}
	if (sock < 0)
		return false;
	for (unsigned i = 0; i < CONTROL_CONNECTIONS_MAX; i++) {
		struct control_connection *c = &control->connections[i];

		if (c->sock >= 0)
			continue;
		*c = (struct control_connection){.sock = sock, .silent = true};
		control->coordinator = 0;
		(void)setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
		(void)setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
		if (make_async(sock) < 0)
			end_connection(control, c, NULL);
		return true;
	}
	log_warn("control: too many connections");
	close(sock);
	return true;
}

static bool is_readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return fd >= 0 && poll(&p, 1, 0) == 1;
}

/* Serves one request of this connection, or its end. */
static void serve_one(struct control *control, struct control_connection *c, struct process *process)
{
	struct frame frame;
	struct control_request request = {
		.control = control, .connection = c, .process = process, .frame = &frame};
	struct err err = ERR_INIT;
	int r;

	r = frame_recv(c->sock, &frame, &err);
	if (r <= 0) {
		if (r < 0)
			log_warn("control: %s", err.text);
		end_connection(control, c, process);
		return;
	}
	control_serve_request(&request);
	frame_free(&frame);
}

void control_await_coordinator(struct control *control, pid_t coordinator)
{
	control->coordinator = coordinator;
	control->look_ns = io_now_ns(CLOCK_MONOTONIC) + LOOK_AGAIN_NS;
}

/* The coordinator may have been killed before it connected: no other process knows of the husk. */
static void check_coordinator(struct control *control, struct process *process)
{
	if (!control->coordinator || !process->held || io_now_ns(CLOCK_MONOTONIC) < control->look_ns)
		return;
	if (atomic_load(&control->seat->shared->coordinator) == control->coordinator) {
		control_await_coordinator(control, control->coordinator);
		return;
	}
	control->coordinator = 0;
	control_give_up_husk(control, process);
}

static void refuse_stop(struct control *control, struct control_connection *c, struct process *process,
			const struct err *err)
{
	control_thaw(control, c, process);
	reply_failed(c, err->code, err->text);
}

/* Refuses to stop a process that waits for a child in vfork which does not get on. */
static void check_vfork(struct control *control, struct process *process)
{
	struct err err = ERR_INIT;
	bool waits = false;

	for (unsigned i = 0; i < CONTROL_CONNECTIONS_MAX; i++)
		waits = waits || waits_for_stop(&control->connections[i]);
	if (!waits || !control_vfork_blocks(&control->vfork, process, &err))
		return;
	for (unsigned i = 0; i < CONTROL_CONNECTIONS_MAX; i++)
		if (waits_for_stop(&control->connections[i]))
			refuse_stop(control, &control->connections[i], process, &err);
}

static void check_deadlines(struct control *control, struct process *process)
{
	struct err err = ERR_INIT;

	check_vfork(control, process);
	check_coordinator(control, process);
	for (unsigned i = 0; i < CONTROL_CONNECTIONS_MAX; i++) {
		struct control_connection *c = &control->connections[i];
		if (waits_for_stop(c) && c->deadline_ns && io_now_ns(CLOCK_MONOTONIC) >= c->deadline_ns) {
			err_set(&err, -ETIMEDOUT, "vpid %d: its threads could not be stopped in time",
				process->vpid.n);
			refuse_stop(control, c, process, &err);
		}
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

static int control_listen(const char *path, struct err *err)
{
	auto_close int fd = frame_listen(path, err);
	int r = fd < 0 ? fd : make_async(fd);

	if (r < 0)
		return r;
	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0)
		return err_sys(err, "set up %s", path);
	return steal_fd(&fd);
}

static bool is_removed(const char *path)
{
	return access(path, F_OK) < 0 && (errno == ENOENT || errno == ENOTDIR);
}

/* The socket was removed, or its directory is another one by now: it is made again. The directory is looked
 * up only after a signal that no request explains (frame_connect_to()). */
static void control_return_socket(struct control *control, bool served)
{
	char path[PATH_MAX];
	struct err err = ERR_INIT;
	int fd;

	if (served && access(control->path, F_OK) == 0)
		return;
	if (socket_path(path, getpid(), NULL) < 0 || (strcmp(path, control->path) == 0 && !is_removed(path)))
		return;
	fd = control_listen(path, &err);
	if (fd < 0) {
		log_warn("control: %s", err.text);
		return;
	}
	close(control->listener);
	control->listener = fd;
	strcpy(control->path, path);
}

void control_serve(struct control *control, struct process *process)
{
	bool served = false;

	if (!process) {
		int sock; /* idle: connections are refused */

		while ((sock = accept4(control->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
			close(sock);
		return;
	}
	for (; is_readable(control->listener); served = true)
		take_connection(control);
	for (unsigned i = 0; i < CONTROL_CONNECTIONS_MAX; i++)
		for (; is_readable(control->connections[i].sock); served = true)
			serve_one(control, &control->connections[i], process);
	control_return_socket(control, served);
	check_deadlines(control, process);
}

void control_progress(struct control *control, struct process *process)
{
	for (unsigned i = 0; i < CONTROL_CONNECTIONS_MAX; i++) {
		struct control_connection *c = &control->connections[i];

		if (!waits_for_stop(c) || (!process->held && !freeze_settled(process)))
			continue;
		if (c->waiting == PBEAM__SCIP_REQUEST__SCIP_FREEZE) {
			reply_frozen(control, c, process);
			continue;
		}
		if (c->waiting == PBEAM__SCIP_REQUEST__SCIP_STACK)
			reply_stack(c, process);
		else
			reply_orphan(c, process);
		control_thaw(control, c, process);
	}
	check_vfork(control, process);
}

bool control_has_callers(const struct control *control)
{
	for (unsigned i = 0; i < CONTROL_CONNECTIONS_MAX; i++)
		if (control->connections[i].sock >= 0)
			return true;
	return control->fill || control->coordinator;
}

uint64_t control_deadline(const struct control *control)
{
	uint64_t first = control->coordinator ? control->look_ns : 0;
	uint64_t vfork = control_vfork_deadline(&control->vfork);

	if (control->accept_ns && (!first || control->accept_ns < first))
		first = control->accept_ns;
	for (unsigned i = 0; i < CONTROL_CONNECTIONS_MAX; i++) {
		const struct control_connection *c = &control->connections[i];

		if (!waits_for_stop(c))
			continue;
		if (c->deadline_ns && (!first || c->deadline_ns < first))
			first = c->deadline_ns;
		if (vfork && (!first || vfork < first))
			first = vfork;
	}
	return first;
}

void control_process_gone(struct control *control, struct process *process)
{
	control_forget_fill(control);
	control->coordinator = 0;
	for (unsigned i = 0; i < CONTROL_CONNECTIONS_MAX; i++) {
		struct control_connection *c = &control->connections[i];

		if (c->sock < 0)
			continue;
		if (c->waiting == PBEAM__SCIP_REQUEST__SCIP_TERMINATE ||
		    c->waiting == PBEAM__SCIP_REQUEST__SCIP_RESTORE_EXIT)
			reply_done(c);
		else if (waits_for_stop(c))
			reply_failed(c, -ESRCH,
				     c->waiting == PBEAM__SCIP_REQUEST__SCIP_FREEZE
					     ? "the process ended during the checkpoint"
					     : "it has ended");
		c->froze = false;
		end_connection(control, c, NULL);
	}
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
	for (unsigned i = 0; i < CONTROL_CONNECTIONS_MAX; i++)
		control->connections[i].sock = -1;
	r = socket_path(control->path, getpid(), err);
	if (r == 0)
		r = control->listener = control_listen(control->path, err);
	if (r < 0) {
		if (control->listener > 0) {
			close(control->listener);
			unlink(control->path);
		}
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
