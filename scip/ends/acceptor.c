#include "scip/ends/acceptor.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"

#define NS_PER_MS 1000000ull

enum { LISTENERS = 2, BACKLOG = 4096 };

/* A connection whose cookie is not complete. */
struct pending {
	int sock;
	uint8_t cookie[ACCEPTOR_COOKIE_SIZE];
	size_t received;
	uint64_t accepted_ns;
};

struct acceptor {
	int listeners[LISTENERS]; /* IPv4, IPv6; -1 none */
	uint32_t ports[LISTENERS];
	struct pending pending[ACCEPTOR_PENDING_MAX];
	size_t npending;
	size_t dropped; /* pending connections that were closed */
};

/* ---- the ports ---- */

static int listen_at(const struct inet_address *address, uint32_t *port, struct err *err)
{
	const int family = address->any.sa_family;
	auto_close int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
	struct inet_address bound = *address;
	int off = 0;

	/* An IPv6 socket of a program may have a connection over IPv4 (v4-mapped addresses). */
	if (fd >= 0 && family == AF_INET6)
		(void)!setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	if (fd < 0 || bind(fd, &bound.any, bound.len) < 0 || listen(fd, BACKLOG) < 0 ||
	    getsockname(fd, &bound.any, &bound.len) < 0)
		return err_sys(err, "listen for connections of another host");
	*port = inet_port(&bound);
	return steal_fd(&fd);
}

/* The address in this family with port 0; the wildcard for NULL, or where the address has no such form. */
static struct inet_address listen_address(const struct inet_address *address, int family)
{
	struct inet_address out = {.any = {.sa_family = (sa_family_t)family}};

	if (address && (family == AF_INET6 || address->any.sa_family == family))
		out = inet_in_family(address, family);
	out.len = family == AF_INET ? sizeof(out.v4) : sizeof(out.v6);
	inet_set_port(&out, 0);
	return out;
}

int acceptor_open(struct acceptor **out, const struct inet_address *address, struct err *err)
{
	static const int families[LISTENERS] = {AF_INET, AF_INET6};
	const struct inet_address *local = address && inet_is_local(address) > 0 ? address : NULL;
	struct acceptor *acceptor = calloc(1, sizeof(*acceptor));

	if (!acceptor)
		return err_code(err, -ENOMEM, "listen for connections of another host");
	for (int i = 0; i < LISTENERS; i++) {
		struct inet_address at = listen_address(local, families[i]);

		acceptor->listeners[i] = listen_at(&at, &acceptor->ports[i], i == 0 ? err : NULL);
	}
	if (acceptor->listeners[0] < 0) {
		int r = acceptor->listeners[0];

		acceptor_close(acceptor);
		return r;
	}
	*out = acceptor;
	return 0;
}

uint32_t acceptor_port4(const struct acceptor *acceptor)
{
	return acceptor->ports[0];
}

uint32_t acceptor_port6(const struct acceptor *acceptor)
{
	return acceptor->ports[1];
}

/* ---- pending connections ---- */

static void pending_remove(struct acceptor *acceptor, size_t i)
{
	acceptor->pending[i] = acceptor->pending[--acceptor->npending];
}

static void pending_drop(struct acceptor *acceptor, size_t i)
{
	if (acceptor->dropped++ == 0)
		log_info("a connection to the port of a migration sent no cookie; closed");
	close(acceptor->pending[i].sock);
	pending_remove(acceptor, i);
}

static void pending_expire(struct acceptor *acceptor, uint64_t now_ns)
{
	for (size_t i = acceptor->npending; i-- > 0;)
		if (now_ns - acceptor->pending[i].accepted_ns > ACCEPTOR_SILENCE_MS * NS_PER_MS)
			pending_drop(acceptor, i);
}

static void pending_add(struct acceptor *acceptor, const struct pending *new)
{
	if (acceptor->npending == ACCEPTOR_PENDING_MAX) {
		uint32_t victim = 0;

		(void)!getrandom(&victim, sizeof(victim), 0);
		pending_drop(acceptor, victim % ACCEPTOR_PENDING_MAX);
	}
	acceptor->pending[acceptor->npending++] = *new;
}

/* Reads what has come of a cookie. 1: the connection was claimed, 0: more must come, -1: it is a stranger's.
 */
