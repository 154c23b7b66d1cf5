/* Contents of /proc/PID of a process of this host, for a process of another host: texts and links, with
 * virtual names. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "namespace/proc_text.h"
#include "pbeamd/services/process_requests.h"
#include "pbeamd/transport/server.h"
#include "pbeamd/transport/worker.h"
#include "proto/message.h"
#include "proto/rpc.h"

struct wish {
	struct rpid keeper;
	char file[64];
	bool link;
	pid_t pid;
};

static int read_file(struct server *server, const struct wish *wish, Pbeam__ProcReply *reply)
{
	auto_free char *text = NULL;
	size_t len;
	int r = wish->link ? proc_text_link(server->names, wish->keeper, wish->pid, wish->file, &text, &len)
			   : proc_text_read(server->names, wish->keeper, wish->pid, wish->file, &text, &len);

	return r < 0 ? r : message_bytes(&reply->text, text, len);
}

/* In a child: some of these files wait for the process's memory to be let go of. */
static void proc_work(struct server *server, int sock, const void *arg)
{
	const struct wish *wish = arg;
	Pbeam__ProcReply *reply = message_new(&pbeam__proc_reply__descriptor);
	struct err err = ERR_INIT;
	int r = reply ? read_file(server, wish, reply) : -ENOMEM;

	if (r < 0) {
		err_code(&err, r, "%s", wish->file);
		rpc_refuse(sock, &err);
	} else {
		reply->booted_ns = io_now_ns(CLOCK_REALTIME) - io_now_ns(CLOCK_BOOTTIME);
		if (rpc_reply(sock, &reply->base, &err) < 0)
			log_info("text of /proc: %s", err.text);
	}
	message_free(reply);
}

int handle_proc(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__ProcRequest *asked = (const Pbeam__ProcRequest *)message;
	struct name_process process;
	struct wish wish = {.link = asked->link};

	if (!asked->target || asked->target->vpid <= 0)
		return err_set(err, -EINVAL, "the request names no process");
	if (names_process_get(connection->server->names, (struct vpid){asked->target->vpid}, &process) < 0 ||
	    process.rpid.n <= 0 || process.state == NAME_STATE_STUB)
		return err_code(err, -ENOENT, "vpid %d", asked->target->vpid);
	if (strlen(asked->file) >= sizeof(wish.file))
		return err_code(err, -ENOENT, "vpid %d", asked->target->vpid);
	strcpy(wish.file, asked->file);
	wish.pid = process.rpid.n;
	wish.keeper = process.keeper;
	return worker_start(connection, proc_work, &wish, err);
}
