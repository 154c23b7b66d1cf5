#include "scip/object/inet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "base/sock_diag.h"

enum { LOOK_AGAIN_US = 20000 };

bool inet_address_parse(const ProtobufCBinaryData *bytes, struct inet_address *out)
{
	memset(out, 0, sizeof(*out));
	if (bytes->len < sizeof(sa_family_t) || bytes->len > sizeof(out->v6))
		return false;
	bytes_copy(&out->any, bytes->data, bytes->len);
	out->len = (socklen_t)bytes->len;
	return (out->any.sa_family == AF_INET && bytes->len == sizeof(out->v4)) ||
	       (out->any.sa_family == AF_INET6 && bytes->len == sizeof(out->v6));
}

bool inet_address_from_text(const char *text, struct inet_address *out)
{
	*out = (struct inet_address){0};
	if (inet_pton(AF_INET, text, &out->v4.sin_addr) == 1) {
		out->v4.sin_family = AF_INET;
		out->len = sizeof(out->v4);
		return true;
	}
	if (inet_pton(AF_INET6, text, &out->v6.sin6_addr) == 1) {
		out->v6.sin6_family = AF_INET6;
		out->len = sizeof(out->v6);
		return true;
	}
	return false;
}

unsigned inet_port(const struct inet_address *address)
{
	return ntohs(address->any.sa_family == AF_INET ? address->v4.sin_port : address->v6.sin6_port);
}

void inet_set_port(struct inet_address *address, unsigned port)
{
	if (address->any.sa_family == AF_INET)
		address->v4.sin_port = htons((uint16_t)port);
	else
		address->v6.sin6_port = htons((uint16_t)port);
}

/* Every host as a v6 address. */
static struct in6_addr inet_host_of(const struct inet_address *address)
{
	struct in6_addr mapped = {.s6_addr = {[10] = 0xff, [11] = 0xff}};

	if (address->any.sa_family == AF_INET6)
		return address->v6.sin6_addr;
	if (address->v4.sin_addr.s_addr == INADDR_ANY)
		return in6addr_any;
	memcpy(mapped.s6_addr + 12, &address->v4.sin_addr, 4);
	return mapped;
}

bool inet_is_wildcard(const struct inet_address *address)
{
	struct in6_addr at = inet_host_of(address);

	return IN6_IS_ADDR_UNSPECIFIED(&at);
}

bool inet_same(const struct inet_address *a, const struct inet_address *b)
{
	struct in6_addr one = inet_host_of(a), other = inet_host_of(b);

	return inet_port(a) == inet_port(b) && IN6_ARE_ADDR_EQUAL(&one, &other);
}

bool inet_covers(const struct inet_address *bound, const struct inet_address *address)
{
	return inet_same(bound, address) ||
	       (inet_is_wildcard(bound) && inet_port(bound) == inet_port(address));
}

