#include "pbeamctl/client.h"

#include <errno.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/parse.h"
#include "base/text.h"
#include "pbeamctl/command.h"
#include "pbeamctl/progress.h"
#include "proto/ask.h"
#include "proto/message.h"

void client_target(const char *word, Pbeam__Target *target)
{
	uint64_t vpid;

	pbeam__target__init(target);
	if (parse_number(word, 1, INT32_MAX, &vpid, NULL) == 0)
		target->vpid = (int32_t)vpid;
	else
		target->name = (char *)(uintptr_t)word;
}

int client_ask(uint32_t type, const ProtobufCMessage *request, const ProtobufCMessageDescriptor *answer,
	       void *out, struct err *err)
{
	auto_close int sock = ask_open("pbeamctl " PBEAM_VERSION, err);
	int r;

	if (sock < 0)
		return sock;
	r = ask_message(sock, type, request, progress_show, answer, out, err);
	progress_end();
	if (r == -EPIPE)
		r = err_set(err, -EPIPE,
			    "pbeamd was killed before it replied; the request may or may not have been "
			    "carried out, check and repeat it");
	return r;
}

int client_command(uint32_t type, const ProtobufCMessage *request)
{
	struct err err = ERR_INIT;
	ProtobufCMessage *reply;

	if (client_ask(type, request, &pbeam__done__descriptor, &reply, &err) < 0)
		return command_failed(&err);
	message_free(reply);
	return STATUS_DONE;
}

void client_print_notes(char *const *notes, size_t n)
{
	fflush(stdout);
	for (size_t i = 0; i < n; i++)
		fprintf(stderr, "pbeamctl: %s\n", text_visible(notes[i]));
}
