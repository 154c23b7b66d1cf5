/* The process that accepts a job's channels. It is one of its own because pbeamd, which announces them, may
 * stand still or be started, and the keeper waits for neither. */
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "channel/channel.h"
#include "proto/control.pb-c.h"
#include "proto/frame.h"
#include "scip/job/links.h"

enum { NAP_NS = 50000000 };

void link_acceptor_main(const struct job *job, int keeper)
{
	uint8_t cookie[16];
	struct err err = ERR_INIT;

	if (job_cookie(job, cookie, &err) < 0)
		_exit(1);
	for (;;) {
		auto_close int expecting = channel_expect(cookie, &err);

		while (expecting >= 0) {
			struct pollfd polls[2] = {{.fd = expecting, .events = POLLIN},
						  {.fd = keeper, .events = POLLIN}};
			auto_close int channel = -1;

			if (poll(polls, 2, -1) < 0)
				continue;
			if (polls[1].revents)
				_exit(0); /* the keeper has ended */
			channel = channel_take(expecting, 0, &err);
			if (channel < 0)
				break; /* pbeamd has ended: the next one is asked */
			if (frame_send(keeper, PBEAM__DAEMON_REQUEST__DAEMON_CHANNEL, NULL, &channel, 1,
				       &err) < 0)
				_exit(0);
		}
		log_info("job %s: %s", job->entry.uuid, err.text);
		err_clear(&err);
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
}