static int pending_read(struct pending *pending, acceptor_claim_fn claim, void *arg)
{
	ssize_t n = recv(pending->sock, pending->cookie + pending->received,
			 sizeof(pending->cookie) - pending->received, MSG_DONTWAIT);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	if (n == 0)
		return -1;
	pending->received += (size_t)n;
	if (pending->received < sizeof(pending->cookie))
		return 0;
	return claim(arg, pending->cookie, pending->sock) ? 1 : -1;
}

/* Reads from all of them. Returns the number of connections claimed. */
static int pending_read_all(struct acceptor *acceptor, acceptor_claim_fn claim, void *arg)
{
	int claimed = 0;

	for (size_t i = acceptor->npending; i-- > 0;) {
		int r = pending_read(&acceptor->pending[i], claim, arg);

		if (r < 0)
			pending_drop(acceptor, i);
		if (r > 0)
			pending_remove(acceptor, i);
		claimed += r > 0;
	}
	return claimed;
}

/* Accepts what waits. A cookie mostly comes with its connection: it is read at once, before another
 * connection could replace this one. Returns the number of connections claimed. */
static int accept_all(struct acceptor *acceptor, int listener, acceptor_claim_fn claim, void *arg)
{
	int claimed = 0;

	for (int i = 0; i < ACCEPTOR_PENDING_MAX && !claimed; i++) {
		struct pending new = {.accepted_ns = io_now_ns(CLOCK_MONOTONIC)};
		int r;

		/* Not SOCK_NONBLOCK: the socket becomes the program's. */
		new.sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (new.sock < 0)
			break;
		r = pending_read(&new, claim, arg);
		claimed += r > 0;
		if (r < 0)
			close(new.sock);
		if (r == 0)
			pending_add(acceptor, &new);
	}
	return claimed;
}

int acceptor_wait(struct acceptor *acceptor, int timeout_ms, int cancel, acceptor_claim_fn claim, void *arg,
		  struct err *err)
{
	const uint64_t end_ns = io_now_ns(CLOCK_MONOTONIC) + (uint64_t)timeout_ms * NS_PER_MS;
	int claimed = 0;

	for (;;) {
		struct pollfd polls[LISTENERS + 1 + ACCEPTOR_PENDING_MAX];
		const uint64_t now_ns = io_now_ns(CLOCK_MONOTONIC);
		nfds_t n = 0;

		pending_expire(acceptor, now_ns);
		if (claimed || now_ns >= end_ns)
			return claimed;
		for (int i = 0; i < LISTENERS; i++)
			polls[n++] = (struct pollfd){.fd = acceptor->listeners[i], .events = POLLIN};
		polls[n++] = (struct pollfd){.fd = cancel, .events = POLLIN};
		for (size_t i = 0; i < acceptor->npending; i++)
			polls[n++] = (struct pollfd){.fd = acceptor->pending[i].sock, .events = POLLIN};
		if (poll(polls, n, (int)((end_ns - now_ns) / NS_PER_MS) + 1) < 0 && errno != EINTR)
			return err_sys(err, "wait for connections of another host");
		claimed += pending_read_all(acceptor, claim, arg);
		for (int i = 0; i < LISTENERS; i++)
			if (polls[i].revents & POLLIN)
				claimed += accept_all(acceptor, acceptor->listeners[i], claim, arg);
		if (!claimed && polls[LISTENERS].revents)
			return 0;
	}
}

int acceptor_connect(int sock, const struct inet_address *to, const uint8_t cookie[ACCEPTOR_COOKIE_SIZE],
		     int timeout_ms, struct err *err)
{
	char text[INET_TEXT_MAX];
	int r = io_connect(sock, &to->any, to->len, timeout_ms);

	/* The send buffer is empty: the cookie always fits. */
	if (r == 0 && send(sock, cookie, ACCEPTOR_COOKIE_SIZE, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		r = -errno;
	return r < 0 ? err_code(err, r, "connect again to %s", inet_text(to, text)) : 0;
}

void acceptor_close(struct acceptor *acceptor)
{
	if (!acceptor)
		return;
	for (int i = 0; i < LISTENERS; i++)
		if (acceptor->listeners[i] >= 0)
			close(acceptor->listeners[i]);
	for (size_t i = 0; i < acceptor->npending; i++)
		close(acceptor->pending[i].sock);
	free(acceptor);
}
