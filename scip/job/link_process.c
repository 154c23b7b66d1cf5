#include "scip/job/link_process.h"

#include <event2/event.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"

_Noreturn static void out_of_memory(void)
{
	log_error("the process of the job's links ends: no memory");
	_exit(1);
}

struct event *link_process_timer(const struct link_process *process, void (*expired)(int, short, void *),
				 void *arg)
{
	struct event *timer = event_new(process->base, -1, 0, expired, arg);

	if (!timer)
		out_of_memory();
	return timer;
}

void link_process_timer_start(struct event *timer, unsigned ms)
{
	const struct timeval after = {ms / 1000, (suseconds_t)(ms % 1000) * 1000};

	if (event_add(timer, &after) < 0)
		out_of_memory();
}

void link_process_tell(struct link_process *process, enum _Pbeam__LinkNewsType type,
		       const Pbeam__LinkNews *news)
{
	if (process->keeper.fd >= 0 && stream_send(&process->keeper, type, &news->base, NULL, 0) < 0)
		out_of_memory();
}

void link_process_check_end(const struct link_process *process)
{
	if (process->keeper.fd < 0 && !process->guests && !process->incoming && !process->console_open)
		_exit(0);
}
