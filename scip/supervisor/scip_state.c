#include "scip/supervisor/scip_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "proto/message.h"
#include "scip/supervisor/stub.h"
#include "scip/syscall/syscall.h"
#include "scip/tracee/remote.h"

/* ---- the old program ---- */

static int save_thread(const struct tracee *tracee, Pbeam__ThreadState *out)
{
	const struct tracee_pending *p = &tracee->pending;

	out->tid = tracee->tid;
	out->vtid = tracee->vtid.n;
	out->stop = tracee->stop;
	out->signal = tracee->signal;
	out->event = tracee->event;
	out->frozen = tracee->frozen;
	out->restart_call = tracee->restart_call;
	out->timed = p->timed;
	out->deadline_ns = p->deadline_ns;
	out->stopped_ns = p->stopped_ns;
	out->active = p->active;
	out->number = p->number;
	out->rip = p->rip;
	out->done = p->done;
	out->piece = p->piece;
	for (int i = 0; i < 6; i++)
		if (message_append_u64(&out->args, &out->n_args, p->args[i]) < 0)
			return -ENOMEM;
	return 0;
}

static int save_process(const struct process *process, Pbeam__ScipState *out)
{
	out->pid = process->pid;
	out->vpid = process->vpid.n;
	out->diverged = process->diverged;
	out->filters = process->filters;
	out->dumpable = process->dumpable;
	out->scratch = process->scratch.a;
	out->timeouts = process->timeouts.a;
	out->cpu_before = calloc(CPU_TIMES, sizeof(*out->cpu_before));
	if (!out->cpu_before)
		return -ENOMEM;
	out->n_cpu_before = CPU_TIMES;
	memcpy(out->cpu_before, process->cpu_before, sizeof(process->cpu_before));
	for (const struct tracee *t = process->tracees; t; t = t->next) {
		Pbeam__ThreadState *thread = message_add(out, threads, pbeam__thread_state__descriptor);

		if (!thread || save_thread(t, thread) < 0)
			return -ENOMEM;
	}
	return syscall_save(process, out);
}

/* What only a settled process has can be handed over. */
static int check_settled(const struct process *process, const struct control *control, struct err *err)
{
	const char *busy = NULL;
	int callers = 0;

	for (unsigned i = 0; i < CONTROL_CONNECTIONS_MAX; i++)
		callers += control->connections[i].sock >= 0;
	if (stub_is(process) || process->returning)
		busy = "it is a stub of a process on another host";
	else if (process->held || process->tracked || callers > 1 || control->fill || control->coordinator)
		busy = "a checkpoint, restore or migration of it is at work";
	else if (process->vfork_pending || process->nnewborn)
		busy = "it is making a process";
	for (const struct tracee *t = process->tracees; t && !busy; t = t->next)
		if (t->frame || t->call >= 0 || t->want_exit_stop)
			busy = "it is in the middle of a call";
	return busy ? err_set(err, -EBUSY, "vpid %d: %s", process->vpid.n, busy) : 0;
}

int scip_state_exec(const struct seat *seat, struct process *process, const struct control *control,
		    const char *program, struct err *err)
{
	Pbeam__SeatState seat_state;
	Pbeam__ScipState *state;
	int r = check_settled(process, control, err), fds[7], n = 0;

	if (r == 0 && process->area) {
		struct tracee *still = process_still(process);

		r = still ? inject_withdraw(still, err) : err_set(err, -EBUSY, "no thread is stopped");
	}
	if (r < 0)
		return r;
	state = message_new(&pbeam__scip_state__descriptor);
	if (!state)
		return err_code(err, -ENOMEM, "write the state of vpid %d", process->vpid.n);
	r = save_process(process, state);
	state->listener = control->listener;
	state->connection = -1;
	for (unsigned i = 0; i < CONTROL_CONNECTIONS_MAX; i++)
		if (control->connections[i].sock >= 0)
			state->connection = control->connections[i].sock;
	if (r == 0)
		r = message_string(&state->path, control->path);
	if (r < 0) {
		message_free(state);
		return err_code(err, r, "write the state of vpid %d", process->vpid.n);
	}
	successor_save_seat(seat, &seat_state);
	state->seat = &seat_state;
	fds[n++] = seat->take;
	fds[n++] = seat->give;
	fds[n++] = seat->wake;
	fds[n++] = seat->page;
	fds[n++] = names_descriptor(seat->names);
	fds[n++] = state->listener;
	fds[n++] = state->connection;
	r = successor_exec(program, "scip", &state->base, fds, n, err);
	state->seat = NULL;
	message_free(state);
	return r;
}

