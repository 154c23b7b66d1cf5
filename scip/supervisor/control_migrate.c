/* Requests of a migration to the scip of a process that is outgoing or returning. */
#include <errno.h>

#include "scip/supervisor/control_request.h"
#include "scip/supervisor/stub.h"
#include "scip/syscall/syscall.h"

int control_keep(struct control_request *request, struct err *err)
{
	request->connection->keeps = true;
	return 0;
}

int control_decide(struct control_request *request, struct err *err)
{
	if (request->process->held ? !request->control->fill : !request->connection->trial.child)
		return err_set(err, -EPROTO, "vpid %d is not complete", request->process->vpid.n);
	request->connection->decides = true;
	return 0;
}

int control_stub(struct control_request *request, struct err *err)
{
	int r = stub_make(request->control->seat, request->process, err);

	if (r < 0)
		return r;
	request->connection->froze = request->connection->keeps = request->connection->drives = false;
	control_set_state(request->control, request->process, NAME_STATE_STUB);
	return 0;
}

/* The caller has found the process in the name table. Since then the process may have given up by itself,
 * when the connection of the killed coordinator ended, or may have been resumed. */
int control_give_up(struct control_request *request, struct err *err)
{
	request->connection->decides = false;
	if (request->process->held)
		control_give_up_husk(request->control, request->process);
	return 0;
}

int control_hold(struct control_request *request, struct err *err)
{
	struct process *process = request->process;

	if (!stub_is(process))
		return err_set(err, -EINVAL, "vpid %d is on this host", process->vpid.n);
	if (syscall_filter_inject(process_leader(process), err) < 0 ||
	    syscall_filter_datagrams(process_leader(process), true, err) < 0)
		return -EIO;
	stub_return(process);
	process->expected = NULL;
	request->connection->froze = false;
	request->connection->drives = true;
	control_set_state(request->control, process, NAME_STATE_FROZEN);
	return 0;
}

int control_stub_stop(struct control_request *request, struct err *err)
{
	const Pbeam__ScipStubStop *stop = (const void *)request->message;

	return stub_stop(request->process, stop->signal, err);
}
