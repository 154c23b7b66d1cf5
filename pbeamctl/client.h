/* The connection to pbeamd: one request, progress messages, one reply. */
#ifndef PBEAMCTL_CLIENT_H
#define PBEAMCTL_CLIENT_H

#include "base/err.h"
#include "proto/daemon.pb-c.h"

/* Parses a word of the command line as a target: a number is a vpid, all else a name. Borrows `word`. */
void client_target(const char *word, Pbeam__Target *target);

/* Connects (starting pbeamd if necessary), sends the request and waits for the reply. The caller frees *out
 * (a pointer to a pointer to the reply) with message_free(). A refusal is an error with pbeamd's message. */
must_check int client_ask(uint32_t type, const ProtobufCMessage *request,
			  const ProtobufCMessageDescriptor *answer, void *out, struct err *err);

/* Sends a request whose reply has no content, and prints an error. Returns the exit status. */
int client_command(uint32_t type, const ProtobufCMessage *request);
/* Prints messages on standard error, after all output so far. */
void client_print_notes(char *const *notes, size_t n);

#endif