/* ---- the new one ---- */

static int load_thread(struct process *process, const Pbeam__ThreadState *saved)
{
	struct tracee *t;
	int r = process_add_tracee(process, saved->tid, &t);

	if (r < 0)
		return r;
	if (saved->stop > TRACEE_EXITED || saved->n_args != 6)
		return -EPROTO;
	t->vtid.n = saved->vtid;
	t->stop = (enum tracee_stop)saved->stop;
	t->signal = saved->signal;
	t->event = saved->event;
	t->frozen = saved->frozen;
	t->restart_call = saved->restart_call;
	t->pending = (struct tracee_pending){
		.sampled_call = -1,
		.timed = saved->timed,
		.deadline_ns = saved->deadline_ns,
		.stopped_ns = saved->stopped_ns,
		.active = saved->active,
		.number = saved->number,
		.rip = saved->rip,
		.done = saved->done,
		.piece = saved->piece,
	};
	memcpy(t->pending.args, saved->args, sizeof(t->pending.args));
	return 0;
}

/* The list has the leader first, and new threads behind it: from the last one on it becomes as it was. */
static int load_process(const Pbeam__ScipState *saved, const struct seat *seat, struct process *process)
{
	int r = syscall_attach(process);

	if (r == 0)
		r = stub_attach(process);
	process->pid = saved->pid;
	process->vpid.n = saved->vpid;
	process->keeper.n = seat->keeper;
	process->names = seat->names;
	process->diverged = saved->diverged;
	process->filters = saved->filters;
	process->dumpable = saved->dumpable;
	process->scratch.a = saved->scratch;
	process->timeouts.a = saved->timeouts;
	process->socket_waits = true;
	process->frozen = process->freezing = true;
	if (saved->pid <= 0 || saved->n_cpu_before != CPU_TIMES || !saved->n_threads)
		return -EPROTO;
	memcpy(process->cpu_before, saved->cpu_before, sizeof(process->cpu_before));
	for (size_t i = saved->n_threads; r == 0 && i-- > 0;)
		r = load_thread(process, saved->threads[i]);
	if (r == 0)
		r = syscall_load(process, saved);
	return r;
}

static void drop_process(struct process *process)
{
	process_clear(process);
	syscall_detach(process);
	stub_detach(process);
	free(process);
}

int scip_state_take(const struct successor *from, struct seat *seat, struct process **process,
		    struct control **control, struct err *err)
{
	Pbeam__ScipState *state = NULL;
	struct process *p = calloc(1, sizeof(*p));
	int r = p ? successor_read(from, &pbeam__scip_state__descriptor, &state, err) : -ENOMEM;

	if (r == 0 && !state->seat)
		r = err_set(err, -EPROTO, "the state of the other version has no seat");
	if (r == 0)
		r = successor_load_seat(state->seat, seat, err);
	if (r == 0) {
		seat->scip = getpid();
		r = load_process(state, seat, p);
		if (r == 0 && !from->refused)
			r = fault_point("succeed-scip", err);
		if (r == 0)
			r = control_inherit(control, seat, state->listener, state->connection, state->path,
					    err);
		if (r < 0 && !err->code)
			err_code(err, r, "take over the state of vpid %d", state->vpid);
	}
	message_free(state);
	if (r < 0 && p)
		drop_process(p);
	*process = r < 0 ? NULL : p;
	return r;
}