int inet_is_local(const struct inet_address *address)
{
	auto_close int probe = socket(address->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct inet_address any_port = *address;

	if (probe < 0)
		return errno == EAFNOSUPPORT ? 0 : -errno;
	inet_set_port(&any_port, 0);
	if (bind(probe, &any_port.any, any_port.len) == 0)
		return 1;
	return errno == EADDRNOTAVAIL || errno == EINVAL || errno == ENODEV ? 0 : -errno;
}

int inet_bind(int fd, const struct inet_address *address, uint64_t patience_ns)
{
	uint64_t end = io_now_ns(CLOCK_MONOTONIC) + patience_ns;

	while (bind(fd, &address->any, address->len) < 0) {
		if (errno != EADDRINUSE || io_now_ns(CLOCK_MONOTONIC) > end)
			return -errno;
		usleep(LOOK_AGAIN_US);
	}
	return 0;
}

int inet_check_local(const Pbeam__Object *object, const struct inet_address *bound, struct err *err)
{
	char text[INET_TEXT_MAX];
	int local = object->external ? 1 : inet_is_local(bound);

	if (local < 0)
		return err_code(err, local, "find whether this host has the address %s",
				inet_text(bound, text));
	if (local)
		return 0;
	return err_set(err, -EADDRNOTAVAIL, "it is bound to %s, and this host does not have that address",
		       inet_text(bound, text));
}

struct inet_address inet_in_family(const struct inet_address *address, int family)
{
	struct inet_address out = *address;

	if (address->any.sa_family == family)
		return out;
	memset(&out, 0, sizeof(out));
	if (family == AF_INET6) {
		out.v6.sin6_family = AF_INET6;
		out.v6.sin6_port = address->v4.sin_port;
		out.v6.sin6_addr.s6_addr[10] = out.v6.sin6_addr.s6_addr[11] = 0xff;
		memcpy(out.v6.sin6_addr.s6_addr + 12, &address->v4.sin_addr, 4);
		out.len = sizeof(out.v6);
	} else {
		out.v4.sin_family = AF_INET;
		out.v4.sin_port = address->v6.sin6_port;
		memcpy(&out.v4.sin_addr, address->v6.sin6_addr.s6_addr + 12, 4);
		out.len = sizeof(out.v4);
	}
	return out;
}

bool inet_peer_of(int fd, const struct inet_address *own, struct inet_address *peer)
{
	/* No longer than the address is: the kernel refuses more. */
	peer->len = own->len;
	return getsockopt(fd, SOL_SOCKET, SO_PEERNAME, &peer->any, &peer->len) == 0;
}

const char *inet_text(const struct inet_address *address, char text[INET_TEXT_MAX])
{
	char name[INET6_ADDRSTRLEN] = "?";

	if (address->any.sa_family == AF_INET) {
		inet_ntop(AF_INET, &address->v4.sin_addr, name, sizeof(name));
		snprintf(text, INET_TEXT_MAX, "%s:%u", name, inet_port(address));
	} else {
		inet_ntop(AF_INET6, &address->v6.sin6_addr, name, sizeof(name));
		snprintf(text, INET_TEXT_MAX, "[%s]:%u", name, inet_port(address));
	}
	return text;
}

static void fill_id(struct inet_diag_sockid *id, unsigned char *family, const struct inet_address *own,
		    const struct inet_address *peer)
{
	struct in6_addr source = inet_host_of(own), destination = inet_host_of(peer);

	id->idiag_sport = htons((uint16_t)inet_port(own));
	id->idiag_dport = htons((uint16_t)inet_port(peer));
	id->idiag_cookie[0] = id->idiag_cookie[1] = INET_DIAG_NOCOOKIE;
	/* A v4 connection is looked up as such, whichever family its sockets are of. */
	if (IN6_IS_ADDR_V4MAPPED(&source)) {
		*family = AF_INET;
		memcpy(id->idiag_src, source.s6_addr + 12, 4);
		memcpy(id->idiag_dst, destination.s6_addr + 12, 4);
	} else {
		*family = AF_INET6;
		memcpy(id->idiag_src, &source, 16);
		memcpy(id->idiag_dst, &destination, 16);
	}
}

static int take_tcp(void *arg, const struct nlmsghdr *header)
{
	const struct inet_diag_msg *message = NLMSG_DATA(header);
	const struct rtattr *attribute = (const void *)(message + 1);
	int left = (int)(header->nlmsg_len - NLMSG_LENGTH(sizeof(*message)));
	struct inet_diag_answer *out = arg;

	out->state = message->idiag_state;
	out->ino = message->idiag_inode;
	out->receive_queue = message->idiag_rqueue;
	out->send_queue = message->idiag_wqueue;
	for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left))
		if (attribute->rta_type == INET_DIAG_SHUTDOWN)
			out->shutdown = *(const uint8_t *)RTA_DATA(attribute);
	return 0;
}

int inet_diag_tcp(const struct inet_address *own, const struct inet_address *peer,
		  struct inet_diag_answer *out)
{
	struct inet_diag_req_v2 request = {.sdiag_protocol = IPPROTO_TCP, .idiag_states = ~0u};

	memset(out, 0, sizeof(*out));
	fill_id(&request.id, &request.sdiag_family, own, peer);
	return sock_diag_query(&request, sizeof(request), 0, take_tcp, out);
}

static struct inet_address diag_address(int family, const __be32 bytes[4], __be16 port)
{
	struct inet_address out = {.any.sa_family = (sa_family_t)family};

	if (family == AF_INET) {
		memcpy(&out.v4.sin_addr, bytes, sizeof(out.v4.sin_addr));
		out.v4.sin_port = port;
		out.len = sizeof(out.v4);
	} else {
		memcpy(&out.v6.sin6_addr, bytes, sizeof(out.v6.sin6_addr));
		out.v6.sin6_port = port;
		out.len = sizeof(out.v6);
	}
	return out;
}

struct udp_query {
	inet_udp_fn fn;
	void *arg;
};

static int take_udp(void *arg, const struct nlmsghdr *header)
{
	const struct inet_diag_msg *message = NLMSG_DATA(header);
	const struct udp_query *query = arg;
	struct inet_address own, peer;

	own = diag_address(message->idiag_family, message->id.idiag_src, message->id.idiag_sport);
	peer = diag_address(message->idiag_family, message->id.idiag_dst, message->id.idiag_dport);
	query->fn(query->arg, &own, &peer, message->idiag_inode, message->idiag_rqueue);
	return 0;
}

int inet_diag_udp(inet_udp_fn fn, void *arg)
{
	struct inet_diag_req_v2 request = {.sdiag_protocol = IPPROTO_UDP, .idiag_states = ~0u};
	struct udp_query query = {fn, arg};
	int r;

	request.sdiag_family = AF_INET;
	r = sock_diag_query(&request, sizeof(request), NLM_F_DUMP, take_udp, &query);
	if (r < 0)
		return r;
	request.sdiag_family = AF_INET6;
	return sock_diag_query(&request, sizeof(request), NLM_F_DUMP, take_udp, &query);
}
