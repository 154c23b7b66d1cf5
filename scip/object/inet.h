/* Internet addresses of sockets as bytes (struct sockaddr_in, sockaddr_in6), and sock_diag for one socket. */
#ifndef SCIP_OBJECT_INET_H
#define SCIP_OBJECT_INET_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/err.h"
#include "proto/image.pb-c.h"

#define INET_TEXT_MAX 80

struct inet_address {
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	};
	socklen_t len;
};

/* False if the bytes are no internet address. */
bool inet_address_parse(const ProtobufCBinaryData *bytes, struct inet_address *out);
/* Parses "10.0.0.1" or "fe80::1"; the port is 0. False if it is neither. */
bool inet_address_from_text(const char *text, struct inet_address *out);
unsigned inet_port(const struct inet_address *address);
void inet_set_port(struct inet_address *address, unsigned port);
bool inet_is_wildcard(const struct inet_address *address);
/* True for the same host and port. A v4-mapped v6 address equals the v4 address. */
bool inet_same(const struct inet_address *a, const struct inet_address *b);
/* As inet_same(), but a wildcard in `bound` matches any host. */
bool inet_covers(const struct inet_address *bound, const struct inet_address *address);
/* 1 if this host has the address (a socket can be bound to it), else 0, or -errno if that cannot be found. */
must_check int inet_is_local(const struct inet_address *address);
/* bind(2), tried again for `patience_ns` while the address is in use: a program that was just killed, or its
 * bridge, may still have it. Returns 0 or -errno. */
must_check int inet_bind(int fd, const struct inet_address *address, uint64_t patience_ns);
/* The address in the form that a socket of this family takes. */
struct inet_address inet_in_family(const struct inet_address *address, int family);
/* As getpeername(), but also for a connection that has ended or is not established yet. `own` is the socket's
 * own address. False: it has no peer. */
bool inet_peer_of(int fd, const struct inet_address *own, struct inet_address *peer);
/* "127.0.0.1:80" */
const char *inet_text(const struct inet_address *address, char text[INET_TEXT_MAX]);

/* -EADDRNOTAVAIL unless the record's socket can be bound here: this host has the address, or a provider of
 * external objects translates it. */
must_check int inet_check_local(const Pbeam__Object *object, const struct inet_address *bound,
				struct err *err);

struct inet_diag_answer {
	uint8_t state, shutdown;
	uint32_t ino; /* 0: no process has a descriptor of it */
	uint32_t receive_queue, send_queue;
};
/* Looks up the TCP socket with these two addresses. 0, -ENOENT, or another -errno. */
int inet_diag_tcp(const struct inet_address *own, const struct inet_address *peer,
		  struct inet_diag_answer *out);

/* Calls `fn` for every bound UDP socket of this host. The peer of an unconnected socket has port 0; `queued`
 * is the number of bytes that wait. 0 or -errno. */
typedef void (*inet_udp_fn)(void *arg, const struct inet_address *own, const struct inet_address *peer,
			    uint64_t ino, uint32_t queued);
must_check int inet_diag_udp(inet_udp_fn fn, void *arg);

#endif
