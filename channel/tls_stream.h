/*
 * A channel whose TLS connection belongs to the thread that uses it.
 *
 * The process behind a channel (channel.h) copies every byte twice more than necessary. If that matters, as
 * for the pages of a migration, both users of a channel take over the TCP connection before they have sent
 * anything: the two processes exchange close_notify and hand out the socket with a secret exported from their
 * TLS connection (RFC 8446, 7.5). That secret is the pre-shared key of a second handshake on the same TCP
 * connection, which each user performs itself. So the cluster's key stays with pbeamd, and only the two ends
 * of the authenticated channel can pass the second handshake.
 *
 * The side that opened the channel is the client. It sends close_notify first, and the server's process
 * answers only when the server has requested the connection as well. Then neither process can read bytes of
 * the second handshake.
 */
#ifndef CHANNEL_TLS_STREAM_H
#define CHANNEL_TLS_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

#define TLS_SECRET 32 /* bytes of a pre-shared key */

enum tls_role { TLS_CLIENT, TLS_SERVER };

/* For one thread at a time. */
struct tls_stream;

/* Takes over the TCP connection of the channel `sock` (from channel_open() or channel_take()), which stays
 * the caller's and is of no further use. Blocks until the other side does the same, at most 15 s; a
 * shutdown() of `sock` ends that. Returns the socket, the caller's, or -errno: -EPIPE when the channel has
 * ended. */
must_check int tls_stream_take_over(int sock, uint8_t secret[TLS_SECRET], struct err *err);

/* Performs the handshake on the connection `tcp`, which becomes the stream's and is closed by
 * tls_stream_close(); the caller keeps it on failure. Blocks at most 10 s; a shutdown() of `tcp` ends that.
 * 0, -EKEYREJECTED for another secret, -ETIMEDOUT, -EPROTO, -ENOMEM. */
must_check int tls_stream_open(struct tls_stream **out, int tcp, const uint8_t secret[TLS_SECRET],
			       enum tls_role role, struct err *err);
/* Sends close_notify if the connection takes it at once, and closes the connection. */
void tls_stream_close(struct tls_stream *stream);

/* Encrypts; sends what exceeds the buffer. 0 or -errno. */
must_check int tls_stream_write(struct tls_stream *stream, const void *data, size_t len);
/* Sends the rest. 0 or -errno. */
must_check int tls_stream_flush(struct tls_stream *stream);
/* Waits for bytes, at most `len`. Returns how many, 0 after the peer's close_notify, -EPIPE when the
 * connection ended without one, -EBADMSG for a record that is not the peer's, -ETIMEDOUT when the socket's
 * SO_RCVTIMEO has passed, or -errno. */
must_check ssize_t tls_stream_read(struct tls_stream *stream, void *to, size_t len);

#endif
