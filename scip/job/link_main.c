/* The process that carries the links: its beginning, and the distribution of the keeper's news. */
#include <errno.h>
#include <event2/event.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/log.h"
#include "proto/message.h"
#include "scip/job/link_process.h"
#include "scip/job/link_work.h"

static void on_keeper_frame(struct stream *stream, struct frame *frame)
{
	struct link_process *process = stream->owner;
	Pbeam__LinkNews *news = (void *)frame_unpack(frame, &pbeam__link_news__descriptor, NULL);

	if (!news)
		return;
	switch (frame->type) {
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_EXPECT:
		link_stub_expect(process);
		break;
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_CONSOLE:
		console_guest_start(process);
		break;
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_RESET:
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_SIGNAL:
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_PARENT:
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_DROP:
		link_stub_news(process, frame->type, news);
		break;
	default:
		link_guest_news(process, frame->type, news);
		break;
	}
	message_free(news);
}

static void on_keeper_end(struct stream *stream, const struct err *err)
{
	struct link_process *process = stream->owner;

	stream_close(stream);
	link_stub_orphan(process);
	link_guest_orphan(process);
	console_guest_orphan(process);
	link_process_check_end(process);
}

static void on_terminate(evutil_socket_t number, short events, void *arg)
{
	console_home_terminate(arg);
}

/* Nothing of the keeper's is left but what the links carry. */
static int open_process(struct link_process *process, int keeper, struct err *err)
{
	static const struct stream_calls calls = {.frame = on_keeper_frame, .end = on_keeper_end};
	struct event *terminate;
	sigset_t none;
	int r;

	prctl(PR_SET_NAME, "scip-link");
	/* A terminal stops only readers of its own session, and hangs up only that. */
	setsid();
	signal(SIGPIPE, SIG_IGN);
	process->base = event_base_new();
	if (!process->base)
		return err_code(err, -ENOMEM, "make an event loop");
	terminate = evsignal_new(process->base, SIGTERM, on_terminate, process);
	if (!terminate || event_add(terminate, NULL) < 0)
		return err_code(err, -ENOMEM, "watch for a signal");
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	r = link_work_open(process->base, err);
	if (r < 0)
		return r;
	r = job_cookie(process->job, process->cookie, err);
	if (r < 0)
		return r;
	r = stream_open(&process->keeper, process->base, keeper, &calls, process);
	return r < 0 ? err_code(err, r, "watch the keeper") : 0;
}

void link_process_main(struct job *job, int keeper)
{
	struct link_process process = {.calls = &link_process_calls, .job = job, .expecting = -1};
	struct err err = ERR_INIT;

	if (open_process(&process, keeper, &err) < 0) {
		log_error("job %s: %s", job->entry.uuid, err.text);
		_exit(1);
	}
	event_base_dispatch(process.base);
	_exit(1); /* not reached: the signal is always watched */
}
