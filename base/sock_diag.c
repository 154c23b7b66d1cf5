#include "base/sock_diag.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"

/* The kernel puts at most this much of a dump into one datagram (netlink_dump()). */
enum { DATAGRAM_MAX = 32768 };

static int diag_send_request(int sock, const void *request, size_t len, uint16_t flags)
{
	struct nlmsghdr header = {.nlmsg_len = (uint32_t)NLMSG_LENGTH(len),
				  .nlmsg_type = SOCK_DIAG_BY_FAMILY,
				  .nlmsg_flags = NLM_F_REQUEST | flags};
	struct iovec parts[] = {{&header, sizeof(header)}, {(void *)(uintptr_t)request, len}};

	return writev(sock, parts, 2) < 0 ? -errno : 0;
}

/* One datagram of the reply. *more: another follows. */
static int take_datagram(const char *data, size_t len, bool *more, sock_diag_fn fn, void *arg)
{
	const struct nlmsghdr *header = (const void *)data;

	*more = false;
	for (; NLMSG_OK(header, len); header = NLMSG_NEXT(header, len)) {
		int r;

		*more = header->nlmsg_flags & NLM_F_MULTI && header->nlmsg_type != NLMSG_DONE;
		if (header->nlmsg_type == NLMSG_DONE)
			return 0;
		if (header->nlmsg_type == NLMSG_ERROR)
			return ((const struct nlmsgerr *)NLMSG_DATA(header))->error ?: -EPROTO;
		r = fn(arg, header);
		if (r != 0)
			return r;
	}
	return 0;
}

int sock_diag_query(const void *request, size_t len, uint16_t flags, sock_diag_fn fn, void *arg)
{
	auto_close int sock = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	_Alignas(struct nlmsghdr) char data[DATAGRAM_MAX];
	bool more = true;
	int r = sock < 0 ? -errno : diag_send_request(sock, request, len, flags);

	while (r == 0 && more) {
		ssize_t n = recv(sock, data, sizeof(data), MSG_TRUNC);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0 || (size_t)n > sizeof(data))
			return n < 0 ? -errno : -EPROTO;
		r = take_datagram(data, (size_t)n, &more, fn, arg);
	}
	return r;
}
