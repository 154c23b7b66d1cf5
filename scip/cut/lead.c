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

enum { PATIENCE_S = 600 };

void *lead_ask(uint32_t type, const ProtobufCMessage *request, const ProtobufCMessageDescriptor *descriptor,
	       struct err *err)
{
	auto_close int sock = ask_open("scip " PBEAM_VERSION, err);
	ProtobufCMessage *reply = NULL;

	if (sock < 0 || ask_message(sock, type, request, NULL, descriptor, &reply, err) < 0)
		return NULL;
	return reply;
}

Pbeam__ProcessList *lead_list(struct err *err)
{
	return lead_ask(PBEAM__DAEMON_REQUEST__DAEMON_PS, NULL, &pbeam__process_list__descriptor, err);
}

bool lead_host_is_up(const struct lead *lead, const char *name)
{
	for (size_t i = 0; i < lead->hosts->n_hosts; i++)
		if (!strcmp(lead->hosts->hosts[i]->name, name))
			return lead->hosts->hosts[i]->state == PBEAM__HOST_INFO__STATE__UP;
	return false;
}

int lead_open_store(const char *host, struct err *err)
{
	int channel = channel_open(host, PBEAM__CHANNEL_KIND__CHANNEL_CUT, NULL, err);

	if (channel >= 0)
		rpc_set_timeout(channel, PATIENCE_S * 1000);
	return channel;
}

int lead_store(struct lead *lead, const char *host, struct err *err)
{
	struct lead_host new = {.channel = -1};

	for (size_t i = 0; i < lead->nknown; i++)
		if (!strcmp(lead->known[i].name, host))
			return lead->known[i].channel;
	snprintf(new.name, sizeof(new.name), "%s", host);
	new.channel = lead_open_store(host, err);
	if (new.channel < 0)
		return new.channel;
	if (object_append(lead->known, lead->nknown, new) < 0) {
		close(new.channel);
		return err_code(err, -ENOMEM, "host %s", host);
	}
	return new.channel;
}

struct lead_part *lead_find_part(const struct lead *lead, const char *host, const char *uuid)
{
	for (size_t i = 0; i < lead->nparts; i++)
		if (!strcmp(lead->parts[i].host, host) && !strcmp(lead->parts[i].uuid, uuid))
			return &lead->parts[i];
	return NULL;
}

struct lead_part *lead_add_part(struct lead *lead, const char *host, const char *uuid, const char *job,
				int32_t vpid, struct err *err)
{
	struct lead_part new = {.index = (uint32_t)lead->nparts + 1, .vpid = vpid, .channel = -1};

	if (lead_find_part(lead, host, uuid))
		return lead_find_part(lead, host, uuid);
	snprintf(new.host, sizeof(new.host), "%s", host);
	snprintf(new.uuid, sizeof(new.uuid), "%s", uuid);
	snprintf(new.job, sizeof(new.job), "%s", job);
	if (object_append(lead->parts, lead->nparts, new) < 0) {
		err_code(err, -ENOMEM, "list the parts");
		return NULL;
	}
	return &lead->parts[lead->nparts - 1];
}

static void close_part(struct lead_part *part)
{
	if (part->channel >= 0)
		close(part->channel);
	message_free(part->reply);
	message_free(part->relations);
	message_free(part->bridged);
	message_free(part->outside);
	message_free(part->saved);
	free(part->ids);
	part->channel = -1;
	part->reply = part->relations = part->bridged = part->outside = part->saved = NULL;
	part->ids = NULL;
	part->nids = 0;
	part->frozen = false;
}

void lead_close_parts(struct lead *lead)
{
	for (size_t i = 0; i < lead->nparts; i++)
		close_part(&lead->parts[i]);
}

int lead_tell_all(struct lead *lead, int operation, struct err *err)
{
	Pbeam__CutRequest request = PBEAM__CUT_REQUEST__INIT;
	struct lead_part *part;
	int r = 0;

	request.operation = (Pbeam__CutRequest__Operation)operation;
	for (size_t i = 0; i < lead->nparts && r == 0; i++) {
		part = &lead->parts[i];
		r = cut_send(part->channel, &request, err);
		if (r < 0)
			err_wrap(err, r, "host %s", part->host);
	}
	for (size_t i = 0; i < lead->nparts && r == 0; i++) {
		part = &lead->parts[i];
		message_free(part->reply);
		part->reply = cut_receive(part->channel, err);
		if (!part->reply)
			r = err_wrap(err, err->code, "host %s", part->host);
	}
	return r;
}

/* ---- the program ---- */
