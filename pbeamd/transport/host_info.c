/* The description of this host that its peers receive twice a second. */
#include "pbeamd/transport/host_info.h"

#include <arpa/inet.h>
#include <cpuid.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/host_memory.h"
#include "base/io.h"
#include "image/hash.h"
#include "pbeamd/transport/cluster.h"
#include "proto/message.h"

static uint32_t host_info_count_processors(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		return (uint32_t)CPU_COUNT(&set);
	return (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
}

/* The state components that the kernel has enabled, 0 without XSAVE. */
static uint64_t host_info_read_xcr0(void)
{
	unsigned a, b, c, d;
	uint32_t low, high;

	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
		return 0;
	__asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (uint64_t)high << 32 | low;
}

/* Hosts whose kernels have the same vdso can exchange processes. */
static int digest_vdso(Pbeam__HostInfo *info)
{
	unsigned long base = getauxval(AT_SYSINFO_EHDR), from, to;
	auto_free char *maps = NULL;
	const char *line;
	XXH128_hash_t hash;

	if (!base || io_slurp(AT_FDCWD, "/proc/self/maps", 1 << 20, &maps, NULL) < 0)
		return 0;
	line = strstr(maps, "[vdso]");
	while (line && line > maps && line[-1] != '\n')
		line--;
	if (!line || sscanf(line, "%lx-%lx", &from, &to) != 2 || from != base)
		return 0;
	hash = XXH3_128bits((const void *)from, to - from);
	return message_bytes(&info->vdso_digest, &hash, sizeof(hash));
}

static int add_addresses(Pbeam__HostInfo *info)
{
	struct ifaddrs *all;
	int r = 0;

	if (getifaddrs(&all) < 0)
		return 0;
	for (const struct ifaddrs *a = all; a && r == 0; a = a->ifa_next) {
		char text[INET6_ADDRSTRLEN + IF_NAMESIZE + 2];
		int family = a->ifa_addr ? a->ifa_addr->sa_family : AF_UNSPEC;
		socklen_t len = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

		if ((family != AF_INET && family != AF_INET6) || a->ifa_flags & IFF_LOOPBACK ||
		    getnameinfo(a->ifa_addr, len, text, sizeof(text), NULL, 0, NI_NUMERICHOST) != 0)
			continue;
		r = message_append_string(&info->addresses, &info->n_addresses, text);
	}
	freeifaddrs(all);
	return r;
}

void host_info_refresh(const struct cluster *cluster, Pbeam__HostInfo *info)
{
	struct host_memory size;
	double load;
	int n = names_process_count(cluster->server->names, (struct rpid){0});

	if (getloadavg(&load, 1) == 1)
		info->load = load;
	host_memory_size("/proc", &size);
	info->memory_total = size.total;
	info->memory_free = size.available;
	cluster->calls->refresh(cluster, info);
	if (n >= 0)
		info->processes = (uint32_t)n;
	info->seen_ns = io_now_ns(CLOCK_REALTIME);
}

/* Sets the address of --listen, at which other hosts reach this one. A wildcard is left out: the other
 * hosts see the address that this host connects from. */
static int host_info_set_address(const struct cluster *cluster, Pbeam__HostInfo *info)
{
	struct sockaddr_storage bound;
	socklen_t len = sizeof(bound);
	char host[INET6_ADDRSTRLEN + IF_NAMESIZE + 2], port[8];

	if (cluster->listener < 0)
		return 0;
	if (channel_address_is_unix(cluster->options->listen))
		return message_string(&info->address, cluster->options->listen);
	if (getsockname(cluster->listener, (struct sockaddr *)&bound, &len) < 0 ||
	    getnameinfo((struct sockaddr *)&bound, len, host, sizeof(host), port, sizeof(port),
			NI_NUMERICHOST | NI_NUMERICSERV) != 0)
		return 0;
	info->port = (uint32_t)atoi(port);
	if (!strcmp(host, "0.0.0.0") || !strcmp(host, "::"))
		return 0;
	return message_string(&info->address, host);
}

Pbeam__HostInfo *host_info_new(const struct cluster *cluster)
{
	Pbeam__HostInfo *info = message_new(&pbeam__host_info__descriptor);
	struct utsname name;

	if (!info)
		return NULL;
	uname(&name);
	info->central = cluster->central;
	info->processors = host_info_count_processors();
	info->xcr0 = host_info_read_xcr0();
	if (message_string(&info->name, cluster->options->name) < 0 ||
	    message_string(&info->kernel, name.release) < 0 ||
	    message_string(&info->machine, name.machine) < 0 ||
	    message_string(&info->version, PBEAM_VERSION) < 0 ||
	    message_bytes(&info->instance, cluster->instance, sizeof(cluster->instance)) < 0 ||
	    host_info_set_address(cluster, info) < 0 || cluster->calls->describe(cluster, info) < 0 ||
	    digest_vdso(info) < 0 || add_addresses(info) < 0) {
		message_free(info);
		return NULL;
	}
	host_info_refresh(cluster, info);
	return info;
}
