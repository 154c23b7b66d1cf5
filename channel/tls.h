/* What the parts of channel/ share; private to it. */
#ifndef CHANNEL_TLS_H
#define CHANNEL_TLS_H

#include <openssl/types.h>
#include <stdbool.h>
#include <stddef.h>

#include "channel/channel.h"
#include "channel/records.h"

/* ---- address.c ---- */
/* A TCP connection, non-blocking, or -errno. */
must_check int address_connect(const char *address, struct err *err);
/* Keep-alive and the like on a TCP connection. */
void address_tune(int tcp);

/* ---- tls.c ---- */
enum tls_role { TLS_CLIENT, TLS_SERVER };
/* An SSL object that reads from `tcp` (not owned) and writes into a memory BIO. NULL with err set. */
SSL *tls_new(int tcp, const struct channel_key *key, enum tls_role role, struct err *err);
/* What a failed handshake tells, as a sentence's end and a code: -EKEYREJECTED, -EPROTO. */
int tls_explain(enum tls_role role, struct err *err);
/* What somebody else needs to go on with the connection. False while there is no such point: before the
 * handshake, within a record, with one unread, or once keys or alerts have been sent. */
bool tls_traffic(const SSL *ssl, enum tls_role role, struct records_traffic *out);

/* ---- pump.c ---- */
/* Shakes hands, then copies both ways until both ends are done. Says why on `local` (CHANNEL_REFUSED) when
 * there was no handshake. Never returns. */
_Noreturn void pump_run(int tcp, int local, const struct channel_key *key, enum tls_role role);

/* ---- sandbox.c ---- */
/* From here on this process reads, writes and waits on what it has open, and no more. */
void sandbox_enter(void);

#endif
