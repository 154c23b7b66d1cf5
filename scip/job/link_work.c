#include "scip/job/link_work.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"

enum { AGAIN_US = 50000 };

struct work {
	struct work *next;
	link_work_fn run, done;
	void *arg;
};

static int done_pipe[2] = {-1, -1};  /* pointers to work that is done */
static struct work *waiting, **last; /* work without a thread */
static struct event *start_again;

static void *work_main(void *arg)
{
	struct work *work = arg;

	work->run(work->arg);
	if (write(done_pipe[1], &work, sizeof(work)) != (ssize_t)sizeof(work))
		log_error("a thread cannot report its end");
	return NULL;
}

static void on_work_done(evutil_socket_t fd, short events, void *arg)
{
	struct work *work;

	while (read(fd, &work, sizeof(work)) == (ssize_t)sizeof(work)) {
		work->done(work->arg);
		free(work);
	}
}

/* False: there is no thread to spare. */
static bool start_thread(struct work *work)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, work_main, work) != 0)
		return false;
	pthread_detach(thread);
	return true;
}

static void on_start_again(evutil_socket_t fd, short events, void *arg)
{
	const struct timeval after = {.tv_usec = AGAIN_US};

	while (waiting) {
		struct work *first = waiting, *next = first->next;

		if (!start_thread(first))
			break;
		waiting = next;
	}
	if (!waiting)
		last = &waiting;
	else if (event_add(start_again, &after) < 0)
		log_error("work of the job's links waits for ever: no memory");
}

int link_work_open(struct event_base *base, struct err *err)
{
	struct event *done;

	if (pipe2(done_pipe, O_CLOEXEC) < 0 || fcntl(done_pipe[0], F_SETFL, O_NONBLOCK) < 0)
		return err_sys(err, "make a pipe");
	last = &waiting;
	start_again = event_new(base, -1, 0, on_start_again, NULL);
	done = event_new(base, done_pipe[0], EV_READ | EV_PERSIST, on_work_done, NULL);
	return start_again && done && event_add(done, NULL) == 0 ? 0 : err_code(err, -ENOMEM, "watch a pipe");
}

void link_work_start(link_work_fn run, link_work_fn done, void *arg)
{
	struct work *work = malloc(sizeof(*work));

	if (!work) {
		log_error("the job's links wait for one of them: no memory");
		run(arg);
		done(arg);
		return;
	}
	*work = (struct work){.run = run, .done = done, .arg = arg};
	*last = work;
	last = &work->next;
	on_start_again(-1, 0, NULL);
}
