/* TLS 1.3 with a pre-shared key, by OpenSSL, and other definitions that the files of channel/ share.
 * Private to channel/. */
#ifndef CHANNEL_TLS_H
#define CHANNEL_TLS_H

#include <openssl/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "channel/channel.h"
#include "channel/tls_stream.h"

/* ---- channel_address.c ---- */
/* Returns a non-blocking TCP connection or -errno. */
must_check int address_connect(const char *address, struct err *err);
/* Sets keep-alive and similar options on a TCP connection. */
void address_tune(int tcp);

/* ---- first_record.c ---- */
/* Checks the first `have` bytes of a connection that has sent `queued`. 1: they begin a ClientHello in one
 * record, which is there as a whole; 0: more must come; -EPROTO: it is none. */
must_check int first_record_check(const uint8_t *head, size_t have, size_t queued);

/* ---- tls.c ---- */
enum { TLS_PIECE = 256 << 10 /* bytes encrypted, or read from the socket, at once */ };

/* The pre-shared key, and its identity. */
struct tls_psk {
	const char *identity; /* static */
	uint8_t secret[TLS_SECRET];
};

/* One TLS connection. OpenSSL reads from the socket itself, ahead and in large pieces, and writes records
 * into memory, which tls_send() sends by one system call instead of one per record. */
struct tls {
	SSL *ssl;
	int tcp; /* not owned */
	enum tls_role role;
	struct tls_psk psk;
	size_t sent;	      /* records in memory */
	uint64_t records;     /* records written under the present key */
	uint64_t records_max; /* records after which the key is updated */
};

/* NULL with err set when out of memory. */
struct tls *tls_new(int tcp, const struct tls_psk *psk, enum tls_role role, struct err *err);
void tls_free(struct tls *tls);

/* Performs the handshake on the socket, which must be non-blocking; at most 10 s. A hang-up of `local` (-1
 * for none) cancels it with -EPIPE. -EKEYREJECTED: the peer has another key; -EPROTO: it speaks something
 * else; -ETIMEDOUT. A client's last flight may still have to be sent. */
must_check int tls_handshake(struct tls *tls, int local, struct err *err);

/* Encrypts at most one record's worth of `data` into memory. Returns the bytes taken (> 0) or -EIO. Updates
 * the sending key first when it is due. */
must_check ssize_t tls_write(struct tls *tls, const void *data, size_t len);
/* The bytes in memory that have not been sent. */
size_t tls_unsent(const struct tls *tls);
/* Sends the records in memory. Returns 0, -EAGAIN when the socket takes no more (non-blocking, MSG_DONTWAIT
 * in `flags`, or its time limit), or -errno. */
must_check int tls_send(struct tls *tls, int flags);
/* Decrypts. Returns the bytes read, 0 after the peer's close_notify, -EAGAIN when nothing is there (as
 * above), -EPIPE when the connection ended without a close_notify, -EBADMSG for a record that is not the
 * peer's, or -errno. */
must_check ssize_t tls_read(struct tls *tls, void *to, size_t len);
/* Puts a close_notify into memory. */
void tls_close_notify(struct tls *tls);

/* Derives a secret that only the two ends of this connection know (RFC 8446, 7.5). 0 or -EIO. */
must_check int tls_export(struct tls *tls, uint8_t out[TLS_SECRET]);

/* ---- key.c ---- */
/* The pre-shared key of the cluster's connections. 0 or -EIO. */
must_check int channel_key_derive(const struct channel_key *key, struct tls_psk *out);

/* ---- tls_stream.c ---- */
/* A stream's TLS connection, for tests. */
struct tls *tls_stream_tls(struct tls_stream *stream);

/* ---- pump.c ---- */
/* Performs the handshake, then copies in both directions until both ends have finished. Reports a failed
 * handshake on `local` (RPC_FAILED). */
_Noreturn void pump_run(int tcp, int local, const struct channel_key *key, enum tls_role role);

/* ---- sandbox.c ---- */
/* Confines the process to reading, writing and waiting on the descriptors that it has open. */
void sandbox_enter(void);

#endif
