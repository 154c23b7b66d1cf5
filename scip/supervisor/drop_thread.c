/* The end of one thread, for the loop and for a stub that ends the others. */
#include "scip/supervisor/supervisor.h"
#include "scip/syscall/syscall.h"

void supervisor_drop_thread(const struct seat *seat, struct tracee *tracee)
{
	struct process *process = tracee->process;

	syscall_forget(tracee);
	if (tracee->tid != process->pid && tracee->vtid.n && tracee->vtid.n != tracee->tid)
		names_number_release(seat->names, tracee->vtid, (struct rpid){tracee->tid});
	process_remove_tracee(process, tracee);
}
