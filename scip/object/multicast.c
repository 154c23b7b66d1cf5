/*
 * Multicast memberships of a UDP socket.
 *
 * The kernel has no list of them to read, but answers MCAST_MSFILTER for one group on one interface: with the
 * filter where the socket is a member, with EADDRNOTAVAIL where it is not. The groups of all sockets on the
 * host's interfaces are in /proc/net/igmp and igmp6. So each of these is queried.
 *
 * The address that named the interface of an IPv4 membership cannot be read. It matters when the program
 * leaves the group: it must name the same address, or none. So the group is joined by the interface's first
 * address, which is the one that programs find.
 */
#include "scip/object/multicast.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/io.h"
#include "scip/object/common.h"

#define TEXT_MAX    (4u << 20)
#define SOURCES_MAX 512u

struct group {
	unsigned index;
	struct sockaddr_storage name;
};

union filter {
	struct group_filter filter;
	char room[GROUP_FILTER_SIZE(SOURCES_MAX)];
};

static int level_of(const struct sockaddr_storage *name)
{
	return name->ss_family == AF_INET6 ? IPPROTO_IPV6 : IPPROTO_IP;
}

static size_t address_len(const struct sockaddr_storage *name)
{
	return name->ss_family == AF_INET6 ? sizeof(struct in6_addr) : sizeof(struct in_addr);
}

static void *address_of(struct sockaddr_storage *name)
{
	return name->ss_family == AF_INET6 ? (void *)&((struct sockaddr_in6 *)name)->sin6_addr
					   : (void *)&((struct sockaddr_in *)name)->sin_addr;
}

static bool set_address(struct sockaddr_storage *name, const void *bytes, size_t len)
{
	memset(name, 0, sizeof(*name));
	name->ss_family = len == sizeof(struct in6_addr) ? AF_INET6 : AF_INET;
	if (len != address_len(name))
		return false;
	memcpy(address_of(name), bytes, len);
	return true;
}

/* ---- dump ---- */

static int add_membership(const struct group *group, union filter *got, Pbeam__UdpSocket *out,
			  struct err *err)
{
	Pbeam__Membership *membership = object_message(Pbeam__Membership, pbeam__membership__init);
	struct sockaddr_storage name = group->name;
	char interface[IF_NAMESIZE];
	int r;

	if (!membership || object_append(out->memberships, out->n_memberships, membership) < 0) {
		free(membership);
		return object_no_memory(err);
	}
	if (!if_indextoname(group->index, interface))
		return err_sys(err, "name of interface %u", group->index);
	membership->include = got->filter.gf_fmode == MCAST_INCLUDE;
	r = object_set_bytes(&membership->interface, interface, strlen(interface), err);
	if (r == 0)
		r = object_set_bytes(&membership->group, address_of(&name), address_len(&name), err);
	for (uint32_t i = 0; i < got->filter.gf_numsrc && r == 0; i++) {
		const ProtobufCBinaryData none = {0, NULL};

		if (object_append(membership->sources, membership->n_sources, none) < 0)
			return object_no_memory(err);
		r = object_set_bytes(&membership->sources[i], address_of(&got->filter.gf_slist[i]),
				     address_len(&name), err);
	}
	return r;
}

static int multicast_query_group(int fd, const struct group *group, Pbeam__UdpSocket *out, struct err *err)
{
	auto_free union filter *got = calloc(1, sizeof(*got));
	socklen_t len = sizeof(*got);

	if (!got)
		return object_no_memory(err);
	got->filter.gf_interface = group->index;
	got->filter.gf_group = group->name;
	got->filter.gf_numsrc = SOURCES_MAX;
	if (getsockopt(fd, level_of(&group->name), MCAST_MSFILTER, got, &len) < 0)
		return 0;
	if (got->filter.gf_numsrc > SOURCES_MAX)
		return err_set(err, -ENOTSUP, "a UDP socket with a multicast membership of %u sources",
			       got->filter.gf_numsrc);
	return add_membership(group, got, out, err);
}

/* "INDEX\tDEVICE : ..." and below it, indented, "GROUP users ...", the group as a number in memory's order.
 */
static int ask_all_v4(int fd, Pbeam__UdpSocket *out, struct err *err)
{
	auto_free char *text = NULL;
	struct group group = {.index = 0};
	int r = io_slurp(-100, "/proc/net/igmp", TEXT_MAX, &text, NULL);

	if (r < 0)
		return r == -ENOENT ? 0 : err_code(err, r, "read /proc/net/igmp");
	for (char *line = strtok(text, "\n"); line && r == 0; line = strtok(NULL, "\n")) {
		struct in_addr address;

		if (line[0] != '\t' && line[0] != ' ') {
			group.index = (unsigned)strtoul(line, NULL, 10);
			continue;
		}
		if (sscanf(line, " %x", &address.s_addr) == 1 && group.index &&
		    set_address(&group.name, &address, sizeof(address)))
			r = multicast_query_group(fd, &group, out, err);
	}
	return r;
}

