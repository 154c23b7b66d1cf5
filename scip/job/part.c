#include "scip/job/part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "base/log.h"
#include "proto/daemon.pb-c.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/cut/cut.h"
#include "scip/job/receive.h"

enum { CHANNEL_FD = 3, PATIENCE_S = 3600 };

static int part_pass_on(const Pbeam__CutRequest *request, struct err *err)
{
	pid_t keeper = receive_find_keeper(request->job, err);

	if (keeper == 0)
		return err_set(err, -ESRCH, "vpid %d: it has ended", request->vpid);
	return keeper < 0 ? keeper
			  : receive_pass_on(keeper, CHANNEL_FD, PBEAM__DAEMON_REQUEST__DAEMON_SAVE_PART,
					    &request->base, err);
}

int part_run(void)
{
	Pbeam__CutRequest *request;
	struct err err = ERR_INIT;

	if (fcntl(CHANNEL_FD, F_SETFD, FD_CLOEXEC) < 0)
		return EXIT_FAILURE;
	rpc_set_timeout(CHANNEL_FD, PATIENCE_S * 1000);
	while ((request = cut_take(CHANNEL_FD, &err))) {
		bool part = request->operation == PBEAM__CUT_REQUEST__OPERATION__SAVE;
		int r = part ? part_pass_on(request, &err) : cut_serve_store(CHANNEL_FD, request, &err);

		message_free(request);
		if (r > 0)
			continue;
		if (r == 0 && part)
			return EXIT_SUCCESS; /* the channel is its coordinator's now */
		if (r == 0)
			err_set(&err, -EPROTO, "a request came that is not known");
		log_error("part: %s", err.text);
		if (r == 0 || part)
			rpc_refuse(CHANNEL_FD, &err);
		return EXIT_FAILURE;
	}
	return err.code == -EPIPE ? EXIT_SUCCESS : EXIT_FAILURE;
}
