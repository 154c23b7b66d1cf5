/* Multicast memberships of UDP sockets: of groups and of sources, and leaving them afterwards. */
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/cases/case.h"

#define GROUP  "239.77.1.2"
#define SINGLE "232.77.1.3"

static struct sockaddr_in at(const char *text, unsigned port)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

	CHECK(inet_pton(AF_INET, text, &name.sin_addr) == 1);
	return name;
}

static int bound(int family)
{
	struct sockaddr_in6 name = {.sin6_family = (sa_family_t)family};
	int fd = socket(family, SOCK_DGRAM | SOCK_NONBLOCK, 0);

	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&name,
			      family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(name)) == 0);
	return fd;
}

static unsigned port_of(int fd)
{
	struct sockaddr_in6 name;
	socklen_t len = sizeof(name);

	CHECK(getsockname(fd, (struct sockaddr *)&name, &len) == 0);
	return ntohs(name.sin6_port);
}

static int arrives(int from, const char *group, int to)
{
	struct sockaddr_in name = at(group, port_of(to));
	char buf[8];

	CHECK(sendto(from, "hello", 5, 0, (struct sockaddr *)&name, sizeof(name)) == 5);
	case_sleep_ms(20);
	return recv(to, buf, sizeof(buf), 0) == 5;
}

static uint32_t mode_of(int fd, int level, const void *group, size_t len, uint32_t *sources)
{
	struct group_filter filter = {.gf_interface = if_nametoindex("lo"), .gf_numsrc = 1};
	socklen_t size = sizeof(filter);

	memcpy(&filter.gf_group, group, len);
	CHECK(getsockopt(fd, level, MCAST_MSFILTER, &filter, &size) == 0);
	*sources = filter.gf_numsrc;
	return filter.gf_fmode;
}

int main(void)
{
	struct in_addr lo = {htonl(INADDR_LOOPBACK)};
	struct ip_mreq request = {.imr_multiaddr = at(GROUP, 0).sin_addr, .imr_interface = lo};
	struct ip_mreq_source single = {
		.imr_multiaddr = at(SINGLE, 0).sin_addr, .imr_interface = lo, .imr_sourceaddr = lo};
	struct group_source_req blocked = {.gsr_interface = if_nametoindex("lo")};
	struct sockaddr_in6 six = {.sin6_family = AF_INET6};
	struct group_req six_request = {.gr_interface = if_nametoindex("lo")};
	struct sockaddr_in name;
	uint32_t sources;
	int any = bound(AF_INET), some = bound(AF_INET), other = bound(AF_INET), v6 = -1, index;
	int sender = bound(AF_INET);
	socklen_t len = sizeof(index);

	CHECK(setsockopt(sender, IPPROTO_IP, IP_MULTICAST_IF, &lo, sizeof(lo)) == 0);
	CHECK(setsockopt(any, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof(request)) == 0);
	CHECK(setsockopt(some, IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, &single, sizeof(single)) == 0);
	name = at(GROUP, 0);
	memcpy(&blocked.gsr_group, &name, sizeof(name));
	name = at("127.9.9.9", 0);
	memcpy(&blocked.gsr_source, &name, sizeof(name));
	CHECK(setsockopt(any, IPPROTO_IP, MCAST_BLOCK_SOURCE, &blocked, sizeof(blocked)) == 0);
	index = 0;
	CHECK(setsockopt(other, IPPROTO_IP, IP_MULTICAST_ALL, &index, sizeof(index)) == 0);
	if (access("/proc/net/igmp6", F_OK) == 0) {
		v6 = bound(AF_INET6);
		CHECK(inet_pton(AF_INET6, "ff15::77:1", &six.sin6_addr) == 1);
		memcpy(&six_request.gr_group, &six, sizeof(six));
		CHECK(setsockopt(v6, IPPROTO_IPV6, MCAST_JOIN_GROUP, &six_request, sizeof(six_request)) == 0);
		index = (int)if_nametoindex("lo");
		CHECK(setsockopt(v6, IPPROTO_IPV6, IPV6_MULTICAST_IF, &index, sizeof(index)) == 0);
	}
	CHECK(arrives(sender, GROUP, any) && arrives(sender, SINGLE, some) && !arrives(sender, GROUP, other));

	case_wait();
	CHECK(arrives(sender, GROUP, any) && arrives(sender, SINGLE, some) && !arrives(sender, GROUP, other));
	name = at(GROUP, 0);
	CHECK(mode_of(any, IPPROTO_IP, &name, sizeof(name), &sources) == MCAST_EXCLUDE && sources == 1);
	name = at(SINGLE, 0);
	CHECK(mode_of(some, IPPROTO_IP, &name, sizeof(name), &sources) == MCAST_INCLUDE && sources == 1);
	if (v6 >= 0) {
		CHECK(mode_of(v6, IPPROTO_IPV6, &six, sizeof(six), &sources) == MCAST_EXCLUDE && !sources);
		CHECK(getsockopt(v6, IPPROTO_IPV6, IPV6_MULTICAST_IF, &index, &len) == 0 &&
		      index == (int)if_nametoindex("lo"));
		CHECK(setsockopt(v6, IPPROTO_IPV6, MCAST_LEAVE_GROUP, &six_request, sizeof(six_request)) ==
		      0);
	}
	CHECK(setsockopt(any, IPPROTO_IP, IP_DROP_MEMBERSHIP, &request, sizeof(request)) == 0);
	CHECK(setsockopt(some, IPPROTO_IP, IP_DROP_SOURCE_MEMBERSHIP, &single, sizeof(single)) == 0);
	case_pass();
}