/* "INDEX DEVICE GROUP users ..." */
static int ask_all_v6(int fd, Pbeam__UdpSocket *out, struct err *err)
{
	auto_free char *text = NULL;
	int r = io_slurp(-100, "/proc/net/igmp6", TEXT_MAX, &text, NULL);

	if (r < 0)
		return r == -ENOENT ? 0 : err_code(err, r, "read /proc/net/igmp6");
	for (char *line = strtok(text, "\n"); line && r == 0; line = strtok(NULL, "\n")) {
		struct group group;
		struct in6_addr address;
		char hex[33];
		bool whole = sscanf(line, "%u %*s %32[0-9a-f]", &group.index, hex) == 2 && strlen(hex) == 32;

		for (unsigned i = 0; whole && i < sizeof(address); i++) {
			unsigned byte;

			whole = sscanf(hex + 2 * i, "%2x", &byte) == 1;
			address.s6_addr[i] = (uint8_t)byte;
		}
		if (whole && set_address(&group.name, &address, sizeof(address)))
			r = multicast_query_group(fd, &group, out, err);
	}
	return r;
}

int multicast_dump(int fd, Pbeam__UdpSocket *out, struct err *err)
{
	int r = ask_all_v4(fd, out, err);

	return r < 0 || out->family != AF_INET6 ? r : ask_all_v6(fd, out, err);
}

/* ---- restore ---- */

/* The first address of an interface, or none. */
static struct in_addr first_address(int fd, const char *interface)
{
	struct ifreq request = {.ifr_flags = 0};

	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", interface);
	if (ioctl(fd, SIOCGIFADDR, &request) < 0 || request.ifr_addr.sa_family != AF_INET)
		return (struct in_addr){INADDR_ANY};
	return ((struct sockaddr_in *)(void *)&request.ifr_addr)->sin_addr;
}

static int multicast_join_group(int fd, const struct group *group, const char *interface)
{
	const struct group_req request = {.gr_interface = group->index, .gr_group = group->name};
	const struct ip_mreqn v4 = {
		.imr_multiaddr = ((const struct sockaddr_in *)&group->name)->sin_addr,
		.imr_address = first_address(fd, interface),
		.imr_ifindex = (int)group->index,
	};

	if (group->name.ss_family == AF_INET)
		return setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &v4, sizeof(v4));
	return setsockopt(fd, IPPROTO_IPV6, MCAST_JOIN_GROUP, &request, sizeof(request));
}

static int join_source(int fd, const struct group *group, const char *interface, bool include,
		       struct sockaddr_storage *source)
{
	const struct group_source_req request = {
		.gsr_interface = group->index, .gsr_group = group->name, .gsr_source = *source};
	const struct ip_mreq_source v4 = {
		.imr_multiaddr = ((const struct sockaddr_in *)&group->name)->sin_addr,
		.imr_interface = first_address(fd, interface),
		.imr_sourceaddr = ((const struct sockaddr_in *)source)->sin_addr,
	};

	if (include && group->name.ss_family == AF_INET && v4.imr_interface.s_addr != INADDR_ANY)
		return setsockopt(fd, IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, &v4, sizeof(v4));
	return setsockopt(fd, level_of(&group->name), include ? MCAST_JOIN_SOURCE_GROUP : MCAST_BLOCK_SOURCE,
			  &request, sizeof(request));
}

static int restore_one(int fd, const Pbeam__Membership *saved, struct err *err)
{
	auto_free char *interface = object_text(&saved->interface);
	struct group group = {.index = interface ? if_nametoindex(interface) : 0};
	int r = 0;

	if (!interface)
		return object_no_memory(err);
	if (!set_address(&group.name, saved->group.data, saved->group.len))
		return err_set(err, -EBADMSG, "the image's multicast memberships are malformed");
	if (!group.index)
		return err_sys(err, "join a multicast group on the interface %s", interface);
	if (!saved->include)
		r = multicast_join_group(fd, &group, interface);
	for (size_t i = 0; i < saved->n_sources && r == 0; i++) {
		struct sockaddr_storage source;

		if (!set_address(&source, saved->sources[i].data, saved->sources[i].len))
			return err_set(err, -EBADMSG, "the image's multicast memberships are malformed");
		r = join_source(fd, &group, interface, saved->include, &source);
	}
	return r < 0 ? err_sys(err, "join a multicast group on the interface %s", interface) : 0;
}

int multicast_restore(const Pbeam__UdpSocket *saved, int fd, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < saved->n_memberships && r == 0; i++)
		r = restore_one(fd, saved->memberships[i], err);
	return r;
}
