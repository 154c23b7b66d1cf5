/* `scip cut`: leads one checkpoint or rollback with several parts, and replies to the user. */
#include "scip/cut/lead.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "channel/channel.h"
#include "proto/ask.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/cut/cut.h"
#include "scip/object/common.h"

enum { USER_FD = 3, REQUEST_FD = 4, REQUEST_MAX = 1 << 20 };

static void *read_request(const ProtobufCMessageDescriptor *descriptor, struct err *err)
{
	struct stat st;
	auto_free uint8_t *body = NULL;
	ProtobufCMessage *request;

	if (fstat(REQUEST_FD, &st) < 0 || st.st_size > REQUEST_MAX ||
	    !(body = malloc((size_t)st.st_size + 1)) ||
	    io_pread_full(REQUEST_FD, body, (size_t)st.st_size, 0) != st.st_size) {
		err_set(err, -EPROTO, "there is no request");
		return NULL;
	}
	request = protobuf_c_message_unpack(descriptor, NULL, (size_t)st.st_size, body);
	if (!request)
		err_set(err, -EPROTO, "the request is malformed");
	return request;
}

static void refuse_request(const struct lead *lead, const struct err *err)
{
	Pbeam__Failed failed = PBEAM__FAILED__INIT;

	if (lead->answered) {
		log_error("%s: %s", lead->name, err->text);
		return;
	}
	failed.code = err->code;
	failed.text = (char *)(uintptr_t)err->text;
	if (frame_send(lead->user, PBEAM__RPC__RPC_FAILED, &failed.base, NULL, 0, NULL) < 0)
		log_info("refused, and the client has left: %s", err->text);
}

static int prepare_lead(struct lead *lead, struct err *err)
{
	Pbeam__HostsRequest request = PBEAM__HOSTS_REQUEST__INIT;

	lead->hosts = lead_ask(PBEAM__DAEMON_REQUEST__DAEMON_HOSTS, &request.base,
			       &pbeam__host_list__descriptor, err);
	if (!lead->hosts)
		return err->code;
	if (!lead->hosts->n_hosts || !lead->hosts->hosts[0]->name[0])
		return err_set(err, -ENOTCONN, "this host is in no cluster");
	snprintf(lead->own, sizeof(lead->own), "%s", lead->hosts->hosts[0]->name);
	return 0;
}

static void finish_lead(struct lead *lead)
{
	lead_close_parts(lead);
	for (size_t i = 0; i < lead->nknown; i++) {
		close(lead->known[i].channel);
		message_free(lead->known[i].has);
	}
	free(lead->known);
	free(lead->parts);
	message_free(lead->alone);
	message_free(lead->processes);
	message_free(lead->log);
	message_free(lead->hosts);
}

int cut_lead_main(const char *what)
{
	struct lead lead = {.user = USER_FD};
	struct err err = ERR_INIT;
	void *request = NULL;
	int r = -EINVAL;

	if (fcntl(USER_FD, F_SETFD, FD_CLOEXEC) < 0)
		return EXIT_FAILURE;
	log_open_shared("scip");
	if (!strcmp(what, "checkpoint")) {
		request = read_request(&pbeam__checkpoint_request__descriptor, &err);
		r = request ? prepare_lead(&lead, &err) : err.code;
		if (r == 0)
			r = lead_save(&lead, request, &err);
	}
	if (!strcmp(what, "rollback")) {
		request = read_request(&pbeam__rollback_request__descriptor, &err);
		r = request ? prepare_lead(&lead, &err) : err.code;
		if (r == 0)
			r = lead_rollback(&lead, request, &err);
	}
	if (r < 0)
		refuse_request(&lead, &err);
	message_free(request);
	finish_lead(&lead);
	return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
