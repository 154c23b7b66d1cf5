/* Requests about processes and jobs of this host. */
#ifndef PBEAMD_SERVICES_PROCESS_REQUESTS_H
#define PBEAMD_SERVICES_PROCESS_REQUESTS_H

#include "pbeamd/services/target.h"
#include <limits.h>
#include <signal.h>

void ps_work(struct server *server, int sock, const void *arg);
void log_work(struct server *server, int sock, const void *arg); /* arg: struct target */
struct revive {
	struct target target;
	char path[PATH_MAX];
	bool force, dry_run;
};
void revive_work(struct server *server, int sock, const void *arg); /* arg: struct revive */
/* kill(2) and similar calls, and other calls, made by a process of another host. */
int handle_signal(struct connection *connection, const ProtobufCMessage *message, struct err *err);
int handle_call(struct connection *connection, const ProtobufCMessage *message, struct err *err);
int handle_members(struct connection *connection, const ProtobufCMessage *message, struct err *err);
int handle_proc(struct connection *connection, const ProtobufCMessage *message, struct err *err);
/* Fills in the siginfo of a sigqueue(3) by the process with vpid `from`. */
void signal_info(int signal, int32_t from, siginfo_t *info);
/* Sends a signal to a process, or to its thread `tid` if that is not 0; signal 0 tests whether it could be
 * sent. 0 or -errno. */
must_check int signal_process(pid_t pid, pid_t tid, int signal, siginfo_t *info);
must_check int kill_target(struct server *server, const struct target *target, int signal, struct err *err);

#endif
