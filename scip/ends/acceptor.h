/*
 * Makes connections between two hosts again, and distinguishes them from strangers' connections.
 *
 * Both ends of a connection get a cookie over an authenticated channel. The end that connects sends it first.
 * The acceptor reads cookies from all pending connections at once and never waits for a single one: programs
 * stand still meanwhile, and any host that reaches the port can connect and stay silent. A pending connection
 * is closed after ACCEPTOR_SILENCE_MS, and when ACCEPTOR_PENDING_MAX are pending a new one replaces a random
 * one (like sshd's MaxStartups: an attacker who floods the port cannot choose the victim).
 */
#ifndef SCIP_ENDS_ACCEPTOR_H
#define SCIP_ENDS_ACCEPTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "scip/object/inet.h"

enum {
	ACCEPTOR_COOKIE_SIZE = 16,
	ACCEPTOR_PENDING_MAX = 128,
	ACCEPTOR_SILENCE_MS = 2000,
	ACCEPTOR_CONNECT_MS = 30000
};

struct acceptor;

/* Listens on ports that the kernel chooses, for IPv4 and, where the host has it, IPv6 sockets. `address` is
 * the address of this host that peers connect to, with any port; NULL, or one that is not this host's
 * (address translation), stands for all addresses. The caller frees *out with acceptor_close(). */
must_check int acceptor_open(struct acceptor **out, const struct inet_address *address, struct err *err);

/* The ports; 0: there is no socket of that family. */
uint32_t acceptor_port4(const struct acceptor *acceptor);
uint32_t acceptor_port6(const struct acceptor *acceptor);

/* A connection has sent `cookie`. True: the callee owns `sock` from now on. */
typedef bool (*acceptor_claim_fn)(void *arg, const uint8_t cookie[ACCEPTOR_COOKIE_SIZE], int sock);

/* Waits until `claim` has taken at least one connection, `cancel` (-1: none) is readable, or `timeout_ms`
 * have passed. Returns the number of connections taken, or -errno. */
must_check int acceptor_wait(struct acceptor *acceptor, int timeout_ms, int cancel, acceptor_claim_fn claim,
			     void *arg, struct err *err);

/* The other end of acceptor_wait(): connects `sock`, a new TCP socket, to an acceptor and sends the cookie.
 * Takes at most `timeout_ms`; the acceptor need not have accepted the connection by then. The socket's flags
 * stay as they are. -ETIMEDOUT if the host does not respond, -ECONNREFUSED if no acceptor listens there. */
must_check int acceptor_connect(int sock, const struct inet_address *to,
				const uint8_t cookie[ACCEPTOR_COOKIE_SIZE], int timeout_ms, struct err *err);

/* Closes the ports and all pending connections. NULL is allowed. */
void acceptor_close(struct acceptor *acceptor);

#endif
