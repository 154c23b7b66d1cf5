#include <errno.h>
#include <signal.h>
#include <sys/pidfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "pbeamd/services/process_requests.h"
#include "pbeamd/services/target.h"
#include "pbeamd/transport/server.h"

/* The name is looked up again once the pidfd is open: a number that was reused in between is noticed. */
int kill_target(struct server *server, const struct target *target, int signal, struct err *err)
{
	pid_t pid = target->process.rpid.n;
	struct name_process now;
	auto_close int fd = -1;

	if (signal < 0 || signal > SIGRTMAX)
		return err_set(err, -EINVAL, "%s: there is no signal %d", target->who, signal);
	if (pid <= 0)
		return err_set(err, -ESRCH, "%s: it has ended", target->who);
	fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (fd < 0)
		return err_set(err, -errno, "%s: it has ended", target->who);
	if (names_process_get(server->names, target->process.vpid, &now) < 0 || now.rpid.n != pid)
		return err_set(err, -ESRCH, "%s: it has ended", target->who);
	if (syscall(SYS_pidfd_send_signal, fd, signal, NULL, 0) < 0)
		return err_sys(err, "%s: send signal %d", target->who, signal);
	return 0;
}
