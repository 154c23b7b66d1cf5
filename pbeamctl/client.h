/*
 * The connection to pbeamd: one request, one answer, progress before it.
 */
#ifndef PBEAMCTL_CLIENT_H
#define PBEAMCTL_CLIENT_H

#include "base/err.h"
#include "proto/daemon.pb-c.h"

/* A word of the command line as a target: digits are a vpid, all else a name. The name is borrowed. */
void client_target(const char *word, Pbeam__Target *target);

/* Connects (starting pbeamd if need be), asks, waits. *reply is the answer's message, to be freed with
 * protobuf_c_message_free_unpacked(). A refusal is an error with pbeamd's sentence. */
must_check int client_ask(uint32_t type, const ProtobufCMessage *request,
			  const ProtobufCMessageDescriptor *answer, ProtobufCMessage **reply,
			  struct err *err);

#endif
