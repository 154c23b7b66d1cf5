/*
 * Authenticated, encrypted connections between the hosts of one cluster: TLS 1.3 with a key derived from the
 * cluster's key, mutual; nothing is sent before the handshake, and nothing in clear.
 *
 * A small process speaks TLS for each channel. It only encrypts and decrypts between the TCP connection and a
 * socketpair. So the user of a channel sees a blocking (or event-driven) stream socket with frames
 * (proto/frame.h), bytes from a stranger reach only a process without our state, and a channel can be passed
 * to another process like any descriptor. After the handshake the two users of a channel can also take over
 * its connection (tls_stream.h).
 */
#ifndef CHANNEL_CHANNEL_H
#define CHANNEL_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/cluster.pb-c.h"
#include "proto/frame.h"

#define CHANNEL_VERSION	    4u
#define CHANNEL_PORT	    7113
#define CHANNEL_KEY_SIZE    32
#define CHANNEL_COOKIE_SIZE 16
#define CHANNEL_HOST_MAX    64 /* of a host's name, including the final zero */

struct channel_key {
	uint8_t bytes[CHANNEL_KEY_SIZE];
};

/* Makes a key file, mode 0600. 0, -EEXIST if there is a file already (which is left unchanged), or -errno. */
must_check int channel_key_make(const char *path, struct err *err);
/* Reads a key file. 0, -EPERM if another user owns it or can read it, -EINVAL, or -errno. */
must_check int channel_key_load(const char *path, struct channel_key *out, struct err *err);

/* True for a valid host name: letters, digits, "-", "." and "_". */
bool channel_host_ok(const char *name);

/* Connects to a daemon at "ADDRESS[:PORT]" ("[V6]:PORT") and exchanges greetings. `cookie` is 16 bytes or
 * NULL; `host` (may be NULL) receives the name of the other host. Blocks for a few seconds at most.
 * Returns a socket that the caller owns, ready for frames of the kind, or -errno: -EKEYREJECTED if the
 * peer has another key, -EPROTONOSUPPORT for another version. Closing the socket ends the process behind
 * it. */
must_check int channel_connect(const char *address, const struct channel_key *key, const char *own_host,
			       uint32_t kind, const uint8_t *cookie, char host[CHANNEL_HOST_MAX],
			       struct err *err);

/* Listens on "ADDRESS[:PORT]". Returns the descriptor or -errno. */
must_check int channel_listen(const char *address, struct err *err);
/* Looks at what an accepted connection has sent, without taking it. 1: the first message of TLS is there, so
 * that channel_accept() is worth a process; 0: it is not there yet; -EPROTO for something else, -EPIPE at its
 * end, or -errno. */
must_check int channel_look_first(int tcp, struct err *err);
/* Tells a client before its handshake that it has to try again later. The caller closes the connection. */
void channel_turn_away(int tcp);
/* Takes an accepted TCP connection, starts the process that speaks TLS on it, and returns the caller's end at
 * once, before the handshake. The first frame on it, if any comes, is the peer's ChannelHello, to be answered
 * with channel_welcome() or rpc_refuse(). A peer that does not speak TLS, has no key or is too slow gets no
 * further. */
must_check int channel_accept(int tcp, const struct channel_key *key, struct err *err);
must_check int channel_welcome(int sock, const char *own_host, struct err *err);
/* Checks the first frame of a channel. 0 for a greeting of this version from another host (*out, to be
 * freed with message_free()), else the error. For a failed handshake that is the error of the process that
 * speaks TLS. */
must_check int channel_check_hello(const struct frame *frame, const char *own_host, Pbeam__ChannelHello **out,
				   struct err *err);
/* True for "unix:PATH". */
bool channel_address_is_unix(const char *address);
/* Formats the address at the other end of a connection. */
void channel_peer_name(int tcp, char *text, size_t size);

/* For local programs (coordinators, keepers), which do not have the key. pbeamd (DAEMON_CHANNEL) connects
 * to the host and passes the socket. Returns it, or -errno: -EADDRNOTAVAIL if no process there expects a
 * channel with this cookie. */
must_check int channel_open(const char *host, uint32_t kind, const uint8_t *cookie, struct err *err);
/* Announces a cookie to the local pbeamd (DAEMON_EXPECT). Returns a socket from which channel_take() receives
 * the channels that come with this cookie until the socket is closed, or -errno. */
must_check int channel_expect(const uint8_t cookie[CHANNEL_COOKIE_SIZE], struct err *err);
/* Returns the next channel, -ETIMEDOUT, -EPIPE when pbeamd has ended, or -errno. */
must_check int channel_take(int expecting, int timeout_ms, struct err *err);

#endif
