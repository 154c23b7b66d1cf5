#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "proto/message.h"
#include "scip/dump/dump.h"
#include "scip/fill/fill.h"
#include "scip/supervisor/control_request.h"
#include "scip/supervisor/stub.h"
#include "scip/syscall/syscall.h"
#include "scip/tracee/remote.h"

/* ---- dumping ---- */

typedef int (*dump_fn)(struct control_request *request, struct image_arena *arena, struct err *err);

/* The two descriptors of a dump: the image and the arena. */
static int with_arena(struct control_request *request, dump_fn dump, struct err *err)
{
	const struct frame *frame = request->frame;
	struct image_arena *arena;
	int r;

	if (frame->nfds != 2)
		return err_set(err, -EPROTO, "a dump needs two descriptors, got %d", frame->nfds);
	r = image_arena_map(frame->fds[1], &arena, err);
	if (r < 0)
		return r;
	r = dump(request, arena, err);
	image_arena_unmap(arena);
	return r;
}

static int dump_into_image(struct control_request *request, struct image_arena *arena, struct err *err)
{
	const Pbeam__ScipDump *wish = (const void *)request->message;
	Pbeam__ScipDumped *dumped = malloc(sizeof(*dumped));
	int r;

	if (!dumped)
		return -ENOMEM;
	pbeam__scip_dumped__init(dumped);
	r = dump_process(request->process, wish->what, request->frame->fds[0], arena, dumped, err);
	if (r == 0)
		stub_note_dumped(request->process, dumped->process);
	if (r == 0)
		control_answer(request, &dumped->base);
	pbeam__scip_dumped__free_unpacked(dumped, NULL);
	return r;
}

int control_dump(struct control_request *request, struct err *err)
{
	return with_arena(request, dump_into_image, err);
}

static int dump_shared_into_image(struct control_request *request, struct image_arena *arena, struct err *err)
{
	const Pbeam__ScipDumpShared *ranges = (const void *)request->message;
	Pbeam__ScipDumpedShared *dumped = malloc(sizeof(*dumped));
	int r;

	if (!dumped)
		return -ENOMEM;
	pbeam__scip_dumped_shared__init(dumped);
	r = dump_shared(request->process, request->frame->fds[0], arena, ranges, dumped, err);
	if (r == 0)
		control_answer(request, &dumped->base);
	pbeam__scip_dumped_shared__free_unpacked(dumped, NULL);
	return r;
}

int control_dump_shared(struct control_request *request, struct err *err)
{
	return with_arena(request, dump_shared_into_image, err);
}

int control_diverge(struct control_request *request, struct err *err)
{
	struct tracee *tracee = process_still(request->process);

	if (!tracee)
		return err_set(err, -EBUSY, "vpid %d is not frozen", request->process->vpid.n);
	return syscall_filter_inject(tracee, err);
}

int control_trap_datagrams(struct control_request *request, struct err *err)
{
	const Pbeam__ScipTrapDatagrams *trap = (const void *)request->message;

	return syscall_filter_datagrams(process_leader(request->process), trap->send, err);
}

int control_replace(struct control_request *request, struct err *err)
{
	return fill_replace(request->process, (const void *)request->message, err);
}

/* ---- restoring ---- */

int control_restore_call(struct control_request *request, struct err *err)
{
	const Pbeam__ScipCall *call = (const void *)request->message;
	struct tracee *leader = process_leader(request->process);
	Pbeam__ScipCalled called = PBEAM__SCIP_CALLED__INIT;
	auto_free int64_t *results = calloc(call->n_calls + 1, sizeof(*results));
	int r;

	if (!results)
		return -ENOMEM;
	for (size_t i = 0; i < call->n_calls; i++) {
		const Pbeam__ScipCall__One *one = call->calls[i];
		uint64_t args[6] = {0};

		if (one->n_args > 6 || one->n_data)
			return err_set(err, -EPROTO, "call %zu is malformed", i);
		bytes_copy(args, one->args, one->n_args * sizeof(args[0]));
		r = remote_call(leader, &results[i], err, one->number, args);
		if (r < 0)
			return r;
	}
	called.n_results = call->n_calls;
	called.results = results;
	control_answer(request, &called.base);
	return 0;
}

int control_restore_exec(struct control_request *request, struct err *err)
{
	const Pbeam__ScipExec *exec = (const void *)request->message;
	auto_free char *path = message_dup_text(&exec->path);

	return path ? fill_exec(request->process, path, err) : -ENOMEM;
}

void control_forget_fill(struct control *control)
{
	if (control->fill)
		protobuf_c_message_free_unpacked(&control->fill->base, NULL);
	control->fill = NULL;
}

int control_restore_fill(struct control_request *request, struct err *err)
{
	struct control *control = request->control;

	control_forget_fill(control);
	control->fill = (void *)request->message;
	request->message = NULL;
	if (request->frame->nfds < 1 || !control->fill->process)
		return err_set(err, -EPROTO, "a fill needs the image and a process");
	if (control->fill->process->state == PBEAM__PROCESS__STATE__STUB)
		return stub_empty(control->seat, request->process, control->fill->process, err);
	return fill_husk(request->process, control->fill, request->frame->fds, (size_t)request->frame->nfds,
			 err);
}

int control_run_filled(struct control *control, struct process *process, struct err *err)
{
	int r;

	if (!control->fill)
		return err_set(err, -EPROTO, "nothing has been filled");
	process->held = false;
	if (control->fill->process->state == PBEAM__PROCESS__STATE__STUB)
		r = stub_begin(process, control->fill->process->stop_signal, err);
	else {
		orphan_restored(process, control->fill->process);
		r = fill_release(process, control->fill->process, err);
	}
	if (r < 0) {
		process->held = true;
		return r;
	}
	process->returning = false;
	control_set_state(control, process, stub_is(process) ? NAME_STATE_STUB : NAME_STATE_RUNNING);
	control_forget_fill(control);
	return 0;
}

int control_restore_take(struct control_request *request, struct err *err)
{
	return fill_take(request->process, (const void *)request->message, err);
}

int control_restore_run(struct control_request *request, struct err *err)
{
	int r = control_run_filled(request->control, request->process, err);

	if (r == 0)
		request->connection->drives = request->connection->decides = false;
	return r;
}

int control_restore_fork(struct control_request *request, struct err *err)
{
	const Pbeam__ScipFork *fork = (const void *)request->message;
	struct control_trial *trial = &request->connection->trial;
	Pbeam__ScipForked forked = PBEAM__SCIP_FORKED__INIT;
	struct rpid rpid;
	int r;

	if (trial->child)
		return err_set(err, -EPROTO, "the process already has a child on trial");
	r = restore_fork(request->control->seat, request->process, (struct vpid){fork->vpid},
			 fork->exit_signal, fork->same_files, &rpid, err);
	if (rpid.n && !request->process->held)
		*trial = (struct control_trial){rpid.n, fork->replaces, {fork->vpid}};
	if (r < 0)
		return r;
	forked.rpid = rpid.n;
	control_answer(request, &forked.base);
	return 0;
}

int control_restore_exit(struct control_request *request, struct err *err)
{
	const Pbeam__ScipExit *message = (const void *)request->message;
	int r;

	stub_expect_end(request->process); /* if it is one */
	r = fill_exit(request->process, message->status, err);

	if (r < 0)
		return r;
	request->process->held = false;
	request->connection->waiting = PBEAM__SCIP_REQUEST__SCIP_RESTORE_EXIT;
	return CONTROL_LATER;
}
