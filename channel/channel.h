/*
 * Authenticated, encrypted connections between the hosts of one cluster: TLS 1.3 from the cluster's key,
 * mutual, nothing before it, nothing in clear.
 *
 * TLS is spoken by a small process of its own, one for each channel, that does nothing but encrypt and
 * decrypt between the TCP connection and a socketpair: whoever uses a channel sees a blocking (or
 * event-driven) stream socket with frames (proto/frame.h), whatever a stranger sends meets a process without
 * any of our state, and a channel can be handed to another process as any descriptor can. After the handshake
 * the two users of a channel can also take its connection over (tls_stream.h).
 */
#ifndef CHANNEL_CHANNEL_H
#define CHANNEL_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/cluster.pb-c.h"
#include "proto/frame.h"

#define CHANNEL_VERSION	    1u
#define CHANNEL_PORT	    7113
#define CHANNEL_KEY_SIZE    32
#define CHANNEL_COOKIE_SIZE 16
#define CHANNEL_HOST_MAX    64 /* of a host's name, with its zero */

struct channel_key {
	uint8_t bytes[CHANNEL_KEY_SIZE];
};

/* Makes a key file, mode 0600. -EEXIST: there is one; it is left alone. */
must_check int channel_key_make(const char *path, struct err *err);
/* Reads it. -EPERM when anybody else could read it or it is another user's. */
must_check int channel_key_load(const char *path, struct channel_key *out, struct err *err);

/* True for what may be a host's name: letters, digits, "-", "." and "_". */
bool channel_host_ok(const char *name);

/* Connects to a daemon and greets it. `address` is "ADDRESS[:PORT]" ("[V6]:PORT"). `cookie` is 16 bytes or
 * NULL. Returns the socket, the caller's, ready for frames of the kind, or -errno: -EKEYREJECTED when the
 * other has another key, -EPROTONOSUPPORT for another version. `host` (may be NULL) gets the name of who
 * answered. Blocking, at most some seconds. A socket of a channel that is put aside ends the process behind
 * it. */
must_check int channel_connect(const char *address, const struct channel_key *key, const char *own_host,
			       uint32_t kind, const uint8_t *cookie, char host[CHANNEL_HOST_MAX],
			       struct err *err);

/* Listens on "ADDRESS[:PORT]". The descriptor or -errno. */
must_check int channel_listen(const char *address, struct err *err);
/* For a TCP connection that was accepted (taken): starts the process that speaks TLS and returns our end at
 * once, before the handshake. The first frame on it, if any comes, is the peer's ChannelHello, answered by
 * channel_welcome(); what is no TLS, has no key, or is too slow ends it. */
must_check int channel_accept(int tcp, const struct channel_key *key, struct err *err);
must_check int channel_welcome(int sock, const char *own_host, struct err *err);
/* Instead of the welcome: says why not. */
void channel_refuse(int sock, const struct err *why);
/* The first frame of a channel: a greeting of this version by another host (*out, to be freed with
 * message_free()), or what is wrong with it as an error; the process that speaks TLS tells in the same way
 * why there was no handshake. */
must_check int channel_check_hello(const struct frame *frame, const char *own_host, Pbeam__ChannelHello **out,
				   struct err *err);
/* Who is at the other end of a TCP connection, as text. */
void channel_peer_name(int tcp, char *text, size_t size);

/* For local programs (coordinators, keepers) that do not have the key: pbeamd (DAEMON_CHANNEL) connects to a
 * host by its name and passes the socket. */
must_check int channel_open(const char *host, uint32_t kind, const uint8_t *cookie, struct err *err);
/* Announces a cookie to the local pbeamd (DAEMON_EXPECT). The returned socket receives, with channel_take(),
 * the channels that come with this cookie, until it is closed. */
must_check int channel_expect(const uint8_t cookie[CHANNEL_COOKIE_SIZE], struct err *err);
must_check int channel_take(int expecting, int timeout_ms, struct err *err);

/* Asks the registry (proto/cluster.proto, namespace/registry.h) through the local pbeamd; blocking. While the
 * central host cannot be reached it tries again until `timeout_ms` has passed. Returns 0, or the code of the
 * refusal: -EEXIST an entry has not the version expected (it is among (*reply)->entries), -ENOENT,
 * -EHOSTUNREACH not asked, -ECONNRESET, -EPIPE or -ETIMEDOUT asked, and done or not: GET tells. *reply, where
 * it is not NULL, is to be freed with message_free(). */
must_check int registry_call(const Pbeam__RegistryRequest *request, int timeout_ms,
			     Pbeam__RegistryReply **reply, struct err *err);

#endif
